"""The algorithms and operations that exist, as closed tables.

Enum values are what clients send (``Kyber768``); member names are the standards' names
(``ML_KEM_768``). Adding an algorithm is a row here, a file in the key service's ``crypto/`` and
its known answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a key pair is for."""

    KEM = "kem"
    SIGNATURE = "signature"


class Operation(StrEnum):
    """Everything the key service can be asked to do, by the name the audit log uses."""

    ENCRYPT = "encrypt"
    DECRYPT = "decrypt"
    ENCAPSULATE = "encapsulate"
    DECAPSULATE = "decapsulate"
    SIGN = "sign"
    VERIFY = "verify"
    GENERATE_KEY = "generate-key"
    ROTATE_KEY = "rotate-key"
    RETIRE_KEY = "retire-key"
    ARCHIVE_KEY = "archive-key"
    LIST_KEYS = "list-keys"
    GET_KEY = "get-key"
    GET_ACTIVE_KEY = "get-active-key"


READING = frozenset({Operation.DECRYPT, Operation.DECAPSULATE, Operation.VERIFY})
"""Operations on what a key once produced: allowed on every plan, and with retired keys."""

_KEM_OPERATIONS = frozenset(
    {Operation.ENCRYPT, Operation.DECRYPT, Operation.ENCAPSULATE, Operation.DECAPSULATE}
)
_SIGNATURE_OPERATIONS = frozenset({Operation.SIGN, Operation.VERIFY})

LIFECYCLE = frozenset(Operation) - _KEM_OPERATIONS - _SIGNATURE_OPERATIONS
"""Operations on the key itself: every algorithm has them."""


class Algorithm(StrEnum):
    """The wire values of the interface specification."""

    ML_KEM_768 = "Kyber768"
    ML_DSA_65 = "Dilithium3"


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """What anyone may know about an algorithm. Sizes are in bytes."""

    kind: Kind
    standard: str
    operations: frozenset[Operation]
    public_key_size: int
    output_size: int
    """Size of the KEM ciphertext, or of the largest signature."""


ALGORITHMS: Mapping[Algorithm, AlgorithmSpec] = {
    Algorithm.ML_KEM_768: AlgorithmSpec(
        Kind.KEM, "FIPS 203", _KEM_OPERATIONS | LIFECYCLE, 1184, 1088
    ),
    Algorithm.ML_DSA_65: AlgorithmSpec(
        Kind.SIGNATURE, "FIPS 204", _SIGNATURE_OPERATIONS | LIFECYCLE, 1952, 3309
    ),
}
