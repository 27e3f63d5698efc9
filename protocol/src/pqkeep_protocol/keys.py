"""Identity, status and public half of a key: all that the gateway knows of it."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, NewType
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import READING, USES, Algorithm, Operation

# A shard is a key service with its own database, keys and audit log, and has some tenants.
SHARD_NAME = r"\A[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z"
"""The pattern of a shard's name: 1 to 32 characters."""

ShardName = Annotated[str, Meta(pattern=SHARD_NAME)]

DEFAULT_SHARD: Final = "default"
"""The shard that every installation has. It has the records of what concerns no tenant."""

TenantId = NewType("TenantId", UUID)
KeyVersion = NewType("KeyVersion", int)

INSTALLATION = TenantId(UUID(int=0))
"""The owner of what belongs to no tenant: checkpoint keys, and the operator's records."""

MAX_KEY_VERSION = 2**31 - 1
"""The largest version that can exist."""
MAX_VERSIONS = 10_000
"""Versions of one key, archived ones too: a change of a key costs the more the more it has."""

SomeVersion = Annotated[KeyVersion, Meta(ge=1, le=MAX_KEY_VERSION)]
"""A version as the decoder accepts it."""

PRINTABLE = r"\A[ -~\xa0-\U0010ffff]*\Z"
"""The pattern of a text that is recorded: without control characters. PostgreSQL does not store NUL."""

KEYRING_NAME = r"\A[a-z0-9][a-z0-9._-]{0,63}\Z"
"""The pattern of a keyring's name."""

KeyringName = Annotated[str, Meta(pattern=KEYRING_NAME)]
"""A keyring of a tenant: it holds one key for each algorithm. 1 to 64 characters."""

DEFAULT_KEYRING: Final = "default"
"""The keyring that every tenant has, and that is meant where none is named."""


class KeyStatus(StrEnum):
    """The statuses of a key version, in order. Only from DISABLED there is a way back."""

    ACTIVE = "active"
    RETIRED = "retired"
    DISABLED = "disabled"
    """Refused for every use until it is enabled, which makes it active or retired as it was."""
    ARCHIVED = "archived"


USABLE: Mapping[Operation, frozenset[KeyStatus]] = {
    operation: (
        frozenset({KeyStatus.ACTIVE, KeyStatus.RETIRED})
        if operation in READING
        else frozenset({KeyStatus.ACTIVE})
    )
    for operation in USES
}
"""The key statuses with which each cryptographic operation works, unless its end is scheduled."""

MIN_ARCHIVE_DAYS, MAX_ARCHIVE_DAYS = 7, 30
"""How many days before a private key is destroyed that is scheduled; fewer are for development."""


class DestructionState(StrEnum):
    """How far the destruction of all of a tenant's private keys is."""

    SCHEDULED = "scheduled"
    """It can be cancelled."""
    BEGUN = "begun"
    """It cannot be cancelled, and no key is made."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """It can be scheduled again, and waits anew."""


class Destruction(Struct, frozen=True, array_like=True):
    """The destruction of all of a tenant's private keys."""

    state: DestructionState
    at: Annotated[datetime, Meta(tz=True)]
    """When it begins, or was to begin."""

    @property
    def has_begun(self) -> bool:
        """Whether it has begun; also once it is completed."""
        return self.state in {DestructionState.BEGUN, DestructionState.COMPLETED}

    @property
    def is_open(self) -> bool:
        """Whether there is something to destroy yet."""
        return self.state in {DestructionState.SCHEDULED, DestructionState.BEGUN}


class KeyInfo(Struct, frozen=True, array_like=True):
    """The public description of one key version."""

    algorithm: Algorithm
    version: SomeVersion
    status: KeyStatus
    public_key: bytes
    created_at: datetime
    archive_at: datetime | None = None
    """When the private key is destroyed, if that is scheduled: until then nothing can use it."""
    keyring: KeyringName = DEFAULT_KEYRING
    imported: bool = False
    """Whether the private key was made elsewhere, and may be known there."""

    def allows(self, operation: Operation) -> bool:
        """Return whether a cryptographic operation may use it."""
        return self.archive_at is None and self.status in USABLE[operation]
