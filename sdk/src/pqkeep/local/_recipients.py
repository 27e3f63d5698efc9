"""Recipients: public keys that a file key is wrapped to, and what a header has of each.

    recipient    = algorithm (1) || key version (4) || length (1) || keyring's name
                   || SHA-256(public key) || KEM ciphertext || wrapped file key (48)
    wrapping key = HKDF(shared secret, info = "pqkeep/local/v2", "wrapping key", recipient so far)
    wrapped      = AES-256-GCM(wrapping key, nonce = zero (12), file key)

A wrapping key comes from an encapsulation of its own and wraps once, so the nonce may be constant.

The file key is random, and the same for as long as the file is:

    data key   = HKDF-SHA-384(file key, info = "pqkeep/local/v2", "data key")
    header MAC = HKDF-SHA-384(file key, info = "pqkeep/local/v2", "header", SHA-384(header), 48)

The MAC is a PRF's output over a hash, both of which two different keys or headers cannot share. So
it commits to the file key, which AES-GCM alone does not: no file opens to two plaintexts.
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
    """The secret key of one file (32 bytes), known to its recipients only."""

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
    """Make the key of one file only: its segments' nonces begin at 0."""
    return FileKey(os.urandom(KEY_SIZE))


DEFAULT_KEYRING = "default"
"""Every tenant has it."""
KEYRING_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
NUMBERS: Mapping[str, int] = {"Kyber768": 1, "X-Wing": 2, "ML-KEM-1024": 3}
"""How a header names the algorithms."""
LARGEST_RECIPIENT = 1 + 4 + 1 + 128 + 32 + 1568 + KEY_SIZE + TAG_SIZE
"""Bytes of a recipient of ML-KEM-1024 with the longest name of a keyring."""
_ALGORITHMS = {number: algorithm for algorithm, number in NUMBERS.items()}
_WRAPPED_SIZE = KEY_SIZE + TAG_SIZE
_FINGERPRINT_SIZE = 32


class KeyName(TypedDict):
    """By what its owner finds a private key."""

    key_version: int
    algorithm: str
    keyring: str


class Identity(NamedTuple):
    """What makes two recipients the same one."""

    algorithm: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """A public key to encrypt to, and by which name its owner finds the private one.

    Raises ValueError for what is no name of a keyring; an invalid public key is found when it is
    encrypted to.
    """

    public_key: bytes = field(repr=False)
    algorithm: str
    key_version: int
    keyring: str = DEFAULT_KEYRING

    def __post_init__(self) -> None:
        """Take the API's name of the algorithm, and refuse a keyring that no header can name."""
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
        """What tells it from other recipients."""
        return Identity(self.algorithm, self.fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedFileKey:
    """What a header has of a recipient. Nothing of it is authenticated before the file is open."""

    algorithm: str
    key_version: int
    keyring: str
    fingerprint: bytes
    """SHA-256 of the public key (32 bytes)."""
    kem_ciphertext: bytes = field(repr=False)
    wrapped: bytes = field(repr=False)

    @property
    def identity(self) -> Identity:
        """What tells it from other recipients."""
        return Identity(self.algorithm, self.fingerprint)

    def key_name(self) -> KeyName:
        """Return what decapsulation takes beside the KEM ciphertext."""
        return KeyName(key_version=self.key_version, algorithm=self.algorithm, keyring=self.keyring)

    def encoded(self) -> bytes:
        """Return its bytes."""
        return self._bound() + self.wrapped

    def unwrap(self, shared_secret: bytes) -> FileKey:
        """Return the file key. Raises DecryptionError if the secret is another key's."""
        try:
            value = _wrapping(self.algorithm, shared_secret, self._bound()).decrypt(
                bytes(NONCE_SIZE), self.wrapped, None
            )
        except InvalidTag:
            raise DecryptionError(
                "this was encrypted to another key than the one that was used, "
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
    """Wrap a file key. Raises ValueError if the public key is none of the algorithm."""
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
    """Wrap a file key under the secret of an encapsulation, which is used once."""
    bound = unfinished.encoded()
    aead = _wrapping(unfinished.algorithm, shared_secret, bound)
    return replace(unfinished, wrapped=aead.encrypt(bytes(NONCE_SIZE), file_key.value, None))


def take_recipient(data: bytes) -> tuple[WrappedFileKey, bytes]:
    """Return the first recipient in data, and what follows it. Raises DecryptionError."""
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
