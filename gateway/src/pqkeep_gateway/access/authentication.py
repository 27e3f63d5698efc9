"""From a credential to a principal, without asking the database what the last request asked."""

import hmac
from typing import Protocol

from cachetools import LRUCache

from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_protocol.keys import TenantId

CAPACITY = 100_000


class ApiKeyDirectory(Protocol):
    """Where API keys are looked up."""

    async def find_principal(self, digest: bytes) -> ApiKeyPrincipal | None:
        """Return whose active API key has this digest."""
        ...


class Authenticator:
    """Knows principals by the digest of what they show. What changes is forgotten at once."""

    def __init__(self, directory: ApiKeyDirectory, pepper: Pepper, operator: bytes) -> None:
        """Take the digest of the operator's credential (32 bytes)."""
        self._directory = directory
        self._pepper = pepper
        self._operator = operator
        self._known: LRUCache[bytes, ApiKeyPrincipal] = LRUCache(CAPACITY)
        self._changes = 0

    async def authenticate(self, credential: str) -> ApiKeyPrincipal | OperatorPrincipal | None:
        """Return who shows this credential; None for nobody we know."""
        digest = self._pepper.digest(credential)
        known: ApiKeyPrincipal | None = self._known.get(digest)
        if known is not None:
            return known
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
        for digest in [d for d, principal in self._known.items() if principal.tenant == tenant]:
            del self._known[digest]

    async def _look_up(self, digest: bytes) -> ApiKeyPrincipal | None:
        changes = self._changes
        found = await self._directory.find_principal(digest)
        if found is not None and self._changes == changes:
            # Otherwise something changed while the database answered: use it once, keep nothing.
            self._known[digest] = found
        return found
