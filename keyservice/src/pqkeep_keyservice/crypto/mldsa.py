"""ML-DSA (FIPS 204), hedged, from pyca/cryptography. Seeds are 32 bytes."""

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import mldsa

from pqkeep_keyservice.crypto.secret import Secret

Private = mldsa.MLDSA44PrivateKey | mldsa.MLDSA65PrivateKey | mldsa.MLDSA87PrivateKey
Public = mldsa.MLDSA44PublicKey | mldsa.MLDSA65PublicKey | mldsa.MLDSA87PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class VerifyingKey:
    """A public key."""

    _key: Public

    def verify(self, signature: bytes, message: bytes, context: bytes = b"") -> None:
        """Raise InvalidSignature unless the signature is valid (FIPS 204, algorithm 3)."""
        self._key.verify(signature, message, context)

    def verify_mu(self, signature: bytes, mu: bytes) -> None:
        """Raise InvalidSignature unless the signature is valid for a mu's message (64 bytes)."""
        self._key.verify_mu(signature, mu)


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """An expanded private key."""

    _key: Private

    def sign(self, message: bytes, context: bytes = b"") -> bytes:
        """Return a hedged signature (FIPS 204, algorithm 2)."""
        return self._key.sign(message, context)

    def sign_mu(self, mu: bytes) -> bytes:
        """Return a hedged signature over the message of a mu (64 bytes).

        The result equals one of algorithm 2. Only line 6 of algorithm 7 was computed elsewhere.
        """
        return self._key.sign_mu(mu)

    def seed(self) -> Secret:
        """Return the seed (32 bytes)."""
        return Secret(self._key.private_bytes_raw())

    def public_bytes(self) -> bytes:
        """Return the verifying key."""
        return self._key.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True)
class MlDsa:
    """One parameter set."""

    holds_interpreter_lock = False

    _generate: Callable[[], Private]
    _from_seed: Callable[[memoryview], Private]
    _from_public: Callable[[bytes], Public]

    def generate(self) -> SigningKey:
        return SigningKey(self._generate())

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a verifying key."""
        return VerifyingKey(self._from_public(data))

    def load_seed(self, seed: Secret) -> SigningKey:
        """Expand a seed (32 bytes)."""
        return SigningKey(self._from_seed(seed.reveal()))


ML_DSA_44 = MlDsa(
    mldsa.MLDSA44PrivateKey.generate,
    mldsa.MLDSA44PrivateKey.from_seed_bytes,
    mldsa.MLDSA44PublicKey.from_public_bytes,
)
"""Verifying key 1312 bytes, signature 2420. For notes only: callers cannot have such keys."""

ML_DSA_65 = MlDsa(
    mldsa.MLDSA65PrivateKey.generate,
    mldsa.MLDSA65PrivateKey.from_seed_bytes,
    mldsa.MLDSA65PublicKey.from_public_bytes,
)
"""Verifying key 1952 bytes, signature 3309."""

ML_DSA_87 = MlDsa(
    mldsa.MLDSA87PrivateKey.generate,
    mldsa.MLDSA87PrivateKey.from_seed_bytes,
    mldsa.MLDSA87PublicKey.from_public_bytes,
)
"""Verifying key 2592 bytes, signature 4627."""
