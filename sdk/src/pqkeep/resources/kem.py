"""Encryption, key wrap, and shared secrets for local encryption."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, post
from pqkeep._data import Data, encoded, encoded_key, encoded_or_none
from pqkeep._many import Many
from pqkeep._operation import Operation
from pqkeep.compliance import Rules
from pqkeep.models import (
    Ciphertext,
    DataKey,
    Encapsulation,
    Envelope,
    ReEncrypted,
    SharedSecret,
    WrappedKey,
)

T_co = TypeVar("T_co", covariant=True)

SHARED_SECRET = 32
SYMMETRIC_KEYS = (16, 24, 32, 48, 64)
DATA_KEYS = (16, 32, 64)
"""The possible sizes of a data key in bytes."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kem(Generic[T_co]):
    """Operations with encryption keys."""

    _transport: T_co
    _rules: Rules

    @Operation
    def encrypt(
        self,
        plaintext: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
        mode: str | None = None,
        salt: bytes | None = None,
        associated_data: bytes | None = None,
        context: bytes | None = None,
    ) -> Call[Ciphertext]:
        """Encrypt at most 1,048,576 bytes. A named version must be the active one.

        Decryption needs the same ``associated_data`` (at most 65,536 bytes). A keyring with derived
        keys needs a ``context`` (at most 4,096 bytes), for decryption too.

        ``mode`` is ``standard`` or ``deterministic``. The latter needs a salt. Both return a new
        ciphertext each time.
        """
        return post(
            "/kem/encrypt",
            _ciphertext,
            {
                "plaintext": encoded(plaintext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "keyring": keyring,
                "mode": mode,
                "salt": encoded_or_none(salt),
                "associated_data": encoded_or_none(associated_data),
                "context": encoded_or_none(context),
            },
        )

    @Operation
    def decrypt(
        self,
        ciphertext: bytes,
        *,
        key_version: int,
        algorithm: str | None = None,
        keyring: str | None = None,
        associated_data: bytes | None = None,
        context: bytes | None = None,
    ) -> Call[bytes]:
        """Return the plaintext.

        Raises DecryptionError for another key, other ``associated_data``, another ``context``, or a
        changed ciphertext.
        """
        return post(
            "/kem/decrypt",
            lambda data: data.binary("plaintext"),
            {
                "ciphertext": encoded(ciphertext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "keyring": keyring,
                "associated_data": encoded_or_none(associated_data),
                "context": encoded_or_none(context),
            },
        )

    @Operation
    def encapsulate(
        self, *, key_version: int, algorithm: str | None = None, keyring: str | None = None
    ) -> Call[Encapsulation]:
        """Make a shared secret of 32 bytes. The service does not store it."""
        return post(
            "/kem/encapsulate",
            _encapsulation,
            {
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "keyring": keyring,
            },
        )

    @Operation
    def decapsulate(
        self,
        kem_ciphertext: bytes,
        *,
        key_version: int,
        algorithm: str | None = None,
        keyring: str | None = None,
    ) -> Call[bytes]:
        """Recover a shared secret.

        The wrong key returns a different secret, without an error (FIPS 203, section 6.3).
        """
        return post(
            "/kem/decapsulate",
            lambda data: data.binary("shared_secret", SHARED_SECRET),
            {
                "kem_ciphertext": encoded(kem_ciphertext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "keyring": keyring,
            },
        )

    @Operation
    def wrap(
        self,
        symmetric_key: bytes,
        *,
        key_version: int,
        algorithm: str | None = None,
        keyring: str | None = None,
        associated_data: bytes | None = None,
    ) -> Call[WrappedKey]:
        """Wrap a symmetric key of 16, 24, 32, 48 or 64 bytes.

        Unwrapping needs the same ``associated_data``.
        """
        return post(
            "/kem/key/wrap",
            _wrapped_key,
            {
                "symmetric_key": encoded(symmetric_key),
                "key_version": key_version,
                "algorithm": self._rules.wrap(algorithm),
                "keyring": keyring,
                "associated_data": encoded_or_none(associated_data),
            },
        )

    @Operation
    def unwrap(
        self,
        wrapped_key: bytes,
        *,
        key_version: int,
        algorithm: str | None = None,
        keyring: str | None = None,
        associated_data: bytes | None = None,
    ) -> Call[bytes]:
        """Return the symmetric key.

        Raises UnwrappingError for another key, other ``associated_data``, or a changed wrapped key.
        """
        return post(
            "/kem/key/unwrap",
            lambda data: data.binary("symmetric_key", *SYMMETRIC_KEYS),
            {
                "wrapped_key": encoded(wrapped_key),
                "key_version": key_version,
                "algorithm": self._rules.wrap(algorithm),
                "keyring": keyring,
                "associated_data": encoded_or_none(associated_data),
            },
        )

    @Operation
    def data_key(
        self,
        *,
        size: int | None = None,
        plaintext: bool | None = None,
        format: str | None = None,  # noqa: A002 - the API's
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
        associated_data: bytes | None = None,
        context: bytes | None = None,
    ) -> Call[DataKey]:
        """Make a random data key of 16, 32 (the default) or 64 bytes, and encrypt it.

        ``format`` is ``wrapped_key``, ``ciphertext`` or ``envelope``. If ``plaintext`` is False,
        the result has only the encrypted key. A keyring with derived keys needs a ``context``.
        """
        return post(
            "/kem/data-key",
            _data_key,
            {
                "size": size,
                "plaintext": plaintext,
                "format": format,
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "keyring": keyring,
                "associated_data": encoded_or_none(associated_data),
                "context": encoded_or_none(context),
            },
        )

    @Operation
    def encrypt_to_envelope(
        self,
        plaintext: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
        associated_data: bytes | None = None,
        context: bytes | None = None,
    ) -> Call[Envelope]:
        """Encrypt at most 1,048,576 bytes, to a text that names its key."""
        return post(
            "/kem/encrypt",
            _envelope,
            {
                "plaintext": encoded(plaintext),
                "key_version": key_version,
                "algorithm": self._rules.kem(algorithm),
                "keyring": keyring,
                "associated_data": encoded_or_none(associated_data),
                "context": encoded_or_none(context),
                "format": "envelope",
            },
        )

    @Operation
    def decrypt_envelope(
        self,
        envelope: str,
        *,
        associated_data: bytes | None = None,
        context: bytes | None = None,
    ) -> Call[bytes]:
        """Return the plaintext. Raises DecryptionError for another key or a changed envelope."""
        return post(
            "/kem/decrypt",
            lambda data: data.binary("plaintext"),
            {
                "envelope": envelope,
                "algorithm": self._rules.kem(None),
                "associated_data": encoded_or_none(associated_data),
                "context": encoded_or_none(context),
            },
        )

    @Operation
    def encrypt_to_public_key(
        self,
        plaintext: bytes,
        public_key: bytes | str,
        *,
        algorithm: str | None = None,
        associated_data: bytes | None = None,
    ) -> Call[bytes]:
        """Encrypt data for the owner of a public key, which is bytes or PEM text."""
        return post(
            "/kem/encrypt",
            lambda data: data.binary("ciphertext"),
            {
                "plaintext": encoded(plaintext),
                "public_key": encoded_key(public_key),
                "algorithm": self._rules.kem(algorithm),
                "associated_data": encoded_or_none(associated_data),
            },
        )

    @Operation
    def encapsulate_to_public_key(
        self, public_key: bytes | str, *, algorithm: str | None = None
    ) -> Call[SharedSecret]:
        """Make a shared secret with the owner of a public key, which is bytes or PEM text."""
        return post(
            "/kem/encapsulate",
            _shared_secret,
            {"public_key": encoded_key(public_key), "algorithm": self._rules.kem(algorithm)},
        )

    @Operation
    def re_encrypt(  # noqa: PLR0913 - as many as the interface has
        self,
        ciphertext: bytes | None = None,
        *,
        key_version: int | None = None,
        algorithm: str | None = None,
        keyring: str | None = None,
        associated_data: bytes | None = None,
        envelope: str | None = None,
        wrapped_key: bytes | None = None,
        to_algorithm: str | None = None,
        to_keyring: str | None = None,
        to_associated_data: bytes | None = None,
        to_format: str | None = None,
        context: bytes | None = None,
        to_context: bytes | None = None,
        campaign: str | None = None,
    ) -> Call[ReEncrypted]:
        """Encrypt the content of a ciphertext, an envelope or a wrapped key to another key.

        The plaintext does not leave the service. The target's missing fields are those of the
        source. Without any, the target is the active version of the same key. An envelope names its
        own key version. Data that is already there is returned unchanged, with ``moved`` False. The
        compliance profile applies to the target. ``campaign`` names the open campaign that counts
        the move.
        """
        rule = self._rules.kem if wrapped_key is None else self._rules.wrap
        target = {
            "keyring": to_keyring,
            "algorithm": rule(to_algorithm),
            "associated_data": encoded_or_none(to_associated_data),
            "format": to_format,
            "context": encoded_or_none(to_context),
        }
        return post(
            "/kem/re-encrypt",
            _re_encrypted,
            {
                "ciphertext": encoded_or_none(ciphertext),
                "envelope": envelope,
                "wrapped_key": encoded_or_none(wrapped_key),
                "key_version": key_version,
                "algorithm": algorithm,
                "keyring": keyring,
                "associated_data": encoded_or_none(associated_data),
                "context": encoded_or_none(context),
                "to": {name: value for name, value in target.items() if value is not None},
                "campaign": campaign,
            },
        )

    encrypt_many = Many(encrypt)
    decrypt_many = Many(decrypt)
    encapsulate_many = Many(encapsulate)
    decapsulate_many = Many(decapsulate)
    data_key_many = Many(data_key)
    wrap_many = Many(wrap)
    unwrap_many = Many(unwrap)
    encrypt_to_envelope_many = Many(encrypt_to_envelope)
    decrypt_envelope_many = Many(decrypt_envelope)
    re_encrypt_many = Many(re_encrypt)


def _envelope(data: Data) -> Envelope:
    return Envelope(
        envelope=data.text("envelope"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _shared_secret(data: Data) -> SharedSecret:
    return SharedSecret(
        kem_ciphertext=data.kem_ciphertext(),
        shared_secret=data.binary("shared_secret", SHARED_SECRET),
        algorithm=data.text("algorithm"),
    )


def _ciphertext(data: Data) -> Ciphertext:
    return Ciphertext(
        ciphertext=data.binary("ciphertext"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _encapsulation(data: Data) -> Encapsulation:
    return Encapsulation(
        kem_ciphertext=data.kem_ciphertext(),
        shared_secret=data.binary("shared_secret", SHARED_SECRET),
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


def _data_key(data: Data) -> DataKey:
    return DataKey(
        plaintext=data.binary("plaintext", *DATA_KEYS) if data.has("plaintext") else None,
        wrapped_key=data.binary("wrapped_key") if data.has("wrapped_key") else None,
        ciphertext=data.binary("ciphertext") if data.has("ciphertext") else None,
        envelope=data.text_or_none("envelope"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _re_encrypted(data: Data) -> ReEncrypted:
    return ReEncrypted(
        ciphertext=data.binary("ciphertext") if data.has("ciphertext") else None,
        envelope=data.text_or_none("envelope"),
        wrapped_key=data.binary("wrapped_key") if data.has("wrapped_key") else None,
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        keyring=data.text("keyring"),
        moved=data.flag("moved"),
    )
