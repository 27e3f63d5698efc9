"""A keyring as a value: its tenant's settings, and its keys' purposes.

Every tenant has the keyring ``default``. It also stores the destruction of all the tenant's private
keys. Another keyring with a destruction is deleted: hidden and refused, and restorable until the
destruction begins.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import (
    DERIVED_PURPOSES,
    MAX_LABELS,
    PROTECTED,
    KeyPurpose,
    KeyringInfo,
)
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    Destruction,
    DestructionState,
    KeyringName,
    TenantId,
)
from pqkeep_protocol.messages import UpdateKeyring


class KeyringId(NamedTuple):
    """The tenant and name of a keyring."""

    tenant: TenantId
    keyring: KeyringName


@dataclass(frozen=True, slots=True)
class Keyring:
    """A keyring's settings."""

    tenant: TenantId
    info: KeyringInfo
    revision: int = 1
    """Counts the changes. 0 is the default keyring before its first change, which is not stored."""
    destruction: Destruction | None = None
    """The destruction of the keyring's private keys, if scheduled. For the default keyring: that of
    all the tenant's private keys."""

    @property
    def name(self) -> KeyringId:
        """The keyring's id."""
        return KeyringId(self.tenant, self.info.name)

    @property
    def is_deleted(self) -> bool:
        """True if it is hidden and refused. The default keyring cannot be deleted."""
        planned = self.destruction
        return (
            self.info.name != DEFAULT_KEYRING
            and planned is not None
            and planned.state is not DestructionState.CANCELLED
        )

    @property
    def is_gone(self) -> bool:
        """Whether it is deleted and its private keys are destroyed. Its name is free again."""
        planned = self.destruction
        return self.is_deleted and planned is not None and not planned.is_open

    @property
    def shown(self) -> KeyringInfo:
        """The keyring as its tenant sees it."""
        if self.destruction is None or not self.is_deleted:
            return self.info
        return structs.replace(self.info, archive_at=self.destruction.at)

    def require_exists(self) -> None:
        """Raise KEYRING_NOT_FOUND if it is deleted."""
        if self.is_deleted:
            raise KeyServiceError(ErrorKind.KEYRING_NOT_FOUND)

    def require_deletion_allowed(self) -> None:
        """Raise DELETION_DENIED unless programs may delete it."""
        if not self.info.deletion_allowed:
            raise KeyServiceError(ErrorKind.DELETION_DENIED)

    @property
    def is_protected(self) -> bool:
        """Whether a label protects its private keys from being archived."""
        return PROTECTED in self.info.labels

    def require_unprotected(self) -> None:
        """Raise KEYRING_PROTECTED if its keys are protected."""
        if self.is_protected:
            raise KeyServiceError(ErrorKind.KEYRING_PROTECTED)

    def recreated(self, info: KeyringInfo) -> "Keyring":
        """Return the next revision as a new keyring. Raises KEYRING_EXISTS and KEYRING_DELETED."""
        if not self.is_deleted:
            raise KeyServiceError(ErrorKind.KEYRING_EXISTS)
        if not self.is_gone:
            raise KeyServiceError(ErrorKind.KEYRING_DELETED)
        return Keyring(self.tenant, info, self.revision + 1)

    def restored(self) -> "Keyring":
        """Restore a deleted keyring. Others do not change. Raises KEYRING_NOT_FOUND if too late."""
        if not self.is_deleted:
            return self
        if self.destruction is None or self.destruction.has_begun:
            raise KeyServiceError(ErrorKind.KEYRING_NOT_FOUND)
        return self.with_destruction_cancelled(self.destruction.at)

    def require(self, purpose: KeyPurpose | None) -> None:
        """Raise PURPOSE_DENIED if the keyring lacks a purpose. None needs no purpose."""
        if purpose is not None and purpose not in self.info.purposes:
            raise KeyServiceError(ErrorKind.PURPOSE_DENIED)

    def require_context(self, context: bytes) -> None:
        """Raise CONTEXT_REQUIRED and CONTEXT_REFUSED: only derived keys have a context."""
        if self.info.derived and not context:
            raise KeyServiceError(ErrorKind.CONTEXT_REQUIRED)
        if context and not self.info.derived:
            raise KeyServiceError(ErrorKind.CONTEXT_REFUSED)

    def with_changes(self, request: UpdateKeyring) -> "Keyring":
        """Return the next revision, with the request's values that are not None.

        Raises LABEL_LIMIT_REACHED, and PURPOSE_DENIED for purposes that derived keys do not have.
        """
        if self.info.derived and not set(request.purposes or ()) <= set(DERIVED_PURPOSES):
            raise KeyServiceError(ErrorKind.PURPOSE_DENIED)
        values = structs.asdict(request)
        changes = {
            name: values[name]
            for name in KeyringInfo.__struct_fields__
            if values.get(name) is not None
        }
        if request.label_changes is not None:
            labels = {**changes.get("labels", self.info.labels), **request.label_changes}
            changes["labels"] = {name: value for name, value in labels.items() if value is not None}
            if len(changes["labels"]) > MAX_LABELS:
                raise KeyServiceError(ErrorKind.LABEL_LIMIT_REACHED)
        return replace(self, info=structs.replace(self.info, **changes), revision=self.revision + 1)

    def with_destruction_scheduled(self, at: datetime, *, renews: bool = True) -> "Keyring":
        """Set the time of destruction of the tenant's private keys, unless it is already set.

        With ``renews``, a cancelled destruction is scheduled again.
        """
        planned = self.destruction
        if planned is None or (renews and planned.state is DestructionState.CANCELLED):
            return self._with_destruction(Destruction(DestructionState.SCHEDULED, at))
        return self

    def with_destruction_cancelled(self, now: datetime) -> "Keyring":
        """Cancel a destruction, also one that is not scheduled yet. Raises KEY_STATUS if it has begun.

        The cancelled destruction stays recorded: the gateway's row follows it.
        """
        planned = self.destruction or Destruction(DestructionState.SCHEDULED, now)
        if planned.state is DestructionState.CANCELLED:
            return self
        if planned.state is not DestructionState.SCHEDULED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        return self._with_destruction(Destruction(DestructionState.CANCELLED, planned.at))

    def with_destruction_postponed(self, until: datetime) -> "Keyring":
        """Postpone a destruction to at least this time, unless it is completed."""
        planned = self.destruction
        if planned is None or not planned.is_open or planned.at >= until:
            return self
        return self._with_destruction(Destruction(planned.state, until))

    def with_destruction_begun(self, destruction: Destruction) -> "Keyring":
        """Begin a scheduled destruction. It can no longer be cancelled."""
        return self._with_destruction(Destruction(DestructionState.BEGUN, destruction.at))

    def with_destruction_completed(self, destruction: Destruction) -> "Keyring":
        """Complete a destruction: the last private key is gone."""
        return self._with_destruction(Destruction(DestructionState.COMPLETED, destruction.at))

    def require_no_destruction(self) -> None:
        """Raise KEY_NOT_FOUND if a destruction has begun or is completed."""
        planned = self.destruction
        if planned is not None and planned.has_begun:
            raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)

    def _with_destruction(self, destruction: Destruction | None) -> "Keyring":
        return replace(self, destruction=destruction, revision=self.revision + 1)

    def with_new_mac(self) -> "Keyring":
        """Return the next revision, which differs in its MAC only."""
        return replace(self, revision=self.revision + 1)


def default_keyring(tenant: TenantId) -> Keyring:
    """Return a tenant's default keyring in its state before any change."""
    return Keyring(tenant, KeyringInfo(DEFAULT_KEYRING), revision=0)
