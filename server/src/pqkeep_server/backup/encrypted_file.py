"""The file format of a backup: a header, then segments encrypted by the STREAM construction.

    file    = "pqkeep backup 2" newline || length of header (4) || header || segment ...
    key     = HKDF-SHA-384(shared secret, info = length-prefixed "pqkeep/v1", "backup", KEM)
    segment = AES-256-GCM(key, nonce = number (11) || is last (1), 64 KiB or, the last, less)

The header is msgpack: KEM, fingerprint of the recovery key, KEM ciphertext and the backup's origin.
Everything before the segments is the associated data of each segment. So no segment can be changed,
left out, moved or taken from another file, and nothing can be cut off or added. The file does not
prove who wrote it, because the recovery key is public: the tags in contents.py do. (STREAM: Hoang,
Reyhanitabar, Rogaway, Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", 2015.)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, BinaryIO, NamedTuple, Self

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta, Struct

from pqkeep_keyservice.crypto.dem import length_prefixed
from pqkeep_protocol.keys import DEFAULT_SHARD, ShardName
from pqkeep_server.backup.recovery_key import PrivateHalf, PublicHalf

_matches = re.compile(r"(?:([a-z0-9-]{1,32}):)?(\d{1,9})\.(\d{1,18})", re.ASCII).fullmatch


class ShardNumber(NamedTuple):
    """A shard's part of a number, compared part by part. A backup with a smaller one is older."""

    generation: int
    """The number of restores of the shard so far."""
    records: int
    """The number of the shard's audit records in the backup."""

    def __str__(self) -> str:
        return f"{self.generation}.{self.records}"


@dataclass(frozen=True, slots=True)
class BackupNumber:
    """The numbers of all shards in a backup."""

    shards: Mapping[str, ShardNumber]

    def __str__(self) -> str:
        if self.shards.keys() == {DEFAULT_SHARD}:
            return str(self.shards[DEFAULT_SHARD])
        return ",".join(f"{name}:{number}" for name, number in self.shards.items())

    def lacks(self, other: Self) -> str | None:
        """Return a shard that is newer in the other backup or only there, or None."""
        for name, number in other.shards.items():
            if name not in self.shards or self.shards[name] < number:
                return name
        return None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the number from its printed form. Raises ValueError."""
        shards: dict[str, ShardNumber] = {}
        for part in text.split(","):
            if (match := _matches(part)) is None or (name := match[1] or DEFAULT_SHARD) in shards:
                raise ValueError(
                    "not the number of a backup: expected 0.1200 or default:0.1200,b:0.300, for example"
                )
            shards[name] = ShardNumber(int(match[2]), int(match[3]))
        return cls(shards)


MAGIC = b"pqkeep backup 2\n"
SEGMENT = 64 * 1024
"""Bytes of plaintext in every segment but the last."""
_TAG = 16
_LENGTH = 4
_MAX_HEADER = 64 * 1024
_KEY = 32
_NUMBER = 11


class BackupFileError(Exception):
    """The file is not a backup, is for another recovery key, or was changed."""


def damaged() -> BackupFileError:
    """Return the error for a file that was changed."""
    return BackupFileError("the file is damaged; use another copy of it")


class ShardOrigin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard's part of a backup."""

    log_id: str
    """The id of the shard's audit log."""
    generation: Annotated[int, Meta(ge=0)]
    records: Annotated[int, Meta(ge=0)]
    """The parts of the shard's number."""
    root_keys: Annotated[dict[int, bytes], Meta(min_length=1)]
    """The check values of the root keys that private keys are sealed under, by id."""

    @property
    def number(self) -> ShardNumber:
        """The shard's part of the backup's number."""
        return ShardNumber(self.generation, self.records)

    @property
    def newest_root_key(self) -> int:
        """The id of the root key that the shard's tag is made with."""
        return max(self.root_keys)


class Origin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The shards, time and version of a backup. Fields without a shard are of the shard ``default``."""

    created_at_us: Annotated[int, Meta(ge=0, le=253_402_300_799_999_999)]
    """Microseconds since 1970, before the year 10000."""
    version: str
    """The version of pqkeep that made it."""
    log_id: str
    generation: Annotated[int, Meta(ge=0)]
    records: Annotated[int, Meta(ge=0)]
    root_keys: Annotated[dict[int, bytes], Meta(min_length=1)]
    others: dict[ShardName, ShardOrigin] = {}
    """The other shards, by name."""

    def __post_init__(self) -> None:
        """Refuse a second ``default``. Raises ValueError."""
        if DEFAULT_SHARD in self.others:
            raise ValueError("the shard default is named twice")

    @classmethod
    def of(cls, shards: Mapping[ShardName, ShardOrigin], created_at_us: int, version: str) -> Self:
        """Return the origin of these shards. One of them is ``default``."""
        first = shards[DEFAULT_SHARD]
        return cls(
            created_at_us=created_at_us,
            version=version,
            log_id=first.log_id,
            generation=first.generation,
            records=first.records,
            root_keys=first.root_keys,
            others={name: shard for name, shard in shards.items() if name != DEFAULT_SHARD},
        )

    @property
    def shards(self) -> Mapping[ShardName, ShardOrigin]:
        """All shards in the order of their tags: ``default``, then the others by name."""
        first = ShardOrigin(
            log_id=self.log_id,
            generation=self.generation,
            records=self.records,
            root_keys=self.root_keys,
        )
        return {DEFAULT_SHARD: first, **dict(sorted(self.others.items()))}

    @property
    def number(self) -> BackupNumber:
        """The backup's number."""
        return BackupNumber({name: shard.number for name, shard in self.shards.items()})


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a backup that is readable without the recovery key."""

    kem: str
    recovery_key: bytes
    """The fingerprint of the recovery key."""
    kem_ciphertext: bytes
    origin: Origin


class Writer:
    """Encrypts data and writes it to a file."""

    def __init__(self, file: BinaryIO, recovery_key: PublicHalf, origin: Origin) -> None:
        """Write the header to an empty file."""
        secret, kem_ciphertext = recovery_key.key.encapsulate()
        header = msgspec.msgpack.encode(
            Header(
                kem=recovery_key.kem,
                recovery_key=recovery_key.fingerprint,
                kem_ciphertext=kem_ciphertext,
                origin=origin,
            )
        )
        self._associated_data = MAGIC + len(header).to_bytes(_LENGTH, "big") + header
        self._aead = _aead(secret, recovery_key.kem)
        self._file = file
        self._number = 0
        self._buffer = bytearray()
        self.origin = origin
        self.digest = sha256(self._associated_data)
        """The hash of the header and the plaintext so far."""
        file.write(self._associated_data)

    def write(self, data: bytes) -> None:
        """Add to the plaintext."""
        self.digest.update(data)
        self._buffer += data
        while len(self._buffer) > SEGMENT:  # only finish() knows the last segment
            self._write_segment(bytes(self._buffer[:SEGMENT]), is_last=False)
            del self._buffer[:SEGMENT]

    def finish(self) -> None:
        """Write the last segment, without which a reader reports damage."""
        self._write_segment(bytes(self._buffer), is_last=True)
        self._buffer.clear()

    def _write_segment(self, plaintext: bytes, *, is_last: bool) -> None:
        nonce = _nonce(self._number, is_last=is_last)
        self._file.write(self._aead.encrypt(nonce, plaintext, self._associated_data))
        self._number += 1


class Reader:
    """Decrypts a backup from beginning to end, and returns only authenticated bytes."""

    def __init__(self, file: BinaryIO, recovery_key: PrivateHalf) -> None:
        """Read the header. Raises BackupFileError."""
        self._file = file
        self._associated_data, self.header = _read_header(file)
        self.digest = sha256(self._associated_data)
        """The hash of the header and the plaintext read so far."""
        if self.header.recovery_key != recovery_key.fingerprint:
            raise BackupFileError(
                "it was made for another recovery key, with the fingerprint "
                + self.header.recovery_key.hex()
            )
        if self.header.kem != recovery_key.kem:
            raise damaged()
        try:
            secret = recovery_key.key.decapsulate(self.header.kem_ciphertext)
        except ValueError:
            raise damaged() from None
        self._aead = _aead(secret, recovery_key.kem)
        self._number = 0
        self._plaintext = bytearray()
        self._next = file.read(SEGMENT + _TAG)
        self._is_at_end = False

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes of plaintext. Raises BackupFileError if fewer are left."""
        while len(self._plaintext) < size:
            if self._is_at_end:
                raise damaged()
            self._plaintext += self._read_segment()
        data = bytes(self._plaintext[:size])
        del self._plaintext[:size]
        self.digest.update(data)
        return data

    def skip(self, size: int) -> None:
        """Skip ``size`` bytes of plaintext, one segment at a time."""
        for begin in range(0, size, SEGMENT):
            self.read(min(SEGMENT, size - begin))

    @property
    def is_at_end(self) -> bool:
        """Whether everything has been read."""
        return self._is_at_end and not self._plaintext

    def finish(self) -> None:
        """Raise BackupFileError unless everything has been read."""
        if not self.is_at_end:
            raise damaged()

    def _read_segment(self) -> bytes:
        segment, self._next = self._next, self._file.read(SEGMENT + _TAG)
        self._is_at_end = not self._next
        nonce = _nonce(self._number, is_last=self._is_at_end)
        self._number += 1
        try:
            return self._aead.decrypt(nonce, segment, self._associated_data)
        except (InvalidTag, ValueError):
            raise damaged() from None


def _read_header(file: BinaryIO) -> tuple[bytes, Header]:
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise BackupFileError("the file is not a backup, or is of another version of pqkeep")
    length = file.read(_LENGTH)
    size = int.from_bytes(length, "big")
    header = file.read(min(size, _MAX_HEADER))
    try:
        if len(header) != size:
            raise damaged()
        decoded = msgspec.msgpack.decode(header, type=Header)
        return magic + length + header, decoded
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise damaged() from None


def _aead(shared_secret: bytes, kem: str) -> AESGCM:
    info = length_prefixed(b"pqkeep/v1", b"backup", kem.encode())
    return AESGCM(HKDF(SHA384(), length=_KEY, salt=None, info=info).derive(shared_secret))


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(_NUMBER, "big") + bytes((is_last,))
