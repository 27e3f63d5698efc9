"""X-Wing (draft-connolly-cfrg-xwing-kem): ML-KEM-768 and X25519, combined with SHA3-256.

e = SHAKE256(seed, 96)          ML-KEM-768 from e[0:64], X25519 from e[64:96]
public key = pk_M || pk_X       ciphertext = ct_M || ct_X
secret = SHA3-256(ss_M || ss_X || ct_X || pk_X || label)
"""

import os
from dataclasses import dataclass
from hashlib import sha3_256, shake_256

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from pqkeep_keyservice.crypto.secret import Secret

LABEL = bytes.fromhex("5c2e2f2f5e5c")
SEED_SIZE = 32
_M_PUBLIC_KEY = 1184
_M_CIPHERTEXT = 1088
_M_SEED = 64
_X_SIZE = 32
_EXPANDED = _M_SEED + _X_SIZE


@dataclass(frozen=True, slots=True, repr=False)
class EncapsulationKey:
    """A public key (1216 bytes)."""

    _m: MLKEM768PublicKey
    _x: X25519PublicKey

    def encapsulate(self) -> tuple[bytes, bytes]:
        """Return a fresh shared secret (32 bytes) and its ciphertext (1120 bytes)."""
        m_secret, m_ciphertext = self._m.encapsulate()
        ephemeral = X25519PrivateKey.generate()
        x_ciphertext = ephemeral.public_key().public_bytes_raw()
        x_secret = ephemeral.exchange(self._x)
        secret = _combine(m_secret, x_secret, x_ciphertext, self._x.public_bytes_raw())
        return secret, m_ciphertext + x_ciphertext


@dataclass(frozen=True, slots=True, repr=False)
class DecapsulationKey:
    """An expanded private key, and its seed."""

    _seed: Secret
    _m: MLKEM768PrivateKey
    _x: X25519PrivateKey

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Return the shared secret (32 bytes).

        Raises ValueError on a wrong size, or on an X25519 part of low order.
        """
        m_ciphertext, x_ciphertext = ciphertext[:_M_CIPHERTEXT], ciphertext[_M_CIPHERTEXT:]
        m_secret = self._m.decapsulate(m_ciphertext)
        x_secret = self._x.exchange(X25519PublicKey.from_public_bytes(x_ciphertext))
        x_public = self._x.public_key().public_bytes_raw()
        return _combine(m_secret, x_secret, x_ciphertext, x_public)

    def seed(self) -> Secret:
        """Return the seed (32 bytes)."""
        return Secret(bytearray(self._seed.reveal()))

    def public_bytes(self) -> bytes:
        """Return the encapsulation key (1216 bytes)."""
        return self._m.public_key().public_bytes_raw() + self._x.public_key().public_bytes_raw()


class XWing:
    """The one parameter set."""

    hkdf_hash = SHA256()

    def generate(self) -> DecapsulationKey:
        return self.load_seed(Secret(os.urandom(SEED_SIZE)))

    def load_public(self, data: bytes) -> EncapsulationKey:
        """Load an encapsulation key. Raises ValueError on a wrong size."""
        return EncapsulationKey(
            MLKEM768PublicKey.from_public_bytes(data[:_M_PUBLIC_KEY]),
            X25519PublicKey.from_public_bytes(data[_M_PUBLIC_KEY:]),
        )

    def load_seed(self, seed: Secret) -> DecapsulationKey:
        """Expand a seed. Raises ValueError on a wrong size."""
        if len(seed) != SEED_SIZE:
            raise ValueError("an X-Wing seed has 32 bytes")
        with Secret(bytearray(shake_256(seed.reveal()).digest(_EXPANDED))) as expanded:
            return DecapsulationKey(
                Secret(bytearray(seed.reveal())),
                MLKEM768PrivateKey.from_seed_bytes(expanded.reveal()[:_M_SEED]),
                X25519PrivateKey.from_private_bytes(expanded.reveal()[_M_SEED:]),
            )


X_WING = XWing()
"""Encapsulation key 1216 bytes, ciphertext 1120, shared secret 32."""


def _combine(m_secret: bytes, x_secret: bytes, x_ciphertext: bytes, x_public: bytes) -> bytes:
    return sha3_256(m_secret + x_secret + x_ciphertext + x_public + LABEL).digest()
