"""Private keys as PKCS#8 (RFC 5958) in the form of their seeds, decoded to what is stored.

    PrivateKeyInfo = SEQUENCE { INTEGER 0, AlgorithmIdentifier, OCTET STRING { private key } }
    private key    = [0] { seed }                  of ML-KEM (RFC 9935) and ML-DSA (RFC 9881)
                   = the stored form itself        of SLH-DSA (RFC 9909), X-Wing, Composite-ML-DSA

Without attributes and without the public key there is one encoding of each private key; others are
refused.
"""

from collections.abc import Mapping

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.public_keys import algorithm_identifier, der

SEED_SIZE: Mapping[Algorithm, int] = {
    Algorithm.ML_KEM_768: 64,
    Algorithm.X_WING: 32,
    Algorithm.ML_KEM_1024: 64,
    Algorithm.ML_DSA_65: 32,
    Algorithm.COMPOSITE_ML_DSA: 83,
    Algorithm.ML_DSA_87: 32,
    Algorithm.SLH_DSA_SHA2_128S: 64,
    Algorithm.SLH_DSA_SHA2_128F: 64,
    Algorithm.SLH_DSA_SHA2_192S: 96,
    Algorithm.SLH_DSA_SHA2_256S: 128,
}
"""Bytes of a private key in its stored form."""
TAGGED = frozenset(
    {Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024, Algorithm.ML_DSA_65, Algorithm.ML_DSA_87}
)
"""Those whose standard has other forms beside the seed, which has a tag therefore."""

_SEQUENCE, _OCTET_STRING, _SEED = 0x30, 0x04, 0x80
_VERSION = bytes.fromhex("020100")


def _before_the_seed(algorithm: Algorithm) -> bytes:
    size = SEED_SIZE[algorithm]
    content = der(_SEED, bytes(size)) if algorithm in TAGGED else bytes(size)
    inner = _VERSION + algorithm_identifier(algorithm) + der(_OCTET_STRING, content)
    return der(_SEQUENCE, inner)[:-size]


_PREFIXES: Mapping[Algorithm, bytes] = {each: _before_the_seed(each) for each in Algorithm}


def decode(algorithm: Algorithm, data: Secret) -> Secret:
    """Return a private key of an algorithm in its stored form. Raises ValueError."""
    prefix, view = _PREFIXES[algorithm], data.reveal()
    if len(view) != len(prefix) + SEED_SIZE[algorithm] or view[: len(prefix)] != prefix:
        raise ValueError("not a private key in the form of a seed")
    return Secret(bytearray(view[len(prefix) :]))
