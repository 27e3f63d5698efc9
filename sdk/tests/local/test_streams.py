"""Readers and writers of all kinds, and the use of memory."""

from __future__ import annotations

import os
import threading
import tracemalloc
from io import BytesIO, RawIOBase
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep import DecryptionError, UnreadableInputError
from pqkeep.local import decrypt_stream, encrypt, encrypt_stream

if TYPE_CHECKING:
    from sdk.tests.local.conftest import Pair

PIECE = 262_144
HEADER = 1299
DATA = os.urandom(PIECE + 1000)


class Trickle(RawIOBase):
    """Gives and takes a few bytes at a time, like a socket."""

    def __init__(self, data: bytes = b"", most: int = 999) -> None:
        self._source = BytesIO(data)
        self._most = most
        self.taken = bytearray()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._source.read(min(size, self._most))

    def write(self, data: Any, /) -> int:
        self.taken += data[: self._most]
        return min(len(data), self._most)


class Zeros:
    """Has many zeros without memory for them."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int, /) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


class Discard:
    """Keeps nothing."""

    size = 0

    def write(self, data: bytes, /) -> None:
        self.size += len(data)


def test_a_few_bytes_at_a_time(kyber: Pair) -> None:
    """Short reads and writes, as of sockets and raw files, lose nothing."""
    sealed, opened = Trickle(), Trickle()
    encrypt_stream(Trickle(DATA), sealed, recipients=[kyber.recipient])
    decrypt_stream(Trickle(bytes(sealed.taken)), opened, decapsulate=kyber.decapsulate)
    assert opened.taken == DATA


def test_a_pipe(kyber: Pair) -> None:
    """Data goes through an unbuffered pipe while the other end decrypts it."""
    out, into = os.pipe()
    opened = BytesIO()
    with open(out, "rb", buffering=0) as reader, open(into, "wb", buffering=0) as writer:  # noqa: PTH123 - descriptors

        def send() -> None:
            encrypt_stream(BytesIO(DATA * 5), writer, recipients=[kyber.recipient])
            writer.close()

        thread = threading.Thread(target=send)
        thread.start()
        decrypt_stream(reader, opened, decapsulate=kyber.decapsulate)
        thread.join()
    assert opened.getvalue() == DATA * 5


def test_nothing_yet_is_not_the_end(kyber: Pair) -> None:
    """A non-blocking reader without data raises an error: it is not the end."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    os.write(into, b"some")
    with open(out, "rb", buffering=0) as reader, pytest.raises(BlockingIOError):  # noqa: PTH123
        encrypt_stream(reader, BytesIO(), recipients=[kyber.recipient])
    os.close(into)


def test_more_than_was_asked_for(kyber: Pair) -> None:
    """A reader that returns more than requested raises an error."""

    class Generous:
        def read(self, size: int, /) -> bytes:
            return DATA

    with pytest.raises(ValueError, match="more than it was asked for"):
        encrypt_stream(Generous(), BytesIO(), recipients=[kyber.recipient])


def test_only_what_was_authenticated_comes_out(kyber: Pair) -> None:
    """A truncated stream gives the complete segments, and then an error."""
    file = encrypt(DATA * 3, recipients=[kyber.recipient])
    writer = BytesIO()
    with pytest.raises(DecryptionError):
        decrypt_stream(
            BytesIO(file[: HEADER + 2 * (PIECE + 16)]), writer, decapsulate=kyber.decapsulate
        )
    assert writer.getvalue() == (DATA * 3)[:PIECE]
    damaged = bytearray(file)
    damaged[HEADER] ^= 1
    writer = BytesIO()
    with pytest.raises(DecryptionError):
        decrypt_stream(BytesIO(bytes(damaged)), writer, decapsulate=kyber.decapsulate)
    assert writer.getvalue() == b""


def test_a_full_disk(kyber: Pair) -> None:
    """A writer's error reaches the caller unchanged."""
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space"):  # noqa: PTH123
        encrypt_stream(BytesIO(DATA), full, recipients=[kyber.recipient])


def test_neither_is_closed(kyber: Pair) -> None:
    """Reader and writer stay open after success and after errors."""
    reader, writer = BytesIO(DATA), Trickle()
    encrypt_stream(reader, writer, recipients=[kyber.recipient])
    assert (reader.closed, writer.closed) == (False, False)
    with pytest.raises(UnreadableInputError):
        decrypt_stream(reader, writer, decapsulate=kyber.decapsulate)
    assert (reader.closed, writer.closed) == (False, False)


def test_a_writer_that_does_not_block(kyber: Pair) -> None:
    """A non-blocking raw writer that takes nothing raises an error: no data is lost."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with open(into, "wb", buffering=0) as writer, pytest.raises(BlockingIOError):  # noqa: PTH123
        encrypt_stream(BytesIO(DATA), writer, recipients=[kyber.recipient])
    os.close(out)


@pytest.mark.parametrize("mebibytes", [2, 32])
def test_memory_does_not_grow(kyber: Pair, mebibytes: int) -> None:
    """A few segments are in memory, for any amount of data in both directions."""
    out, into = os.pipe()
    size, nowhere = mebibytes << 20, Discard()
    tracemalloc.start()
    with open(out, "rb") as reader, open(into, "wb") as writer:  # noqa: PTH123 - descriptors

        def send() -> None:
            encrypt_stream(Zeros(size), writer, recipients=[kyber.recipient])
            writer.close()

        thread = threading.Thread(target=send)
        thread.start()
        decrypt_stream(reader, nowhere, decapsulate=kyber.decapsulate)
        thread.join()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert nowhere.size == size
    assert peak < 12 * PIECE
