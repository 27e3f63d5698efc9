"""Files of pqkeep transit migrate: the ciphertexts to move, and the output that a later run goes on with.

The output has the input's records in order, each with two more fields: the new ciphertext and the
error. A record is in the output once its line is complete. So the output is also the journal.
"""

import csv
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, cast

from pqkeep.cli.failures import Refusal
from pqkeep.cli.sources import Source

NEW = "pqkeep_ciphertext"
ERROR = "pqkeep_error"
LONGEST = 8 * 1024 * 1024
"""The most bytes of a record."""
_PIECE = 65_536
_ALREADY = "choose another name for the column"


class Form(StrEnum):
    """The form of the input."""

    LINES = "lines"
    CSV = "csv"
    JSONL = "jsonl"


class Written(StrEnum):
    """The form of new ciphertexts."""

    TRANSIT = "transit"
    BASE64 = "base64"
    ENVELOPE = "envelope"


FORM_OF = {".csv": Form.CSV, ".jsonl": Form.JSONL, ".ndjson": Form.JSONL}
"""The forms that a file's name shows."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns with a ciphertext and with what it needs to decrypt."""

    ciphertext: str
    context: str | None
    associated_data: str | None

    @property
    def named(self) -> tuple[str, ...]:
        """The names."""
        return tuple(filter(None, (self.ciphertext, self.context, self.associated_data)))


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the input."""

    line: int
    kept: bytes
    """The beginning of its line in the output: all that the input has."""
    values: dict[str, str | None]
    """The named columns. None: not text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The new ciphertext of a record, or the reason why it was not made."""

    record: Record
    new: str = ""
    error: str = ""


class Records:
    """The records of an input, in order."""

    def __init__(self, source: Source, form: Form, columns: Columns, delimiter: str) -> None:
        """Read the header of a CSV file. Raises Refusal."""
        self._form = form
        self._columns = columns
        self._delimiter = delimiter
        self._lines = _Lines(source)
        self.header = b""
        """The output's first line."""
        if form is Form.JSONL:
            self._records = self._objects()
        elif form is Form.CSV:
            self._records = self._rows()
        else:
            self.header = f"{columns.ciphertext},{NEW},{ERROR}\n".encode()
            self._records = self._single()

    def __iter__(self) -> Iterator[Record]:
        """Yield the records. Raises Refusal for a line that is not of the form."""
        return self._records

    def line_of(self, outcome: Outcome) -> bytes:
        """Return an outcome as a line of the output."""
        new, error = outcome.new, outcome.error
        if self._form is Form.JSONL:
            fields = f'"{NEW}": {json.dumps(new or None)}, "{ERROR}": {json.dumps(error or None)}}}'
        else:
            delimiter = self._delimiter if self._form is Form.CSV else ","
            fields = f"{new}{delimiter}{_quoted(error) if error else ''}"
        return outcome.record.kept + fields.encode() + b"\n"

    def has_failed(self, fields: bytes) -> bool | None:
        """Return whether a line of the output has an error; None if the object has other fields.

        ``fields`` follows ``Record.kept``, without the end of the line.
        """
        if self._form is Form.JSONL:
            try:
                values = json.loads(b"{" + fields)
            except ValueError:
                return None
            return bool(values.get(ERROR)) if values.keys() == {NEW, ERROR} else None
        delimiter = (self._delimiter if self._form is Form.CSV else ",").encode()
        new, separator, error = fields.partition(delimiter)
        return bool(error) if separator and bool(new) != bool(error) else None

    def _single(self) -> Iterator[Record]:
        for raw in self._lines:
            self._lines.begin()
            text = _text(raw).strip()
            if text:
                kept = (_quoted(text) if set(text) & set('",') else text) + ","
                yield Record(self._lines.number, _bytes(kept), {self._columns.ciphertext: text})

    def _rows(self) -> Iterator[Record]:
        rows = csv.reader(map(_text, self._lines), delimiter=self._delimiter, strict=True)
        csv.field_size_limit(LONGEST)
        names, raw, _ = self._row(rows) or ([], b"", 1)
        places = self._places(names)
        self.header = raw + self._delimiter.join(("", NEW, ERROR)).encode() + b"\n"
        return self._later_rows(rows, len(names), places)

    def _later_rows(
        self, rows: Iterator[list[str]], size: int, places: dict[str, int]
    ) -> Iterator[Record]:
        while (found := self._row(rows)) is not None:
            row, raw, line = found
            if not row:
                continue
            if len(row) != size:
                raise _broken(line, f"it has {len(row)} columns, and the header has {size}")
            values: dict[str, str | None] = {name: row[place] for name, place in places.items()}
            yield Record(line, raw + self._delimiter.encode(), values)

    def _row(self, rows: Iterator[list[str]]) -> tuple[list[str], bytes, int] | None:
        """Return the next row, its bytes without the line ending, and its first line.

        None at the end.
        """
        line = self._lines.begin()
        try:
            row = next(rows, None)
        except csv.Error:
            raise _broken(line, "it is not CSV") from None
        return None if row is None else (row, self._lines.taken().rstrip(b"\r\n"), line)

    def _places(self, names: Sequence[str]) -> dict[str, int]:
        if {NEW, ERROR} & set(names):
            raise Refusal(f"the input has a column {NEW} or {ERROR} already", _ALREADY)
        if len(set(names)) != len(names):
            raise Refusal("the header names a column twice", "give each column its own name")
        for name in self._columns.named:
            if name not in names:
                raise Refusal(
                    f"the header has no column {name}",
                    "name the column with --column, --context-column or --associated-data-column",
                )
        return {name: names.index(name) for name in self._columns.named}

    def _objects(self) -> Iterator[Record]:
        for raw in self._lines:
            self._lines.begin()
            text = raw.strip()
            if not text:
                continue
            number = self._lines.number
            values = _object(text, number)
            if values.keys() & {NEW, ERROR}:
                raise Refusal(f"line {number} has a member {NEW} or {ERROR} already", _ALREADY)
            found = {name: values.get(name) for name in self._columns.named}
            named = {name: v if isinstance(v, str) else None for name, v in found.items()}
            yield Record(number, text.removesuffix(b"}").rstrip() + b", ", named)


class _Lines:
    """The lines of a source, with their numbers and bytes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._taken: list[bytes] = []
        self._size = 0
        self._first = 1
        self.number = 0
        self._lines = self._read()

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def begin(self) -> int:
        """Begin a record. Return the number of its first line."""
        self._taken.clear()
        self._size = 0
        self._first = self.number + 1
        return self._first

    def taken(self) -> bytes:
        """Return the bytes of the lines since the record began."""
        return b"".join(self._taken)

    def _read(self) -> Iterator[bytes]:
        rest = self._source.read(_PIECE).removeprefix(b"\xef\xbb\xbf")
        piece = rest
        while piece:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield self._next(line + b"\n")
            self._require_short(len(rest))
            piece = self._source.read(_PIECE)
            rest += piece
        if rest:
            yield self._next(rest)

    def _next(self, line: bytes) -> bytes:
        self.number += 1
        self._taken.append(line)
        self._size += len(line)
        self._require_short(0)
        return line

    def _require_short(self, more: int) -> None:
        if self._size + more > LONGEST:
            raise _broken(self._first, f"the record is longer than {LONGEST} bytes")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _object(text: bytes, number: int) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not value:
        raise _broken(number, "it is not a JSON object with members")
    return cast("dict[str, object]", value)


def _broken(line: int, why: str) -> Refusal:
    return Refusal(
        f"line {line} of the input cannot be read: {why}",
        "correct the line, or name the form with --format; then run the command again",
    )


class Output:
    """The output, of which complete lines are never written again."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        """Take the open file, and its name for errors."""
        self._file = file
        self._name = name
        self.done = 0
        """The number of records that an earlier run has moved."""
        self.failed = 0
        """The number of records in which an earlier run has an error."""

    def missing(self, records: Records) -> Iterator[Record]:
        """Yield the records that the output lacks. A line that was cut off is removed first.

        Raises Refusal if the output belongs to another input. Then nothing is changed.
        """
        place = self._header(records.header)
        remaining = iter(records)
        for record in remaining:
            after = self._after(place, record, records)
            if after is None:
                self._cut(place)
                yield record
                yield from remaining
                return
            place = after
        if self._file.read(1):
            raise self._of_another("it has more records than the input")

    def append(self, lines: Sequence[bytes]) -> None:
        """Write complete lines, durably."""
        self._file.write(b"".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _header(self, header: bytes) -> int:
        """Return the position after the header. A missing or cut header is written first."""
        found = self._file.read(len(header))
        if not header.startswith(found):
            raise self._of_another("its first line differs")
        if found != header:
            self._cut(0)
            self.append([header])
        return len(header)

    def _after(self, place: int, record: Record, records: Records) -> int | None:
        """Return the place after a record's line, or None if the line is missing or cut off."""
        self._file.seek(place)
        found = self._file.read(len(record.kept))
        if found != record.kept:
            if record.kept.startswith(found):
                return None
            raise self._of_another(f"line {record.line} of the input differs")
        fields = self._file.readline(LONGEST)
        if not fields.endswith(b"\n"):
            return None
        failed = records.has_failed(fields.removesuffix(b"\n"))
        if failed is None:
            raise self._of_another(f"line {record.line} of the input differs")
        self.done += not failed
        self.failed += failed
        return place + len(found) + len(fields)

    def _cut(self, place: int) -> None:
        self._file.seek(place)
        self._file.truncate()

    def _of_another(self, why: str) -> Refusal:
        return Refusal(
            f"{self._name} is not the output of this input: {why}",
            "name the same input as before, or another file with --to",
        )


@contextmanager
def opened_output(name: str, source: Source) -> Iterator[Output]:
    """Open or create an output for this process alone, readable for its owner. Raises Refusal."""
    path = Path(name)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(f"{name} is not a file", "name a file with --to: a later run reads it")
        if source.is_same_file(status):
            raise Refusal(f"{name} is the input and the output", "name another file: --to FILE")
        _lock(descriptor, name)
        yield Output(file, name)


def _lock(descriptor: int, name: str) -> None:
    try:
        import fcntl  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal(f"another run writes {name} now", "wait for its end") from None
