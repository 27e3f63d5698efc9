"""What an answer means: a result, or an exception. It is taken in piece by piece.

An answer is held in memory, and a file of JSON lines goes to disk, where it has its name once its
last line says that it is whole.
"""

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx2

from pqkeep._call import ResponseForm
from pqkeep._data import Data, json_object, strict_json
from pqkeep.errors import BY_CODE, BY_STATUS, RETRIED, MalformedResponseError, PqkeepError
from pqkeep.new_files import new_file

R = TypeVar("R")

MAX_RESPONSE = 64 * 1024 * 1024
"""Bytes of an answer in memory."""
LAST_LINE = 4096
"""Bytes that the last line of a file has at most."""
_LONGEST_WAIT = 10**9 - 1
"""Seconds."""
_LONGEST_SHOWN = 200
_REDIRECTS = range(300, 400)


class InMemory(Generic[R]):
    """An answer with its body in memory: data or an error in the envelope, or data without it."""

    def __init__(
        self,
        response: httpx2.Response,
        request_id: str,
        read: Callable[[Data], R],
        *,
        form: ResponseForm = "envelope",
    ) -> None:
        """Wait for the answer's body. An error is in the envelope always."""
        self._form = form
        self._response = response
        self._request_id = request_id
        self._read = read
        self._body = bytearray()

    def take(self, piece: bytes) -> None:
        """Take the next bytes. Raises MalformedResponseError where they are too many."""
        self._body += piece
        if len(self._body) > MAX_RESPONSE:
            raise self._malformed()

    def end(self) -> R:
        """Return the result, now that it is whole. Raises PqkeepError where it is a refusal."""
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
        """Let go of what came."""
        self._body.clear()

    def _refusal(self, said: object) -> PqkeepError:
        """Return the error of a refusal.

        Proxies speak for a service that is away, in words of their own: the status is enough then.
        """
        error = json_object(said) or {}
        code = _text(error, "error_code")
        status = self._response.status_code
        of_status = BY_STATUS.get(status, PqkeepError)
        if code is None and not issubclass(of_status, RETRIED):
            return self._malformed()
        form = _form_of(self._body, self._response)
        unsaid = (
            f"what answers is not the service: {form}" if form else "the service gave no reason"
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
        message = "the answer is not one of pqkeep's"
        if self._response.status_code in _REDIRECTS:
            place = _place_in(self._response)
            message = f"the address leads elsewhere{place}: if that is the service, use its address"
        elif form := _form_of(self._body, self._response):
            message = f"{message}: {form}"
        return MalformedResponseError(
            message,
            status=self._response.status_code,
            request_id=self._request_id,
        )


def _form_of(body: bytes | bytearray, response: httpx2.Response) -> str:
    """Return what an answer is that is not JSON, as far as that can be told."""
    start = bytes(body[:64]).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        return "it is empty"
    if start.startswith(b"<") or "html" in response.headers.get("Content-Type", ""):
        return (
            "it is a web page, from a proxy or a sign-in page on the way, or from another service"
        )
    return ""


def _place_in(response: httpx2.Response) -> str:
    """Return where a redirect leads, without a password and a query that may be in it."""
    try:
        url = response.request.url.join(response.headers.get("Location", ""))
        place = str(url.copy_with(userinfo=b"", query=None, fragment=None))
    except (httpx2.InvalidURL, ValueError):
        return ""
    is_shown = response.headers.get("Location") and place.isprintable()
    return f", to {place[:_LONGEST_SHOWN]}" if is_shown else ""


class Saved(Generic[R]):
    """An answer of JSON lines, on its way to a file that only its owner can read."""

    def __init__(self, destination: Path, request_id: str, read: Callable[[Data], R]) -> None:
        """Take the file's name, which it has once the block ends and it is whole."""
        self._request_id = request_id
        self._read = read
        self._new_file = new_file(destination, replace=True)
        self._tail = b""
        self._line = b""
        self._ended = 0
        """How many records the exports have that have ended: of each log there is one."""

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
        """Give the file its name, or remove what is not whole. Raises OSError."""
        self._new_file.__exit__(kind, failure, trace)

    def take(self, piece: bytes) -> None:
        """Write the next bytes. Raises OSError."""
        self._file.write(piece)
        self._tail = (self._tail + piece)[-LAST_LINE:]
        self._count(piece)

    def end(self) -> R:
        """Return what the last line says. Raises MalformedResponseError if it is not the end."""
        said = _parsed(self._tail.rstrip().rpartition(b"\n")[2])
        if said.get("type") != "end":
            raise MalformedResponseError("the file has no end", request_id=self._request_id)
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
"""An answer that is coming in."""


def _parsed(text: bytes | bytearray) -> Mapping[str, object]:
    try:
        return json_object(strict_json(text)) or {}
    except ValueError:
        return {}


def _text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


def _seconds(headers: httpx2.Headers) -> int | None:
    """Return for how many seconds Retry-After says to wait: a number, or a date (RFC 9110).

    A date is compared with the answer's own, since this machine's clock may differ.
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


def _time_in(header: str) -> float | None:
    """Return a date of HTTP in seconds since 1970."""
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
