"""Verifies the signatures of checkpoints: ML-DSA-65 (FIPS 204) and SLH-DSA-SHA2-128s (FIPS 205).

The libraries are loaded when the first signature asks for them: the extra ``pqkeep[audit]``.
"""

from collections.abc import Mapping

from pqkeep.audit._statements import CHECKPOINT_CONTEXT, Checkpoint, Key
from pqkeep.verification import verify

SIGNATURE_SIZES: Mapping[str, int] = {"Dilithium3": 3309, "SLH-DSA-SHA2-128s": 7856}


def is_signed_by(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether a checkpoint's signature was made with a key.

    Raises ImportError where the algorithm's library is not installed.
    """
    if len(checkpoint.signature) != SIGNATURE_SIZES[checkpoint.algorithm]:
        return False
    return verify(
        checkpoint.signed_text(),
        checkpoint.signature,
        public_key=key.public_key,
        algorithm=checkpoint.algorithm,
        context=CHECKPOINT_CONTEXT,
    )
