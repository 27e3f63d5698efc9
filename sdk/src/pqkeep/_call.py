"""One operation of the service, described: what goes out, and how to read what comes back.

A description does nothing. The transports run it, the one waiting, the other awaiting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pqkeep._data import Data
from pqkeep.errors import MalformedAnswerError

API = "/api/v1"

Query = Mapping[str, str | int | None]
"""What goes behind the path; None leaves a field out."""

AnswerForm = Literal["envelope", "json", "text"]

Place = int | str
"""Of a page in a list: the service says which one comes next."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[R_co]):
    """One request, and the reading of its answer."""

    method: str
    path: str
    read: Callable[[Data], R_co]
    query: Query | None = None
    body: Mapping[str, object] | None = field(default=None, repr=False)
    """None leaves a field out here too."""
    content: bytes | None = field(default=None, repr=False)
    """A body that is JSON already, instead of one."""
    changes: bool = False
    """Whether it changes anything, and must therefore have its effect once."""
    form: AnswerForm = "envelope"
    """In the envelope the fields are under ``data``. A text is the field ``text``."""
    destination: Path | None = None
    """Where an answer of JSON lines goes. What is read is its last line then."""


def get(path: str, read: Callable[[Data], R], query: Query | None = None) -> Call[R]:
    """Describe a look at something."""
    return Call(method="GET", path=API + path, read=read, query=query)


def post(path: str, read: Callable[[Data], R], body: Mapping[str, object]) -> Call[R]:
    """Describe an operation that leaves everything as it is."""
    return Call(method="POST", path=API + path, read=read, body=body)


def change(
    path: str,
    read: Callable[[Data], R],
    body: Mapping[str, object] | None = None,
    *,
    method: str = "POST",
    query: Query | None = None,
) -> Call[R]:
    """Describe an operation that changes something."""
    return Call(method=method, path=API + path, read=read, query=query, body=body, changes=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[R_co]):
    """A part of a list, and where to go on; None at the end."""

    items: tuple[R_co, ...]
    next: Place | None

    def place_after(self, place: Place | None) -> Place | None:
        """Return where to go on from this page, which a place led to; None at the end.

        Raises MalformedAnswerError where it is the same place: that would never end.
        """
        if self.next is not None and self.next == place:
            raise MalformedAnswerError("the page after this one is the same", field="next")
        return self.next


Pages = Callable[[Place | None], Call[Page[R]]]
"""Describes the call for the page from a place on; None is the start."""
