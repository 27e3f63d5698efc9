"""Verifies the signatures of checkpoints: ML-DSA-65 (FIPS 204) and SLH-DSA-SHA2-128s (FIPS 205).

Each library is loaded when the first signature asks for it: they are the extra ``pqkeep[audit]``.
Of pqcrypto, the SLH-DSA module only.
"""

from collections.abc import Callable, Mapping

from pqkeep.audit._statements import CHECKPOINT_CONTEXT, Checkpoint, Key

SIGNATURE_SIZES: Mapping[str, int] = {"Dilithium3": 3309, "SLH-DSA-SHA2-128s": 7856}


def is_signed_by(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether a checkpoint's signature was made with a key.

    Raises ImportError where the algorithm's library is not installed.
    """
    if len(checkpoint.signature) != SIGNATURE_SIZES[checkpoint.algorithm]:
        return False
    verify = _ALGORITHMS[checkpoint.algorithm]
    return verify(key.public_key, checkpoint.signature, checkpoint.signed_text())


def _ml_dsa_65(public_key: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.asymmetric import mldsa  # noqa: PLC0415

    try:
        key = mldsa.MLDSA65PublicKey.from_public_bytes(public_key)
        key.verify(signature, message, CHECKPOINT_CONTEXT)
    except (InvalidSignature, ValueError):
        return False
    return True


def _slh_dsa_sha2_128s(public_key: bytes, signature: bytes, message: bytes) -> bool:
    from pqcrypto.sign import slh_dsa_sha2_128s  # noqa: PLC0415 - see above

    try:
        slh_dsa_sha2_128s.verify(public_key, message, signature, CHECKPOINT_CONTEXT)
    except ValueError:  # the package's own error is one
        return False
    return True


_ALGORITHMS: Mapping[str, Callable[[bytes, bytes, bytes], bool]] = {
    "Dilithium3": _ml_dsa_65,
    "SLH-DSA-SHA2-128s": _slh_dsa_sha2_128s,
}
