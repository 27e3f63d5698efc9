"""Recipients: the public keys that wrap a file key, and their entries in a header.

    recipient    = algorithm (1) || key version (4) || length (1) || keyring's name
                   || SHA-256(public key) || KEM ciphertext || wrapped file key (48)
    wrapping key = HKDF(shared secret, info = "pqkeep/local/v2", "wrapping key", recipient so far)
    wrapped      = AES-256-GCM(wrapping key, nonce = zero (12), file key)

Each wrapping key comes from a new encapsulation and wraps once. So the nonce may be constant.

The file key is random, and never changes:

    data key   = HKDF-SHA-384(file key, info = "pqkeep/local/v2", "data key")
    header MAC = HKDF-SHA-384(file key, info = "pqkeep/local/v2", "header", SHA-384(header), 48)

The MAC is the output of a PRF over a hash. Two file keys or two headers cannot have the same MAC.
So the wrapping commits to the file key, which AES-GCM alone does not: no file opens to two
plaintexts.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256, sha384
from hmac import compare_digest
from typing import NamedTuple, TypedDict

from pqkeep.errors import DecryptionError
from pqkeep.local._primitives import (
    AESGCM,
    FILE_HASH,
    KEMS,
    KEY_SIZE,
    LARGEST_KEY_VERSION,
    NONCE_SIZE,
    TAG_SIZE,
    InvalidTag,
    canonical,
    derive,
    encapsulate,
)

PROTOCOL = b"pqkeep/local/v2"
MAC_SIZE = 48


@dataclass(frozen=True, slots=True)
class FileKey:
    """The secret key of one file (32 bytes). Only recipients know it."""

    value: bytes = field(repr=False)

    def data_key(self) -> bytes:
        """Return the key of the segments (32 bytes)."""
        return derive(FILE_HASH, self.value, PROTOCOL, b"data key")

    def mac(self, header: bytes) -> bytes:
        """Authenticate everything in a header slot before the MAC (48 bytes)."""
        digest = sha384(header).digest()
        return derive(FILE_HASH, self.value, PROTOCOL, b"header", digest, length=MAC_SIZE)

    def has_authenticated(self, header: bytes, mac: bytes) -> bool:
        """Compare in constant time."""
        return compare_digest(self.mac(header), mac)


def new_file_key() -> FileKey:
    """Return a new file key. It must encrypt one file only: the nonces of segments begin at 0."""
    return FileKey(os.urandom(KEY_SIZE))


DEFAULT_KEYRING = "default"
"""The keyring that every tenant has."""
KEYRING_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
NUMBERS: Mapping[str, int] = {"Kyber768": 1, "X-Wing": 2, "ML-KEM-1024": 3}
"""The number of each algorithm in a header."""
LARGEST_RECIPIENT = 1 + 4 + 1 + 128 + 32 + 1568 + KEY_SIZE + TAG_SIZE
"""Bytes of a recipient with ML-KEM-1024 and the longest keyring name."""
_ALGORITHMS = {number: algorithm for algorithm, number in NUMBERS.items()}
_WRAPPED_SIZE = KEY_SIZE + TAG_SIZE
_FINGERPRINT_SIZE = 32


class KeyName(TypedDict):
    """The names by which the owner finds the private key."""

    key_version: int
    algorithm: str
    keyring: str


class Identity(NamedTuple):
    """The fields that identify a recipient."""

    algorithm: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """A public key to encrypt to. Keyring, algorithm and version tell its owner the private key.

    Raises ValueError for an invalid keyring name. An invalid public key raises it during
    encryption.
    """

    public_key: bytes = field(repr=False)
    algorithm: str
    key_version: int
    keyring: str = DEFAULT_KEYRING

    def __post_init__(self) -> None:
        """Take any name of the algorithm. Raises ValueError for a keyring that no header can name."""
        object.__setattr__(self, "algorithm", canonical(self.algorithm))
        if not KEYRING_NAME.fullmatch(self.keyring):
            raise ValueError(
                "the keyring's name must be 1 to 128 of A-Z, a-z, 0-9, '_', '.' and '-'"
            )

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the public key (32 bytes)."""
        return sha256(self.public_key).digest()

    @property
    def identity(self) -> Identity:
        """The fields that identify the recipient."""
        return Identity(self.algorithm, self.fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedFileKey:
    """A recipient in a header. Nothing is authenticated until the file key is known."""

    algorithm: str
    key_version: int
    keyring: str
    fingerprint: bytes
    """SHA-256 of the public key (32 bytes)."""
    kem_ciphertext: bytes = field(repr=False)
    wrapped: bytes = field(repr=False)

    @property
    def identity(self) -> Identity:
        """The fields that identify the recipient."""
        return Identity(self.algorithm, self.fingerprint)

    def key_name(self) -> KeyName:
        """Return the arguments of decapsulation, without the KEM ciphertext."""
        return KeyName(key_version=self.key_version, algorithm=self.algorithm, keyring=self.keyring)

    def encoded(self) -> bytes:
        """Return its bytes."""
        return self._bound() + self.wrapped

    def unwrap(self, shared_secret: bytes) -> FileKey:
        """Return the file key. Raises DecryptionError for the shared secret of another key."""
        try:
            value = _wrapping(self.algorithm, shared_secret, self._bound()).decrypt(
                bytes(NONCE_SIZE), self.wrapped, None
            )
        except InvalidTag:
            raise DecryptionError(
                "the data was encrypted to another key than the one in use, "
                "or its header is damaged"
            ) from None
        return FileKey(value)

    def _bound(self) -> bytes:
        name = self.keyring.encode("ascii")
        return b"".join(
            (
                bytes((NUMBERS[self.algorithm],)),
                self.key_version.to_bytes(4, "big"),
                bytes((len(name),)),
                name,
                self.fingerprint,
                self.kem_ciphertext,
            )
        )


def wrap(file_key: FileKey, recipient: Recipient) -> WrappedFileKey:
    """Wrap a file key. Raises ValueError if the public key is invalid for the algorithm."""
    made = encapsulate(
        public_key=recipient.public_key,
        algorithm=recipient.algorithm,
        key_version=recipient.key_version,
    )
    unfinished = WrappedFileKey(
        algorithm=recipient.algorithm,
        key_version=recipient.key_version,
        keyring=recipient.keyring,
        fingerprint=recipient.fingerprint,
        kem_ciphertext=made.kem_ciphertext,
        wrapped=b"",
    )
    return wrapped_with(file_key, unfinished, made.shared_secret)


def wrapped_with(
    file_key: FileKey, unfinished: WrappedFileKey, shared_secret: bytes
) -> WrappedFileKey:
    """Wrap a file key under the shared secret of an encapsulation. Use each secret once."""
    bound = unfinished.encoded()
    aead = _wrapping(unfinished.algorithm, shared_secret, bound)
    return replace(unfinished, wrapped=aead.encrypt(bytes(NONCE_SIZE), file_key.value, None))


def take_recipient(data: bytes) -> tuple[WrappedFileKey, bytes]:
    """Return the first recipient in data, and the rest of the data. Raises DecryptionError."""
    algorithm = _ALGORITHMS.get(data[0]) if data else None
    if algorithm is None:
        raise DecryptionError("the header is damaged: the algorithm of a recipient is unknown")
    version, name_size = int.from_bytes(data[1:5], "big"), int.from_bytes(data[5:6], "big")
    at = 6 + name_size
    keyring = data[6:at].decode("latin-1")
    fingerprint_end = at + _FINGERPRINT_SIZE
    ciphertext_end = fingerprint_end + KEMS[algorithm].ciphertext_size
    end = ciphertext_end + _WRAPPED_SIZE
    if not (
        1 <= version <= LARGEST_KEY_VERSION and KEYRING_NAME.fullmatch(keyring) and end <= len(data)
    ):
        raise DecryptionError("the header is damaged: a recipient is invalid")
    recipient = WrappedFileKey(
        algorithm=algorithm,
        key_version=version,
        keyring=keyring,
        fingerprint=data[at:fingerprint_end],
        kem_ciphertext=data[fingerprint_end:ciphertext_end],
        wrapped=data[ciphertext_end:end],
    )
    return recipient, data[end:]


def _wrapping(algorithm: str, shared_secret: bytes, bound: bytes) -> AESGCM:
    return AESGCM(KEMS[algorithm].derive(shared_secret, PROTOCOL, b"wrapping key", bound))
