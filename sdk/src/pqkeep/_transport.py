"""Runs described calls and waits for their responses."""

import math
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import httpcore2
import httpx2

from pqkeep._call import Call, Course, Pages
from pqkeep._exchange import Attempts, Exchange
from pqkeep._settings import API, Settings
from pqkeep._workload import WorkloadKey
from pqkeep.errors import AuthenticationError, PqkeepError

R = TypeVar("R")

NOTED_SECONDS = 3.0
"""Seconds until a person wonders what a call waits for."""
MAX_CONNECTIONS = 100
MAX_IDLE = 20
IDLE_SECONDS = 5.0
_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)


class _Ends(threading.local):
    """The monotonic time at which this thread's exchange must end."""

    at = math.inf

    def bound(self, timeout: float | None) -> float | None:
        """Return the seconds for one wait. Raises ReadTimeout when the time is over."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout
        return timeout if left == math.inf else min(left if timeout is None else timeout, left)


_ends = _Ends()


class _TimedStream(httpcore2.NetworkStream):
    """A connection. Each of its waits ends with the exchange at the latest."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _ends.bound(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _ends.bound(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        bound = _ends.bound(timeout)
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, bound))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _TimedBackend(httpcore2.NetworkBackend):
    """Opens connections. Each of their waits ends with the exchange at the latest."""

    def __init__(self, backend: httpcore2.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        opened = self._backend.connect_tcp(
            host, port, _ends.bound(timeout), local_address, socket_options
        )
        return _TimedStream(opened)


class _Body(httpx2.SyncByteStream):
    """A response's body, with httpx2's errors."""

    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _errors():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _TimedPool(httpx2.BaseTransport):
    """A pool of connections. The end of the exchange ends each wait for a connection.

    ``httpx2.HTTPTransport`` takes no network backend, and its timeouts apply to single reads.
    """

    def __init__(self, tls: ssl.SSLContext, proxy: httpx2.Proxy | None) -> None:
        self._pool = httpcore2.ConnectionPool(
            ssl_context=tls,
            proxy=None if proxy is None else httpcore2.Proxy(_url(proxy.url), proxy.raw_auth),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_TimedBackend(httpcore2.SyncBackend()),
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = httpcore2.Request(
            request.method,
            _url(request.url),
            headers=request.headers.raw,
            content=cast(Iterable[bytes], request.stream),
            extensions=request.extensions,
        )
        with _errors():
            found = self._pool.handle_request(asked)
        return httpx2.Response(
            found.status,
            headers=found.headers,
            stream=_Body(found),
        )

    def close(self) -> None:
        self._pool.close()


def _url(url: httpx2.URL) -> httpcore2.URL:
    return httpcore2.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )


@contextmanager
def _errors() -> Generator[None]:
    """Replace errors of httpcore2 by the errors of httpx2 with the same names."""
    try:
        yield
    except _ERRORS as error:
        raise getattr(httpx2, type(error).__name__)(str(error)) from error


def end_at(time: float) -> None:
    """End the waits of this thread's exchanges at a monotonic time."""
    _ends.at = time


def timed_client(settings: Settings, headers: Mapping[str, str]) -> httpx2.Client:
    """Return a client. ``end_at`` limits each wait. Raises ConfigurationError."""
    proxy = settings.proxy()
    transport = _TimedPool(settings.tls(), None if proxy is None else httpx2.Proxy(proxy.url))
    return httpx2.Client(
        base_url=settings.url, headers=headers, trust_env=False, transport=transport
    )


class Transport:
    """A pool of connections to one service with one credential. Threads may share it."""

    def __init__(
        self, settings: Settings, on_wait: Callable[[str, float], None] | None = None
    ) -> None:
        """Make the pool without connecting. Raises ConfigurationError.

        ``on_wait`` is called once, from any thread, if a call with a deadline takes longer than
        NOTED_SECONDS. It gets the service's address and the seconds left.
        """
        self._settings = settings
        self._on_wait = on_wait
        self._http = timed_client(settings, settings.headers())
        workload = settings.workload
        self._workload = None if workload is None else WorkloadKey(workload)
        self._renewing = threading.Lock()

    def run(self, describe: Callable[[], Call[R]], *, reads_file: bool = False) -> R:
        """Run one call, with retries. Raises PqkeepError."""
        if self._workload is None:
            return self._run(Exchange(describe(), self._settings))
        call, key = describe(), self._workload_key(self._workload)
        try:
            return self._run(Exchange(call, self._settings, key))
        except AuthenticationError:  # its role has changed
            self._workload.forget(key)
        return self._run(Exchange(call, self._settings, self._workload_key(self._workload)))

    def _workload_key(self, workload: WorkloadKey) -> str | None:
        """Return the workload's key. Get or renew it first if it is due. Raises PqkeepError."""
        if workload.is_due and self._renewing.acquire(blocking=not workload.is_valid):
            try:
                if workload.is_due:
                    self._run(Exchange(workload.renewal(), self._settings))
            except PqkeepError:
                if not workload.is_valid:
                    raise
                workload.postpone()
            finally:
                self._renewing.release()
        return workload.text

    def _run(self, exchange: Exchange[R]) -> R:
        with self._noted(exchange):
            while True:
                try:
                    return self._attempt(exchange)
                except PqkeepError as error:
                    pause = exchange.attempts.pause_after(error)
                    if pause is None:
                        raise
                time.sleep(pause)

    def members(
        self, describe: Callable[[], Pages[R]], *, is_collected: bool = False
    ) -> Iterator[R]:
        """Yield a list's members, page by page."""
        pages, course, goes_on = describe(), Course(is_collected=is_collected), True
        while goes_on:
            page = self.run(partial(pages, course.place))
            yield from page.items
            goes_on = course.goes_on(page)

    def collect(self, describe: Callable[[], Pages[R]]) -> tuple[R, ...]:
        """Return all members of a list."""
        return tuple(self.members(describe, is_collected=True))

    def many(self, calls: Iterable[Call[Sequence[R]]]) -> Iterator[R]:
        """Yield all results of batch calls, in order."""
        for call in calls:
            yield from self.run(partial(_itself, call))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"<Transport to {self._settings.url}>"

    @contextmanager
    def _noted(self, exchange: Exchange[R]) -> Generator[None]:
        """Call ``on_wait`` if the block takes long."""
        if self._on_wait is None or exchange.attempts.ends == math.inf:
            yield
            return
        timer = threading.Timer(NOTED_SECONDS, self._note, [exchange.attempts])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _note(self, attempts: Attempts) -> None:
        on_wait, self._on_wait = self._on_wait, None
        if on_wait is not None:
            on_wait(self._settings.url.removesuffix(API), attempts.left())

    def _attempt(self, exchange: Exchange[R]) -> R:
        end_at(exchange.attempts.ends)
        try:
            request = exchange.request(self._http)
            with (
                closing(self._http.send(request, stream=True)) as response,
                exchange.reader(response) as reader,
            ):
                for piece in response.iter_bytes():
                    reader.take(piece)
                    exchange.require_time()
                return reader.end()
        except httpx2.HTTPError as error:
            failure = exchange.failure(error)
        raise failure


def _itself(call: Call[R]) -> Call[R]:
    return call
