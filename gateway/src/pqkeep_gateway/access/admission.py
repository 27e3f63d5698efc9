"""Who may come in: known, not too often, and not suspended.

In this order: that a tenant is suspended is recorded, and the rate limit bounds how often.

Programs are remembered; what people show is looked up each time, so that whoever signs out, or
gets another role, need not be announced.
"""

from collections.abc import Mapping
from typing import Protocol

from pqkeep_gateway.access.authentication import Authenticated, Authenticator
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import (
    ApiKeyPrincipal,
    OperatorPrincipal,
    SessionPrincipal,
    TenantPrincipal,
)
from pqkeep_gateway.access.rate_limit import MINUTE, ChangedError, Limit, RateLimiter


class UnknownCredentialError(Exception):
    """Nobody we know shows it."""


class SuspendedError(Exception):
    """The tenant is known, and allowed nothing."""

    def __init__(self, principal: TenantPrincipal) -> None:
        """Carry who it was."""
        super().__init__()
        self.principal = principal


class RateLimitedError(Exception):
    """The tenant has used its rate limit up."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until a request would be admitted."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class SessionDirectory(Protocol):
    """Where sessions are looked up."""

    async def find(self, access_token: str, source_address: str) -> SessionPrincipal | None:
        """Return whose session an access token opens.

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
    ) -> None:
        """Take the tiers' rate limits; the operator has none."""
        self._authenticator = authenticator
        self._rate_limiter = rate_limiter
        self._sessions = sessions
        self._limits = {tier: Limit(many, MINUTE) for tier, many in requests_per_minute.items()}

    async def admit(
        self, credential: str, source_address: str
    ) -> ApiKeyPrincipal | OperatorPrincipal:
        """Return who is asking.

        Raises UnknownCredentialError, TooManyUnknownCredentialsError, SuspendedError,
        RateLimitedError; UnavailableError where that cannot be told.
        """
        while True:
            shown = await self._authenticator.authenticate(credential, source_address)
            if shown is None:
                raise UnknownCredentialError
            if isinstance(shown, OperatorPrincipal):
                return shown
            try:
                await self._count(shown)
            except ChangedError:
                self._authenticator.forget(credential)
                continue
            return shown.principal

    async def admit_session(self, access_token: str, source_address: str) -> SessionPrincipal:
        """Return who is signed in. Raises what ``admit`` raises."""
        principal = await self._sessions.find(access_token, source_address)
        if principal is None:
            raise UnknownCredentialError
        await self._enter(principal)
        if principal.suspended:
            raise SuspendedError(principal)
        return principal

    async def _count(self, shown: Authenticated) -> None:
        principal = shown.principal
        await self._enter(principal, shown.as_of)
        if principal.suspended:
            raise SuspendedError(principal)

    async def _enter(self, principal: TenantPrincipal, as_of: int | None = None) -> None:
        limit = self._limit_of(principal.entitlements)
        wait = await self._rate_limiter.enter(str(principal.tenant), limit, as_of)
        if wait is not None:
            raise RateLimitedError(limit, wait)

    def _limit_of(self, entitlements: Entitlements) -> Limit:
        if entitlements.requests_per_minute is not None:
            return Limit(entitlements.requests_per_minute, MINUTE)
        return self._limits[entitlements.effective_tier]
