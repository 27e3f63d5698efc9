"""Readers and writers: the interface of files and pipes that local encryption uses."""

import os
from collections.abc import Callable, Iterable, Iterator
from io import RawIOBase
from typing import Protocol

from pqkeep.new_files import new_file

FilePath = str | os.PathLike[str]


def save(target: FilePath, pieces: Iterable[bytes], *, replace: bool) -> None:
    """Write pieces to a new file, mode 0600. If a piece fails, no file is left.

    Raises FileExistsError if the file exists and ``replace`` is False, before the first piece is
    read if possible.
    """
    with new_file(target, replace=replace) as file:
        for piece in pieces:
            file.write(piece)


class Reader(Protocol):
    """Anything that returns bytes, at most ``size`` at a time. No bytes mean the end."""

    def read(self, size: int, /) -> bytes | None:
        """Return some bytes, or ``b""`` at the end. It must block until bytes are available."""
        ...


class Writer(Protocol):
    """Anything that takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Take bytes. Only an unbuffered file may take fewer bytes."""
        ...


def read_up_to(reader: Reader, size: int) -> bytes:
    """Return ``size`` bytes, or fewer at the end."""
    data = _read(reader, size)
    if not data or len(data) == size:
        return data
    parts, missing = [data], size - len(data)
    while missing and (part := _read(reader, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def in_pieces(reader: Reader, size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces of ``size`` bytes, and whether each is the last. The last may be shorter.

    There is at least one piece, which may be empty.
    """
    piece = read_up_to(reader, size)
    while True:
        following = read_up_to(reader, size) if len(piece) == size else b""
        yield piece, not following
        if not following:
            return
        piece = following


def write_all(writer: Writer, pieces: Iterable[bytes]) -> None:
    """Write all bytes, even if an unbuffered file takes fewer at a time."""
    write = _whole(writer) if isinstance(writer, RawIOBase) else writer.write
    for piece in pieces:
        write(piece)


def _whole(writer: RawIOBase) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = writer.write(rest)
            if written is None:
                raise BlockingIOError("the writer does not block, and takes nothing now")
            rest = rest[written:]

    return write


def _read(reader: Reader, size: int) -> bytes:
    data = reader.read(size)
    if data is None:  # taken for the end, this would lose data
        raise BlockingIOError("the reader does not block, and has nothing yet")
    if len(data) > size:
        raise ValueError("the reader gave more than it was asked for")
    return data
