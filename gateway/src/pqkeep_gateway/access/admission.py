"""Admits requests: a known credential, within its rate limit, of a tenant that is not suspended.

The checks run in this order because each request of a suspended tenant is recorded, and the rate
limit bounds the number of records.

API keys are cached. Sessions are looked up in each request, so a sign-out or a change of role takes
effect at once.
"""

import hmac
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2s
from secrets import token_bytes
from typing import NamedTuple

from cachetools import LRUCache, TTLCache

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.principals import (
    ApiKeyPrincipal,
    OperatorPrincipal,
    SessionPrincipal,
    TenantPrincipal,
)
from pqkeep_gateway.access.rate_limit import (
    MINUTE,
    NEAR,
    ChangedError,
    Closeness,
    Limit,
    RateLimiter,
    Usage,
)
from pqkeep_gateway.shards import Departures
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import TenantId

CAPACITY = 100_000
RECORDED_SECONDS = 60.0
"""The log records an API key from a forbidden address at most once in this time. Without the limit,
the holder of a copied key could fill the log."""


@dataclass(frozen=True, slots=True)
class Found:
    """An API key's principal and its end (seconds since 1970; None: no end)."""

    principal: ApiKeyPrincipal
    accepted_until: float | None = None


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A principal, the change counter at its look-up, and the credential's digest."""

    principal: ApiKeyPrincipal
    as_of: int
    digest: bytes = field(repr=False)
    accepted_until: float = math.inf
    """The end of the credential's validity (seconds since 1970)."""
    remembered_until: float = field(default=math.inf, compare=False)


class AddressNotAllowedError(Exception):
    """An API key was used from an address outside its allowed addresses."""

    def __init__(self, principal: ApiKeyPrincipal, *, is_recorded: bool) -> None:
        """Take the API key's principal, and whether the audit log already has this."""
        super().__init__()
        self.principal = principal
        self.is_recorded = is_recorded


FindApiKey = Callable[[bytes], Awaitable[Found | None]]
"""Returns the API key with a digest (32 bytes); None if it is unknown or revoked."""
FindOperator = Callable[[bytes], Awaitable[OperatorPrincipal | None]]
"""Returns the named operator with a credential digest (32 bytes)."""


class Authenticator:
    """Caches principals by a keyed fingerprint of their credentials.

    A fingerprint is cheaper than the stored digest, and is useless outside this process.

    The caller compares the change counter, and calls ``forget`` for an outdated entry. The rate
    limiter returns the counter with each window, so the comparison needs no extra call. Entries
    expire after ``cache_seconds`` where another process could keep the counter unchanged.
    """

    def __init__(
        self,
        find_api_key: Mapping[CredentialKind, FindApiKey],
        find_operator: FindOperator,
        lookups: CredentialLookups,
        rate_limiter: RateLimiter,
        pepper: Pepper,
        operator: bytes | None,
        last_uses: LastUses,
        clock: Clock,
    ) -> None:
        """Take the credential digest (32 bytes) of the operator without a name, if any."""
        self._find_api_key = find_api_key
        self._find_operator = find_operator
        self._lookups = lookups
        self._rate_limiter = rate_limiter
        self._pepper = pepper
        self._operator = operator
        self._last_uses = last_uses
        self._clock = clock
        self._fingerprint_key = token_bytes(32)
        self._known: dict[bytes, Authenticated] = {}
        """The cached principals by fingerprint, the oldest entry first."""
        self._recorded: TTLCache[bytes, None] = TTLCache(CAPACITY, RECORDED_SECONDS, clock)

    async def authenticate(
        self, credential: str, source_address: str, *, is_known: bool = True
    ) -> Authenticated | OperatorPrincipal | None:
        """Return the principal of this credential; None for an unknown credential.

        ``is_known``: False where the address belongs to a proxy that hides the client.

        Raises TooManyUnknownCredentialsError, AddressNotAllowedError.
        """
        shown = self.recall(credential, self._clock()) or await self.look_up(
            credential, source_address
        )
        if not isinstance(shown, Authenticated):
            return shown
        is_accepted = self.accepts(shown, source_address, self._clock(), is_known=is_known)
        return shown if is_accepted else None

    def recall(self, credential: str, now: float) -> Authenticated | None:
        """Return the cached principal of a credential, without checking it."""
        known = self._known.get(self._fingerprint(credential))
        return None if known is None or known.remembered_until <= now else known

    async def look_up(
        self, credential: str, source_address: str
    ) -> Authenticated | OperatorPrincipal | None:
        """Look a credential up, without checking it; None for an unknown credential.

        A tenant that is moving to another shard is not cached: its placement is read in each
        request. Raises TooManyUnknownCredentialsError.
        """
        digest = self._pepper.digest(credential)
        match kind_of(credential):
            case CredentialKind.OPERATOR:
                return await self._operator_with(digest, source_address)
            case CredentialKind.API_KEY | CredentialKind.WORKLOAD as kind:
                look_up = partial(self._look_up, self._find_api_key[kind])
            case _:
                return None
        known = await self._lookups.find(digest, source_address, look_up)
        if known is not None and not known.principal.placement.is_moving:
            self._remember(self._fingerprint(credential), known)
        return known

    def accepts(
        self, shown: Authenticated, source_address: str, now: float, *, is_known: bool
    ) -> bool:
        """Return whether a credential is accepted now; False once it has expired.

        Raises AddressNotAllowedError.
        """
        if shown.accepted_until <= now:
            return False
        addresses = shown.principal.limits.addresses
        if addresses is not None and not (is_known and source_address in addresses):
            is_recorded = shown.digest in self._recorded
            if not is_recorded:  # an attempt must not extend the entry's minute
                self._recorded[shown.digest] = None
            raise AddressNotAllowedError(shown.principal, is_recorded=is_recorded)
        return True

    def forget(self, credential: str) -> None:
        """Drop a changed credential from the cache."""
        self._known.pop(self._fingerprint(credential), None)

    def _fingerprint(self, credential: str) -> bytes:
        sent = credential.encode("utf-8", "surrogatepass")
        return blake2s(sent, key=self._fingerprint_key).digest()

    def _remember(self, fingerprint: bytes, known: Authenticated) -> None:
        if len(self._known) >= CAPACITY and fingerprint not in self._known:
            del self._known[next(iter(self._known))]
        self._known[fingerprint] = known

    async def _operator_with(self, digest: bytes, source_address: str) -> OperatorPrincipal | None:
        if self._operator is not None and hmac.compare_digest(digest, self._operator):
            return OperatorPrincipal()
        found = await self._lookups.find(digest, source_address, self._find_operator)
        if found is not None:
            self._last_uses.note(digest, source_address, self._clock())
        return found

    async def _look_up(self, find: FindApiKey, digest: bytes) -> Authenticated | None:
        until = self._clock() + self._rate_limiter.cache_seconds
        as_of = (
            await self._rate_limiter.changes()
        )  # before the look-up, to notice changes during it
        found = await find(digest)
        if found is None:
            return None
        accepted_until = math.inf if found.accepted_until is None else found.accepted_until
        return Authenticated(found.principal, as_of, digest, accepted_until, until)


PEOPLE_SHARE = 60
"""Requests of a tenant's rate limit that are reserved for people, if the tenant has members; at
most a quarter of the limit."""
ENDING_PART = 5
"""The divisor for the part of that reserve which only ENDS_ACCESS operations may use."""
ENDS_ACCESS: frozenset[GatewayOperation] = frozenset(
    {
        AuditEvent.REVOKE_API_KEY,
        AuditEvent.END_SESSION,
        AuditEvent.LOGOUT,
        AuditEvent.REMOVE_MEMBER,
        AuditEvent.WITHDRAW_INVITATION,
        AuditEvent.STEP_UP,
        Operation.DISABLE_KEY,
        Operation.RETIRE_KEY,
        Operation.UPDATE_KEYRING,
    }
)
"""Operations that help against an abuse of the rate limit, and the step-up that they require."""
MOST_BUSY = 5
"""The number of API keys that are named."""
REMEMBERED_TENANTS = 100_000


class UnknownCredentialError(Exception):
    """The credential is unknown."""


class SuspendedError(Exception):
    """The tenant is suspended."""

    def __init__(self, principal: TenantPrincipal, usage: Usage) -> None:
        """Take the principal and the state of its rate limit."""
        super().__init__()
        self.principal = principal
        self.usage = usage


class RateLimitedError(Exception):
    """The tenant has used up its rate limit."""

    def __init__(self, limit: Limit, wait: float, busiest: "Busy | None" = None) -> None:
        """Take the limit, and the seconds until the next request is admitted.

        ``busiest``: for a person, the API key that sent the most requests.
        """
        super().__init__()
        self.limit = limit
        self.wait = wait
        self.busiest = busiest


class Busy(NamedTuple):
    """The requests of an API key to this gateway, in this minute and the previous one."""

    api_key_version: int
    """0: of all workloads with the role of this name."""
    name: str | None
    requests: int


class Admitted(NamedTuple):
    """The principal and the state of its rate limit; an operator has no rate limit."""

    principal: ApiKeyPrincipal | SessionPrincipal | OperatorPrincipal
    usage: Usage | None


class BatchOverLimitError(Exception):
    """A batch has more items than the rate limit's window can hold."""

    def __init__(self, limit: Limit) -> None:
        """Take the limit."""
        super().__init__()
        self.limit = limit


FindSession = Callable[[str, str], Awaitable[SessionPrincipal | None]]
"""Takes an access token and a source address; returns the session's person.

Raises TooManyUnknownCredentialsError, UnavailableError.
"""
FindOperatorSession = Callable[[str, str], Awaitable[OperatorPrincipal | None]]
"""Takes a session token and a source address; returns the operator.

Raises TooManyUnknownCredentialsError, UnavailableError.
"""


class Admission:
    """Admits requests. Every admitted request counts, even if it fails later."""

    def __init__(
        self,
        authenticator: Authenticator,
        rate_limiter: RateLimiter,
        requests_per_minute: Mapping[Tier, int],
        find_session: FindSession,
        find_operator_session: FindOperatorSession,
        last_uses: LastUses,
        departures: Departures | None = None,
        *,
        clock: Clock,
    ) -> None:
        """Take the rate limit of each tier; operators have no limit.

        ``departures``: the tenants that move between shards, if there are several shards.
        """
        self._authenticator = authenticator
        self._rate_limiter = rate_limiter
        self._find_session = find_session
        self._find_operator_session = find_operator_session
        self._last_uses = last_uses
        self._departures = departures
        self._clock = clock
        self._limits = {tier: Limit(many, MINUTE) for tier, many in requests_per_minute.items()}
        self._with_people: LRUCache[TenantId, None] = LRUCache(REMEMBERED_TENANTS)
        """Tenants with signed-in people in this gateway. It may be newer than an API key's cached
        look-up."""
        self._with_people_as_of = 1
        """Increases with each added event, so that cached limits are calculated again."""
        self._sent = _Sent(clock)
        self._used_up: set[TenantId] = set()
        """The tenants with a used-up rate limit since the last ``take_used_up``."""
        self.closeness = Counter(dict.fromkeys(map(str, Closeness), 0))
        """Requests near their tenant's rate limit, and requests refused by it, by Closeness."""

    async def admit(
        self, credential: str, source_address: str, *, is_known: bool = True
    ) -> Admitted:
        """Return the caller. ``is_known``: whether the address is the client's.

        Raises UnknownCredentialError, TooManyUnknownCredentialsError, AddressNotAllowedError,
        SuspendedError, RateLimitedError; UnavailableError if storage or the counts are unavailable.
        """
        while True:
            recalled = self._recall(credential, self._clock())
            shown = recalled or await self._authenticator.look_up(credential, source_address)
            if shown is None:
                raise UnknownCredentialError
            if isinstance(shown, OperatorPrincipal):
                return Admitted(shown, None)
            as_of = None if recalled is None else recalled.as_of  # a new look-up is current
            now = self._clock()
            if not self._authenticator.accepts(shown, source_address, now, is_known=is_known):
                raise UnknownCredentialError
            limit = self._share_of(shown.principal)
            subject = shown.principal.decided.subject
            try:
                usage = await self._rate_limiter.count(subject, limit, as_of)
            except ChangedError:
                self._authenticator.forget(credential)
            else:
                return self._counted(shown, usage, source_address, now)

    def recall(
        self, credential: str, source_address: str, *, is_known: bool = True
    ) -> Admitted | None:
        """Return the caller from memory; None: nothing was counted, and ``admit`` must decide.

        Raises the errors of ``admit``, except UnavailableError.
        """
        now = self._clock()
        shown = self._recall(credential, now)
        if shown is None:
            return None
        if not self._authenticator.accepts(shown, source_address, now, is_known=is_known):
            raise UnknownCredentialError
        limit = self._share_of(shown.principal)
        subject = shown.principal.decided.subject
        try:
            usage = self._rate_limiter.count_now(subject, limit, shown.as_of, now)
        except ChangedError:
            self._authenticator.forget(credential)
            return None
        return None if usage is None else self._counted(shown, usage, source_address, now)

    def _recall(self, credential: str, now: float) -> Authenticated | None:
        """Return the cached credential, unless its tenant has left its shard since."""
        shown = self._authenticator.recall(credential, now)
        if (
            shown is not None
            and self._departures is not None
            and not self._departures.is_current(shown.principal.tenant, shown.principal.placement)
        ):
            self._authenticator.forget(credential)
            return None
        return shown

    def _counted(
        self, shown: Authenticated, usage: Usage, source_address: str, now: float
    ) -> Admitted:
        """Record an API key's counted request, and admit or refuse it."""
        principal = shown.principal
        self._sent.add(principal, now)
        self._note_closeness(usage)
        if usage.is_refused:
            self._used_up.add(principal.tenant)
            raise RateLimitedError(usage.limit, usage.reset)
        if principal.suspended:
            raise SuspendedError(principal, usage)
        self._last_uses.note(shown.digest, source_address, now)
        return Admitted(principal, usage)

    async def admit_session(
        self, access_token: str, source_address: str, *, ends_access: bool = False
    ) -> Admitted:
        """Return the signed-in person. ``ends_access``: True for an operation in ENDS_ACCESS.

        Raises the errors of ``admit``.
        """
        principal = await self._find_session(access_token, source_address)
        if principal is None:
            raise UnknownCredentialError
        if principal.tenant not in self._with_people:
            self._with_people_as_of += 1
        self._with_people[principal.tenant] = None
        limit = self._share_of_people(principal, ends_access=ends_access)
        usage = await self._rate_limiter.count(str(principal.tenant), limit)
        self._note_closeness(usage)
        if usage.is_refused:
            self._used_up.add(principal.tenant)
            busiest = self.busiest(principal.tenant)
            raise RateLimitedError(limit, usage.reset, busiest[0] if busiest else None)
        if principal.suspended:
            raise SuspendedError(principal, usage)
        return Admitted(principal, usage)

    async def admit_operator_session(self, token: str, source_address: str) -> Admitted:
        """Return the signed-in operator. Raises the errors of ``admit``."""
        principal = await self._find_operator_session(token, source_address)
        if principal is None:
            raise UnknownCredentialError
        return Admitted(principal, None)

    async def count_items(self, principal: TenantPrincipal, items: int) -> Usage | None:
        """Count all items of a batch or none. The first item is the request, already counted.

        Raises RateLimitedError, BatchOverLimitError, UnavailableError.
        """
        if items == 1:
            return None
        if isinstance(principal, ApiKeyPrincipal):
            limit = self._share_of(principal)
        else:
            limit = self._share_of_people(principal)
        if items > limit.events:
            raise BatchOverLimitError(limit)
        usage = await self._rate_limiter.count(str(principal.tenant), limit, events=items - 1)
        self._note_closeness(usage)
        if usage.is_refused:
            raise RateLimitedError(limit, usage.reset)
        return usage

    def _note_closeness(self, usage: Usage) -> None:
        if usage.is_refused:
            self.closeness[Closeness.REACHED] += 1
        elif usage.limit.events - usage.remaining >= NEAR * usage.limit.events:
            self.closeness[Closeness.NEAR] += 1

    def busiest(self, tenant: TenantId) -> Sequence[Busy]:
        """Return the tenant's API keys with the most requests (refused ones included) first."""
        return self._sent.of(tenant)

    def take_used_up(self) -> Mapping[TenantId, Busy | None]:
        """Return tenants that used up their rate limit since the last call, with an API key."""
        tenants, self._used_up = self._used_up, set()
        return {
            tenant: busiest[0] if (busiest := self.busiest(tenant)) else None for tenant in tenants
        }

    def _share_of(self, principal: ApiKeyPrincipal) -> Limit:
        """Return the limit of the tenant's API keys: without the reserve for people.

        All requests of a tenant count in one window.
        """
        decided = principal.decided
        if decided.limit is not None and decided.limit_as_of == self._with_people_as_of:
            return decided.limit
        limit = self.limit_of(principal.entitlements)
        if principal.has_people or principal.tenant in self._with_people:
            limit = Limit(limit.events - _people_share(limit), limit.seconds)
        decided.limit, decided.limit_as_of = limit, self._with_people_as_of
        decided.subject = str(principal.tenant)
        return limit

    def _share_of_people(self, principal: SessionPrincipal, *, ends_access: bool = False) -> Limit:
        """Return the limit of the tenant's people: without the ENDS_ACCESS reserve."""
        limit = self.limit_of(principal.entitlements)
        left = 0 if ends_access else _people_share(limit) // ENDING_PART
        return Limit(limit.events - left, limit.seconds)

    def limit_of(self, entitlements: Entitlements) -> Limit:
        """Return the rate limit of a tenant with these entitlements."""
        if entitlements.requests_per_minute is not None:
            return Limit(entitlements.requests_per_minute, MINUTE)
        return self._limits[entitlements.effective_tier]


def _people_share(limit: Limit) -> int:
    return min(PEOPLE_SHARE, limit.events // 4)


class _Sent:
    """Counts the requests of API keys by the minute, in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute = 0
        self._now: dict[int, Counter[tuple[int, str | None]]] = {}
        """By the tenant's number: Python computes the hash of a UUID in a slow Python function."""
        self._before = self._now

    def add(self, principal: ApiKeyPrincipal, now: float) -> None:
        if int(now) // MINUTE != self._minute:
            self._turn(now)
        counts = self._now.get(principal.tenant.int)
        if counts is None:
            counts = self._now[principal.tenant.int] = Counter()
        counts[principal.api_key_version, principal.workload or principal.name] += 1

    def of(self, tenant: TenantId) -> Sequence[Busy]:
        self._turn(self._clock())
        none: Counter[tuple[int, str | None]] = Counter()
        counts = self._now.get(tenant.int, none) + self._before.get(tenant.int, none)
        return [Busy(*key, requests) for key, requests in counts.most_common(MOST_BUSY)]

    def _turn(self, now: float) -> None:
        minute = int(now) // MINUTE
        if minute != self._minute:
            self._before = self._now if minute == self._minute + 1 else {}
            self._now, self._minute = {}, minute
