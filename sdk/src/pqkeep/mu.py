"""The mu of ML-DSA: 64 bytes, computed from public key, context and message before signing.

    mu = compute_mu(public_key, [b"a contract"], context=b"contracts")
    signed = client.signatures.sign_mu(mu)

So a message of any size is signed, and the message is not sent. Any verifier of ML-DSA accepts the
signature.
"""

from collections.abc import Iterable
from hashlib import shake_256

MU_SIZE = 64
LONGEST_CONTEXT = 255


def compute_mu(public_key: bytes, message: Iterable[bytes], *, context: bytes = b"") -> bytes:
    """Return the mu of a message in pieces (FIPS 204, algorithm 7, line 6).

    Raises ValueError for a context of more than 255 bytes.
    """
    if len(context) > LONGEST_CONTEXT:
        raise ValueError(f"a context has at most {LONGEST_CONTEXT} bytes")
    hashed = shake_256(shake_256(public_key).digest(MU_SIZE))
    hashed.update(bytes((0, len(context))) + context)
    for piece in message:
        hashed.update(piece)
    return hashed.digest(MU_SIZE)
