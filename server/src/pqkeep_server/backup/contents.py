"""The messages in a backup: a manifest, the rows of every table, their counts, and tags.

Each message is msgpack, preceded by its length (4 bytes, big-endian). The header names the shards,
and each has one tag, in the header's order. A tag is an HMAC-SHA-256 under a key derived from the
shard's newest root key. Its input is the SHA-256 digest of the header and all messages before the
tag. Without the root keys of all shards, no one can forge a backup or put a part of another backup
into one.
"""

import hmac
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_server.backup.encrypted_file import BackupFileError, Reader, Writer, damaged

Sealers = Mapping[str, Sealer]
"""A sealer with the root keys of a shard, by the shard's name."""
_LENGTH = 4
MAX_MESSAGE = 256 * 1024 * 1024
"""The most bytes of a message. The rows of one message take far less."""
_MAX_TAG = 64
"""The most bytes of a message's tag. The message with it is smaller."""


class Manifest(Struct, frozen=True, array_like=True, kw_only=True, tag="manifest"):
    """The facts that a restore needs before it begins."""

    revisions: dict[str, str]
    """The Alembic revision of each database's schema."""
    files: dict[str, bytes]
    """The settings and the gateway's pepper, by their paths in the data directory."""


class Rows(Struct, frozen=True, array_like=True, tag="rows"):
    """Some rows of one table."""

    database: str
    table: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


class End(Struct, frozen=True, array_like=True, kw_only=True, tag="end"):
    """The message after all rows: it shows that none is missing."""

    counts: dict[str, dict[str, int]]
    """The number of rows by database and table."""


class Tag(Struct, frozen=True, array_like=True, tag="tag"):
    """One of the last messages: it proves that the writer held the shard's root key."""

    tag: bytes


Message = Manifest | Rows | End
_DECODER: msgspec.msgpack.Decoder[Message | Tag] = msgspec.msgpack.Decoder(
    Message | Tag, strict=False
)


def write(writer: Writer, message: Message | Tag) -> None:
    """Add a message to a backup."""
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_MESSAGE:
        raise ValueError("the rows of one message are too large for a backup")
    writer.write(len(data).to_bytes(_LENGTH, "big") + data)


def finish(writer: Writer, counts: dict[str, dict[str, int]], sealers: Sealers) -> None:
    """Write the end of a backup and its tags. The sealers have the newest root keys."""
    write(writer, End(counts=counts))
    for shard, origin in writer.origin.shards.items():
        digest = writer.digest.digest()
        write(writer, Tag(sealers[shard].backup_tag(origin.newest_root_key, digest)))
    writer.finish()


def require_tags(reader: Reader, sealers: Sealers) -> None:
    """Read a whole backup and check its tags. Raises BackupFileError.

    The sealers have the backup's root keys. Only the tags are decoded: a forger's messages could take
    seventy times their size in memory.
    """
    shards = reader.header.origin.shards
    last: deque[tuple[bytes, bytes]] = deque(maxlen=len(shards))
    while not reader.is_at_end:
        digest = reader.digest.digest()
        size = _read_size(reader)
        if size > _MAX_TAG:
            reader.skip(size)
            last.clear()
        else:
            last.append((digest, reader.read(size)))
    if len(last) != len(shards):
        raise damaged()
    for shard, (digest, message) in zip(shards, last, strict=True):
        _check_tag(reader, shard, sealers, digest, _decode(message))


def read(reader: Reader, sealers: Sealers) -> Iterator[Message]:
    """Yield a backup's messages, the last one only if all tags are right. Raises BackupFileError.

    The sealers have the backup's root keys.
    """
    while not isinstance(message := _read(reader), End):
        if isinstance(message, Tag):
            raise damaged()
        yield message
    for shard in reader.header.origin.shards:
        digest = reader.digest.digest()
        _check_tag(reader, shard, sealers, digest, _read(reader))
    reader.finish()
    yield message


def _check_tag(
    reader: Reader, shard: str, sealers: Sealers, digest: bytes, found: Message | Tag
) -> None:
    if not isinstance(found, Tag):
        raise damaged()
    root_key = reader.header.origin.shards[shard].newest_root_key
    if not hmac.compare_digest(found.tag, sealers[shard].backup_tag(root_key, digest)):
        of_shard = f" of the shard {shard}" if reader.header.origin.others else ""
        raise BackupFileError(f"it is forged: its tag was not made with the root key{of_shard}")


def _read(reader: Reader) -> Message | Tag:
    return _decode(reader.read(_read_size(reader)))


def _read_size(reader: Reader) -> int:
    size = int.from_bytes(reader.read(_LENGTH), "big")
    if size > MAX_MESSAGE:
        raise damaged()
    return size


def _decode(message: bytes) -> Message | Tag:
    try:
        return _DECODER.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise damaged() from None
