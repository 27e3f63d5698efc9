"""Encrypted data as text: base64 in lines of 64 characters between two others (RFC 7468).

    -----BEGIN PQKEEP ENCRYPTED DATA-----
    cHFrZWVwAAIC…
    -----END PQKEEP ENCRYPTED DATA-----

It protects nothing by itself: what is inside is authenticated.
"""

import base64
import binascii
from typing import Protocol

from pqkeep.cli.destinations import Writer
from pqkeep.errors import DecryptionError

BEGIN = b"-----BEGIN PQKEEP ENCRYPTED DATA-----"
END = b"-----END PQKEEP ENCRYPTED DATA-----"
LINE = 64
"""Characters of a line, which are 48 bytes of data."""
_BYTES = LINE // 4 * 3
_PIECE = 64 * 1024


class Reader(Protocol):
    """What armored text is read from."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at the end."""
        ...


class ArmorWriter:
    """Takes data, and writes text."""

    def __init__(self, writer: Writer) -> None:
        """Begin the text."""
        self._writer = writer
        self._rest = b""
        writer.write(BEGIN + b"\n")

    def write(self, data: bytes, /) -> None:
        """Write what makes whole lines, and keep the rest."""
        data = self._rest + data
        end = len(data) - len(data) % _BYTES
        self._rest = data[end:]
        self._write_lines(data[:end])

    def end(self) -> None:
        """Write the rest, and the last line."""
        self._write_lines(self._rest)
        self._writer.write(END + b"\n")

    def _write_lines(self, data: bytes) -> None:
        text = base64.b64encode(data)
        lines = [text[start : start + LINE] for start in range(0, len(text), LINE)]
        self._writer.write(b"".join(line + b"\n" for line in lines))


class ArmorReader:
    """Reads text, however its lines were broken on the way, and gives data."""

    def __init__(self, reader: Reader) -> None:
        """Read the first line. Raises DecryptionError if it is another."""
        self._reader = reader
        self._text = b""
        self._data = b""
        self._is_over = False
        if reader.read(len(BEGIN)) != BEGIN:
            raise DecryptionError("this is not text that pqkeep made of encrypted data")

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes; none at the end. Raises DecryptionError."""
        while not self._data and not self._is_over:
            self._fill()
        data, self._data = self._data[:size], self._data[size:]
        return data

    def _fill(self) -> None:
        piece = self._reader.read(_PIECE)
        body, dash, tail = piece.partition(b"-")
        if dash and (dash + tail + self._reader.read(_PIECE)).strip() != END:
            raise DecryptionError("the text of the encrypted data does not end as it must")
        if not piece:
            raise DecryptionError("the text of the encrypted data was cut off")
        self._is_over = bool(dash)
        text = self._text + b"".join(body.split())
        end = len(text) if self._is_over else len(text) - len(text) % 4
        self._text = text[end:]
        self._data = _decoded(text[:end])


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    raise DecryptionError("the text of the encrypted data is damaged")
