"""Who may come in: known, not too often, and not suspended.

In this order: that a tenant is suspended is recorded, and the rate limit bounds how often.

Programs are remembered; what people show is looked up each time, so that whoever signs out, or
gets another role, need not be announced.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pqkeep_gateway.access.authentication import Authenticated, Authenticator
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.principals import (
    ApiKeyPrincipal,
    OperatorPrincipal,
    SessionPrincipal,
    TenantPrincipal,
)
from pqkeep_gateway.access.rate_limit import MINUTE, ChangedError, Limit, RateLimiter, Usage
from pqkeep_gateway.shards import Departures, admit


class UnknownCredentialError(Exception):
    """Nobody we know shows it."""


class SuspendedError(Exception):
    """The tenant is known, and allowed nothing."""

    def __init__(self, principal: TenantPrincipal, usage: Usage) -> None:
        """Carry who it was, and what there is of its rate limit."""
        super().__init__()
        self.principal = principal
        self.usage = usage


class RateLimitedError(Exception):
    """The tenant has used its rate limit up."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until a request would be admitted."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class Admitted(NamedTuple):
    """Who is asking, and what there is of their rate limit; the operator has none."""

    principal: ApiKeyPrincipal | SessionPrincipal | OperatorPrincipal
    usage: Usage | None


class BatchOverLimitError(Exception):
    """A batch has more items than the tenant's rate limit lets happen in its whole time."""

    def __init__(self, limit: Limit) -> None:
        """Carry the limit."""
        super().__init__()
        self.limit = limit


class SessionDirectory(Protocol):
    """Where sessions are looked up."""

    async def find(self, access_token: str, source_address: str) -> SessionPrincipal | None:
        """Return whose session an access token opens.

        Raises TooManyUnknownCredentialsError, UnavailableError.
        """
        ...


class OperatorSessionDirectory(Protocol):
    """Where sessions of operators are looked up."""

    async def find(self, token: str, source_address: str) -> OperatorPrincipal | None:
        """Return whose session a token opens.

        Raises TooManyUnknownCredentialsError, UnavailableError.
        """
        ...


class Admission:
    """Admits requests. Every one that is admitted counts, whatever becomes of it."""

    def __init__(
        self,
        authenticator: Authenticator,
        rate_limiter: RateLimiter,
        requests_per_minute: Mapping[Tier, int],
        sessions: SessionDirectory,
        operator_sessions: OperatorSessionDirectory,
        last_uses: LastUses,
        departures: Departures | None = None,
    ) -> None:
        """Take the tiers' rate limits; the operator has none."""
        self._authenticator = authenticator
        self._rate_limiter = rate_limiter
        self._sessions = sessions
        self._operator_sessions = operator_sessions
        self._last_uses = last_uses
        self._departures = departures or Departures()
        self._limits = {tier: Limit(many, MINUTE) for tier, many in requests_per_minute.items()}

    async def admit(
        self, credential: str, source_address: str, *, is_known: bool = True
    ) -> Admitted:
        """Return who is asking. ``is_known``: whether the address is the client's.

        Raises UnknownCredentialError, TooManyUnknownCredentialsError, AddressNotAllowedError,
        SuspendedError, RateLimitedError; UnavailableError where that cannot be told.
        """
        while True:
            shown = await self._authenticate(credential, source_address, is_known=is_known)
            if shown is None:
                raise UnknownCredentialError
            if isinstance(shown, OperatorPrincipal):
                return Admitted(shown, None)
            try:
                admitted = await self._count(shown.principal, shown.as_of)
            except ChangedError:
                self._authenticator.forget(credential)
            else:
                self._last_uses.note(shown.digest, source_address)
                return admitted

    async def _authenticate(
        self, credential: str, source_address: str, *, is_known: bool
    ) -> Authenticated | OperatorPrincipal | None:
        """Return who shows a credential, of a tenant on its way elsewhere as the database has it."""
        authenticate = self._authenticator.authenticate
        shown = await authenticate(credential, source_address, is_known=is_known)
        if isinstance(shown, Authenticated):
            principal = shown.principal
            if not self._departures.is_current(principal.tenant, principal.placement):
                self._authenticator.forget(credential)
                return await authenticate(credential, source_address, is_known=is_known)
        return shown

    async def admit_session(self, access_token: str, source_address: str) -> Admitted:
        """Return who is signed in. Raises what ``admit`` raises."""
        principal = await self._sessions.find(access_token, source_address)
        if principal is None:
            raise UnknownCredentialError
        return await self._count(principal)

    async def admit_operator_session(self, token: str, source_address: str) -> Admitted:
        """Return which operator has signed in. Raises what ``admit`` raises."""
        principal = await self._operator_sessions.find(token, source_address)
        if principal is None:
            raise UnknownCredentialError
        return Admitted(principal, None)

    async def _count(self, principal: TenantPrincipal, as_of: int | None = None) -> Admitted:
        limit = self.limit_of(principal.entitlements)
        usage = await self._rate_limiter.count(str(principal.tenant), limit, as_of)
        admit(principal.tenant, principal.placement)
        if usage.is_refused:
            raise RateLimitedError(limit, usage.reset)
        if principal.suspended:
            raise SuspendedError(principal, usage)
        return Admitted(principal, usage)

    async def count_items(self, principal: TenantPrincipal, items: int) -> Usage | None:
        """Count the items of a batch, all or none; the first is the request, which was counted.

        Raises RateLimitedError, BatchOverLimitError, UnavailableError.
        """
        if items == 1:
            return None
        limit = self.limit_of(principal.entitlements)
        if items > limit.events:
            raise BatchOverLimitError(limit)
        usage = await self._rate_limiter.count(str(principal.tenant), limit, events=items - 1)
        if usage.is_refused:
            raise RateLimitedError(limit, usage.reset)
        return usage

    def limit_of(self, entitlements: Entitlements) -> Limit:
        """Return the rate limit of a tenant with these entitlements."""
        if entitlements.requests_per_minute is not None:
            return Limit(entitlements.requests_per_minute, MINUTE)
        return self._limits[entitlements.effective_tier]
