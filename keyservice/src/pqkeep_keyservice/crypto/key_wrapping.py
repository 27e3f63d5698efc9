"""How private keys are wrapped on their way in: HPKE (RFC 9180) to a key that is made for one of them.

    ML-KEM-1024, HKDF-SHA-384, AES-256-GCM (draft-ietf-hpke-pq); base mode, no associated data
    wrapped = encapsulated key (1568) || ciphertext || tag (16)

The info says what the private key is for, so that it cannot be made to be anything else.
"""

from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM1024PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyringName

SUITE = Suite(KEM.MLKEM1024, KDF.HKDF_SHA384, AEAD.AES_256_GCM)


class UnwrappingError(Exception):
    """The data was not wrapped to this key for this purpose. Says nothing more."""


class ImportKey:
    """The private half of an import key."""

    __slots__ = ("_seed", "public_key")

    def __init__(self) -> None:
        """Generate a key pair; the public key has 1568 bytes."""
        private = MLKEM1024PrivateKey.generate()
        self.public_key = private.public_key().public_bytes_raw()
        self._seed = Secret(private.private_bytes_raw())

    def unwrap(self, wrapped: bytes, info: bytes) -> Secret:
        """Return what was wrapped, once: the key is wiped. Raises UnwrappingError."""
        with self._seed:
            private = MLKEM1024PrivateKey.from_seed_bytes(self._seed.reveal())
            try:
                return Secret(SUITE.decrypt(wrapped, private, info))
            except (InvalidTag, ValueError):
                raise UnwrappingError from None

    def wipe(self) -> None:
        """Overwrite the private half."""
        self._seed.wipe()


def import_info(import_key_id: UUID, algorithm: Algorithm, keyring: KeyringName) -> bytes:
    """Return the info: four lines."""
    lines = ("pqkeep/v1/import-key", str(import_key_id), algorithm.value, keyring)
    return "".join(f"{line}\n" for line in lines).encode("ascii")
