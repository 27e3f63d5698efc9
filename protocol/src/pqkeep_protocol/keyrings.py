"""Keyrings: their settings, and the purposes of their keys."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.keys import PRINTABLE, KeyringName

MAX_KEYRINGS = 256
"""The most keyrings a tenant can have, including ``default``."""
MAX_DESCRIPTION = 256
MAX_LABELS = 20
MAX_LABEL_VALUE = 128
MAX_DAYS = 3650
LABEL_NAME = r"\A[a-z0-9][a-z0-9._-]{0,63}\Z"
"""The pattern of a label's name."""


class KeyPurpose(StrEnum):
    """What a keyring's keys may be used for."""

    ENCRYPT = "encrypt"
    DECRYPT = "decrypt"
    WRAP = "wrap"
    UNWRAP = "unwrap"
    ENCAPSULATE = "encapsulate"
    DECAPSULATE = "decapsulate"
    SIGN = "sign"
    VERIFY = "verify"
    MAC = "mac"


ALL_PURPOSES = tuple(KeyPurpose)

PURPOSE_OF: Mapping[Operation, KeyPurpose] = {
    Operation.ENCRYPT: KeyPurpose.ENCRYPT,
    Operation.DECRYPT: KeyPurpose.DECRYPT,
    Operation.WRAP: KeyPurpose.WRAP,
    Operation.UNWRAP: KeyPurpose.UNWRAP,
    Operation.ENCAPSULATE: KeyPurpose.ENCAPSULATE,
    Operation.DECAPSULATE: KeyPurpose.DECAPSULATE,
    Operation.SIGN: KeyPurpose.SIGN,
    Operation.SIGN_HASH: KeyPurpose.SIGN,
    Operation.SIGN_JWS: KeyPurpose.SIGN,
    Operation.SIGN_MU: KeyPurpose.SIGN,
    Operation.VERIFY: KeyPurpose.VERIFY,
    Operation.VERIFY_HASH: KeyPurpose.VERIFY,
    Operation.VERIFY_MU: KeyPurpose.VERIFY,
    Operation.COMPUTE_MAC: KeyPurpose.MAC,
    Operation.VERIFY_MAC: KeyPurpose.MAC,
}
"""The purpose that a keyring needs for each operation that uses a key.

Re-encryptions and data keys need those of the operations that they consist of."""


class KeyringPatterns(Struct, frozen=True, array_like=True):
    """A set of keyrings, by names and by prefixes of names."""

    names: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()

    def match(self, keyring: KeyringName) -> bool:
        """Return whether a keyring is in the set."""
        return keyring in self.names or keyring.startswith(self.beginnings)


Description = Annotated[str, Meta(max_length=MAX_DESCRIPTION, pattern=PRINTABLE)]
Labels = Annotated[
    dict[
        Annotated[str, Meta(pattern=LABEL_NAME)],
        Annotated[str, Meta(max_length=MAX_LABEL_VALUE, pattern=PRINTABLE)],
    ],
    Meta(max_length=MAX_LABELS),
]
Purposes = Annotated[tuple[KeyPurpose, ...], Meta(min_length=1, max_length=len(ALL_PURPOSES))]
"""In the order of ``KeyPurpose``, each once."""
Days = Annotated[int, Meta(ge=0, le=MAX_DAYS)]
"""0 means never."""


class KeyringInfo(Struct, frozen=True, array_like=True):
    """A keyring as its tenant sees it."""

    name: KeyringName
    description: Description = ""
    labels: Labels = {}
    purposes: Purposes = ALL_PURPOSES
    rotation_days: Days = 0
    """The age in days at which an active key is rotated automatically; 0 for never."""
    archive_after_days: Days = 0
    """The days after which a retired key version is archived automatically; 0 for never."""
    created_at: datetime | None = None
    """None for ``default``, which exists from the start."""
