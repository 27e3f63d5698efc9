"""Seeds at rest: AES-256-GCM under a key derived from the root key, bound to their row.

    sealed = 0x01 || root key id (1) || salt (16) || nonce (12) || ciphertext || tag (16)

Root keys are numbered from 1. The newest one seals. Each unseals what it sealed.

The associated data is the header and the tenant, keyring, algorithm, version and public key. So a
sealed seed cannot be unsealed in another row. key_mac.py authenticates the rest of the row.
"""

import hmac
import os
from collections.abc import Mapping
from hashlib import sha256
from itertools import combinations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_keyservice.crypto.dem import bound_keyring, length_prefixed
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.key_versions import SealedSeed
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyringName, KeyVersion, TenantId
from pqkeep_protocol.startup.settings import ConfigError

ROOT_KEY_SIZE = 32
CHECK_VALUE_SIZE = 16
_FORMAT = 0x01
_HEADER = 2
_SALT = 16
_NONCE = 12


class DamagedKeyError(Exception):
    """A key's stored data differs from what the key service stored. The message says how."""


class Sealer:
    """Seals and unseals seeds. Nothing else holds the root keys."""

    def __init__(self, root_keys: Mapping[int, Secret]) -> None:
        """Take at least one root key (32 bytes), by id.

        Raises ConfigError on another size, and on two equal keys: a rotation would change nothing.
        """
        if any(len(root_key) != ROOT_KEY_SIZE for root_key in root_keys.values()):
            raise ConfigError(f"the root key must be {ROOT_KEY_SIZE} bytes long")
        for one, other in combinations(root_keys, 2):
            if hmac.compare_digest(root_keys[one].reveal(), root_keys[other].reveal()):
                raise ConfigError(f"root keys {one} and {other} are equal: generate a new one")
        self._root_keys = dict(root_keys)
        self.newest = max(root_keys)

    @property
    def root_keys(self) -> Mapping[int, Secret]:
        """The root keys by id."""
        return self._root_keys

    @property
    def root_key_ids(self) -> frozenset[int]:
        return frozenset(self._root_keys)

    def seal(self, seed: Secret, associated_data: bytes) -> SealedSeed:
        """Encrypt a seed under the newest root key."""
        header = bytes((_FORMAT, self.newest))
        salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
        aead = self._aead(self.newest, salt)
        ciphertext = aead.encrypt(nonce, seed.reveal(), header + associated_data)
        return SealedSeed(header + salt + nonce + ciphertext)

    def unseal(self, sealed: SealedSeed, associated_data: bytes) -> Secret:
        """Decrypt a seed. Raises DamagedKeyError."""
        header, rest = sealed[:_HEADER], sealed[_HEADER:]
        if len(header) != _HEADER or header[0] != _FORMAT or header[1] not in self._root_keys:
            raise DamagedKeyError("a private key has an unknown format or root key")
        salt, nonce, ciphertext = rest[:_SALT], rest[_SALT : _SALT + _NONCE], rest[_SALT + _NONCE :]
        aead = self._aead(header[1], salt)
        try:
            return Secret(aead.decrypt(nonce, ciphertext, header + associated_data))
        except (InvalidTag, ValueError):
            raise DamagedKeyError("a private key cannot be unsealed") from None

    def mac(self, data: bytes) -> bytes:
        """Return a MAC (34 bytes) under the newest root key."""
        header = bytes((_FORMAT, self.newest))
        return header + self._mac(self.newest, header + data)

    def is_mac(self, mac: bytes, data: bytes) -> bool:
        """Return whether a MAC is valid for this data, under any of the root keys."""
        header, rest = mac[:_HEADER], mac[_HEADER:]
        if len(header) != _HEADER or header[0] != _FORMAT or header[1] not in self._root_keys:
            return False
        return hmac.compare_digest(self._mac(header[1], header + data), rest)

    def check_value(self, root_key_id: int) -> bytes:
        """Return 16 bytes that identify a root key, and reveal nothing of it."""
        return self._derive(root_key_id, b"", b"pqkeep/check/v1")[:CHECK_VALUE_SIZE]

    def matches(self, root_key_id: int, check_value: bytes) -> bool:
        """Return whether a check value belongs to that root key."""
        return hmac.compare_digest(self.check_value(root_key_id), check_value)

    def backup_tag(self, root_key_id: int, digest: bytes) -> bytes:
        """Return the tag (32 bytes) of a backup with this digest: HMAC-SHA-256 under a derived key.

        Only a holder of the root key can compute it.
        """
        key = self._derive(root_key_id, b"", b"pqkeep/backup/v1")
        return hmac.digest(key, digest, "sha256")

    def _aead(self, root_key_id: int, salt: bytes) -> AESGCM:
        return AESGCM(self._derive(root_key_id, salt, b"pqkeep/seal/v1"))

    def _mac(self, root_key_id: int, data: bytes) -> bytes:
        return hmac.digest(self._derive(root_key_id, b"", b"pqkeep/keyring-mac/v1"), data, "sha256")

    def _derive(self, root_key_id: int, salt: bytes, info: bytes) -> bytes:
        kdf = HKDF(SHA256(), length=ROOT_KEY_SIZE, salt=salt, info=info)
        return kdf.derive(self._root_keys[root_key_id].reveal())


def sealing_root_key_id(sealed: SealedSeed) -> int:
    """Return the id of the root key that sealed a seed; 0 if the seed is damaged."""
    return sealed[1] if len(sealed) >= _HEADER else 0


def associated_data(
    tenant: TenantId,
    keyring: KeyringName,
    algorithm: Algorithm,
    version: KeyVersion,
    public_key: bytes,
) -> bytes:
    """Return the associated data that binds a sealed seed to its row."""
    return b"".join(
        (
            b"pqkeep/sealed-key/v1",
            tenant.bytes,
            length_prefixed(algorithm.encode()),
            version.to_bytes(4, "big"),
            sha256(public_key).digest(),
            length_prefixed(*bound_keyring(keyring)),
        )
    )
