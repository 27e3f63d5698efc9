"""Who may come in: known, not suspended, and not too often. In this order."""

from collections.abc import Mapping

from pqkeep_gateway.access.authentication import Authenticated, Authenticator
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_gateway.access.rate_limit import MINUTE, ChangedError, Limit, Windows
from pqkeep_gateway.access.standing import Standing, Tier


class UnknownCredentialError(Exception):
    """Nobody we know shows it."""


class SuspendedError(Exception):
    """The tenant is known, and allowed nothing."""

    def __init__(self, principal: ApiKeyPrincipal) -> None:
        """Carry who it was."""
        super().__init__()
        self.principal = principal


class TooOftenError(Exception):
    """The tenant has used its rate limit up."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until a request would be admitted."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class Gatekeeper:
    """Admits requests. Every one that is admitted counts, whatever becomes of it."""

    def __init__(
        self,
        authenticator: Authenticator,
        windows: Windows,
        requests_per_minute: Mapping[Tier, int],
    ) -> None:
        """Take the tiers' rate limits; the operator has none."""
        self._authenticator = authenticator
        self._windows = windows
        self._limits = {tier: Limit(many, MINUTE) for tier, many in requests_per_minute.items()}

    async def admit(self, credential: str) -> ApiKeyPrincipal | OperatorPrincipal:
        """Return who is asking.

        Raises UnknownCredentialError, SuspendedError, TooOftenError; UnavailableError where that
        cannot be told.
        """
        while True:
            shown = await self._authenticator.authenticate(credential)
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

    async def _count(self, shown: Authenticated) -> None:
        principal = shown.principal
        if principal.suspended:
            if await self._windows.changes() != shown.as_of:
                raise ChangedError
            raise SuspendedError(principal)
        limit = self._limit_of(principal.standing)
        wait = await self._windows.enter(str(principal.tenant), limit, shown.as_of)
        if wait is not None:
            raise TooOftenError(limit, wait)

    def _limit_of(self, standing: Standing) -> Limit:
        if standing.requests_per_minute is not None:
            return Limit(standing.requests_per_minute, MINUTE)
        return self._limits[standing.tier_in_force]
