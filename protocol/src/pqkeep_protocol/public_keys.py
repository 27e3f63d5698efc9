"""Public keys in standard formats: SubjectPublicKeyInfo (RFC 5280) as DER and PEM, and JWK.

    SubjectPublicKeyInfo = SEQUENCE { SEQUENCE { object identifier }, BIT STRING { public key } }

The bit string is the public key as its standard encodes it, without further structure. Because
object identifier and size are fixed for each algorithm, so is everything before the key, and there
is one encoding of each key: what differs from it in any byte is refused.
"""

import binascii
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm

OBJECT_IDENTIFIER: Mapping[Algorithm, bytes] = {
    Algorithm.ML_KEM_768: bytes.fromhex("0609608648016503040402"),
    Algorithm.X_WING: bytes.fromhex("060b2b0601040183e62d81c87a"),
    Algorithm.ML_KEM_1024: bytes.fromhex("0609608648016503040403"),
    Algorithm.ML_DSA_65: bytes.fromhex("0609608648016503040312"),
    Algorithm.COMPOSITE_ML_DSA: bytes.fromhex("06082b0601050507062d"),
    Algorithm.ML_DSA_87: bytes.fromhex("0609608648016503040313"),
    Algorithm.SLH_DSA_SHA2_128S: bytes.fromhex("0609608648016503040314"),
    Algorithm.SLH_DSA_SHA2_128F: bytes.fromhex("0609608648016503040315"),
    Algorithm.SLH_DSA_SHA2_192S: bytes.fromhex("0609608648016503040316"),
    Algorithm.SLH_DSA_SHA2_256S: bytes.fromhex("0609608648016503040318"),
}
"""DER. ML-KEM by RFC 9935, ML-DSA by RFC 9881, SLH-DSA by RFC 9909; X-Wing by
draft-connolly-cfrg-xwing-kem, Composite-ML-DSA by draft-ietf-lamps-pq-composite-sigs."""

JWK_ALGORITHM: Mapping[Algorithm, str] = {
    Algorithm.ML_DSA_65: "ML-DSA-65",
    Algorithm.ML_DSA_87: "ML-DSA-87",
    Algorithm.SLH_DSA_SHA2_128S: "SLH-DSA-SHA2-128s",
    Algorithm.SLH_DSA_SHA2_128F: "SLH-DSA-SHA2-128f",
}
"""``alg`` of keys that have a JWK: ML-DSA by RFC 9964, SLH-DSA by draft-ietf-cose-sphincs-plus.

Of the others neither says how they are written."""

PEM_LABEL = "PUBLIC KEY"
MAX_PEM = 8192
"""Characters of a PEM document: the largest public key has under 4,000."""

_SEQUENCE, _BIT_STRING = 0x30, 0x03
_LONG_FORM = 0x80
_PEM_LINE = 64
_ENCODER = msgspec.json.Encoder(order="sorted")


class NotAPublicKeyError(ValueError):
    """The data is no public key of an algorithm that is here. Says nothing of the data."""


def der(tag: int, content: bytes) -> bytes:
    """Return one DER element: tag, length, content."""
    size = len(content)
    if size < _LONG_FORM:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, _LONG_FORM | len(length))) + length + content


def algorithm_identifier(algorithm: Algorithm) -> bytes:
    """Return the DER of an AlgorithmIdentifier; none of these algorithms has parameters."""
    return der(_SEQUENCE, OBJECT_IDENTIFIER[algorithm])


def to_der(algorithm: Algorithm, public_key: bytes) -> bytes:
    """Return a public key as SubjectPublicKeyInfo."""
    bits = der(_BIT_STRING, b"\x00" + public_key)
    return der(_SEQUENCE, algorithm_identifier(algorithm) + bits)


def _before_the_key(algorithm: Algorithm) -> bytes:
    size = ALGORITHMS[algorithm].public_key_size
    return to_der(algorithm, bytes(size))[:-size]


_PREFIXES: Mapping[Algorithm, bytes] = {each: _before_the_key(each) for each in Algorithm}


def from_der(data: bytes) -> tuple[Algorithm, bytes]:
    """Return the algorithm and the public key of a SubjectPublicKeyInfo. Raises NotAPublicKeyError.

    The key has its algorithm's size; whether it is a valid one is checked where it is used.
    """
    for algorithm, prefix in _PREFIXES.items():
        public_key = data[len(prefix) :]
        if data.startswith(prefix) and len(public_key) == ALGORITHMS[algorithm].public_key_size:
            return algorithm, public_key
    raise NotAPublicKeyError("not a public key")


def to_pem(algorithm: Algorithm, public_key: bytes) -> str:
    """Return a public key as PEM (RFC 7468)."""
    text = b64encode(to_der(algorithm, public_key)).decode("ascii")
    lines = (text[start : start + _PEM_LINE] for start in range(0, len(text), _PEM_LINE))
    return "\n".join((f"-----BEGIN {PEM_LABEL}-----", *lines, f"-----END {PEM_LABEL}-----", ""))


def from_pem(text: str) -> tuple[Algorithm, bytes]:
    """Return the algorithm and the public key of a PEM document. Raises NotAPublicKeyError.

    The document has one block, and nothing but white space around it.
    """
    lines = text.split() if len(text) <= MAX_PEM else []
    begin, end = f"-----BEGIN {PEM_LABEL}-----".split(), f"-----END {PEM_LABEL}-----".split()
    if lines[: len(begin)] != begin or lines[-len(end) :] != end:
        raise NotAPublicKeyError("not a public key")
    try:
        data = b64decode("".join(lines[len(begin) : -len(end)]), validate=True)
    except (binascii.Error, ValueError):
        raise NotAPublicKeyError("not a public key") from None
    return from_der(data)


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    """A public key as JWK, of the key type AKP (RFC 9964)."""

    kid: str
    kty: str = "AKP"
    alg: str
    use: str = "sig"
    pub: str


def to_jwk(algorithm: Algorithm, public_key: bytes) -> Jwk:
    """Return a public key of one of JWK_ALGORITHM as JWK. Raises KeyError."""
    alg = JWK_ALGORITHM[algorithm]
    return Jwk(kid=thumbprint(alg, public_key), alg=alg, pub=base64url(public_key))


def thumbprint(alg: str, public_key: bytes) -> str:
    """Return a key's thumbprint (RFC 7638), of the members that RFC 9964 requires of AKP."""
    members = {"alg": alg, "kty": "AKP", "pub": base64url(public_key)}
    return base64url(sha256(_ENCODER.encode(members)).digest())


def base64url(data: bytes) -> str:
    """Return base64url without padding (RFC 7515, section 2)."""
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
