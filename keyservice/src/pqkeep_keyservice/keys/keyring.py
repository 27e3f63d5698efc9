"""A keyring as a value: what a tenant says about it, and what its keys may be used for.

The keyring that every tenant has, ``default``, also says when the tenant's private keys are destroyed.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyPurpose, KeyringInfo
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    Destruction,
    DestructionState,
    KeyringName,
    TenantId,
)
from pqkeep_protocol.messages import UpdateKeyring


class KeyringId(NamedTuple):
    """Which keyring of which tenant."""

    tenant: TenantId
    keyring: KeyringName


@dataclass(frozen=True, slots=True)
class Keyring:
    """A keyring's settings."""

    tenant: TenantId
    info: KeyringInfo
    revision: int = 1
    """Counts the changes. 0: the default keyring, as every tenant has it, which is not stored."""
    destruction: Destruction | None = None
    """Of the default keyring: that of all private keys of the tenant, if it is scheduled."""

    @property
    def name(self) -> KeyringId:
        """Which keyring it is."""
        return KeyringId(self.tenant, self.info.name)

    def require(self, purpose: KeyPurpose | None) -> None:
        """Raise PURPOSE_DENIED if its keys are not for this; None is no use of a key."""
        if purpose is not None and purpose not in self.info.purposes:
            raise KeyServiceError(ErrorKind.PURPOSE_DENIED)

    def with_changes(self, request: UpdateKeyring) -> "Keyring":
        """Return the next revision, in which what is not None is changed."""
        asked = structs.asdict(request)
        changes = {
            name: asked[name]
            for name in KeyringInfo.__struct_fields__
            if asked.get(name) is not None
        }
        return replace(self, info=structs.replace(self.info, **changes), revision=self.revision + 1)

    def with_destruction_scheduled(self, at: datetime) -> "Keyring":
        """Set when the tenant's private keys are destroyed; a time that is set already stays."""
        if self.destruction is None or self.destruction.state is DestructionState.CANCELLED:
            return self._with_destruction(Destruction(DestructionState.SCHEDULED, at))
        return self

    def with_destruction_cancelled(self) -> "Keyring":
        """Keep the tenant's private keys. Raises KEY_STATUS if their destruction has begun.

        That it was cancelled is kept: the gateway's row follows.
        """
        found = self.destruction
        if found is None or found.state is DestructionState.CANCELLED:
            return self
        if found.state is not DestructionState.SCHEDULED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        return self._with_destruction(Destruction(DestructionState.CANCELLED, found.at))

    def with_destruction_postponed(self, until: datetime) -> "Keyring":
        """Let nothing be destroyed before a time, unless all of it was."""
        found = self.destruction
        if found is None or not found.is_open or found.at >= until:
            return self
        return self._with_destruction(Destruction(found.state, until))

    def with_destruction_begun(self, destruction: Destruction) -> "Keyring":
        """Begin a scheduled destruction: it cannot be cancelled any more."""
        return self._with_destruction(Destruction(DestructionState.BEGUN, destruction.at))

    def with_destruction_completed(self, destruction: Destruction) -> "Keyring":
        """End a destruction: no private key is left."""
        return self._with_destruction(Destruction(DestructionState.COMPLETED, destruction.at))

    def require_no_destruction(self) -> None:
        """Raise KEY_NOT_FOUND if the tenant's private keys are being destroyed, or were."""
        found = self.destruction
        if found is not None and found.has_begun:
            raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)

    def _with_destruction(self, destruction: Destruction | None) -> "Keyring":
        return replace(self, destruction=destruction, revision=self.revision + 1)

    def with_new_mac(self) -> "Keyring":
        """Return the next revision, in which nothing is changed."""
        return replace(self, revision=self.revision + 1)


def default_keyring(tenant: TenantId) -> Keyring:
    """Return the keyring that every tenant has, as it is until somebody changes it."""
    return Keyring(tenant, KeyringInfo(DEFAULT_KEYRING), revision=0)
