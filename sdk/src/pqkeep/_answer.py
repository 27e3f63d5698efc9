"""What an answer means: a result, or an exception. It is taken in piece by piece.

An answer is held in memory, and a file of JSON lines goes to disk: under another name, until its
last line says that it is whole.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import httpx2

from pqkeep._data import Data, json_object
from pqkeep.errors import BY_CODE, BY_STATUS, RETRIED, MalformedAnswerError, PqkeepError

R = TypeVar("R")

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer in memory."""
LAST_LINE = 4096
"""Bytes that the last line of a file has at most."""
_MAX_DIGITS = 9


class Enveloped(Generic[R]):
    """An answer in the envelope: data, or an error."""

    def __init__(
        self, response: httpx2.Response, request_id: str, read: Callable[[Data], R]
    ) -> None:
        """Wait for the answer's body."""
        self._response = response
        self._request_id = request_id
        self._read = read
        self._body = bytearray()

    def take(self, piece: bytes) -> None:
        """Take the next bytes. Raises MalformedAnswerError where they are too many."""
        self._body += piece
        if len(self._body) > MAX_ANSWER:
            raise self._malformed()

    def end(self) -> R:
        """Return the result, now that it is whole. Raises PqkeepError where it is a refusal."""
        envelope = _parsed(self._body)
        self._request_id = _text(envelope, "request_id") or self._request_id
        if not self._response.is_success:
            raise self._refusal(envelope.get("error"))
        data = json_object(envelope.get("data"))
        if data is None:
            raise self._malformed()
        return self._read(Data(data, self._request_id))

    def close(self) -> None:
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
        return BY_CODE.get(code or "", of_status)(
            _text(error, "message") or "the service gave no reason",
            error_code=code,
            field=_text(error, "field"),
            status=status,
            request_id=self._request_id,
            retry_after=_seconds(self._response.headers.get("Retry-After", "")),
        )

    def _malformed(self) -> PqkeepError:
        return MalformedAnswerError(
            "the answer is not one of pqkeep's",
            status=self._response.status_code,
            request_id=self._request_id,
        )


class Saved(Generic[R]):
    """An answer of JSON lines, on its way to a file that only its owner can read."""

    def __init__(self, destination: Path, request_id: str, read: Callable[[Data], R]) -> None:
        """Begin a file beside the destination. Raises OSError."""
        self._destination = destination
        self._request_id = request_id
        self._read = read
        descriptor, name = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
        self._path = Path(name)
        self._file = os.fdopen(descriptor, "w+b")

    def take(self, piece: bytes) -> None:
        """Write the next bytes."""
        self._file.write(piece)

    def end(self) -> R:
        """Give the file its name, and return what its last line says."""
        self._file.seek(-min(self._file.tell(), LAST_LINE), os.SEEK_END)
        said = _parsed(self._file.read().rstrip().rpartition(b"\n")[2])
        if said.get("type") != "end":
            raise MalformedAnswerError("the file has no end", request_id=self._request_id)
        result = self._read(Data(said, self._request_id))
        self._file.close()
        self._path.replace(self._destination)
        return result

    def close(self) -> None:
        """Remove what is not whole."""
        self._file.close()
        self._path.unlink(missing_ok=True)


Answer = Enveloped[R] | Saved[R]
"""An answer that is coming in."""


def _parsed(text: bytes | bytearray) -> Mapping[str, object]:
    try:
        return json_object(json.loads(text)) or {}
    except (ValueError, RecursionError):
        return {}


def _text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


def _seconds(header: str) -> int | None:
    usable = header.isascii() and header.isdigit() and len(header) <= _MAX_DIGITS
    return int(header) if usable else None
