"""Descriptions of calls: the request, and a function that reads the response.

A description does nothing by itself. The two transports run it, blocking or on asyncio.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar
from urllib.parse import quote

from pqkeep._data import Data, json_object
from pqkeep.errors import InvalidRequestError, MalformedResponseError

API = "/api/v1"

Query = Mapping[str, str | int | None]
"""The query of a URL. Fields that are None are omitted."""

ResponseForm = Literal["envelope", "json", "text"]

Place = int | str
"""The position of a page in a list, given by the service."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[R_co]):
    """One request and the reader of its response."""

    method: str
    path: str
    read: Callable[[Data], R_co]
    query: Query | None = None
    body: Mapping[str, object] | None = field(default=None, repr=False)
    """The JSON body. Fields that are None are omitted."""
    content: bytes | None = field(default=None, repr=False)
    """A body that is already encoded as JSON, instead of ``body``."""
    changes: bool = False
    """True if the call changes something, and must do so only once."""
    idempotency_key: str | None = None
    """The Idempotency-Key of a change. None: a new one."""
    form: ResponseForm = "envelope"
    """The form of the response. In the envelope, fields are under ``data``. Plain text is the field ``text``."""
    destination: Path | None = None
    """The file for a response of JSON lines. Only the last line is read then."""

    def result(self, data: Data) -> R_co:
        """Read a response. Raises MalformedResponseError if the response is about another key."""
        asked: Mapping[str, object] = self.body or self.query or {}
        target = json_object(asked.get("to"))
        if target is not None:  # re-encryption: to another version of the same key, where it is {}
            asked = {**asked, "key_version": None, **target}
        for name in _KEY_NAME:
            wanted = asked.get(name)
            if wanted is not None and data.differs(name, wanted):
                raise MalformedResponseError(
                    "the response is about another key than the request",
                    field=name,
                    request_id=data.request_id,
                )
        return self.read(data)


_KEY_NAME = ("algorithm", "key_version", "keyring")
"""Fields of a request that the response may repeat."""


def in_path(name: str) -> str:
    """Return a name as a segment of a path. Raises InvalidRequestError.

    The path of an empty name, ``.`` or ``..`` would lead to another object.
    """
    try:
        if name not in {"", ".", ".."}:
            return quote(name, safe="")
    except UnicodeEncodeError:
        pass
    raise InvalidRequestError("a name is empty, . or .., or is not valid Unicode: use another name")


def get(path: str, read: Callable[[Data], R], query: Query | None = None) -> Call[R]:
    """Describe a GET request."""
    return Call(method="GET", path=API + path, read=read, query=query)


def post(path: str, read: Callable[[Data], R], body: Mapping[str, object]) -> Call[R]:
    """Describe a POST request that changes nothing."""
    return Call(method="POST", path=API + path, read=read, body=body)


def change(
    path: str,
    read: Callable[[Data], R],
    body: Mapping[str, object] | None = None,
    *,
    method: str = "POST",
    query: Query | None = None,
) -> Call[R]:
    """Describe a request that changes something."""
    return Call(method=method, path=API + path, read=read, query=query, body=body, changes=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[R_co]):
    """A page of a list, and the position of the next page. The position is None at the end."""

    items: tuple[R_co, ...]
    next: Place | None


MOST_PAGES = 10_000
"""A field that is None is omitted."""


class Course:
    """Goes through the pages of a list, and refuses a list that never ends.

    It remembers one position, and replaces it whenever the number of pages has doubled. A cycle of
    any length comes back to it (Brent's algorithm).
    """

    def __init__(self, *, is_collected: bool) -> None:
        """Begin before the first page. A collected list has a limit on its pages."""
        self.place: Place | None = None
        self._is_collected = is_collected
        self._remembered: Place | None = None
        self._pages = self._empty = 0

    def goes_on(self, page: Page[object]) -> bool:
        """Move on from a page. Return False if it was the last.

        Raises MalformedResponseError if the pages repeat or are too many.
        """
        self.place = page.next
        if page.next is None:
            return False
        self._pages += 1
        self._empty = 0 if page.items else self._empty + 1
        if page.next == self._remembered:
            raise MalformedResponseError("the pages of the list repeat", field="next")
        if self._pages.bit_count() == 1:
            self._remembered = page.next
        if MOST_PAGES in {self._empty, self._pages if self._is_collected else 0}:
            raise MalformedResponseError(
                f"the list has more than {MOST_PAGES} pages, or that many empty pages in a row",
                field="next",
            )
        return True


Pages = Callable[[Place | None], Call[Page[R]]]
"""Returns the call for the page at a position. None is the first page."""
