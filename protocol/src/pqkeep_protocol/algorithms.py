"""The closed tables of algorithms and operations.

Enum values are what clients send (``Kyber768``); member names are the standards' names
(``ML_KEM_768``). Adding an algorithm is a row here, a file in the key service's ``crypto/`` and
its known answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The two kinds of key pairs."""

    KEM = "kem"
    SIGNATURE = "signature"


class Operation(StrEnum):
    """Every operation of the key service, by its name in the audit log."""

    ENCRYPT = "encrypt"
    DECRYPT = "decrypt"
    ENCAPSULATE = "encapsulate"
    DECAPSULATE = "decapsulate"
    WRAP = "wrap"
    UNWRAP = "unwrap"
    RE_ENCRYPT = "re-encrypt"
    SIGN = "sign"
    VERIFY = "verify"
    SIGN_HASH = "sign-hash"
    VERIFY_HASH = "verify-hash"
    SIGN_JWS = "sign-jws"
    SIGN_MU = "sign-mu"
    VERIFY_MU = "verify-mu"
    GENERATE_KEY = "generate-key"
    ROTATE_KEY = "rotate-key"
    GET_IMPORT_KEY = "get-import-key"
    IMPORT_KEY = "import-key"
    RETIRE_KEY = "retire-key"
    DISABLE_KEY = "disable-key"
    ENABLE_KEY = "enable-key"
    SCHEDULE_ARCHIVE = "schedule-archive"
    CANCEL_ARCHIVE = "cancel-archive"
    ARCHIVE_KEY = "archive-key"
    LIST_KEYS = "list-keys"
    LIST_PUBLIC_KEYS = "list-public-keys"
    GET_KEY = "get-key"
    GET_ACTIVE_KEY = "get-active-key"
    CREATE_KEYRING = "create-keyring"
    UPDATE_KEYRING = "update-keyring"
    GET_KEYRING = "get-keyring"
    LIST_KEYRINGS = "list-keyrings"
    SCHEDULE_DESTRUCTION = "schedule-destruction"
    CANCEL_DESTRUCTION = "cancel-destruction"


READING = frozenset(
    {
        Operation.DECRYPT,
        Operation.DECAPSULATE,
        Operation.UNWRAP,
        Operation.RE_ENCRYPT,
        Operation.VERIFY,
        Operation.VERIFY_HASH,
        Operation.VERIFY_MU,
    }
)
"""Operations that read a key's earlier output. Every plan allows them, and so do retired keys."""

_KEM = frozenset(
    {
        Operation.ENCRYPT,
        Operation.DECRYPT,
        Operation.ENCAPSULATE,
        Operation.DECAPSULATE,
        Operation.RE_ENCRYPT,
    }
)
_KEY_WRAP = frozenset({Operation.WRAP, Operation.UNWRAP})
_SIGNATURE = frozenset(
    {Operation.SIGN, Operation.VERIFY, Operation.SIGN_HASH, Operation.VERIFY_HASH}
)
_EXTERNAL_MU = frozenset({Operation.SIGN_MU, Operation.VERIFY_MU})

_JWS = frozenset({Operation.SIGN_JWS})

USES = _KEM | _KEY_WRAP | _SIGNATURE | _EXTERNAL_MU | _JWS
"""Operations that use a key."""

ON_KEYRINGS = frozenset(
    {
        Operation.CREATE_KEYRING,
        Operation.UPDATE_KEYRING,
        Operation.GET_KEYRING,
        Operation.LIST_KEYRINGS,
    }
)
"""Operations on keyrings. They have no algorithm."""

ON_TENANTS = frozenset({Operation.SCHEDULE_DESTRUCTION, Operation.CANCEL_DESTRUCTION})
"""Operations on all keys of a tenant. They have no algorithm."""

LISTING = frozenset({Operation.LIST_KEYS, Operation.LIST_PUBLIC_KEYS})
"""Operations that may cover all algorithms at once."""

LIFECYCLE = frozenset(Operation) - USES - ON_KEYRINGS - ON_TENANTS
"""Operations on the key itself. Every algorithm supports them."""


class Algorithm(StrEnum):
    """The wire values of the interface specification."""

    ML_KEM_768 = "Kyber768"
    X_WING = "X-Wing"
    ML_KEM_1024 = "ML-KEM-1024"
    ML_DSA_65 = "Dilithium3"
    COMPOSITE_ML_DSA = "Composite-ML-DSA"
    ML_DSA_87 = "ML-DSA-87"
    SLH_DSA_SHA2_128S = "SLH-DSA-SHA2-128s"
    SLH_DSA_SHA2_128F = "SLH-DSA-SHA2-128f"
    SLH_DSA_SHA2_192S = "SLH-DSA-SHA2-192s"
    SLH_DSA_SHA2_256S = "SLH-DSA-SHA2-256s"


ALIASES: Mapping[str, Algorithm] = {
    "ML-KEM-768": Algorithm.ML_KEM_768,
    "ML-DSA-65": Algorithm.ML_DSA_65,
}
"""Aliases that requests may use: the standard's name where the wire value is an older name."""


class HashAlgorithm(StrEnum):
    """Hash functions that the hash-signing operations accept."""

    SHA_256 = "SHA-256"
    SHA_384 = "SHA-384"
    SHA_512 = "SHA-512"


DIGEST_SIZE: Mapping[HashAlgorithm, int] = {
    HashAlgorithm.SHA_256: 32,
    HashAlgorithm.SHA_384: 48,
    HashAlgorithm.SHA_512: 64,
}
"""Bytes in a digest."""

SYMMETRIC_KEY_SIZES = frozenset({16, 24, 32, 48, 64})
"""Sizes in bytes of keys that can be wrapped."""

MU_SIZE = 64
"""Bytes in an external mu (FIPS 204, algorithm 7, line 6)."""

MAX_CONTEXT = 255
"""The longest context of a signature, in bytes (FIPS 204 and 205)."""
RESERVED_CONTEXT = b"pqkeep/"
"""The prefix of signature contexts that only pqkeep itself uses."""

MAX_ASSOCIATED_DATA = 64 * 1024
"""The longest associated data of a ciphertext, in bytes."""

BOX_OVERHEAD = 28
"""Bytes that AES-256-GCM adds to a plaintext: nonce (12) and tag (16)."""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """The public properties of an algorithm. Sizes are in bytes."""

    kind: Kind
    standard: str
    operations: frozenset[Operation]
    public_key_size: int
    output_size: int
    """Size of the KEM ciphertext, or of the largest signature."""


def _kem(
    standard: str, public_key_size: int, output_size: int, *, wraps: bool = True
) -> AlgorithmSpec:
    operations = _KEM | LIFECYCLE | (_KEY_WRAP if wraps else frozenset())
    return AlgorithmSpec(Kind.KEM, standard, operations, public_key_size, output_size)


def _signature(
    standard: str, public_key_size: int, output_size: int, *, is_ml_dsa: bool = False
) -> AlgorithmSpec:
    operations = _SIGNATURE | LIFECYCLE | (_EXTERNAL_MU | _JWS if is_ml_dsa else frozenset())
    return AlgorithmSpec(Kind.SIGNATURE, standard, operations, public_key_size, output_size)


ALGORITHMS: Mapping[Algorithm, AlgorithmSpec] = {
    Algorithm.ML_KEM_768: _kem("FIPS 203", 1184, 1088),
    Algorithm.X_WING: _kem("draft-connolly-cfrg-xwing-kem", 1216, 1120),
    Algorithm.ML_KEM_1024: _kem("FIPS 203", 1568, 1568, wraps=False),
    Algorithm.ML_DSA_65: _signature("FIPS 204", 1952, 3309, is_ml_dsa=True),
    Algorithm.COMPOSITE_ML_DSA: _signature("draft-ietf-lamps-pq-composite-sigs", 2017, 3381),
    Algorithm.ML_DSA_87: _signature("FIPS 204", 2592, 4627, is_ml_dsa=True),
    Algorithm.SLH_DSA_SHA2_128S: _signature("FIPS 205", 32, 7856),
    Algorithm.SLH_DSA_SHA2_128F: _signature("FIPS 205", 32, 17088),
    Algorithm.SLH_DSA_SHA2_192S: _signature("FIPS 205", 48, 16224),
    Algorithm.SLH_DSA_SHA2_256S: _signature("FIPS 205", 64, 29792),
}
