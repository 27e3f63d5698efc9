"""From a credential to a principal, without asking the database what the last request asked."""

import hmac
from dataclasses import dataclass, field
from hashlib import blake2s
from secrets import token_bytes
from typing import NamedTuple, Protocol

from cachetools import TTLCache

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_gateway.access.rate_limit import RateLimiter

CAPACITY = 100_000
RECORDED_SECONDS = 60.0
"""How often the log says that one API key was shown from where it may not be used: whoever has
copied it could fill the log otherwise."""


@dataclass(frozen=True, slots=True)
class Found:
    """Whose API key it is, and for how long it is accepted (seconds since 1970; None: always)."""

    principal: ApiKeyPrincipal
    accepted_until: float | None = None


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A principal, the number of changes when it was looked up, and the credential's digest."""

    principal: ApiKeyPrincipal
    as_of: int
    digest: bytes = field(repr=False)


class _Known(NamedTuple):
    """What a look-up found, until when it is accepted, and until when it may be remembered."""

    shown: Authenticated
    accepted_until: float | None
    until: float


class AddressNotAllowedError(Exception):
    """An API key was shown from an address that it may not be used from."""

    def __init__(self, principal: ApiKeyPrincipal, *, is_recorded: bool) -> None:
        """Take whose API key it is, and whether the audit log already says so."""
        super().__init__()
        self.principal = principal
        self.is_recorded = is_recorded


class ApiKeyDirectory(Protocol):
    """Where API keys are looked up."""

    async def find(self, digest: bytes) -> Found | None:
        """Return whose API key has this digest, unless it was never there or is revoked."""
        ...


class OperatorDirectory(Protocol):
    """Where operators are looked up, whenever they show their credential."""

    async def find(self, digest: bytes) -> str | None:
        """Return the name of the operator whose credential has this digest."""
        ...


class Authenticator:
    """Knows principals by a fingerprint of what they show.

    That takes less than the digest by which they are stored, and is of no use outside this process.

    Whoever uses what it remembers compares the number of changes, and has it forget what is out
    of date: the rate limit's windows carry that number, so this costs no question of its own. Where
    somebody else could keep that number, nothing is remembered for longer than ``cache_seconds``.
    """

    def __init__(
        self,
        directory: ApiKeyDirectory,
        operators: OperatorDirectory,
        lookups: CredentialLookups,
        rate_limiter: RateLimiter,
        pepper: Pepper,
        operator: bytes | None,
        last_uses: LastUses,
        clock: Clock,
    ) -> None:
        """Take the digest of the credential of the operator without a name (32 bytes), if any."""
        self._directory = directory
        self._operators = operators
        self._lookups = lookups
        self._rate_limiter = rate_limiter
        self._pepper = pepper
        self._operator = operator
        self._last_uses = last_uses
        self._clock = clock
        self._fingerprint_key = token_bytes(32)
        self._known: dict[bytes, _Known] = {}
        """The oldest first."""
        self._recorded: TTLCache[bytes, None] = TTLCache(CAPACITY, RECORDED_SECONDS, clock)

    async def authenticate(
        self, credential: str, source_address: str, *, is_known: bool = True
    ) -> Authenticated | OperatorPrincipal | None:
        """Return who shows this credential; None for nobody we know.

        ``is_known``: whether the address is the client's, and not that of a proxy which hides it.

        Raises TooManyUnknownCredentialsError, AddressNotAllowedError.
        """
        fingerprint = self._fingerprint(credential)
        known = self._known.get(fingerprint)
        if known is None or known.until <= self._clock():
            digest = self._pepper.digest(credential)
            match kind_of(credential):
                case CredentialKind.OPERATOR:
                    return await self._operator_with(digest, source_address)
                case CredentialKind.API_KEY:
                    known = await self._lookups.find(digest, source_address, self._look_up)
                case _:
                    return None
            if known is None:
                return None
            self._remember(fingerprint, known)
        if known.accepted_until is not None and known.accepted_until <= self._clock():
            return None
        principal, digest = known.shown.principal, known.shown.digest
        addresses = principal.limits.addresses
        if addresses is not None and not (is_known and source_address in addresses):
            is_recorded = digest in self._recorded
            if not is_recorded:  # else its minute would begin anew with each attempt
                self._recorded[digest] = None
            raise AddressNotAllowedError(principal, is_recorded=is_recorded)
        return known.shown

    def forget(self, credential: str) -> None:
        """Look a credential up again: something has changed."""
        self._known.pop(self._fingerprint(credential), None)

    def _fingerprint(self, credential: str) -> bytes:
        sent = credential.encode("utf-8", "surrogatepass")
        return blake2s(sent, key=self._fingerprint_key).digest()

    def _remember(self, fingerprint: bytes, known: _Known) -> None:
        if len(self._known) >= CAPACITY and fingerprint not in self._known:
            del self._known[next(iter(self._known))]
        self._known[fingerprint] = known

    async def _operator_with(self, digest: bytes, source_address: str) -> OperatorPrincipal | None:
        if self._operator is not None and hmac.compare_digest(digest, self._operator):
            return OperatorPrincipal()
        name = await self._lookups.find(digest, source_address, self._operators.find)
        if name is None:
            return None
        self._last_uses.note(digest, source_address)
        return OperatorPrincipal(name)

    async def _look_up(self, digest: bytes) -> _Known | None:
        until = self._clock() + self._rate_limiter.cache_seconds
        as_of = await self._rate_limiter.changes()  # before the database is asked, never after
        found = await self._directory.find(digest)
        if found is None:
            return None
        return _Known(Authenticated(found.principal, as_of, digest), found.accepted_until, until)
