"""Shared secrets for a public key, made here."""

from pqkeep.local._primitives import KEMS, canonical
from pqkeep.models import Encapsulation

LARGEST_KEY_VERSION = (1 << 32) - 1


def encapsulate(*, public_key: bytes, algorithm: str, key_version: int) -> Encapsulation:
    """Make a new shared secret of 32 bytes, as ``client.kem.encapsulate`` does, but here.

    Raises ValueError where the three cannot be those of one key.
    """
    algorithm = canonical(algorithm)
    if algorithm not in KEMS:
        raise ValueError(f"the algorithm must be one of {', '.join(KEMS)}")
    if not 1 <= key_version <= LARGEST_KEY_VERSION:
        raise ValueError(f"the key version must be from 1 to {LARGEST_KEY_VERSION}")
    try:
        shared_secret, kem_ciphertext = KEMS[algorithm].encapsulate(public_key)
    except ValueError:
        raise ValueError(f"the public key is none of {algorithm}") from None
    return Encapsulation(
        kem_ciphertext=kem_ciphertext,
        shared_secret=shared_secret,
        key_version=key_version,
        algorithm=algorithm,
    )
