"""Commands with several files: what fails is named, and the others are done.

Of one file alone a command ends as it does where nothing else is left to do.
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
"""Files whose operations are one request: fewer than the smallest plan allows in a minute."""
SLOW_IN_A_REQUEST = 8
"""The same for SLH-DSA, which signs a few times a second."""
BYTES_IN_A_REQUEST = 2 * 1024 * 1024
"""Of files, which a request has in base64."""
OF_ONE_FILE = (
    ComplianceError,
    DecryptionError,
    NotFoundError,
    OSError,
    PermissionDeniedError,
    Refusal,
)
"""What says of a file that it cannot be done, and nothing of the others."""
OF_AN_ITEM = (PqkeepError, OSError, Refusal)
"""The same where the file's operation was one item of a request that was answered."""


@dataclass(frozen=True, slots=True)
class Several:
    """What became of each file."""

    invocation: Invocation
    files: Sequence[str]
    is_listed: bool
    """Whether the result is a list, and a failure the file's alone."""
    _results: list[dict[str, Any]] = field(default_factory=list)
    _endings: list[typer.Exit] = field(default_factory=list)

    @contextmanager
    def each(
        self, files: Sequence[str], failures: tuple[type[Exception], ...] = OF_ONE_FILE
    ) -> Iterator[None]:
        """Do files: if that fails, they are named, and the others are done all the same.

        Where there is one file only, the error is raised.
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
        """Count a file that was done."""
        self._results.append({"file": file, **facts})

    def written(self, file: str, done: str, **facts: Any) -> None:
        """Say what was written for a file."""
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
    """Do several files, or one. Raises Refusal where several would be written to one place."""
    if len(files) > 1 and to is not None:
        raise Refusal("--to is for one file", "leave it out: each file has an output of its own")
    if len(files) > 1 and STANDARD in files:
        raise Refusal("standard input goes with no other file", "name it alone")
    tally = Several(invocation, files, is_listed=len(files) > 1)
    try:
        yield tally
    finally:
        tally.show()
    tally.end()


def together(
    files: Sequence[str], size: Callable[[str], int], most: int = IN_A_REQUEST
) -> Iterator[Sequence[str]]:
    """Yield files in groups, in order, whose operations fit into a request each."""
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
    """Return how many bytes a file has; 0 of what cannot be asked."""
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Asking(Generic[R]):
    """How the service is asked for something of each file."""

    alone: Callable[..., R]
    many: Callable[..., Any]
    common: dict[str, Any]
    """The arguments that all files have in common."""
    around: Callable[[], AbstractContextManager[None]]
    """Says what to do about errors."""

    def ask(
        self,
        tally: Several,
        group: Sequence[str],
        prepare: Callable[[str], dict[str, Any]],
        finish: Callable[[str, R], None],
    ) -> None:
        """Ask for what a group of files needs in one request, and finish each with its result."""
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
        """Ask for all in one request, or for each alone if that is refused as invalid.

        The service says then which of them it does not take.
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
    """Return what an item made. Raises its error."""
    if isinstance(result, PqkeepError):
        raise result
    return result
