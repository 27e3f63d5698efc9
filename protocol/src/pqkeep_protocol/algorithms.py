"""The closed tables of algorithms and operations.

Enum values are what clients send (``Kyber768``); member names are the standards' names
(``ML_KEM_768``). Adding an algorithm is a row here, a file in the key service's ``crypto/`` and
its known answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of keys: two of key pairs, two of symmetric keys, and two of legacy keys."""

    KEM = "kem"
    SIGNATURE = "signature"
    CIPHER = "cipher"
    MAC = "mac"
    LEGACY_DECRYPTION = "legacy-decryption"
    LEGACY_VERIFICATION = "legacy-verification"


class Operation(StrEnum):
    """Every operation of the key service, by its name in the audit log."""

    ENCRYPT = "encrypt"
    DECRYPT = "decrypt"
    ENCAPSULATE = "encapsulate"
    DECAPSULATE = "decapsulate"
    WRAP = "wrap"
    UNWRAP = "unwrap"
    RE_ENCRYPT = "re-encrypt"
    GENERATE_DATA_KEY = "generate-data-key"
    SIGN = "sign"
    VERIFY = "verify"
    SIGN_HASH = "sign-hash"
    VERIFY_HASH = "verify-hash"
    SIGN_JWS = "sign-jws"
    SIGN_MU = "sign-mu"
    VERIFY_MU = "verify-mu"
    COMPUTE_MAC = "compute-mac"
    VERIFY_MAC = "verify-mac"
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
    DELETE_KEYRING = "delete-keyring"
    RESTORE_KEYRING = "restore-keyring"
    GET_KEYRING = "get-keyring"
    LIST_KEYRINGS = "list-keyrings"
    SCHEDULE_DESTRUCTION = "schedule-destruction"
    CANCEL_DESTRUCTION = "cancel-destruction"
    LIST_RULES = "list-rules"
    PUT_RULE = "put-rule"
    DELETE_RULE = "delete-rule"
    OVERRIDE_RULE = "override-rule"


READING = frozenset(
    {
        Operation.DECRYPT,
        Operation.DECAPSULATE,
        Operation.UNWRAP,
        Operation.RE_ENCRYPT,
        Operation.VERIFY,
        Operation.VERIFY_HASH,
        Operation.VERIFY_MU,
        Operation.VERIFY_MAC,
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
        Operation.GENERATE_DATA_KEY,
    }
)
_KEY_WRAP = frozenset({Operation.WRAP, Operation.UNWRAP})
_SIGNATURE = frozenset(
    {Operation.SIGN, Operation.VERIFY, Operation.SIGN_HASH, Operation.VERIFY_HASH}
)
_EXTERNAL_MU = frozenset({Operation.SIGN_MU, Operation.VERIFY_MU})

_JWS = frozenset({Operation.SIGN_JWS})

_MAC = frozenset({Operation.COMPUTE_MAC, Operation.VERIFY_MAC})

USES = _KEM | _KEY_WRAP | _SIGNATURE | _EXTERNAL_MU | _JWS | _MAC
"""Operations that use a key."""

ON_KEYRINGS = frozenset(
    {
        Operation.CREATE_KEYRING,
        Operation.UPDATE_KEYRING,
        Operation.DELETE_KEYRING,
        Operation.RESTORE_KEYRING,
        Operation.GET_KEYRING,
        Operation.LIST_KEYRINGS,
    }
)
"""Operations on keyrings. They have no algorithm."""

ON_TENANTS = frozenset(
    {Operation.SCHEDULE_DESTRUCTION, Operation.CANCEL_DESTRUCTION, Operation.OVERRIDE_RULE}
)
"""Operations on a tenant that no tenant can ask for. They have no algorithm."""

ON_RULES = frozenset({Operation.LIST_RULES, Operation.PUT_RULE, Operation.DELETE_RULE})
"""Operations on a tenant's rules. They have no algorithm."""

LISTING = frozenset({Operation.LIST_KEYS, Operation.LIST_PUBLIC_KEYS})
"""Operations that may cover all algorithms at once."""

LIFECYCLE = frozenset(Operation) - USES - ON_KEYRINGS - ON_TENANTS - ON_RULES
"""Operations on the key itself. Every post-quantum algorithm of key pairs supports them."""

_OF_KEY_PAIRS = frozenset(
    {Operation.GET_IMPORT_KEY, Operation.IMPORT_KEY, Operation.LIST_PUBLIC_KEYS}
)
"""Operations on the key itself that symmetric keys do not have."""

_NOT_OF_LEGACY_KEYS = frozenset(
    {Operation.GENERATE_KEY, Operation.ROTATE_KEY, Operation.LIST_PUBLIC_KEYS}
)
"""Operations on the key itself that legacy keys do not have."""


class Algorithm(StrEnum):
    """The wire values: the interface specification's ten, the symmetric and the legacy ones."""

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
    XAES_256_GCM = "XAES-256-GCM"
    HMAC_SHA_256 = "HMAC-SHA-256"
    HMAC_SHA_512 = "HMAC-SHA-512"
    RSA_OAEP_SHA_1 = "RSA-OAEP-SHA-1"
    RSA_OAEP_SHA_256 = "RSA-OAEP-SHA-256"
    RSA_OAEP_SHA_384 = "RSA-OAEP-SHA-384"
    RSA_OAEP_SHA_512 = "RSA-OAEP-SHA-512"
    RSA_PKCS1_SHA_256 = "RSA-PKCS1-SHA-256"
    RSA_PKCS1_SHA_384 = "RSA-PKCS1-SHA-384"
    RSA_PKCS1_SHA_512 = "RSA-PKCS1-SHA-512"
    RSA_PSS_SHA_256 = "RSA-PSS-SHA-256"
    RSA_PSS_SHA_384 = "RSA-PSS-SHA-384"
    RSA_PSS_SHA_512 = "RSA-PSS-SHA-512"
    ECDSA_P_256 = "ECDSA-P-256"
    ECDSA_P_384 = "ECDSA-P-384"
    ECDSA_P_521 = "ECDSA-P-521"


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


class HashFunction(StrEnum):
    """Hash functions that hash data in the key service."""

    SHA_224 = "SHA-224"
    SHA_256 = "SHA-256"
    SHA_384 = "SHA-384"
    SHA_512 = "SHA-512"
    SHA3_224 = "SHA3-224"
    SHA3_256 = "SHA3-256"
    SHA3_384 = "SHA3-384"
    SHA3_512 = "SHA3-512"


MAX_RANDOM = 128 * 1024
"""The most random bytes of one request."""


class GivenKeyAlgorithm(StrEnum):
    """Signature algorithms of public keys that a caller gives, by their JOSE names.

    Such keys belong to passkeys and signed tokens. A tenant's keys have an ``Algorithm``.
    """

    ES256 = "ES256"
    RS256 = "RS256"
    PS256 = "PS256"
    EDDSA = "EdDSA"
    """Ed25519 only."""
    ML_DSA_44 = "ML-DSA-44"
    ML_DSA_65 = "ML-DSA-65"
    ML_DSA_87 = "ML-DSA-87"


MAX_GIVEN_KEY = 4096
"""Bytes of a given public key, a SubjectPublicKeyInfo. One of ML-DSA-87 has 2,614."""
MAX_GIVEN_SIGNATURE = 4627
"""Bytes of a signature under a given key: one of ML-DSA-87 has as many."""
MAX_GIVEN_MESSAGE = 16 * 1024
"""Bytes of a message that was signed under a given key."""

SYMMETRIC_KEY_SIZES = frozenset({16, 24, 32, 48, 64})
"""Sizes in bytes of keys that can be wrapped."""

CHECK_VALUE_SIZE = 32
"""Bytes of the value that identifies a symmetric key and reveals nothing of it."""

MU_SIZE = 64
"""Bytes in an external mu (FIPS 204, algorithm 7, line 6)."""

MAX_CONTEXT = 255
"""The longest context of a signature, in bytes (FIPS 204 and 205)."""
RESERVED_CONTEXT = b"pqkeep/"
"""The prefix of signature contexts that only pqkeep itself uses."""

MAX_DERIVATION_CONTEXT = 4096
"""The longest context of a derived key, in bytes."""

MAX_ASSOCIATED_DATA = 64 * 1024
"""The longest associated data of a ciphertext, in bytes."""

BOX_OVERHEAD = 28
"""Bytes that AES-256-GCM adds to a plaintext: nonce (12) and tag (16)."""

XAES_OVERHEAD = 40
"""Bytes that XAES-256-GCM adds to a plaintext: nonce (24) and tag (16)."""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """The public properties of an algorithm. Sizes are in bytes."""

    kind: Kind
    standard: str
    operations: frozenset[Operation]
    public_key_size: int
    """0 for symmetric keys, and for legacy keys, which have several sizes."""
    output_size: int
    """Size of the KEM ciphertext, the largest signature or the MAC; 0 for other algorithms."""

    @property
    def is_symmetric(self) -> bool:
        """Whether its keys have no public half."""
        return self.kind in {Kind.CIPHER, Kind.MAC}

    @property
    def is_legacy(self) -> bool:
        """Whether its keys are imported and only read earlier output."""
        return self.kind in {Kind.LEGACY_DECRYPTION, Kind.LEGACY_VERIFICATION}

    @property
    def overhead(self) -> int:
        """The bytes that encrypting adds to a plaintext."""
        if self.kind is Kind.CIPHER:
            return XAES_OVERHEAD
        return self.output_size + BOX_OVERHEAD


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


def _symmetric(
    kind: Kind, standard: str, output_size: int, uses: frozenset[Operation]
) -> AlgorithmSpec:
    operations = uses | (LIFECYCLE - _OF_KEY_PAIRS)
    return AlgorithmSpec(kind, standard, operations, 0, output_size)


def _legacy(standard: str, *uses: Operation) -> AlgorithmSpec:
    decrypts = Operation.RE_ENCRYPT in uses
    kind = Kind.LEGACY_DECRYPTION if decrypts else Kind.LEGACY_VERIFICATION
    operations = frozenset(uses) | (LIFECYCLE - _NOT_OF_LEGACY_KEYS)
    return AlgorithmSpec(kind, standard, operations, 0, 0)


_RSA_OAEP = _legacy("RFC 8017", Operation.RE_ENCRYPT)
_RSA_SIGNATURE = _legacy("RFC 8017", Operation.VERIFY, Operation.VERIFY_HASH)
_ECDSA = _legacy("FIPS 186-5", Operation.VERIFY, Operation.VERIFY_HASH)

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
    Algorithm.XAES_256_GCM: _symmetric(
        Kind.CIPHER,
        "C2SP",
        0,
        (_KEM | _KEY_WRAP) - {Operation.ENCAPSULATE, Operation.DECAPSULATE},
    ),
    Algorithm.HMAC_SHA_256: _symmetric(Kind.MAC, "FIPS 198-1", 32, _MAC),
    Algorithm.HMAC_SHA_512: _symmetric(Kind.MAC, "FIPS 198-1", 64, _MAC),
    Algorithm.RSA_OAEP_SHA_1: _RSA_OAEP,
    Algorithm.RSA_OAEP_SHA_256: _RSA_OAEP,
    Algorithm.RSA_OAEP_SHA_384: _RSA_OAEP,
    Algorithm.RSA_OAEP_SHA_512: _RSA_OAEP,
    Algorithm.RSA_PKCS1_SHA_256: _RSA_SIGNATURE,
    Algorithm.RSA_PKCS1_SHA_384: _RSA_SIGNATURE,
    Algorithm.RSA_PKCS1_SHA_512: _RSA_SIGNATURE,
    Algorithm.RSA_PSS_SHA_256: _RSA_SIGNATURE,
    Algorithm.RSA_PSS_SHA_384: _RSA_SIGNATURE,
    Algorithm.RSA_PSS_SHA_512: _RSA_SIGNATURE,
    Algorithm.ECDSA_P_256: _ECDSA,
    Algorithm.ECDSA_P_384: _ECDSA,
    Algorithm.ECDSA_P_521: _ECDSA,
}
LEGACY = tuple(name for name, spec in ALGORITHMS.items() if spec.is_legacy)
"""The algorithms of legacy keys."""
CURRENT = tuple(name for name, spec in ALGORITHMS.items() if not spec.is_legacy)
"""All other algorithms."""
KEY_PAIRS = tuple(name for name in CURRENT if not ALGORITHMS[name].is_symmetric)
"""The algorithms of the interface specification's table."""
VERIFIED_HASH: Mapping[Algorithm, HashAlgorithm] = {
    Algorithm.RSA_PKCS1_SHA_256: HashAlgorithm.SHA_256,
    Algorithm.RSA_PKCS1_SHA_384: HashAlgorithm.SHA_384,
    Algorithm.RSA_PKCS1_SHA_512: HashAlgorithm.SHA_512,
    Algorithm.RSA_PSS_SHA_256: HashAlgorithm.SHA_256,
    Algorithm.RSA_PSS_SHA_384: HashAlgorithm.SHA_384,
    Algorithm.RSA_PSS_SHA_512: HashAlgorithm.SHA_512,
}
"""The only hash function of a signature, where the algorithm names it."""
