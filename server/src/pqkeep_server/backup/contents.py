"""The messages in a backup: a manifest, then the rows of every table, then how many there were.

Each is msgpack, preceded by its length (4 bytes, big-endian).
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from pqkeep_server.backup.encrypted_file import Reader, Writer, damaged

_LENGTH = 4
MAX_MESSAGE = 256 * 1024 * 1024
"""Bytes; far more than the rows of one message take."""


class Manifest(Struct, frozen=True, array_like=True, kw_only=True, tag="manifest"):
    """What a restore has to know before it begins."""

    revisions: dict[str, str]
    """The Alembic revision of each database's schema."""
    root_keys: dict[int, bytes]
    """The check values of the root keys that private keys are sealed under, by id."""
    files: dict[str, bytes]
    """The settings and the gateway's pepper, by their paths in the data directory."""


class Rows(Struct, frozen=True, array_like=True, tag="rows"):
    """Some rows of one table."""

    database: str
    table: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


class End(Struct, frozen=True, array_like=True, kw_only=True, tag="end"):
    """The last message: nothing is missing."""

    counts: dict[str, dict[str, int]]
    """The number of rows by database and table."""


Message = Manifest | Rows | End
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, strict=False)


def write(writer: Writer, message: Message) -> None:
    """Add a message to a backup."""
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_MESSAGE:
        raise ValueError("rows too large for a backup")
    writer.write(len(data).to_bytes(_LENGTH, "big") + data)


def read(reader: Reader) -> Iterator[Message]:
    """Yield a backup's messages up to its end. Raises BackupFileError."""
    while True:
        size = int.from_bytes(reader.read(_LENGTH), "big")
        if size > MAX_MESSAGE:
            raise damaged()
        try:
            message = _DECODER.decode(reader.read(size))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise damaged() from None
        yield message
        if isinstance(message, End):
            reader.finish()
            return
