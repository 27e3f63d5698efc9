"""The algorithms: their names in the API, sizes and identifiers.

Methods and results also have plain strings, because a service may have further algorithms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Algorithm(StrEnum):
    """The algorithms of keys."""

    ML_KEM_768 = "Kyber768"
    ML_KEM_1024 = "ML-KEM-1024"
    X_WING = "X-Wing"
    ML_DSA_65 = "Dilithium3"
    ML_DSA_87 = "ML-DSA-87"
    COMPOSITE_ML_DSA = "Composite-ML-DSA"
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


LEGACY_DECRYPTING = frozenset(
    {
        Algorithm.RSA_OAEP_SHA_1,
        Algorithm.RSA_OAEP_SHA_256,
        Algorithm.RSA_OAEP_SHA_384,
        Algorithm.RSA_OAEP_SHA_512,
    }
)
"""Algorithms of imported keys with which re-encrypt reads old ciphertexts."""
LEGACY_VERIFYING = frozenset(
    {
        Algorithm.RSA_PKCS1_SHA_256,
        Algorithm.RSA_PKCS1_SHA_384,
        Algorithm.RSA_PKCS1_SHA_512,
        Algorithm.RSA_PSS_SHA_256,
        Algorithm.RSA_PSS_SHA_384,
        Algorithm.RSA_PSS_SHA_512,
        Algorithm.ECDSA_P_256,
        Algorithm.ECDSA_P_384,
        Algorithm.ECDSA_P_521,
    }
)
"""Algorithms of imported keys that verify old signatures."""
LEGACY = LEGACY_DECRYPTING | LEGACY_VERIFYING
"""Algorithms of keys that are imported and only read."""


class HashAlgorithm(StrEnum):
    """The hash algorithms of signed hashes."""

    SHA_256 = "SHA-256"
    SHA_384 = "SHA-384"
    SHA_512 = "SHA-512"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Sizes are in bytes. None means that the algorithm has no such part, or no fixed size."""

    title: str
    """The name in messages: the API's, and the standard's if it differs."""
    identifier: str
    """The object identifier of its keys."""
    public_key: int
    seed: int
    """The size of the private key in the service's form."""
    expanded: int | None = None
    """The size of the expanded private key."""
    ciphertext: int | None = None
    """The size of the KEM ciphertext."""
    signature: range = range(0)
    """The possible sizes of a signature."""
    jwk: str | None = None
    """``alg`` of its JWK, and of JWS."""


def _slh_dsa(
    name: str, arc: int, size: int, signature: int, *, has_jwk: bool = False
) -> Parameters:
    return Parameters(
        title=name,
        identifier=f"2.16.840.1.101.3.4.3.{arc}",
        public_key=2 * size,
        seed=4 * size,
        signature=range(signature, signature + 1),
        jwk=name if has_jwk else None,
    )


PARAMETERS: Mapping[str, Parameters] = {
    Algorithm.ML_KEM_768: Parameters(
        title="Kyber768 (ML-KEM-768)",
        identifier="2.16.840.1.101.3.4.4.2",
        public_key=1184,
        seed=64,
        expanded=2400,
        ciphertext=1088,
    ),
    Algorithm.ML_KEM_1024: Parameters(
        title="ML-KEM-1024",
        identifier="2.16.840.1.101.3.4.4.3",
        public_key=1568,
        seed=64,
        expanded=3168,
        ciphertext=1568,
    ),
    Algorithm.X_WING: Parameters(
        title="X-Wing",
        identifier="1.3.6.1.4.1.62253.25722",
        public_key=1216,
        seed=32,
        ciphertext=1120,
    ),
    Algorithm.ML_DSA_65: Parameters(
        title="Dilithium3 (ML-DSA-65)",
        identifier="2.16.840.1.101.3.4.3.18",
        public_key=1952,
        seed=32,
        expanded=4032,
        signature=range(3309, 3310),
        jwk="ML-DSA-65",
    ),
    Algorithm.ML_DSA_87: Parameters(
        title="ML-DSA-87",
        identifier="2.16.840.1.101.3.4.3.19",
        public_key=2592,
        seed=32,
        expanded=4896,
        signature=range(4627, 4628),
        jwk="ML-DSA-87",
    ),
    Algorithm.COMPOSITE_ML_DSA: Parameters(
        title="Composite-ML-DSA",
        identifier="1.3.6.1.5.5.7.6.45",
        public_key=2017,
        seed=83,
        signature=range(3309 + 8, 3309 + 73),  # an ECDSA signature in DER has 8 to 72
    ),
    Algorithm.SLH_DSA_SHA2_128S: _slh_dsa("SLH-DSA-SHA2-128s", 20, 16, 7856, has_jwk=True),
    Algorithm.SLH_DSA_SHA2_128F: _slh_dsa("SLH-DSA-SHA2-128f", 21, 16, 17088, has_jwk=True),
    Algorithm.SLH_DSA_SHA2_192S: _slh_dsa("SLH-DSA-SHA2-192s", 22, 24, 16224),
    Algorithm.SLH_DSA_SHA2_256S: _slh_dsa("SLH-DSA-SHA2-256s", 24, 32, 29792),
}
"""The algorithms with public keys, by the API's name. docs/formats.md has the sources."""

BY_IDENTIFIER: Mapping[str, str] = {
    parameters.identifier: algorithm for algorithm, parameters in PARAMETERS.items()
}
BY_JWK: Mapping[str, str] = {
    parameters.jwk: algorithm for algorithm, parameters in PARAMETERS.items() if parameters.jwk
}
KEM_JWK: Mapping[str, str] = {
    f"{name}{wrap}": algorithm
    for name, algorithm in (
        ("ML-KEM-768", Algorithm.ML_KEM_768),
        ("ML-KEM-1024", Algorithm.ML_KEM_1024),
    )
    for wrap in ("", "+A128KW", "+A192KW", "+A256KW")
}
"""``alg`` in JWKs of KEM keys (draft-ietf-jose-pqc-kem). pqkeep reads them and does not write them.
"""

_SLH_DSA = (
    *("SHA2-128s", "SHA2-128f", "SHA2-192s", "SHA2-192f", "SHA2-256s", "SHA2-256f"),
    *("SHAKE-128s", "SHAKE-128f", "SHAKE-192s", "SHAKE-192f", "SHAKE-256s", "SHAKE-256f"),
)
OTHERS: Mapping[str, str] = {
    "1.2.840.113549.1.1.1": "RSA",
    "1.2.840.113549.1.1.10": "RSA (RSASSA-PSS)",
    "1.2.840.113549.1.3.1": "Diffie-Hellman",
    "1.2.840.10040.4.1": "DSA",
    "1.2.840.10045.2.1": "EC",
    "1.3.101.110": "X25519",
    "1.3.101.111": "X448",
    "1.3.101.112": "Ed25519",
    "1.3.101.113": "Ed448",
    "1.2.840.113549.1.9.16.3.17": "HSS/LMS",
    "1.3.6.1.5.5.7.6.34": "XMSS",
    "1.3.6.1.5.5.7.6.35": "XMSS-MT",
    "2.16.840.1.101.3.4.4.1": "ML-KEM-512",
    "2.16.840.1.101.3.4.3.17": "ML-DSA-44",
    **{f"2.16.840.1.101.3.4.3.{20 + at}": f"SLH-DSA-{name}" for at, name in enumerate(_SLH_DSA)},
    **{
        f"2.16.840.1.101.3.4.3.{32 + at}": f"HashML-DSA-{size}"
        for at, size in enumerate((44, 65, 87))
    },
    **{
        f"2.16.840.1.101.3.4.3.{35 + at}": f"HashSLH-DSA-{name}" for at, name in enumerate(_SLH_DSA)
    },
}
"""Algorithms that pqkeep does not have, by object identifier."""
FAMILIES: Sequence[tuple[str, str]] = (
    ("1.3.6.1.5.5.7.6.", "another composite algorithm"),
    ("2.16.840.1.114027.80.", "a composite algorithm of an earlier draft"),
    ("1.3.6.1.4.1.2.267.", "Dilithium as it was before ML-DSA (FIPS 204)"),
    ("1.3.6.1.4.1.22554.5.6.", "Kyber as it was before ML-KEM (FIPS 203)"),
    ("1.3.9999.", "liboqs (an algorithm before its standard)"),
)
"""Algorithms that pqkeep does not have, by the beginning of the object identifier."""
OTHER_SIGNATURES: Mapping[int, str] = {
    64: "Ed25519 or ECDSA",
    114: "Ed448",
    256: "RSA of 2048 bits",
    384: "RSA of 3072 bits",
    512: "RSA of 4096 bits",
    2420: "ML-DSA-44",
    3293: "Dilithium3 before FIPS 204",
    4595: "Dilithium5 before FIPS 204",
    35664: "SLH-DSA with 192f",
    49856: "SLH-DSA with 256f",
}
"""Algorithms that pqkeep does not have, by the size of their signatures."""
_ALIASES: Mapping[str, str] = {
    "ML-KEM-768": Algorithm.ML_KEM_768.value,
    "ML-DSA-65": Algorithm.ML_DSA_65.value,
}
NAMES: Sequence[str] = (*_ALIASES, *(algorithm.value for algorithm in Algorithm))
"""Every name that an algorithm has in the API."""


_SHORTEST_NAMED = 500
"""The fewest bytes to recognize. Shorter data could be too many things."""
_OTHER_LENGTHS: Mapping[int, str] = {
    768: "a KEM ciphertext of ML-KEM-512",
    800: "a public key of ML-KEM-512",
    1312: "a public key of ML-DSA-44",
    1632: "an expanded private key of ML-KEM-512",
    2560: "an expanded private key of ML-DSA-44",
}


def of_length(size: int) -> Sequence[str]:
    """Return descriptions of the keys, ciphertexts and signatures of a size in bytes."""
    if size < _SHORTEST_NAMED:
        return ()
    found = [
        f"{part} of {parameters.title}"
        for parameters in PARAMETERS.values()
        for part, is_one in (
            ("a public key", size == parameters.public_key),
            ("an expanded private key", size == parameters.expanded),
            ("a KEM ciphertext", size == parameters.ciphertext),
            ("a signature", size in parameters.signature),
        )
        if is_one
    ]
    if size in _OTHER_LENGTHS:
        found.append(_OTHER_LENGTHS[size])
    if size in OTHER_SIGNATURES:
        found.append(f"a signature of {OTHER_SIGNATURES[size]}")
    return found


def canonical(algorithm: str) -> str:
    """Return the API's name of an algorithm, given any of its names."""
    return _ALIASES.get(algorithm, algorithm)


def title(algorithm: str) -> str:
    """Return an algorithm's name for messages."""
    known = PARAMETERS.get(algorithm)
    return algorithm if known is None else known.title


def named(identifier: str) -> str:
    """Return an algorithm's name for messages, by its object identifier."""
    if identifier in BY_IDENTIFIER:
        return title(BY_IDENTIFIER[identifier])
    if identifier in OTHERS:
        return OTHERS[identifier]
    for beginning, family in FAMILIES:
        if identifier.startswith(beginning):
            return f"{family}, {identifier}"
    return f"an unknown algorithm, {identifier}"
