"""From a credential to a principal, without asking the database what the last request asked."""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cachetools import LRUCache

from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_protocol.keys import TenantId

CAPACITY = 100_000


@dataclass(frozen=True, slots=True)
class Known:
    """Whose API key it is, and for how long it is accepted (seconds since 1970; None: always)."""

    principal: ApiKeyPrincipal
    accepted_until: float | None = None


class ApiKeyDirectory(Protocol):
    """Where API keys are looked up."""

    async def find(self, digest: bytes) -> Known | None:
        """Return whose API key has this digest, unless it was never there or is revoked."""
        ...


class Authenticator:
    """Knows principals by the digest of what they show. What changes is forgotten at once."""

    def __init__(
        self,
        directory: ApiKeyDirectory,
        pepper: Pepper,
        operator: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the digest of the operator's credential (32 bytes)."""
        self._directory = directory
        self._pepper = pepper
        self._operator = operator
        self._clock = clock
        self._known: LRUCache[bytes, Known] = LRUCache(CAPACITY)
        self._changes = 0

    async def authenticate(self, credential: str) -> ApiKeyPrincipal | OperatorPrincipal | None:
        """Return who shows this credential; None for nobody we know."""
        digest = self._pepper.digest(credential)
        known: Known | None = self._known.get(digest)
        if known is not None:
            return self._accepted(known)
        match kind_of(credential):
            case CredentialKind.OPERATOR:
                return OperatorPrincipal() if hmac.compare_digest(digest, self._operator) else None
            case CredentialKind.API_KEY:
                return await self._look_up(digest)
            case None:
                return None

    def forget(self, tenant: TenantId) -> None:
        """Look a tenant's API keys up again: one of them, or the tenant itself, has changed."""
        self._changes += 1
        for digest in [d for d, known in self._known.items() if known.principal.tenant == tenant]:
            del self._known[digest]

    async def _look_up(self, digest: bytes) -> ApiKeyPrincipal | None:
        changes = self._changes
        found = await self._directory.find(digest)
        if found is None:
            return None
        if self._changes == changes:
            # Otherwise something changed while the database answered: use it once, keep nothing.
            self._known[digest] = found
        return self._accepted(found)

    def _accepted(self, known: Known) -> ApiKeyPrincipal | None:
        over = known.accepted_until is not None and known.accepted_until <= self._clock()
        return None if over else known.principal
