"""From a credential to a principal, without asking the database what the last request asked."""

import hmac
from dataclasses import dataclass
from typing import Protocol

from cachetools import LRUCache

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_gateway.access.rate_limit import RateLimiter

CAPACITY = 100_000


@dataclass(frozen=True, slots=True)
class Found:
    """Whose API key it is, and for how long it is accepted (seconds since 1970; None: always)."""

    principal: ApiKeyPrincipal
    accepted_until: float | None = None


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A principal, and the number of changes there had been when it was looked up."""

    principal: ApiKeyPrincipal
    as_of: int


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
    """Knows principals by the digest of what they show.

    Whoever uses what it remembers compares the number of changes, and has it forget what is out
    of date: the rate limit's windows carry that number, so this costs no question of its own.
    """

    def __init__(
        self,
        directory: ApiKeyDirectory,
        operators: OperatorDirectory,
        lookups: CredentialLookups,
        rate_limiter: RateLimiter,
        pepper: Pepper,
        operator: bytes | None,
        clock: Clock,
    ) -> None:
        """Take the digest of the credential of the operator without a name (32 bytes), if any."""
        self._directory = directory
        self._operators = operators
        self._lookups = lookups
        self._rate_limiter = rate_limiter
        self._pepper = pepper
        self._operator = operator
        self._clock = clock
        self._known: LRUCache[bytes, tuple[Found, int]] = LRUCache(CAPACITY)

    async def authenticate(
        self, credential: str, source_address: str
    ) -> Authenticated | OperatorPrincipal | None:
        """Return who shows this credential; None for nobody we know.

        Raises TooManyUnknownCredentialsError.
        """
        digest = self._pepper.digest(credential)
        known: tuple[Found, int] | None = self._known.get(digest)
        if known is None:
            match kind_of(credential):
                case CredentialKind.OPERATOR:
                    return await self._operator_with(digest, source_address)
                case CredentialKind.API_KEY:
                    known = await self._lookups.find(digest, source_address, self._look_up)
                case _:
                    return None
        if known is None:
            return None
        found, as_of = known
        if found.accepted_until is not None and found.accepted_until <= self._clock():
            return None
        return Authenticated(found.principal, as_of)

    def forget(self, credential: str) -> None:
        """Look a credential up again: something has changed."""
        self._known.pop(self._pepper.digest(credential), None)

    async def _operator_with(self, digest: bytes, source_address: str) -> OperatorPrincipal | None:
        if self._operator is not None and hmac.compare_digest(digest, self._operator):
            return OperatorPrincipal()
        name = await self._lookups.find(digest, source_address, self._operators.find)
        return None if name is None else OperatorPrincipal(name)

    async def _look_up(self, digest: bytes) -> tuple[Found, int] | None:
        as_of = await self._rate_limiter.changes()  # before the database is asked, never after
        found = await self._directory.find(digest)
        if found is None:
            return None
        self._known[digest] = found, as_of
        return found, as_of
