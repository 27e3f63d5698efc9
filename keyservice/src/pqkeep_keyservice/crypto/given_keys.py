"""Signatures under public keys that a caller gives: of passkeys, and of signed tokens.

    ES256         ECDSA with P-256 and SHA-256; the signature in DER or as r || s
    RS256, PS256  RFC 8017 with SHA-256, 2048 to 4096 bits; PS256 has a salt of 32 bytes
    EdDSA         Ed25519 (RFC 8032)
    ML-DSA-...    FIPS 204, without a context

A key is a SubjectPublicKeyInfo in DER. It must be a key of the named algorithm.
"""

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_der_public_key

from pqkeep_keyservice.crypto.key_wrapping import PrivateKeyError
from pqkeep_keyservice.crypto.legacy import require_parameters
from pqkeep_protocol.algorithms import GivenKeyAlgorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError

_SHA_256 = hashes.SHA256()
_PS256 = PSS(MGF1(_SHA_256), _SHA_256.digest_size)
_P_256_SIZE = 32
_FIELD = 2**255 - 19
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        2707385501144840649318225287225658788936804267575313519463743609750303021540,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
        _FIELD - 1,
        _FIELD,
        _FIELD + 1,
    }
)
"""The y coordinates of the points of Ed25519 with a small order, in all of their encodings. Under
such a key, a signature can be valid for any message."""


def verify(
    algorithm: GivenKeyAlgorithm, public_key: bytes, signature: bytes, message: bytes
) -> None:
    """Raise KeyServiceError unless the signature is valid.

    INVALID_PUBLIC_KEY: the key is not one of the algorithm. VERIFICATION_FAILED: the signature is
    invalid, or has another size.
    """
    try:
        key = load_der_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm):
        raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY) from None
    try:
        _verify(algorithm, key, signature, message)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None


def _verify(algorithm: GivenKeyAlgorithm, key: object, signature: bytes, message: bytes) -> None:
    """Raise InvalidSignature, or KeyServiceError for a key of another algorithm."""
    match algorithm, key:
        case GivenKeyAlgorithm.ES256, ec.EllipticCurvePublicKey(curve=ec.SECP256R1()):
            key.verify(_in_der(signature), message, ec.ECDSA(_SHA_256))
        case GivenKeyAlgorithm.RS256, rsa.RSAPublicKey():
            _require_size(key)
            key.verify(signature, message, PKCS1v15(), _SHA_256)
        case GivenKeyAlgorithm.PS256, rsa.RSAPublicKey():
            _require_size(key)
            key.verify(signature, message, _PS256, _SHA_256)
        case GivenKeyAlgorithm.EDDSA, ed25519.Ed25519PublicKey():
            if int.from_bytes(key.public_bytes_raw(), "little") % 2**255 in _SMALL_ORDER:
                raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY)
            key.verify(signature, message)
        case GivenKeyAlgorithm.ML_DSA_44, mldsa.MLDSA44PublicKey():
            key.verify(signature, message)
        case GivenKeyAlgorithm.ML_DSA_65, mldsa.MLDSA65PublicKey():
            key.verify(signature, message)
        case GivenKeyAlgorithm.ML_DSA_87, mldsa.MLDSA87PublicKey():
            key.verify(signature, message)
        case _:
            raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY)


def _in_der(signature: bytes) -> bytes:
    """Return an ECDSA signature in DER. A signature of 64 bytes is taken as r || s.

    A DER signature has 64 bytes only once in 2^60.
    """
    if len(signature) != 2 * _P_256_SIZE:
        return signature
    return encode_dss_signature(
        int.from_bytes(signature[:_P_256_SIZE]), int.from_bytes(signature[_P_256_SIZE:])
    )


def _require_size(key: rsa.RSAPublicKey) -> None:
    try:
        require_parameters(key)
    except PrivateKeyError:
        raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY) from None
