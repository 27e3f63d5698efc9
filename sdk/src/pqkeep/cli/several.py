"""Commands with several files: failed files are named, and the others are still processed.

With one file, its error ends the command.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import typer

from pqkeep.cli.display import show_json, show_written
from pqkeep.cli.failures import Refusal, about, end
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD
from pqkeep.errors import (
    ComplianceError,
    DecryptionError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
)

R = TypeVar("R")

IN_A_REQUEST = 32
"""The most files in one request: fewer than the smallest plan allows in a minute."""
SLOW_IN_A_REQUEST = 8
"""The same for SLH-DSA, which signs a few times a second."""
BYTES_IN_A_REQUEST = 2 * 1024 * 1024
"""The most bytes of files in one request, which contains them in base64."""
OF_ONE_FILE = (
    ComplianceError,
    DecryptionError,
    NotFoundError,
    OSError,
    PermissionDeniedError,
    Refusal,
)
"""Errors that concern one file and not the others."""
OF_AN_ITEM = (PqkeepError, OSError, Refusal)
"""Errors that concern one file after a joint request succeeded."""


@dataclass(frozen=True, slots=True)
class Several:
    """The results of several files."""

    invocation: Invocation
    files: Sequence[str]
    is_listed: bool
    """True if the result is a list and a failure concerns only its file."""
    _results: list[dict[str, Any]] = field(default_factory=list)
    _endings: list[typer.Exit] = field(default_factory=list)

    @contextmanager
    def each(
        self, files: Sequence[str], failures: tuple[type[Exception], ...] = OF_ONE_FILE
    ) -> Iterator[None]:
        """Catch these failures in the block, and name the files.

        With only one file, the error is raised.
        """
        try:
            yield
        except failures as error:
            if isinstance(error, BrokenPipeError):
                raise
            if not self.is_listed:
                with about(self.files[0]):
                    raise
            for file in files:
                self._endings.append(end(error, file))
                self._results.append({"file": file, "error": type(error).__name__})

    def done(self, file: str, **facts: Any) -> None:
        """Record a processed file."""
        self._results.append({"file": file, **facts})

    def written(self, file: str, done: str, **facts: Any) -> None:
        """Record and report a written file."""
        if not self.is_listed:
            show_written(self.invocation, file, done, **facts)
            return
        self.done(file, **facts)
        if not self.invocation.is_json:
            self.invocation.note(f"{file}: {done}")

    def show(self, *, as_json: bool = True) -> None:
        """Show all results."""
        if self.is_listed and self.invocation.is_json and as_json:
            show_json({"files": self._results, "total": len(self._results)})
        if len(self.files) > 1:
            succeeded = len(self._results) - len(self._endings)
            self.invocation.note(f"{succeeded} of {len(self.files)} files")

    def end(self) -> None:
        """Raise Exit with the status of the first failure, if there is one."""
        if self._endings:
            raise self._endings[0]


@contextmanager
def several(
    invocation: Invocation, files: Sequence[str], to: str | None = None
) -> Iterator[Several]:
    """Begin with one or more files. Raises Refusal if several would have the same output."""
    if len(files) > 1 and to is not None:
        raise Refusal("--to works only with one file", "leave it out: each file has its own output")
    if len(files) > 1 and STANDARD in files:
        raise Refusal(
            "standard input cannot be combined with files", "run the command once for each"
        )
    tally = Several(invocation, files, is_listed=len(files) > 1)
    try:
        yield tally
    finally:
        tally.show()
    tally.end()


def together(
    files: Sequence[str], size: Callable[[str], int], most: int = IN_A_REQUEST
) -> Iterator[Sequence[str]]:
    """Yield files in order, in groups that fit into one request."""
    group: list[str] = []
    total = 0
    for file in files:
        own = size(file)
        if group and (len(group) == most or total + own > BYTES_IN_A_REQUEST):
            yield group
            group, total = [], 0
        group.append(file)
        total += own
    if group:
        yield group


def size_of(file: str) -> int:
    """Return a file's size in bytes, or 0 if it is not available."""
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Asking(Generic[R]):
    """Sends requests for files: for one alone, or for several together."""

    alone: Callable[..., R]
    many: Callable[..., Any]
    common: dict[str, Any]
    """The arguments that are the same for all files."""
    around: Callable[[], AbstractContextManager[None]]
    """A context that adds hints to errors."""

    def ask(
        self,
        tally: Several,
        group: Sequence[str],
        prepare: Callable[[str], dict[str, Any]],
        finish: Callable[[str, R], None],
    ) -> None:
        """Send one request for a group of files, and finish each file with its result."""
        items: list[tuple[str, dict[str, Any]]] = []
        for file in group:
            with tally.each([file]):
                items.append((file, prepare(file)))
        made: Sequence[R | PqkeepError] = ()
        with tally.each([file for file, _ in items]), self.around():
            if len(items) == 1:
                made = (self.alone(**items[0][1], **self.common),)
            elif items:
                made = self._together([item for _, item in items])
        for (file, _), result in zip(items, made, strict=False):  # none where all were refused
            with tally.each([file], OF_AN_ITEM), self.around():
                finish(file, succeeded(result))

    def _together(self, items: Sequence[dict[str, Any]]) -> Sequence[R | PqkeepError]:
        """Send one request for all items. If it is refused as invalid, send one for each item.

        The single requests show which item is invalid.
        """
        try:
            return tuple(self.many(items, **self.common))
        except InvalidRequestError:
            return tuple(map(self._one, items))

    def _one(self, item: dict[str, Any]) -> R | PqkeepError:
        try:
            return self.alone(**item, **self.common)
        except (InvalidRequestError, NotFoundError, PermissionDeniedError) as error:
            return error


def succeeded(result: R | PqkeepError) -> R:
    """Return an item's result, or raise its error."""
    if isinstance(result, PqkeepError):
        raise result
    return result
