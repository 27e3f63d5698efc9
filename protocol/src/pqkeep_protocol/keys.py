"""Identity, status and public half of a key: all that the gateway knows of it."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, NewType
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import LIFECYCLE, READING, Algorithm, Operation

TenantId = NewType("TenantId", UUID)
KeyVersion = NewType("KeyVersion", int)

INSTALLATION = TenantId(UUID(int=0))
"""The owner of what belongs to no tenant: checkpoint keys, and the operator's records."""

MAX_KEY_VERSION = 2**31 - 1
"""The largest version that can exist."""

SomeVersion = Annotated[KeyVersion, Meta(ge=1, le=MAX_KEY_VERSION)]
"""A version as the decoder accepts it."""


class KeyStatus(StrEnum):
    """The statuses of a key version, in order. None is ever returned to."""

    ACTIVE = "active"
    RETIRED = "retired"
    ARCHIVED = "archived"


USABLE: Mapping[Operation, frozenset[KeyStatus]] = {
    operation: (
        frozenset({KeyStatus.ACTIVE, KeyStatus.RETIRED})
        if operation in READING
        else frozenset({KeyStatus.ACTIVE})
    )
    for operation in Operation
    if operation not in LIFECYCLE
}
"""The key statuses with which each cryptographic operation works."""


class KeyInfo(Struct, frozen=True, array_like=True):
    """The public description of one key version."""

    algorithm: Algorithm
    version: SomeVersion
    status: KeyStatus
    public_key: bytes
    created_at: datetime
