"""One call on its way: what all its attempts have in common, and what becomes of each.

httpx2's exceptions hold the request, and with it the API key and the plaintext; a JSON decoder's
hold the answer. So ours are raised after theirs are gone, not while they are handled.

Everything may be asked again: what changes something carries an Idempotency-Key. Worth it is what
errors.RETRIED names. A pause doubles with each attempt, half of it at random, so that many clients
do not come back at once; where the service says how long to wait, it is that and a little.
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
from pqkeep._response import InMemory, ResponseReader, Saved
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
"""How long one attempt waits: the service answers within 10 seconds, if only that it cannot."""
CONNECT_SECONDS = 5.0

_RANDOM = SystemRandom()


class Attempts:
    """Counts the attempts of one call, and keeps its deadline."""

    def __init__(self, seconds: float, retries: int) -> None:
        """Begin now: so many seconds for everything, and so many attempts after the first."""
        self.ends = time.monotonic() + seconds
        """In monotonic time."""
        self._retries = retries
        self._made = 0

    @property
    def is_over(self) -> bool:
        """Whether the deadline is over."""
        return time.monotonic() >= self.ends

    def left(self) -> float:
        """Return how many seconds are left for the attempt that begins now."""
        return max(self.ends - time.monotonic(), 0.001)

    def pause_after(self, error: PqkeepError) -> float | None:
        """Return for how many seconds to wait before the next attempt; None if there is none."""
        if not isinstance(error, RETRIED) or self._made >= self._retries:
            return None
        usual = min(FIRST_PAUSE * 2**self._made, LONGEST_PAUSE)
        jitter = _RANDOM.uniform(0, usual / 2)
        pause = usual / 2 + jitter if error.retry_after is None else error.retry_after + jitter
        self._made += 1
        return pause if pause < self.ends - time.monotonic() else None


_UNTRUSTED = frozenset({18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_…) where a certificate leads to no authority that is trusted."""
_OUT_OF_TIME = frozenset({9, 10})
"""Where it is not valid yet, or not any more."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's words for an answer that is no TLS."""

_ENCODINGS = frozenset({"identity", "gzip"})
"""Of answers. One piece becomes at most a thousand times as long by gzip, and by several or by
another encoding as long as the other side likes."""

R = TypeVar("R")


class Exchange(Generic[R]):
    """A call, with the request id and the Idempotency-Key that all its attempts have."""

    def __init__(self, call: Call[R], settings: Settings) -> None:
        """Begin. A file may take as long as it takes; everything else has the client's timeout."""
        self._call = call
        self._proxy = settings.proxy()
        self._request_id = str(uuid4())
        self._headers = {"X-Request-ID": self._request_id}
        self._content = call.content
        if call.destination is not None:
            self._headers["Accept-Encoding"] = "gzip"  # files are long, and other answers are not
        if call.changes:
            self._headers["Idempotency-Key"] = str(uuid4())
        if call.body is not None:
            self._content = _encoded(call.body)
        if self._content is not None:
            self._headers["Content-Type"] = "application/json"
        seconds = settings.timeout if call.destination is None else math.inf
        self.attempts = Attempts(seconds, settings.retries)

    def request(self, http: httpx2.Client | httpx2.AsyncClient) -> httpx2.Request:
        """Return the request of the attempt that begins now. Raises InvalidRequestError."""
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
        """Return what takes the answer in. Raises MalformedResponseError."""
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
        """Raise DeadlineExceededError where the deadline is over."""
        if self.attempts.is_over:
            raise self.too_late()

    def too_late(self) -> PqkeepError:
        """Return the error of an answer that did not come in time."""
        return DeadlineExceededError(
            "the service did not answer in time", request_id=self._request_id
        )

    def failure(self, error: httpx2.HTTPError) -> PqkeepError:
        """Return the error of an answer that did not come, or not whole."""
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
            message = "the connection broke before the answer was whole"
        return ConnectionFailedError(message, request_id=self._request_id)

    @property
    def _named_by(self) -> str:
        return "" if self._proxy is None else f"that {self._proxy.variable} names"

    def _badly_encoded(self) -> PqkeepError:
        return MalformedResponseError(
            "the answer is in no encoding that was asked for, or not in the one that it names",
            request_id=self._request_id,
        )


def _cause(error: BaseException) -> ssl.SSLError | None:
    """Return what TLS says is wrong, if it is TLS that does."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _advice(cause: ssl.SSLError) -> str:
    """Return what to do about a connection that TLS refuses."""
    if not isinstance(cause, ssl.SSLCertVerificationError):
        is_plain = cause.reason in _NO_TLS
        return "; what answers there does not speak TLS: is it http://?" if is_plain else ""
    if cause.verify_code in _UNTRUSTED:
        other = other_trust()
        ignored = f"; {other} is for other programs" if other else ""
        return (
            "; if the service's certificate has an authority of its own, name that: PQKEEP_CA_FILE,"
            f" ca_file, or pqkeep login --ca-file{ignored}"
        )
    if cause.verify_code in _OUT_OF_TIME:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"; by this machine's clock it is {now}: if that is wrong, set the clock"
    return ""


_NO_TEXT = "a text is not Unicode: it has half of a surrogate pair"


def _encoded(body: Mapping[str, object]) -> bytes:
    """Return a body as JSON. Raises InvalidRequestError."""
    try:
        return json.dumps(_given(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        pass
    raise InvalidRequestError(_NO_TEXT)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
