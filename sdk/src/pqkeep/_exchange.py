"""One call with all its attempts.

httpx2's exceptions hold the request, and with it the API key and the plaintext. A JSON decoder's
exceptions hold the response. So pqkeep raises its own exceptions after those are gone.

Every request may be retried, because changes carry an Idempotency-Key. The errors in errors.RETRIED
are retried. The pause doubles with each attempt, and half of it is random, so that clients do not
retry at the same time. With Retry-After, the pause is a little longer than that.
"""

import json
import math
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from secrets import SystemRandom
from typing import Any, Generic, TypeVar
from uuid import uuid4

import httpx2

from pqkeep._call import Call
from pqkeep._response import InMemory, ResponseReader, Saved, warn_of_rule
from pqkeep._settings import Settings, other_trust
from pqkeep.errors import (
    RETRIED,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidRequestError,
    MalformedResponseError,
    PqkeepError,
)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
ATTEMPT_SECONDS = 15.0
"""Seconds for one attempt. The service responds within 10 seconds, if only with an error."""
CONNECT_SECONDS = 5.0

_RANDOM = SystemRandom()


class Attempts:
    """The attempts and the deadline of one call."""

    def __init__(self, seconds: float, retries: int) -> None:
        """Start the deadline. ``retries`` are attempts after the first."""
        self.ends = time.monotonic() + seconds
        """The deadline on the monotonic clock."""
        self._retries = retries
        self._made = 0

    @property
    def is_over(self) -> bool:
        """True if the deadline has passed."""
        return time.monotonic() >= self.ends

    def left(self) -> float:
        """Return the seconds for the next attempt."""
        return max(self.ends - time.monotonic(), 0.001)

    def pause_after(self, error: PqkeepError) -> float | None:
        """Return the seconds before the next attempt, or None if this was the last attempt."""
        if not isinstance(error, RETRIED) or self._made >= self._retries:
            return None
        usual = min(FIRST_PAUSE * 2**self._made, LONGEST_PAUSE)
        jitter = _RANDOM.uniform(0, usual / 2)
        pause = usual / 2 + jitter if error.retry_after is None else error.retry_after + jitter
        self._made += 1
        return pause if pause < self.ends - time.monotonic() else None


_UNTRUSTED = frozenset({18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_…) for a certificate without a trusted authority."""
_OUT_OF_TIME = frozenset({9, 10})
"""OpenSSL's numbers for a certificate that is not yet or no longer valid."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's words for a response without TLS."""

_ENCODINGS = frozenset({"identity", "gzip"})
"""Accepted encodings of responses. Gzip expands a piece at most a thousand times.

An unknown encoding, or several together, could expand a piece without limit.
"""

R = TypeVar("R")


class Exchange(Generic[R]):
    """A call, with the request id and the Idempotency-Key of all its attempts."""

    def __init__(self, call: Call[R], settings: Settings, workload_key: str | None = None) -> None:
        """Begin. A file has no deadline. All other calls have the client's timeout."""
        self._call = call
        self._proxy = settings.proxy()
        self._request_id = str(uuid4())
        self._headers = {"X-Request-ID": self._request_id}
        if workload_key is not None:
            self._headers["X-API-Key"] = workload_key
        self._content = call.content
        if call.destination is not None:
            self._headers["Accept-Encoding"] = "gzip"  # only files are long
        if call.changes:
            self._headers["Idempotency-Key"] = call.idempotency_key or str(uuid4())
        if call.body is not None:
            self._content = _encoded(call.body)
        if self._content is not None:
            self._headers["Content-Type"] = "application/json"
        seconds = settings.timeout if call.destination is None else math.inf
        self.attempts = Attempts(seconds, settings.retries)

    def request(self, http: httpx2.Client | httpx2.AsyncClient) -> httpx2.Request:
        """Return the request of the next attempt. Raises InvalidRequestError."""
        left = self.attempts.left()
        try:
            return http.build_request(
                self._call.method,
                self._call.path,
                params=_given(self._call.query or {}),
                headers=self._headers,
                content=self._content,
                timeout=httpx2.Timeout(
                    min(left, ATTEMPT_SECONDS), connect=min(left, CONNECT_SECONDS)
                ),
            )
        except UnicodeEncodeError:
            wrong = _NO_TEXT
        except httpx2.InvalidURL:
            wrong = "a name or a filter is too long"
        raise InvalidRequestError(wrong)

    def reader(self, response: httpx2.Response) -> ResponseReader[R]:
        """Return a receiver of the response. Raises MalformedResponseError."""
        if "Deprecation" in response.headers:
            warn_of_rule(response.headers)
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in _ENCODINGS:
            raise self._badly_encoded()
        if self._call.destination is not None and response.is_success:
            return Saved(self._call.destination, self._request_id, self._call.result)
        return InMemory(
            response,
            self._request_id,
            self._call.result,
            form=self._call.form,
        )

    def require_time(self) -> None:
        """Raise DeadlineExceededError if the deadline has passed."""
        if self.attempts.is_over:
            raise self.too_late()

    def too_late(self) -> PqkeepError:
        """Return the error for a late response."""
        return DeadlineExceededError(
            "the service did not respond in time", request_id=self._request_id
        )

    def failure(self, error: httpx2.HTTPError) -> PqkeepError:
        """Return the error for a missing or incomplete response."""
        if isinstance(error, httpx2.TimeoutException):
            return self.too_late()
        if isinstance(error, httpx2.DecodingError):
            return self._badly_encoded()
        if isinstance(error, httpx2.ProxyError):
            message = f"the proxy {self._named_by} refused: {error}"
        elif isinstance(error, httpx2.ConnectError):
            reached = (
                f"the proxy {self._named_by}, or the service behind it," if self._proxy else ""
            )
            cause = _cause(error)
            advice = "" if cause is None else _advice(cause)
            message = f"{reached or 'the service'} cannot be reached: {error}{advice}"
        else:
            message = "the connection broke before the response was complete"
        return ConnectionFailedError(message, request_id=self._request_id)

    @property
    def _named_by(self) -> str:
        return "" if self._proxy is None else f"that {self._proxy.variable} names"

    def _badly_encoded(self) -> PqkeepError:
        return MalformedResponseError(
            "the Content-Encoding of the response is wrong or was not requested",
            request_id=self._request_id,
        )


def _cause(error: BaseException) -> ssl.SSLError | None:
    """Return the TLS error behind an exception, or None."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _advice(cause: ssl.SSLError) -> str:
    """Return advice on a TLS error, or an empty text."""
    if not isinstance(cause, ssl.SSLCertVerificationError):
        is_plain = cause.reason in _NO_TLS
        return "; the server does not speak TLS: try http://" if is_plain else ""
    if cause.verify_code in _UNTRUSTED:
        other = other_trust()
        ignored = f"; pqkeep does not use {other}" if other else ""
        return (
            "; if the service's certificate has a private authority, name its file: PQKEEP_CA_FILE,"
            f" ca_file, or pqkeep login --ca-file{ignored}"
        )
    if cause.verify_code in _OUT_OF_TIME:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"; this machine's clock shows {now}: if that is wrong, set the clock"
    return ""


_NO_TEXT = "a text is not valid Unicode: it has half of a surrogate pair"


def _encoded(body: Mapping[str, object]) -> bytes:
    """Return a body as JSON. Raises InvalidRequestError."""
    try:
        return json.dumps(_given(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        pass
    raise InvalidRequestError(_NO_TEXT)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
