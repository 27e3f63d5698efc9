"""Encrypted data as text: base64 in lines of 64 characters between two others (RFC 7468).

    -----BEGIN PQKEEP ENCRYPTED DATA-----
    cHFrZWVwAAIC…
    -----END PQKEEP ENCRYPTED DATA-----

The text form protects nothing by itself: the data inside is authenticated. Other text may surround it.
"""

import base64
import binascii
import codecs
from typing import Protocol

from pqkeep import inputs
from pqkeep.cli.destinations import Writer
from pqkeep.errors import UnreadableInputError

BEGIN = f"-----BEGIN {inputs.ARMOR}-----".encode("ascii")
END = f"-----END {inputs.ARMOR}-----".encode("ascii")
LINE = 64
"""Characters of a line. They encode 48 bytes of data."""
LONGEST_INTRODUCTION = 64 * 1024
"""Bytes of text that may stand before the first line."""
_BYTES = LINE // 4 * 3
_PIECE = 64 * 1024


class Reader(Protocol):
    """Input. ``read`` returns ``size`` bytes, or fewer at the end."""

    def read(self, size: int, /) -> bytes: ...


class ArmorWriter:
    """Writes data as text."""

    def __init__(self, writer: Writer) -> None:
        """Begin the text."""
        self._writer = writer
        self._rest = b""
        writer.write(BEGIN + b"\n")

    def write(self, data: bytes, /) -> None:
        """Write all complete lines, and buffer the rest."""
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
    """Reads data from text, whatever its line breaks are."""

    def __init__(self, reader: Reader) -> None:
        """Read up to the first marker line. Raises UnreadableInputError if no line is a marker."""
        self._reader = reader
        self._text = b""
        self._data = b""
        self._is_over = False
        self.is_alone = True
        """True if no other text surrounds the data. Known once all data was read."""
        introduction, begin, self._piece = reader.read(LONGEST_INTRODUCTION).partition(BEGIN)
        if not begin:
            raise UnreadableInputError(
                "not encrypted data as text from pqkeep", "name the original file"
            )
        self.is_alone = not introduction.removeprefix(codecs.BOM_UTF8).strip()
        before = introduction.replace(b"\r", b"\n").rpartition(b"\n")[2]
        if before.strip().removeprefix(codecs.BOM_UTF8):
            raise UnreadableInputError(
                "encrypted data as text with quotation signs before its lines, as in a quoted "
                "e-mail",
                "remove the signs before each line, or save the attachment itself",
            )

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, or none at the end. Raises UnreadableInputError."""
        while not self._data and not self._is_over:
            self._fill()
        data, self._data = self._data[:size], self._data[size:]
        return data

    def _fill(self) -> None:
        piece = self._piece or self._reader.read(_PIECE)
        self._piece = b""
        body, dash, tail = piece.partition(b"-")
        if dash:
            self._require_end(dash + tail)
        if not piece:
            raise _cut()
        self._is_over = bool(dash)
        text = self._text + b"".join(body.split())
        end = len(text) if self._is_over else len(text) - len(text) % 4
        self._text = text[end:]
        self._data = _decoded(text[:end])

    def _require_end(self, text: bytes) -> None:
        """Raise UnreadableInputError unless the last line is there and no second block follows."""
        text += self._reader.read(_PIECE)
        if not text.startswith(END):
            raise _cut() if END.startswith(text.rstrip()) else _damaged()
        rest = text[len(END) :]
        while text:
            self.is_alone = self.is_alone and not rest.strip()
            if BEGIN in text:
                raise UnreadableInputError(
                    "several blocks of encrypted data in one text",
                    "put each block into its own file",
                )
            rest = piece = self._reader.read(_PIECE)
            text = text[-len(BEGIN) :] + piece if piece else b""


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    raise _damaged()


def _cut() -> UnreadableInputError:
    return UnreadableInputError(
        f"encrypted data as text without its last line {END.decode('ascii')}: it was cut",
        "get the whole file again",
    )


def _damaged() -> UnreadableInputError:
    return UnreadableInputError(
        "encrypted data as text that is damaged: the lines between its first and last are not base64",
        "get the original file again",
    )
