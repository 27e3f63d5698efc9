"""Reads the files line by line. At most one line of a file is in memory."""

import codecs
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pqkeep.audit._formats import Formats, MalformedError, NoJsonError, parse
from pqkeep.audit._statements import (
    End,
    Entry,
    Found,
    Header,
    Newer,
    Statement,
    Succession,
    read_line,
    read_saved,
)
from pqkeep.audit.report import Findings, Kind, Place

NotSaved = Header | Entry | Found | Succession | Newer | End
"""Statements that only exports have."""
LONGEST_LINE = 16 * 1024 * 1024
_RECORD = b'{"type":"record"'
"""The beginning of a record's line, as the service writes it."""
_STREAMED = (_RECORD, b'{"type":"statement"')
"""The beginnings of the lines that the first pass over an export leaves out."""


_EXPORT = b'{"type":"export"'
"""The beginning of an export's first line."""
_PIECE = 1024 * 1024


class Located(NamedTuple):
    """A statement and its place in the files."""

    place: Place
    statement: Statement


class Line(NamedTuple):
    """A line of an export, with its statement. The statement is None if the record is unreadable."""

    place: Place
    statement: Statement | None


@dataclass(frozen=True, slots=True)
class Source:
    """One open file."""

    order: int
    name: str
    handle: BinaryIO
    is_export: bool
    """True if the file begins like an export. Other files come from the API or from other
    programs."""
    formats: Formats
    """The known formats of records."""
    begin: int = 0
    end: int | None = None
    """The end of the range of bytes to read. None is the end of the file."""
    lines_before: int = 0

    def place(self, line: int) -> Place:
        """Return the place of a line."""
        return Place(self.order, self.lines_before + line, self.name)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, with their numbers. Lines beyond the limit are cut."""
        self.handle.seek(self.begin)
        line, at = 0, self.begin
        while (self.end is None or at < self.end) and (
            text := self.handle.readline(LONGEST_LINE + 1)
        ):
            line += 1
            at += len(text)
            if line == 1 and not self.begin:
                text = text.removeprefix(codecs.BOM_UTF8)
            rest = text
            while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                rest = self.handle.readline(LONGEST_LINE + 1)
                at += len(rest)
            if not text.isspace():
                yield line, text


def open_source(path: Path, order: int, formats: Formats, stack: ExitStack) -> Source:
    """Open a file until the stack is closed. Raises OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        # It is read twice, and opening a pipe could wait for ever.
        code = errno.EISDIR if path.is_dir() else errno.ESPIPE
        raise OSError(code, os.strerror(code), str(path))
    handle = stack.enter_context(path.open("rb"))
    source = Source(order, str(path), handle, is_export=False, formats=formats)
    return replace(source, is_export=_begins_as_export(source))


def portions(source: Source) -> list[Source]:
    """Return the exports of different logs in one file, in order. Most files have one."""
    first = next(source.lines(), None)
    if first is None or not source.is_export:
        return [source]
    found, log = [source], _log_of(first[1])
    with _mapped(source) as data:
        at = 0
        while (at := data.find(b"\n" + _EXPORT, at) + 1) > 0:
            other = _log_of(data[at : _end_of_line(data, at)])
            if other not in {None, log}:
                last, log = found[-1], other
                lines = last.lines_before + _count_lines(data, last.begin, at)
                found[-1] = replace(last, end=at)
                found.append(replace(source, begin=at, lines_before=lines))
    return found


def _mapped(source: Source) -> mmap:
    try:
        return mmap(source.handle.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        error.filename = source.name
        raise


def _end_of_line(data: mmap, at: int) -> int:
    end = data.find(b"\n", at, at + LONGEST_LINE)
    return at + LONGEST_LINE if end < 0 else end


def _count_lines(data: mmap, begin: int, end: int) -> int:
    return sum(data[at : min(at + _PIECE, end)].count(b"\n") for at in range(begin, end, _PIECE))


def _log_of(text: bytes) -> str | None:
    with suppress(MalformedError):
        value = parse(_whole(text))
        log_id = value.get("log_id") if isinstance(value, dict) else None
        return log_id if isinstance(log_id, str) else None
    return None


def statements(source: Source, findings: Findings) -> Iterator[Located]:
    """Yield all statements except an export's records and evidence: see ``export_lines``."""
    return (
        _export_statements(source, findings)
        if source.is_export
        else _saved_statements(source, findings)
    )


def export_lines(source: Source, findings: Findings) -> Iterator[Line]:
    """Yield all lines of an export, except malformed lines that ``statements`` reports."""
    for line, text in source.lines():
        place = source.place(line)
        try:
            yield Line(place, read_line(parse(_whole(text)), source.formats))
        except MalformedError as error:
            if text.startswith(_STREAMED):
                _refuse(findings, error, place)
            if text.startswith(_RECORD):
                yield Line(place, None)


def _export_statements(source: Source, findings: Findings) -> Iterator[Located]:
    for line, text in source.lines():
        if text.startswith(_STREAMED):
            continue
        place = source.place(line)
        try:
            statement = read_line(parse(_whole(text)), source.formats)
        except MalformedError as error:
            _refuse(findings, error, place)
        else:
            if not isinstance(statement, Entry | Found):
                yield Located(place, statement)


def _saved_statements(source: Source, findings: Findings) -> Iterator[Located]:
    document = _document(source)
    texts = source.lines() if document is None else iter([document])
    for line, text in texts:
        place = source.place(line)
        try:
            for statement in read_saved(parse(_whole(text)), source.formats):
                if isinstance(statement, NotSaved):
                    message = "the file has a part of an export, but not its first line"
                    findings.add(Kind.MALFORMED, message, place)
                    return
                yield Located(place, statement)
        except MalformedError as error:
            _refuse(findings, error, place)


def _document(source: Source) -> tuple[int, bytes] | None:
    """Return a file with one JSON value on several lines, with its place. None for other files."""
    handle, first = source.handle, next(source.lines(), None)
    if first is None or _is_json(first[1]):
        return None
    handle.seek(0)
    text = handle.read(LONGEST_LINE + 1).removeprefix(codecs.BOM_UTF8)
    return (first[0], text) if len(text) <= LONGEST_LINE and _is_json(text) else None


def _is_json(text: bytes) -> bool:
    try:
        parse(text)
    except NoJsonError:
        return False
    except MalformedError:
        pass
    return True


def _begins_as_export(source: Source) -> bool:
    with suppress(MalformedError):
        for _, text in source.lines():
            value = parse(_whole(text))
            return isinstance(value, dict) and value.get("type") == "export"
    return False


def _whole(text: bytes) -> bytes:
    if len(text) > LONGEST_LINE:
        raise MalformedError("the line is too long")
    return text


def _refuse(findings: Findings, error: MalformedError, place: Place) -> None:
    kind = Kind.NO_JSON if isinstance(error, NoJsonError) else Kind.MALFORMED
    findings.add(kind, str(error), place)
