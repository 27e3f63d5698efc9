"""Verification of signatures without a service, with only the public key.

    valid = verify_hash(digest, signature, hash_algorithm="SHA-512", public_key=…, algorithm="…")

ML-DSA and Composite-ML-DSA need the extra ``pqkeep[local]``, SLH-DSA ``pqkeep[audit]``. Each
library is imported for the first signature that needs it. docs/cryptography.md describes the signed
data.
"""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha512
from typing import TYPE_CHECKING

from pqkeep.algorithms import Algorithm, HashAlgorithm
from pqkeep.errors import UnreadableInputError, how_to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

HASH_CONTEXT = b"pqkeep/v1/sign-hash"
LONGEST_CONTEXT = 255
MU_SIZE = 64
_HASHES: Mapping[str, tuple[int, bytes]] = {
    HashAlgorithm.SHA_256: (32, bytes.fromhex("0609608648016503040201")),
    HashAlgorithm.SHA_384: (48, bytes.fromhex("0609608648016503040202")),
    HashAlgorithm.SHA_512: (64, bytes.fromhex("0609608648016503040203")),
}
"""The size of each digest, and the object identifier in DER that binds a signature to the hash."""
_COMPOSITE_PREFIX = b"CompositeAlgorithmSignatures2025"
_COMPOSITE_LABEL = b"COMPSIG-MLDSA65-ECDSA-P256-SHA512"
_ED25519_SIZE = 32
_KEY_SIZE, _SIGNATURE_SIZE = 1952, 3309
"""Bytes of an ML-DSA-65 key and signature. They are the first part of a composite's."""

Verify = Callable[[bytes, bytes, bytes, bytes], None]
"""Takes public key, message, context and signature. Raises ValueError or InvalidSignature."""


def verify(
    message: bytes, signature: bytes, *, public_key: bytes, algorithm: str, context: bytes = b""
) -> bool:
    """Return True if the signature over the message is valid for the public key.

    A signature or a public key of the wrong size is not valid. Raises ValueError for an unknown
    algorithm or a context of more than 255 bytes, and ImportError if the algorithm's library is not
    installed.
    """
    if algorithm not in _ALGORITHMS:
        raise ValueError(f"the algorithm must be one of {', '.join(_ALGORITHMS)}")
    if len(context) > LONGEST_CONTEXT:
        raise ValueError(f"a context has at most {LONGEST_CONTEXT} bytes")
    extra, check = _ALGORITHMS[algorithm]
    try:
        return _holds(partial(check, public_key, message, context, signature))
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{algorithm} cannot be verified here: {how_to_install(extra)}", name=error.name
        ) from None


def verify_hash(
    digest: bytes, signature: bytes, *, hash_algorithm: str, public_key: bytes, algorithm: str
) -> bool:
    """Return True if a ``sign_hash`` signature is valid for the public key.

    Raises the errors of ``verify``, and ValueError for an unknown hash or a digest of the wrong
    size.
    """
    if hash_algorithm not in _HASHES:
        raise ValueError(f"the hash must be one of {', '.join(_HASHES)}")
    size, identifier = _HASHES[hash_algorithm]
    if len(digest) != size:
        raise ValueError(f"a digest of {hash_algorithm} has {size} bytes")
    return verify(
        identifier + digest,
        signature,
        public_key=public_key,
        algorithm=algorithm,
        context=HASH_CONTEXT,
    )


def verify_mu(mu: bytes, signature: bytes, *, public_key: bytes, algorithm: str) -> bool:
    """Return True if the signature is valid for the message with this mu.

    Raises ValueError for an algorithm without a mu or a mu of the wrong size, and ImportError if
    the library is not installed.
    """
    if algorithm not in {Algorithm.ML_DSA_65, Algorithm.ML_DSA_87}:
        raise ValueError("only ML-DSA has a mu")
    if len(mu) != MU_SIZE:
        raise ValueError(f"a mu has {MU_SIZE} bytes")
    try:
        return _holds(partial(_ml_dsa_mu, algorithm, public_key, mu, signature))
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{algorithm} cannot be verified here: {how_to_install('local')}", name=error.name
        ) from None


def verify_timestamped(message: bytes, signature: bytes, *, public_key: bytes) -> bool:
    """Return True if a signature of a transparency log's note or cosignature is valid.

    A public key of 32 bytes is Ed25519, any other ML-DSA-44. Raises ImportError if the library is
    not installed.
    """
    from cryptography.hazmat.primitives.asymmetric import ed25519, mldsa  # noqa: PLC0415 - see above

    if len(public_key) == _ED25519_SIZE:
        key = ed25519.Ed25519PublicKey.from_public_bytes(public_key)
        return _holds(partial(key.verify, signature, message))
    noted = mldsa.MLDSA44PublicKey.from_public_bytes(public_key)
    return _holds(partial(noted.verify, signature, message))


def require_public_key(algorithm: str, public_key: bytes) -> None:
    """Raise UnreadableInputError if the bytes are not a public key of the algorithm.

    Only the elliptic-curve point of a composite key is checked. Other keys may be any bytes of the
    right length. Raises ImportError if the library is not installed.
    """
    if algorithm != Algorithm.COMPOSITE_ML_DSA:
        return
    try:
        _point(public_key)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{algorithm} cannot be verified here: {how_to_install('local')}", name=error.name
        ) from None
    except ValueError:
        is_point = False
    else:
        is_point = True
    if not is_point:
        raise UnreadableInputError(
            f"no public key of {algorithm}: its second part is not a point of P-256",
            "get the original public key again",
        )


def _holds(check: Callable[[], None]) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see above

    try:
        check()
    except (InvalidSignature, ValueError):
        return False
    return True


def _ml_dsa_65(public_key: bytes, message: bytes, context: bytes, signature: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric import mldsa  # noqa: PLC0415 - see above

    mldsa.MLDSA65PublicKey.from_public_bytes(public_key).verify(signature, message, context)


def _ml_dsa_87(public_key: bytes, message: bytes, context: bytes, signature: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric import mldsa  # noqa: PLC0415 - see above

    mldsa.MLDSA87PublicKey.from_public_bytes(public_key).verify(signature, message, context)


def _ml_dsa_mu(algorithm: str, public_key: bytes, mu: bytes, signature: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric import mldsa  # noqa: PLC0415 - see above

    if algorithm == Algorithm.ML_DSA_65:
        mldsa.MLDSA65PublicKey.from_public_bytes(public_key).verify_mu(signature, mu)
    else:
        mldsa.MLDSA87PublicKey.from_public_bytes(public_key).verify_mu(signature, mu)


def _composite(public_key: bytes, message: bytes, context: bytes, signature: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

    bound = bytes((len(context),)) + context + sha512(message).digest()
    signed = _COMPOSITE_PREFIX + _COMPOSITE_LABEL + bound
    ml_dsa, ecdsa = signature[:_SIGNATURE_SIZE], signature[_SIGNATURE_SIZE:]
    _ml_dsa_65(public_key[:_KEY_SIZE], signed, _COMPOSITE_LABEL, ml_dsa)
    _point(public_key).verify(ecdsa, signed, ec.ECDSA(SHA256()))


def _point(public_key: bytes) -> "EllipticCurvePublicKey":
    """Return the second part of a composite public key. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - see above

    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public_key[_KEY_SIZE:])


def _slh_dsa(
    name: str, public_key: bytes, message: bytes, context: bytes, signature: bytes
) -> None:
    from pqcrypto import sign  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    getattr(sign, name).verify(public_key, message, signature, context)


_ALGORITHMS: Mapping[str, tuple[str, Verify]] = {
    Algorithm.ML_DSA_65: ("local", _ml_dsa_65),
    Algorithm.ML_DSA_87: ("local", _ml_dsa_87),
    Algorithm.COMPOSITE_ML_DSA: ("local", _composite),
    Algorithm.SLH_DSA_SHA2_128S: ("audit", partial(_slh_dsa, "slh_dsa_sha2_128s")),
    Algorithm.SLH_DSA_SHA2_128F: ("audit", partial(_slh_dsa, "slh_dsa_sha2_128f")),
    Algorithm.SLH_DSA_SHA2_192S: ("audit", partial(_slh_dsa, "slh_dsa_sha2_192s")),
    Algorithm.SLH_DSA_SHA2_256S: ("audit", partial(_slh_dsa, "slh_dsa_sha2_256s")),
}
"""The extra with the library, and the verifying function, by algorithm."""
