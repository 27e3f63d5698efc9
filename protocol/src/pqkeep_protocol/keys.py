"""A key's identity, status and public half: everything the gateway knows of it."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, NewType
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import READING, USES, Algorithm, Operation

# A shard is a key service with its own database, keys, audit log and tenants.
SHARD_NAME = r"\A[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z"
"""The pattern of a shard's name: 1 to 32 characters."""

ShardName = Annotated[str, Meta(pattern=SHARD_NAME)]

DEFAULT_SHARD: Final = "default"
"""The shard that every installation has. Its log has the records that belong to no tenant."""

TenantId = NewType("TenantId", UUID)
KeyVersion = NewType("KeyVersion", int)

INSTALLATION = TenantId(UUID(int=0))
"""The owner of checkpoint keys and of operators' records, which belong to no tenant."""

MAX_KEY_VERSION = 2**31 - 1
"""The largest version that can exist."""
MAX_VERSIONS = 10_000
"""Versions of one key, including archived ones. More versions make a change of the key slower."""

SomeVersion = Annotated[KeyVersion, Meta(ge=1, le=MAX_KEY_VERSION)]
"""A key version with the range that the decoder checks."""

PRINTABLE = r"\A[ -~\xa0-\U0010ffff]*\Z"
"""The pattern of recorded text: no control characters. PostgreSQL cannot store NUL."""

MAX_KEYRING_NAME = 128
KEYRING_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z"
"""The pattern of a keyring's name. Names that differ in case are different."""

KeyringName = Annotated[str, Meta(pattern=KEYRING_NAME)]
"""A keyring's name, 1 to 128 characters. A keyring holds one key for each algorithm."""

MAX_RECORDED_NAME = 64
RecordedName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]
"""The name of a rule or a campaign, 1 to 64 characters. Records name both."""

DEFAULT_KEYRING: Final = "default"
"""The keyring that every tenant has. The default of a request without a keyring."""


class KeyStatus(StrEnum):
    """The statuses of a key version, in order. Only DISABLED can be reversed."""

    ACTIVE = "active"
    RETIRED = "retired"
    DISABLED = "disabled"
    """Refused for every use. Enabling restores the earlier status, active or retired."""
    ARCHIVED = "archived"


USABLE: Mapping[Operation, frozenset[KeyStatus]] = {
    operation: (
        frozenset({KeyStatus.ACTIVE, KeyStatus.RETIRED})
        if operation in READING
        else frozenset({KeyStatus.ACTIVE})
    )
    for operation in USES
}
"""The key statuses that allow each cryptographic operation, unless archiving is scheduled."""

MIN_ARCHIVE_DAYS, MAX_ARCHIVE_DAYS = 7, 30
"""The delay in days before a scheduled destruction of a private key; less is for development."""


class DestructionState(StrEnum):
    """The progress of the destruction of all of a tenant's private keys."""

    SCHEDULED = "scheduled"
    """The destruction can be cancelled."""
    BEGUN = "begun"
    """The destruction cannot be cancelled, and new keys are refused."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The destruction can be scheduled again, and waits anew."""


class Destruction(Struct, frozen=True, array_like=True):
    """The destruction of all of a tenant's private keys."""

    state: DestructionState
    at: Annotated[datetime, Meta(tz=True)]
    """The time for which the destruction is or was scheduled."""

    @property
    def has_begun(self) -> bool:
        """Whether it has begun; also once it is completed."""
        return self.state in {DestructionState.BEGUN, DestructionState.COMPLETED}

    @property
    def is_open(self) -> bool:
        """Whether there is something to destroy yet."""
        return self.state in {DestructionState.SCHEDULED, DestructionState.BEGUN}


MAX_DISABLED_DAYS = 366
"""The longest time in days for which a key version can be disabled until a time."""


class KeyInfo(Struct, frozen=True, array_like=True):
    """The public description of one key version."""

    algorithm: Algorithm
    version: SomeVersion
    status: KeyStatus
    public_key: bytes
    """For a symmetric key: its check value (CHECK_VALUE_SIZE bytes), which is no secret."""
    created_at: datetime
    archive_at: datetime | None = None
    """When the private key is destroyed, if that is scheduled. Until then every use is refused."""
    keyring: KeyringName = DEFAULT_KEYRING
    imported: bool = False
    """Whether the private key was generated elsewhere. A copy may exist there."""
    disabled_until: datetime | None = None
    """When a disabled version is enabled again; None: only by a request."""

    def allows(self, operation: Operation) -> bool:
        """Return whether a cryptographic operation may use this key version."""
        return self.archive_at is None and self.status in USABLE[operation]
