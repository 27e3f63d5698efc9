"""Encryption, key wrap, and shared secrets for encryption at home."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, post
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.compliance import Rules
from pqkeep.models import Ciphertext, Encapsulation, WrappedKey
from pqkeep.resources._binary import encoded

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kem(Generic[T_co]):
    """Operations with keys that encrypt."""

    _transport: T_co
    _rules: Rules

    @Operation
    def encrypt(
        self,
        plaintext: bytes,
        *,
        algorithm: str | None = None,
        key_version: int | None = None,
        mode: str | None = None,
        salt: bytes | None = None,
    ) -> Call[Ciphertext]:
        """Encrypt at most 1,048,576 bytes. A named version must be the active one.

        ``mode`` is ``standard`` or ``deterministic``, which needs a salt. Both give a ciphertext
        that is new each time.
        """
        return post(
            "/kem/encrypt",
            _ciphertext,
            {
                "plaintext": encoded(plaintext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "mode": mode,
                "salt": None if salt is None else encoded(salt),
            },
        )

    @Operation
    def decrypt(
        self, ciphertext: bytes, *, key_version: int, algorithm: str | None = None
    ) -> Call[bytes]:
        """Return the plaintext. Raises DecryptionError if it does not open with this key."""
        return post(
            "/kem/decrypt",
            lambda data: data.binary("plaintext"),
            {
                "ciphertext": encoded(ciphertext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
            },
        )

    @Operation
    def encapsulate(self, *, key_version: int, algorithm: str | None = None) -> Call[Encapsulation]:
        """Make a shared secret of 32 bytes that the service does not keep."""
        return post(
            "/kem/encapsulate",
            _encapsulation,
            {"key_version": key_version, "algorithm": self._rules.kem(algorithm)},
        )

    @Operation
    def decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str | None = None
    ) -> Call[bytes]:
        """Recover a shared secret.

        With the wrong key it is a different one, and no error (FIPS 203, section 6.3).
        """
        return post(
            "/kem/decapsulate",
            lambda data: data.binary("shared_secret"),
            {
                "kem_ciphertext": encoded(kem_ciphertext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
            },
        )

    @Operation
    def wrap(
        self, symmetric_key: bytes, *, key_version: int, algorithm: str | None = None
    ) -> Call[WrappedKey]:
        """Wrap a symmetric key of 16, 24, 32, 48 or 64 bytes."""
        return post(
            "/kem/key/wrap",
            _wrapped_key,
            {
                "symmetric_key": encoded(symmetric_key),
                "key_version": key_version,
                "algorithm": self._rules.wrap(algorithm),
            },
        )

    @Operation
    def unwrap(
        self, wrapped_key: bytes, *, key_version: int, algorithm: str | None = None
    ) -> Call[bytes]:
        """Return the symmetric key. Raises UnwrappingError if it does not open with this key."""
        return post(
            "/kem/key/unwrap",
            lambda data: data.binary("symmetric_key"),
            {
                "wrapped_key": encoded(wrapped_key),
                "key_version": key_version,
                "algorithm": self._rules.wrap(algorithm),
            },
        )


def _ciphertext(data: Data) -> Ciphertext:
    return Ciphertext(
        ciphertext=data.binary("ciphertext"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _encapsulation(data: Data) -> Encapsulation:
    return Encapsulation(
        kem_ciphertext=data.binary("kem_ciphertext"),
        shared_secret=data.binary("shared_secret"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _wrapped_key(data: Data) -> WrappedKey:
    return WrappedKey(
        wrapped_key=data.binary("wrapped_key"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        wrapping_method=data.text("wrapping_method"),
    )
