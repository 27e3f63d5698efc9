"""The ML-DSA-44 key that signs notes: derived from the seed of a key that signs checkpoints.

    seed = HKDF-SHA-256(seed of the checkpoint key, salt = "", info = "pqkeep/v1/signed-note", 32)

So it is sealed, backed up and replaced with that key, and nothing further is stored.
"""

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_keyservice.crypto.mldsa import ML_DSA_44, SigningKey
from pqkeep_keyservice.crypto.secret import Secret

INFO = b"pqkeep/v1/signed-note"
_SEED_SIZE = 32


def derive(seed: Secret) -> SigningKey:
    """Return the key."""
    kdf = HKDF(SHA256(), length=_SEED_SIZE, salt=None, info=INFO)
    with Secret(kdf.derive(seed.reveal())) as derived:
        return ML_DSA_44.load_seed(derived)
