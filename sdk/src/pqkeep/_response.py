"""Reads a response piece by piece, and makes a result or an exception of it.

An ordinary response stays in memory. JSON lines go to a file. The file gets its name when the last
line shows that it is complete.
"""

import logging
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Generic, Self, TypeVar

import httpx2

from pqkeep._call import ResponseForm
from pqkeep._data import Data, json_object, strict_json
from pqkeep.errors import (
    BY_CODE,
    BY_STATUS,
    RETRIED,
    MalformedResponseError,
    PqkeepError,
    RuleWarning,
)
from pqkeep.new_files import new_file

R = TypeVar("R")

MAX_RESPONSE = 64 * 1024 * 1024
"""The most bytes of a response in memory."""
LAST_LINE = 4096
"""The most bytes of a file's last line."""
_LONGEST_WAIT = 10**9 - 1
"""The longest accepted wait in seconds."""
_LONGEST_SHOWN = 200
_REDIRECTS = range(300, 400)


class InMemory(Generic[R]):
    """A response with its body in memory.

    An envelope has data or an error; other bodies are plain data.
    """

    def __init__(
        self,
        response: httpx2.Response,
        request_id: str,
        read: Callable[[Data], R],
        *,
        form: ResponseForm = "envelope",
    ) -> None:
        """Expect a body of this form. An error is always in the envelope."""
        self._form = form
        self._response = response
        self._request_id = request_id
        self._read = read
        self._body = bytearray()

    def take(self, piece: bytes) -> None:
        """Take the next bytes. Raises MalformedResponseError if there are too many."""
        self._body += piece
        if len(self._body) > MAX_RESPONSE:
            raise self._malformed()

    def end(self) -> R:
        """Return the result of the complete response. Raises PqkeepError for an error response."""
        if self._form == "text" and self._response.is_success:
            return self._read(Data({"text": self._text()}, self._request_id))
        envelope = _parsed(self._body)
        self._request_id = _text(envelope, "request_id") or self._request_id
        if not self._response.is_success:
            raise self._refusal(envelope.get("error"))
        data = json_object(envelope.get("data")) if self._form == "envelope" else envelope or None
        if data is None:
            raise self._malformed()
        return self._read(Data(data, self._request_id))

    def _text(self) -> str:
        try:
            return self._body.decode()
        except UnicodeDecodeError:
            pass
        raise self._malformed()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the body."""
        self._body.clear()

    def _refusal(self, said: object) -> PqkeepError:
        """Return the exception for an error response.

        If the body is not pqkeep's, for example a proxy's, the status decides.
        """
        error = json_object(said) or {}
        code = _text(error, "error_code")
        status = self._response.status_code
        of_status = BY_STATUS.get(status, PqkeepError)
        if code is None and not issubclass(of_status, RETRIED):
            return self._malformed()
        form = _form_of(self._body, self._response)
        unsaid = (
            f"the response is not from pqkeep: {form}" if form else "the service gave no reason"
        )
        return BY_CODE.get(code or "", of_status)(
            _text(error, "message") or unsaid,
            error_code=code,
            field=_text(error, "field"),
            status=status,
            request_id=self._request_id,
            retry_after=_seconds(self._response.headers),
        )

    def _malformed(self) -> PqkeepError:
        message = "the response is not from pqkeep"
        if self._response.status_code in _REDIRECTS:
            place = _place_in(self._response)
            message = f"the address redirects{place}: if that is the service, use that address"
        elif form := _form_of(self._body, self._response):
            message = f"{message}: {form}"
        return MalformedResponseError(
            message,
            status=self._response.status_code,
            request_id=self._request_id,
        )


def _form_of(body: bytes | bytearray, response: httpx2.Response) -> str:
    """Return a description of a body that is not JSON, or an empty text."""
    start = bytes(body[:64]).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        return "the body is empty"
    if start.startswith(b"<") or "html" in response.headers.get("Content-Type", ""):
        return "it is a web page of a proxy, a sign-in page or another service"
    return ""


def _place_in(response: httpx2.Response) -> str:
    """Return the target of a redirect without password and query, as ", to URL"."""
    try:
        url = response.request.url.join(response.headers.get("Location", ""))
        place = str(url.copy_with(userinfo=b"", query=None, fragment=None))
    except (httpx2.InvalidURL, ValueError):
        return ""
    is_shown = response.headers.get("Location") and place.isprintable()
    return f", to {place[:_LONGEST_SHOWN]}" if is_shown else ""


class Saved(Generic[R]):
    """A response of JSON lines, saved to a file that only its owner can read."""

    def __init__(self, destination: Path, request_id: str, read: Callable[[Data], R]) -> None:
        """Take the name of the file. The file appears when the block ends and it is complete."""
        self._request_id = request_id
        self._read = read
        self._new_file = new_file(destination, replace=True)
        self._tail = b""
        self._line = b""
        self._ended = 0
        """The number of records in the completed exports. Each log has one export."""

    def __enter__(self) -> Self:
        """Begin a file. Raises OSError."""
        self._file = self._new_file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the file its name, or remove an incomplete file. Raises OSError."""
        self._new_file.__exit__(kind, failure, trace)

    def take(self, piece: bytes) -> None:
        """Write the next bytes. Raises OSError."""
        self._file.write(piece)
        self._tail = (self._tail + piece)[-LAST_LINE:]
        self._count(piece)

    def end(self) -> R:
        """Return the result in the last line. Raises MalformedResponseError if it is not an end line."""
        said = _parsed(self._tail.rstrip().rpartition(b"\n")[2])
        if said.get("type") != "end":
            raise MalformedResponseError("the export has no end line", request_id=self._request_id)
        return self._read(Data({**said, "records": self._ended}, self._request_id))

    def _count(self, piece: bytes) -> None:
        data = self._line + piece
        at = data.find(_END)
        while at >= 0 and (newline := data.find(b"\n", at + 1)) >= 0:
            records = _parsed(data[at:newline]).get("records")
            self._ended += records if isinstance(records, int) else 0
            at = data.find(_END, newline)
        self._line = data[at:] if at >= 0 else data[1 - len(_END) :]


_END = b'\n{"type":"end"'


ResponseReader = InMemory[R] | Saved[R]
"""A response that is being received."""


def _parsed(text: bytes | bytearray) -> Mapping[str, object]:
    try:
        return json_object(strict_json(text)) or {}
    except ValueError:
        return {}


def _text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


def _seconds(headers: httpx2.Headers) -> int | None:
    """Return the seconds in Retry-After, which is a number or a date (RFC 9110).

    A date is compared with the response's own, because this machine's clock may be wrong.
    """
    header = headers.get("Retry-After", "").strip()
    if header.isascii() and header.isdigit():
        digits = header.lstrip("0")
        is_long = len(digits) > len(str(_LONGEST_WAIT))
        return _LONGEST_WAIT if is_long else int(digits or "0")
    ends = _time_in(header)
    if ends is None:
        return None
    begins = _time_in(headers.get("Date", ""))
    seconds = math.ceil(ends - (time.time() if begins is None else begins))
    return min(max(seconds, 0), _LONGEST_WAIT)


_LINK = re.compile(
    r'</api/v1/rules/algorithms/([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})>; rel="deprecation"'
)
_MOST_RULES = 1000
"""The most rules that a process warns of. So a hostile service cannot fill its memory."""
_warned: set[str] = set()


def warn_of_rule(headers: httpx2.Headers) -> None:
    """Warn of the rule that the headers of a response name, once in a process."""
    link = _LINK.search(headers.get("Link", ""))
    if link is not None and "Deprecation" in headers:
        since = headers["Deprecation"].removeprefix("@")
        deprecation = _instant(float(since)) if since.isdigit() else None
        sunset = _time_in(headers.get("Sunset", ""))
        _warn(link[1], deprecation, None if sunset is None else _instant(sunset))


def warn_of_rule_in(warning: Data) -> None:
    """Warn of the rule that an item of a batch names, once in a process."""
    rule = warning.text("rule")
    _warn(rule, warning.time_or_none("deprecation"), warning.time_or_none("sunset"))


def _warn(rule: str, deprecation: datetime | None, sunset: datetime | None) -> None:
    if rule in _warned or len(_warned) >= _MOST_RULES:
        return
    _warned.add(rule)
    warning = RuleWarning(rule, deprecation, sunset)
    logging.getLogger("pqkeep").warning("%s", warning)
    warnings.warn(warning, stacklevel=_caller_level())


def _instant(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _caller_level() -> int:
    """Return the stack level, for the caller's ``warnings.warn``, of the first frame outside."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as inspect does it
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "pqkeep":
        frame, level = frame.f_back, level + 1
    return level


def _time_in(header: str) -> float | None:
    """Return an HTTP date in seconds since 1970."""
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
