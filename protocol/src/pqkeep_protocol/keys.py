"""Keys as both processes see them: identity, state and public half, never more."""

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
"""Owns what is no tenant's: the keys that sign checkpoints, and the operator's records."""

MAX_KEY_VERSION = 2**31 - 1
"""No version can be larger; a client that names one names a key that does not exist."""

SomeVersion = Annotated[KeyVersion, Meta(ge=1, le=MAX_KEY_VERSION)]
"""A version as the decoder lets it through."""


class KeyStatus(StrEnum):
    """The life of a key version, in order. There is no way back."""

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
