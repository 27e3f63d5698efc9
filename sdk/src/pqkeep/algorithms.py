"""The algorithms by the names that the service has for them.

Methods take plain strings too, and answers have them: a service may know more than this client.
"""

from enum import StrEnum


class Algorithm(StrEnum):
    """What keys are for."""

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


class HashAlgorithm(StrEnum):
    """What hashes are made with before they are signed."""

    SHA_256 = "SHA-256"
    SHA_384 = "SHA-384"
    SHA_512 = "SHA-512"
