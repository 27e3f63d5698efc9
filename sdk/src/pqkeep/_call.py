"""One operation of the service, described: what goes out, and how to read what comes back.

A description does nothing. The transports run it, the one waiting, the other awaiting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pqkeep._data import Data, json_object
from pqkeep.errors import MalformedResponseError

API = "/api/v1"

Query = Mapping[str, str | int | None]
"""What goes behind the path; None leaves a field out."""

ResponseForm = Literal["envelope", "json", "text"]

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
    form: ResponseForm = "envelope"
    """In the envelope the fields are under ``data``. A text is the field ``text``."""
    destination: Path | None = None
    """Where an answer of JSON lines goes. What is read is its last line then."""

    def result(self, data: Data) -> R_co:
        """Read an answer. Raises MalformedResponseError for one about another key than was asked for."""
        asked: Mapping[str, object] = self.body or self.query or {}
        target = json_object(asked.get("to"))
        if target is not None:  # re-encryption: to another version of the same key, where it is {}
            asked = {**asked, "key_version": None, **target}
        for name in _KEY_NAME:
            wanted = asked.get(name)
            if wanted is not None and data.differs(name, wanted):
                raise MalformedResponseError(
                    "the answer is about another key than was asked for",
                    field=name,
                    request_id=data.request_id,
                )
        return self.read(data)


_KEY_NAME = ("algorithm", "key_version", "keyring")
"""Fields of a request that its answer repeats, if it has them."""


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


MOST_PAGES = 10_000
"""Of a list that is held in memory, and of pages in a row that have nothing."""


class Course:
    """The way through a list, page by page. One that never ends is refused.

    One place is remembered, and another one each time that the way has become twice as long: a
    circle comes back to it, whatever its length (Brent).
    """

    def __init__(self, *, is_collected: bool) -> None:
        """Begin before the first page. What is collected may have so many pages."""
        self.place: Place | None = None
        self._is_collected = is_collected
        self._remembered: Place | None = None
        self._pages = self._empty = 0

    def goes_on(self, page: Page[object]) -> bool:
        """Go to the page after this one; return whether there is one.

        Raises MalformedResponseError where the pages go in a circle, or are too many.
        """
        self.place = page.next
        if page.next is None:
            return False
        self._pages += 1
        self._empty = 0 if page.items else self._empty + 1
        if page.next == self._remembered:
            raise MalformedResponseError("the pages of the list go in a circle", field="next")
        if self._pages.bit_count() == 1:
            self._remembered = page.next
        if MOST_PAGES in {self._empty, self._pages if self._is_collected else 0}:
            raise MalformedResponseError(
                f"the list has more than {MOST_PAGES} pages, or as many without anything",
                field="next",
            )
        return True


Pages = Callable[[Place | None], Call[Page[R]]]
"""Describes the call for the page from a place on; None is the start."""
