"""A tenant's keys in a bundle for another shard: one key service seals it, another opens it.

    bundle = header || nonce (12) || ciphertext || tag (16)
    header = "pqkeep/bundle/v1" || transfer key's check value (16) || salt (32)
             || tenant (16) || generation (4) || length of source (1) || source
             || length of target (1) || target

HKDF-SHA-256 derives two keys from the transfer key and the salt. One encrypts the content with
AES-256-GCM; the header is its associated data. The other encrypts each seed in it on its own, with
the associated data that the seed has at rest. The header names source, target, tenant and the
number of the move. A carrier of the bundle cannot read or change it.

A receipt is HMAC-SHA-256 under a third key, over the header's values and the bundle's digest. A
renunciation is the same under a fourth key: its shard will never take the bundle.
"""

import hmac
import os
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import associated_data
from pqkeep_protocol.administration import Receipt
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import (
    Destruction,
    KeyInfo,
    KeyringName,
    KeyStatus,
    TenantId,
)
from pqkeep_protocol.messages import Idempotency
from pqkeep_protocol.rules import Rule
from pqkeep_protocol.startup.settings import ConfigError

TRANSFER_KEY_SIZE = 32
_LABEL = b"pqkeep/bundle/v1"
_CHECK = 16
_SALT = 32
_NONCE = 12
_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")


class InvalidBundleError(Exception):
    """The data is not a complete bundle under this transfer key."""


class Move(Struct, frozen=True):
    """Identifies one move of one tenant."""

    tenant: TenantId
    source: str
    target: str
    generation: int
    """The number of the tenant's move, counted from 1."""


class MovedVersion(Struct, frozen=True, array_like=True):
    """A key version with its seed sealed for the bundle. An archived version has no seed."""

    info: KeyInfo
    seed: bytes | None
    idempotency: Idempotency | None
    disabled_from: KeyStatus | None
    retired_at: datetime | None


class MovedKey(Struct, frozen=True, array_like=True):
    """All versions of a key, and the revision at its departure."""

    keyring: KeyringName
    algorithm: Algorithm
    revision: int
    versions: tuple[MovedVersion, ...]


class MovedKeyring(Struct, frozen=True, array_like=True):
    """A keyring's settings, and the revision at its departure."""

    info: KeyringInfo
    revision: int
    destruction: Destruction | None


class MovedUse(Struct, frozen=True, array_like=True):
    """A principal's uses of a key version on one day, or in one month."""

    keyring: str
    algorithm: str
    version: int
    """Without keyring and version: uses of public keys that are not the tenant's own."""
    principal: str
    operation: str
    day: int
    """Counted from 1970; of a month the first."""
    uses: int
    first_used_us: int
    last_used_us: int


class MovedCount(Struct, frozen=True, array_like=True):
    """The number of successes of an operation in an hour since 1970, or of all refusals in it."""

    hour: int
    operation: str
    count: int


class MovedRules(Struct, frozen=True, array_like=True):
    """A tenant's rules, and the revision at its departure."""

    rules: tuple[Rule, ...]
    revision: int


class MovedMoves(Struct, frozen=True, array_like=True):
    """A campaign's re-encryptions from a key version to another, and the first and last time."""

    campaign: str
    keyring: str
    algorithm: str
    version: int
    target: str
    count: int
    first_us: int
    last_us: int


class BundleContent(Struct, frozen=True, array_like=True):
    """Everything that a shard stores for a tenant, except the records in its log."""

    keyrings: tuple[MovedKeyring, ...]
    keys: tuple[MovedKey, ...]
    uses: tuple[MovedUse, ...]
    counts: tuple[MovedCount, ...]
    moves: tuple[MovedMoves, ...] = ()
    rules: MovedRules | None = None

    @property
    def key_versions(self) -> int:
        """The number of key versions in the bundle."""
        return sum(len(key.versions) for key in self.keys)


_CONTENT = msgspec.msgpack.Decoder(BundleContent)


class TransferKey:
    """The key that all key services of an installation share. Nothing else has it."""

    def __init__(self, key: Secret) -> None:
        """Take a key of 32 bytes. Raises ConfigError on another size."""
        if len(key) != TRANSFER_KEY_SIZE:
            raise ConfigError(f"the transfer key must be {TRANSFER_KEY_SIZE} bytes long")
        self._key = key
        self.check_value = self._derive(b"", b"pqkeep/transfer-check/v1")[:_CHECK]
        """16 bytes that identify the key, and reveal nothing of it."""

    def new_seal(self, move: Move) -> "BundleSeal":
        """Return the seal of a new bundle."""
        salt = os.urandom(_SALT)
        return BundleSeal(move, _header(self.check_value, salt, move), *self._keys(salt))

    def read_header(self, bundle: bytes) -> "BundleSeal":
        """Return the seal that opens a bundle. Until then nothing is authentic.

        Raises InvalidBundleError.
        """
        try:
            move, salt, check_value, size = _parsed(bundle)
        except (IndexError, ValueError):
            raise InvalidBundleError from None
        if not hmac.compare_digest(check_value, self.check_value):
            raise InvalidBundleError
        return BundleSeal(move, bundle[:size], *self._keys(salt))

    def receipt(self, move: Move, digest: bytes) -> Receipt:
        """Return the statement that a bundle has arrived."""
        return self._statement(b"pqkeep/transfer-receipt/v1", move, digest)

    def renunciation(self, move: Move, digest: bytes) -> Receipt:
        """Return the statement that a bundle has not arrived and never will."""
        return self._statement(b"pqkeep/transfer-renunciation/v1", move, digest)

    def _statement(self, label: bytes, move: Move, digest: bytes) -> Receipt:
        mac = hmac.digest(self._derive(b"", label), _binding(move) + digest, "sha256")
        return Receipt(
            tenant=move.tenant,
            source=move.source,
            target=move.target,
            generation=move.generation,
            sha256=digest,
            mac=mac,
        )

    def is_receipt(self, receipt: Receipt, move: Move, digest: bytes) -> bool:
        """Return whether a receipt is valid for this bundle of this move."""
        return _is_same(self.receipt(move, digest), receipt)

    def is_renunciation(self, renunciation: Receipt, move: Move, digest: bytes) -> bool:
        """Return whether a renunciation is valid for this bundle of this move."""
        return _is_same(self.renunciation(move, digest), renunciation)

    def _keys(self, salt: bytes) -> tuple[AESGCM, AESGCM]:
        content = self._derive(salt, b"pqkeep/bundle-content/v1")
        seeds = self._derive(salt, b"pqkeep/bundle-seeds/v1")
        return AESGCM(content), AESGCM(seeds)

    def _derive(self, salt: bytes, info: bytes) -> bytes:
        kdf = HKDF(SHA256(), length=TRANSFER_KEY_SIZE, salt=salt, info=info)
        return kdf.derive(self._key.reveal())


@dataclass(frozen=True, slots=True, repr=False)
class BundleSeal:
    """Seals or opens one bundle."""

    move: Move
    _header: bytes
    _content: AESGCM
    _seeds: AESGCM

    def seal_seed(self, seed: Secret, info: KeyInfo) -> bytes:
        """Return a seed sealed into the bundle, and wipe the seed."""
        nonce = os.urandom(_NONCE)
        with seed:
            return nonce + self._seeds.encrypt(nonce, seed.reveal(), self._place(info))

    def open_seed(self, sealed: bytes, info: KeyInfo) -> Secret:
        """Return an unsealed seed. Raises InvalidBundleError."""
        try:
            return Secret(self._seeds.decrypt(sealed[:_NONCE], sealed[_NONCE:], self._place(info)))
        except (InvalidTag, ValueError):
            raise InvalidBundleError from None

    def seal(self, content: BundleContent) -> bytes:
        """Return the bundle."""
        nonce = os.urandom(_NONCE)
        sealed = self._content.encrypt(nonce, _ENCODER.encode(content), self._header)
        return b"".join((self._header, nonce, sealed))

    def open(self, bundle: bytes) -> BundleContent:
        """Return the content of the bundle. Raises InvalidBundleError."""
        start = len(self._header)
        nonce, sealed = bundle[start : start + _NONCE], bundle[start + _NONCE :]
        try:
            return _CONTENT.decode(self._content.decrypt(nonce, sealed, self._header))
        except (InvalidTag, ValueError, OverflowError, msgspec.MsgspecError):
            raise InvalidBundleError from None

    def _place(self, info: KeyInfo) -> bytes:
        tenant = self.move.tenant
        return associated_data(tenant, info.keyring, info.algorithm, info.version, info.public_key)


def _is_same(expected: Receipt, given: Receipt) -> bool:
    return hmac.compare_digest(expected.mac, given.mac) and expected == given


def bundle_digest(bundle: bytes) -> bytes:
    """Return the digest (32 bytes) that identifies a bundle."""
    return sha256(bundle).digest()


def _header(check_value: bytes, salt: bytes, move: Move) -> bytes:
    return b"".join((_LABEL, check_value, salt, _binding(move)))


def _binding(move: Move) -> bytes:
    names = (bytes([len(name)]) + name for name in (move.source.encode(), move.target.encode()))
    return b"".join((move.tenant.bytes, move.generation.to_bytes(4, "big"), *names))


def _parsed(bundle: bytes) -> tuple[Move, bytes, bytes, int]:
    """Return move, salt, check value and size of a header. Raises ValueError and IndexError."""
    place = len(_LABEL)
    if bundle[:place] != _LABEL:
        raise ValueError("not a bundle")

    def take(size: int) -> bytes:
        nonlocal place
        taken = bundle[place : place + size]
        place += size
        if len(taken) != size:
            raise ValueError("the bundle is cut off")
        return taken

    check_value, salt = take(_CHECK), take(_SALT)
    tenant, generation = TenantId(UUID(bytes=take(16))), int.from_bytes(take(4), "big")
    source, target = (take(take(1)[0]).decode("ascii") for _ in range(2))
    return Move(tenant, source, target, generation), salt, check_value, place
