"""The places of ciphertexts. A place is files, lines, or a column of a database (``columns``).

A place lists its entries in pages, and reads chosen entries again. It replaces an entry only if the
entry has not changed since. It never deletes.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from pqkeep import inputs
from pqkeep.cli.armor import BEGIN, LONGEST_INTRODUCTION, ArmorReader
from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.sources import source
from pqkeep.cli.stored import (
    LARGEST,
    Form,
    KeyOfVersion,
    Stored,
    StoredKey,
    local,
    recognised,
)
from pqkeep.errors import UnreadableInputError
from pqkeep.new_files import changeable, replacement, require_in_place

PAGE = 4096
"""Entries of a page. A page is much larger than a batch, so that two runs seldom have the same
batch."""
LINES_IN_MEMORY = 1024

Ref = Any
"""What finds an entry again: a path, or the values of the key columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a place: a ciphertext, data of other programs, or nothing."""

    ref: Ref = field(repr=False)
    name: str
    """Shows the entry to people."""
    data: bytes | None = field(repr=False, default=None)
    """None without data, and for local files: their data is not read."""
    stored: Stored | None = field(repr=False, default=None)
    problem: str | None = None
    """The reason why a ciphertext is not readable."""
    is_text: bool = False
    bound: Mapping[str, bytes] = field(repr=False, default_factory=dict)
    """The associated data and the context of the entry."""
    beside: Mapping[str, Any] = field(repr=False, default_factory=dict)
    """The values of the columns that name the key."""
    file: FileIO | None = field(repr=False, default=None)
    """The locked file of a claimed entry."""

    def changeable(self) -> AbstractContextManager[FileIO]:
        """Open the entry's file to change it, under a lock. Raises as new_files.changeable."""
        if self.file is None:
            return changeable(self.ref)
        self.file.seek(0)
        require_in_place(self.file)
        return nullcontext(self.file)


class Swap(Enum):
    """The outcome of a replacement."""

    DONE = auto()
    CHANGED = auto()
    """Another program changed the entry meanwhile."""


Result = Swap | str
"""The outcome, or the reason of a failure."""
Look = Callable[[Entry], bool]
"""Counts an entry. Returns True if it is to be moved."""


@dataclass(frozen=True, slots=True)
class New:
    """The new data of an entry, and its new key."""

    entry: Entry
    data: bytes = field(repr=False)
    key: StoredKey


class Place(Protocol):
    """Entries that can be replaced."""

    is_repeatable: bool
    """False if all entries can be shown only once."""

    def pages(self, look: Look) -> Iterator[Sequence[Ref]]:
        """List all entries, and yield the entries to move, page by page."""
        ...

    def claim(self, refs: Sequence[Ref]) -> AbstractContextManager[Sequence[Ref]]:
        """Keep other runs away for a block, if the place can.

        Returns the entries that no other run has locked.
        """
        ...

    def read(self, refs: Sequence[Ref]) -> Sequence[Entry]:
        """Read entries again. Missing entries are omitted."""
        ...

    def swap(self, new: Sequence[New]) -> Sequence[Result]:
        """Replace entries that have not changed since they were read."""
        ...


class Files:
    """Files, and all files in folders. Links in folders are not followed."""

    is_repeatable = True

    def __init__(
        self, paths: Sequence[str], invocation: Invocation, of_version: KeyOfVersion
    ) -> None:
        """Take files and folders. Raises Refusal for anything else, and OSError if one is absent."""
        for path in paths:
            mode = Path(path).stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Refusal(f"{path} is not a file or folder", "name files, folders, or -")
        self._paths = paths
        self._invocation = invocation
        self._of_version = of_version
        self._claimed: dict[str, FileIO] = {}

    def pages(self, look: Look) -> Iterator[Sequence[Ref]]:
        """Yield the paths of files to be moved."""
        names = self._names()
        while page := [*islice(names, PAGE)]:
            entries = map(self._entry, page)
            yield [entry.ref for entry in entries if entry is not None and look(entry)]

    @contextmanager
    def claim(self, refs: Sequence[Ref]) -> Iterator[Sequence[Ref]]:
        """Lock files for a block. Yield the files that no other process is changing."""
        with ExitStack() as stack:
            stack.callback(self._claimed.clear)
            own = []
            for path in refs:
                try:
                    self._claimed[path] = stack.enter_context(changeable(path))
                except (BlockingIOError, FileNotFoundError):
                    continue
                except OSError:
                    pass  # a file that this user may not write: the replacement says so
                own.append(path)
            yield own

    def read(self, refs: Sequence[Ref]) -> Sequence[Entry]:
        """Read files again."""
        entries = [entry for entry in map(self._entry, refs) if entry is not None]
        return [replace(entry, file=self._claimed.get(entry.ref)) for entry in entries]

    def swap(self, new: Sequence[New]) -> Sequence[Result]:
        """Replace files."""
        return [self._swap(one) for one in new]

    def _swap(self, new: New) -> Result:
        try:
            with new.entry.changeable() as locked:
                if locked.readall() != new.entry.data:
                    return Swap.CHANGED
                with replacement(locked) as target:
                    target.write(new.data)
        except (BlockingIOError, FileNotFoundError):
            return Swap.CHANGED
        except OSError as error:
            return error.strerror or type(error).__name__
        return Swap.DONE

    def _names(self) -> Iterator[str]:
        for path in self._paths:
            if not Path(path).is_dir():
                yield path
                continue
            for folder, folders, names in os.walk(path, onerror=partial(_raise_unless_gone, path)):
                folders.sort()
                for name in sorted(names):
                    file = os.path.join(folder, name)  # noqa: PTH118 - as the user named it
                    with suppress(FileNotFoundError):
                        if stat.S_ISREG(os.lstat(file).st_mode):
                            yield file

    def _entry(self, path: str) -> Entry | None:
        """Return a file's entry by its header. None if the file is gone."""
        entry = Entry(ref=path, name=path)
        try:
            with source(path, self._invocation, only_regular=True) as opened:
                if opened.first(len(inputs.LOCAL)).startswith(inputs.LOCAL):
                    return replace(entry, stored=local(opened, Form.LOCAL))
                if BEGIN in opened.first(LONGEST_INTRODUCTION):
                    return replace(entry, stored=local(ArmorReader(opened), Form.LOCAL_TEXT))
                data = opened.read(LARGEST + 1)
            is_small = len(data) <= LARGEST
            stored = recognised(data, self._of_version) if is_small else None
            return replace(entry, data=data if is_small else data[:1], stored=stored)
        except FileNotFoundError:
            return None
        except UnreadableInputError as error:
            return replace(entry, problem=error.what)
        except OSError as error:
            return replace(entry, problem=error.strerror or type(error).__name__)


def _raise_unless_gone(top: str, error: OSError) -> None:
    """Raise the error of a folder, unless another program removed a folder below the top."""
    if not isinstance(error, FileNotFoundError) or error.filename == top:
        raise error


class Lines:
    """Lines of standard input. Standard output gets all lines, changed and unchanged."""

    is_repeatable = False

    def __init__(self, of_version: KeyOfVersion, *, is_written: bool) -> None:
        """Write nothing unless ``is_written``."""
        self._of_version = of_version
        self._is_written = is_written
        self._lines: list[bytes] = []
        self._count = 0
        """The number of lines that precede ``_lines``."""

    def pages(self, look: Look) -> Iterator[Sequence[Ref]]:
        """Yield the numbers of lines to be moved. Raises Refusal for a very long line."""
        while self._read():
            numbers = range(self._count, self._count + len(self._lines))
            yield [number for number in numbers if look(self._entry(number))]
            self._count += len(self._lines)
            if self._is_written:
                sys.stdout.buffer.write(b"".join(self._lines))
                sys.stdout.buffer.flush()

    def claim(self, refs: Sequence[Ref]) -> AbstractContextManager[Sequence[Ref]]:
        """Return all lines, because no other run reads them."""
        return nullcontext(refs)

    def read(self, refs: Sequence[Ref]) -> Sequence[Entry]:
        """Return lines."""
        return [self._entry(number) for number in refs]

    def swap(self, new: Sequence[New]) -> Sequence[Result]:
        """Replace lines."""
        for one in new:
            at = one.entry.ref - self._count
            ended = self._lines[at]
            self._lines[at] = one.data + ended[len(ended.rstrip(b"\r\n")) :]
        return [Swap.DONE] * len(new)

    def _read(self) -> bool:
        """Read the next lines. Return False at the end."""
        self._lines, size = [], 0
        while len(self._lines) < LINES_IN_MEMORY and size < LARGEST:
            line = sys.stdin.buffer.readline(2 * LARGEST)
            if not line:
                break
            if len(line) == 2 * LARGEST:
                raise Refusal(
                    f"line {self._count + len(self._lines) + 1} is too long",
                    "write each ciphertext on a line of its own",
                )
            self._lines.append(line)
            size += len(line)
        return bool(self._lines)

    def _entry(self, number: int) -> Entry:
        data = self._lines[number - self._count].rstrip(b"\r\n")
        entry = Entry(ref=number, name=f"line {number + 1}", data=data)
        try:
            return replace(entry, stored=recognised(data, self._of_version))
        except UnreadableInputError as error:
            return replace(entry, problem=error.what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The names of a table's columns."""

    table: str
    column: str
    keys: Sequence[str] = ()
    """The columns of a unique key. By default the primary key."""
    key_version: str | None = None
    algorithm: str | None = None
    keyring: str | None = None
    associated_data: str | None = None
    context: str | None = None

    @property
    def of_key(self) -> Mapping[str, str]:
        """The columns that name the key of a ciphertext without a header."""
        named = {
            "key_version": self.key_version,
            "algorithm": self.algorithm,
            "keyring": self.keyring,
        }
        return {name: column for name, column in named.items() if column is not None}

    @property
    def of_binding(self) -> Mapping[str, str]:
        """The columns that a ciphertext is bound to."""
        named = {"associated_data": self.associated_data, "context": self.context}
        return {name: column for name, column in named.items() if column is not None}
