"""The messages in a backup: a manifest, the rows of every table, how many there were, and a tag.

Each is msgpack, preceded by its length (4 bytes, big-endian). The tag is HMAC-SHA-256 of SHA-256 of
the header and all messages before it, under a key that is derived from the newest root key: without
the root key nobody can write a backup that is restored.
"""

import hmac
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_server.backup.encrypted_file import BackupFileError, Reader, Writer, damaged

_LENGTH = 4
MAX_MESSAGE = 256 * 1024 * 1024
"""Bytes; far more than the rows of one message take."""
_MAX_TAG = 64
"""Bytes; more than the message with the tag has."""


class Manifest(Struct, frozen=True, array_like=True, kw_only=True, tag="manifest"):
    """What a restore has to know before it begins."""

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
    """After all rows: nothing is missing."""

    counts: dict[str, dict[str, int]]
    """The number of rows by database and table."""


class Tag(Struct, frozen=True, array_like=True, tag="tag"):
    """The last message: who wrote the backup held the root key."""

    tag: bytes


Message = Manifest | Rows | End
_DECODER: msgspec.msgpack.Decoder[Message | Tag] = msgspec.msgpack.Decoder(
    Message | Tag, strict=False
)


def write(writer: Writer, message: Message | Tag) -> None:
    """Add a message to a backup."""
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_MESSAGE:
        raise ValueError("rows too large for a backup")
    writer.write(len(data).to_bytes(_LENGTH, "big") + data)


def finish(writer: Writer, counts: dict[str, dict[str, int]], sealer: Sealer) -> None:
    """Write the end of a backup, and its tag by a sealer that has the newest root key."""
    write(writer, End(counts=counts))
    root_key = writer.origin.newest_root_key
    write(writer, Tag(sealer.backup_tag(root_key, writer.digest.digest())))
    writer.finish()


def require_tag(reader: Reader, sealer: Sealer) -> None:
    """Read a backup to its end, and check its tag. Raises BackupFileError.

    The sealer has the backup's root keys. Nothing but the tag is decoded: in memory, a forger's
    messages could be seventy times as large as in the file.
    """
    digest, last = b"", b""
    while not reader.is_at_end:
        digest = reader.digest.digest()
        size = _read_size(reader)
        if size > _MAX_TAG:
            reader.skip(size)
            last = b""
        else:
            last = reader.read(size)
    _check_tag(reader, sealer, digest, _decode(last))


def read(reader: Reader, sealer: Sealer) -> Iterator[Message]:
    """Yield a backup's messages, the last of them only if its tag holds. Raises BackupFileError.

    The sealer has the backup's root keys.
    """
    while not isinstance(message := _read(reader), End):
        if isinstance(message, Tag):
            raise damaged()
        yield message
    digest = reader.digest.digest()
    found = _read(reader)
    reader.finish()
    _check_tag(reader, sealer, digest, found)
    yield message


def _check_tag(reader: Reader, sealer: Sealer, digest: bytes, found: Message | Tag) -> None:
    if not isinstance(found, Tag):
        raise damaged()
    tag = sealer.backup_tag(reader.header.origin.newest_root_key, digest)
    if not hmac.compare_digest(found.tag, tag):
        raise BackupFileError("it is forged: it was not made with the root key")


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
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise damaged() from None
