"""Keyrings: their settings, and the purposes of their keys."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import READING, Operation
from pqkeep_protocol.keys import MAX_KEY_VERSION, PRINTABLE, KeyringName

MAX_KEYRINGS = 100_000
"""The most keyrings that a plan can allow a tenant, including ``default``."""
MAX_DESCRIPTION = 256
MAX_LABELS = 20
MAX_LABEL_VALUE = 128
MAX_DAYS = 3650
LABEL_NAME = r"\A[a-z0-9][a-z0-9._-]{0,63}\Z"
"""The pattern of a label's name."""


class KeyPurpose(StrEnum):
    """The allowed uses of a keyring's keys."""

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
DERIVED_PURPOSES = (KeyPurpose.ENCRYPT, KeyPurpose.DECRYPT)
"""The purposes that a keyring with derived keys can have. Only their operations take a context."""

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

Re-encryption and data keys need the purposes of the operations that they combine."""


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
LabelChanges = Annotated[
    dict[
        Annotated[str, Meta(pattern=LABEL_NAME)],
        Annotated[str, Meta(max_length=MAX_LABEL_VALUE, pattern=PRINTABLE)] | None,
    ],
    Meta(max_length=MAX_LABELS),
]
"""Labels to set; None removes a label."""
OWNER, DATA_CLASS, CONFIDENTIAL_UNTIL = "owner", "data-class", "confidential-until"
AGREED_LABELS = (OWNER, DATA_CLASS, CONFIDENTIAL_UNTIL)
"""Names of labels with a meaning for the inventory. CONFIDENTIAL_UNTIL has a date as its value."""
PROTECTED = "protected"
"""The label that protects the private keys of a keyring from being archived. Its value is the
reason."""
Purposes = Annotated[tuple[KeyPurpose, ...], Meta(min_length=1, max_length=len(ALL_PURPOSES))]
"""Distinct purposes, in the order of ``KeyPurpose``."""
Days = Annotated[int, Meta(ge=0, le=MAX_DAYS)]
"""A number of days. 0 means never."""
MinimumVersion = Annotated[int, Meta(ge=0, le=MAX_KEY_VERSION)]
"""A version number. 0 means that every version is allowed."""
TRANSIT_TYPE = "[a-z0-9-]{1,32}(/[a-z0-9.-]{1,32})?"
TransitType = Annotated[str, Meta(max_length=65, pattern=rf"\A({TRANSIT_TYPE})?\Z")]
"""A key type of Vault Transit, for ``ml-dsa`` with a slash and the parameter set; empty: none."""
MAX_FIRST_VERSION = 100_000
"""The limit is far below the numbers that a key gets after a restore."""
FirstVersion = Annotated[int, Meta(ge=1, le=MAX_FIRST_VERSION)]


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
    """The creation time. None for ``default``, which exists from the start."""
    minimum_decryption_version: MinimumVersion = 0
    """The lowest key version that decrypts, unwraps, decapsulates and verifies."""
    minimum_encryption_version: MinimumVersion = 0
    """The lowest key version that encrypts, wraps, encapsulates, signs, computes MACs and makes
    data keys. Versions below ``minimum_decryption_version`` do not either: nothing could read the
    result."""
    transit_type: TransitType = ""
    """The key type that clients of Vault Transit asked for. It cannot be changed."""
    derived: bool = False
    """Whether each use derives its own key from a context. It cannot be changed. Operations with
    other keyrings take no context."""
    first_version: FirstVersion = 1
    """The lowest version number of its keys. It is set at the creation and never changes."""
    deletion_allowed: bool = False
    """Whether programs may delete it. People may in any case."""
    retired_public_keys_allowed: bool = False
    """Whether requests that name the public key of a retired version may still encrypt and
    encapsulate to it."""
    archive_at: datetime | None = None
    """In results: when the private keys of a deleted keyring are destroyed. Until then it can be
    restored."""

    def has_use_for(self, operations: frozenset[Operation]) -> bool:
        """Return whether a purpose fits an algorithm's operations."""
        return any(PURPOSE_OF.get(operation) in self.purposes for operation in operations)

    def allows_version(self, operation: Operation, version: int) -> bool:
        """Return whether the minimum versions allow an operation with a key version."""
        if operation in READING:
            return version >= self.minimum_decryption_version
        return version >= max(self.minimum_encryption_version, self.minimum_decryption_version)
