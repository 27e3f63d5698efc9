"""The operations, by resource: which fields go out, which come back.

Every method raises PqkeepError. Where ``algorithm`` may be omitted, the service takes ``Kyber768``
to encrypt and ``Dilithium3`` to sign; where ``key_version`` may be, it takes the active key.
"""

import base64

from pqkeep._data import Data
from pqkeep._transport import Transport
from pqkeep.models import Ciphertext, Encapsulation, Key, Rotation, Signature


class Kem:
    """Encryption, and shared secrets for encryption at home."""

    def __init__(self, transport: Transport) -> None:
        """Use a transport."""
        self._transport = transport

    def encrypt(
        self, plaintext: bytes, *, algorithm: str | None = None, key_version: int | None = None
    ) -> Ciphertext:
        """Encrypt at most 1,048,576 bytes. A named version must be the active one."""
        data = self._transport.post(
            "/kem/encrypt",
            {"plaintext": _base64(plaintext), "key_version": key_version, "algorithm": algorithm},
        )
        return Ciphertext(
            ciphertext=data.binary("ciphertext"),
            key_version=data.integer("key_version"),
            algorithm=data.text("algorithm"),
        )

    def decrypt(
        self, ciphertext: bytes, *, key_version: int, algorithm: str | None = None
    ) -> bytes:
        """Return the plaintext. Raises InvalidRequestError if it does not open with this key."""
        return self._transport.post(
            "/kem/decrypt",
            {"ciphertext": _base64(ciphertext), "key_version": key_version, "algorithm": algorithm},
        ).binary("plaintext")

    def encapsulate(self, *, key_version: int, algorithm: str | None = None) -> Encapsulation:
        """Make a shared secret of 32 bytes that the service does not keep."""
        data = self._transport.post(
            "/kem/encapsulate", {"key_version": key_version, "algorithm": algorithm}
        )
        return Encapsulation(
            kem_ciphertext=data.binary("kem_ciphertext"),
            shared_secret=data.binary("shared_secret"),
            key_version=data.integer("key_version"),
            algorithm=data.text("algorithm"),
        )

    def decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str | None = None
    ) -> bytes:
        """Recover a shared secret.

        With the wrong key it is a different one, and no error (FIPS 203, section 6.3).
        """
        return self._transport.post(
            "/kem/decapsulate",
            {
                "kem_ciphertext": _base64(kem_ciphertext),
                "key_version": key_version,
                "algorithm": algorithm,
            },
        ).binary("shared_secret")


class Signatures:
    """Signatures over messages."""

    def __init__(self, transport: Transport) -> None:
        """Use a transport."""
        self._transport = transport

    def sign(
        self, message: bytes, *, algorithm: str | None = None, key_version: int | None = None
    ) -> Signature:
        """Sign a message. A named version must be the active one."""
        data = self._transport.post(
            "/signature/sign",
            {"message": _base64(message), "key_version": key_version, "algorithm": algorithm},
        )
        return Signature(
            signature=data.binary("signature"),
            key_version=data.integer("key_version"),
            algorithm=data.text("algorithm"),
        )

    def verify(
        self, message: bytes, signature: bytes, *, key_version: int, algorithm: str | None = None
    ) -> bool:
        """Return whether the signature is this key's for this message. Mind the answer."""
        return self._transport.post(
            "/signature/verify",
            {
                "message": _base64(message),
                "signature": _base64(signature),
                "key_version": key_version,
                "algorithm": algorithm,
            },
        ).flag("valid")


class Keys:
    """The lifecycle of keys. Private keys never leave the service."""

    def __init__(self, transport: Transport) -> None:
        """Use a transport."""
        self._transport = transport

    def generate(self, algorithm: str) -> Key:
        """Make an algorithm's key active. Raises InvalidRequestError if one is already."""
        return _key(self._transport.post("/kms/keys/generate", {"algorithm": algorithm}))

    def rotate(self, algorithm: str) -> Rotation:
        """Retire the active key and make a new one, in one step."""
        data = self._transport.post("/kms/keys/rotate", {"algorithm": algorithm})
        return Rotation(
            public_key=data.binary("public_key"),
            key_version=data.integer("key_version"),
            algorithm=data.text("algorithm"),
            old_key_version=data.integer("old_key_version"),
        )

    def retire(self, algorithm: str, key_version: int) -> Key:
        """Allow no new encryption or signature with a key; what it made stays readable."""
        return _key(
            self._transport.post(
                "/kms/keys/retire", {"algorithm": algorithm, "key_version": key_version}
            )
        )

    def active(self, algorithm: str) -> Key:
        """Return the active key."""
        return _key(self._transport.get("/kms/keys/active", {"algorithm": algorithm}))

    def get(self, algorithm: str, key_version: int) -> Key:
        """Return one version, whatever its status."""
        return _key(self._transport.get(f"/kms/keys/{key_version:d}", {"algorithm": algorithm}))

    def list(self, *, algorithm: str | None = None, status: str | None = None) -> tuple[Key, ...]:
        """Return all keys, or those of an algorithm, of a status, or of both."""
        data = self._transport.get("/kms/keys", {"algorithm": algorithm, "status": status})
        return tuple(_key(member) for member in data.objects("keys"))


def _key(data: Data) -> Key:
    return Key(
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        status=data.text("status"),
        public_key=data.binary("public_key"),
        created_at=data.time("created_at"),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
