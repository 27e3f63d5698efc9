"""Symmetric keys: the cipher XAES-256-GCM (c2sp.org/XAES-256-GCM), and HMAC (FIPS 198-1).

    L       = AES-256(key, 0)           K1 = L doubled in GF(2^128), the first subkey of CMAC
    derived = AES-256(key, M1 xor K1) || AES-256(key, M2 xor K1)
    Mi      = 0x00 || i || "X" || 0x00 || nonce[0:12]
    sealed  = nonce (24) || AES-256-GCM(derived, nonce[12:24], plaintext) || tag (16)

The nonce is random, and safe for 2^80 messages. A stored key encrypts nothing itself. HKDF derives a
key from it for each ``info``, which binds a result to a purpose and a key version, as for a KEM.

    key = HKDF(secret, salt = "", info)     check value = HKDF(secret, salt = "", CHECK_INFO || name)
"""

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.hashes import SHA256, SHA512, HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_keyservice.crypto.dem import DecryptionError
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import ALGORITHMS, CHECK_VALUE_SIZE, Algorithm, Kind

KEY_SIZE = 32
NONCE_SIZE = 24
TAG_SIZE = 16
CHECK_INFO = b"pqkeep/v1/key-check-value/"
_HALF = 12
_BLOCK = 16
_REDUCTION = 0b10000111
_ONE_BLOCK = (1 << 128) - 1


class Xaes256Gcm:
    """The cipher under one key (32 bytes)."""

    __slots__ = ("_encryptor", "_mask")

    def __init__(self, key: bytes) -> None:
        """Compute the part of the key derivation that all messages share."""
        self._encryptor = Cipher(AES256(key), ECB()).encryptor()  # noqa: S305 - single blocks
        block = int.from_bytes(self._encryptor.update(bytes(_BLOCK)), "big")
        subkey = (block << 1) & _ONE_BLOCK ^ (_REDUCTION if block >> 127 else 0)
        self._mask = subkey << 128 | subkey

    def encrypt(self, nonce: bytes, plaintext: bytes | bytearray, associated_data: bytes) -> bytes:
        """Return the ciphertext and the tag (16 bytes)."""
        return self._derived(nonce).encrypt(nonce[_HALF:], plaintext, associated_data)

    def decrypt(
        self, nonce: bytes, ciphertext: bytes | memoryview, associated_data: bytes
    ) -> bytes:
        """Return the plaintext. Raises InvalidTag."""
        return self._derived(nonce).decrypt(nonce[_HALF:], ciphertext, associated_data)

    def _derived(self, nonce: bytes) -> AESGCM:
        context = nonce[:_HALF]
        counted = b"\x00\x01X\x00" + context + b"\x00\x02X\x00" + context
        blocks = int.from_bytes(counted, "big") ^ self._mask
        return AESGCM(self._encryptor.update(blocks.to_bytes(2 * _BLOCK, "big")))


@dataclass(frozen=True, slots=True, repr=False)
class SymmetricKey:
    """The secret of one key version, and the keys that derive from it."""

    _scheme: "SymmetricScheme"
    _secret: Secret
    _ciphers: dict[bytes, Xaes256Gcm] = field(default_factory=dict)
    """The ciphers by HKDF info. Each is created on first use."""

    @property
    def is_cipher(self) -> bool:
        """Whether it encrypts. Other keys compute MACs."""
        return ALGORITHMS[self._scheme.algorithm].kind is Kind.CIPHER

    def encrypt(
        self,
        plaintext: bytes | bytearray,
        *,
        info: bytes,
        associated_data: bytes,
        is_kept: bool = True,
    ) -> bytes:
        """Return the sealed data (40 bytes longer than the plaintext).

        ``is_kept``: whether the derived key stays in memory for further calls.
        """
        nonce = os.urandom(NONCE_SIZE)
        cipher = self._cipher(info, is_kept=is_kept)
        return nonce + cipher.encrypt(nonce, plaintext, associated_data)

    def decrypt(
        self, sealed: bytes, *, info: bytes, associated_data: bytes, is_kept: bool = True
    ) -> bytes:
        """Return the plaintext. Raises DecryptionError."""
        if len(sealed) < NONCE_SIZE + TAG_SIZE:
            raise DecryptionError
        nonce, ciphertext = sealed[:NONCE_SIZE], memoryview(sealed)[NONCE_SIZE:]
        try:
            cipher = self._cipher(info, is_kept=is_kept)
            return cipher.decrypt(nonce, ciphertext, associated_data)
        except InvalidTag:
            raise DecryptionError from None

    def mac(self, message: bytes, *, info: bytes) -> bytes:
        """Return the message's MAC, of the hash function's size."""
        return hmac.digest(self._derive(info), message, self._scheme.hash.name)

    def is_mac(self, mac: bytes, message: bytes, *, info: bytes) -> bool:
        """Return whether a MAC is the message's, in constant time."""
        return hmac.compare_digest(self.mac(message, info=info), mac)

    def seed(self) -> Secret:
        """Return the key in its stored form."""
        return Secret(bytearray(self._secret.reveal()))

    def public_bytes(self) -> bytes:
        """Return the check value (32 bytes). It identifies the key, and reveals nothing of it."""
        name = self._scheme.algorithm.encode()
        return self._derive(CHECK_INFO + name, CHECK_VALUE_SIZE)

    def _cipher(self, info: bytes, *, is_kept: bool) -> Xaes256Gcm:
        if not is_kept:
            return Xaes256Gcm(self._derive(info))
        cipher = self._ciphers.get(info)
        if cipher is None:
            cipher = self._ciphers[info] = Xaes256Gcm(self._derive(info))
        return cipher

    def _derive(self, info: bytes, size: int | None = None) -> bytes:
        kdf = HKDF(self._scheme.hash, length=size or self._scheme.size, salt=None, info=info)
        return kdf.derive(self._secret.reveal())


@dataclass(frozen=True, slots=True)
class SymmetricScheme:
    """One algorithm of symmetric keys."""

    algorithm: Algorithm
    size: int
    """Bytes of a key."""
    hash: HashAlgorithm
    """The hash function of HKDF, and of HMAC."""

    def generate(self) -> SymmetricKey:
        """Generate a key."""
        return self.load_seed(Secret(os.urandom(self.size)))

    def load_seed(self, seed: Secret) -> SymmetricKey:
        """Load a stored key. Raises ValueError on a wrong size."""
        if len(seed) != self.size:
            raise ValueError(f"a key for {self.algorithm} has {self.size} bytes")
        return SymmetricKey(self, Secret(bytearray(seed.reveal())))


SYMMETRIC: Mapping[Algorithm, SymmetricScheme] = {
    scheme.algorithm: scheme
    for scheme in (
        SymmetricScheme(Algorithm.XAES_256_GCM, KEY_SIZE, SHA256()),
        SymmetricScheme(Algorithm.HMAC_SHA_256, 32, SHA256()),
        SymmetricScheme(Algorithm.HMAC_SHA_512, 64, SHA512()),
    )
}
