"""Load at a constant rate, from a separate process.

Each request has a planned time that earlier requests do not delay. Its latency counts from the
planned time. So a late server or load generator adds the wait to the latency of all waiting
requests. wrk has no rate: each of its connections waits for the response, so a pause delays
requests and stays unseen (coordinated omission).
"""

import os
import resource
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from benchmarks.processes import output_of, python

CREDENTIAL = "BENCHMARK_CREDENTIAL"
CHUNK = 1 << 16
STALL_SECONDS = 10.0
"""Seconds without a response after which the remaining requests count as failed."""
OK = b"HTTP/1.1 200"
LENGTH = b"content-length:"


class Load(Struct, frozen=True):
    """One kind of request, and its rate."""

    url: str
    body: str
    """The path of a file."""
    rate: float
    """Requests a second."""
    seconds: float
    """The measured seconds. The second before them is not measured."""
    connections: int


class Latency(Struct, frozen=True):
    """The result of a load. Times are in microseconds."""

    requests: int
    failed: int
    median: float
    percentile_99: float
    percentile_99_9: float
    longest: float
    own_percentile_99: float
    """The delay of sending requests, by this program or for lack of a free connection."""
    own_cpu: float
    """The share of a core that this program used."""


def load(target: Load, credential: str) -> Latency:
    """Load a target from a separate process. Raises BenchmarkError."""
    output = output_of(
        python("benchmarks.open_loop", msgspec.json.encode(target).decode()),
        seconds=target.seconds + 1,
        environment={CREDENTIAL: credential},
    )
    return msgspec.json.decode(output, type=Latency)


class _Connections:
    """Kept connections, each with one request at a time."""

    def __init__(self, target: Load) -> None:
        url = urlsplit(target.url)
        body = Path(target.body).read_bytes()
        head = (
            f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nX-API-Key: {os.environ[CREDENTIAL]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._received: dict[socket.socket, bytes] = {}
        self.due: dict[socket.socket, float] = {}
        """The planned time of each busy connection's request."""
        self.idle: deque[socket.socket] = deque()
        for _ in range(target.connections):
            connection = socket.create_connection((url.hostname, url.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.idle.append(connection)

    def send(self, due: float) -> None:
        """Send a request on an idle connection."""
        connection = self.idle.popleft()
        self.due[connection], self._received[connection] = due, b""
        connection.sendall(self._request)

    def responses(self, seconds: float) -> list[tuple[float, bool]]:
        """Wait for responses; return each request's planned time and its success."""
        ready, _, _ = select.select(list(self.due), [], [], seconds)
        found = []
        for connection in ready:
            chunk = connection.recv(CHUNK)
            response = self._received[connection] + chunk
            if chunk and not _is_whole(response):
                self._received[connection] = response
                continue
            found.append((self.due.pop(connection), response.startswith(OK) and bool(chunk)))
            if chunk:
                self.idle.append(connection)
        return found


def _is_whole(response: bytes) -> bool:
    head, end, body = response.lower().partition(b"\r\n\r\n")
    length = head.partition(LENGTH)[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length or 0)


def _measure(target: Load) -> Latency:
    with suppress(PermissionError):  # where it may, it is not kept waiting by those it measures
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connections = _Connections(target)
    count = int(target.rate * (target.seconds + 1))
    first_counted = int(target.rate)
    latencies: list[float] = []
    lateness: list[float] = []
    failed = sent = 0
    began = time.perf_counter() + 0.05
    heard = began
    while sent < count or connections.due:
        now = time.perf_counter()
        due = began + sent / target.rate
        while sent < count and due <= now and connections.idle:
            connections.send(due)
            sent += 1
            if sent > first_counted:
                lateness.append(now - due)
            due = began + sent / target.rate
        waits = STALL_SECONDS
        if sent < count and connections.idle:
            waits = max(0.0, due - time.perf_counter())
        for was_due, succeeded in connections.responses(waits):
            heard = time.perf_counter()
            failed += not succeeded
            if was_due >= began + 1:
                latencies.append(heard - was_due)
        if time.perf_counter() - heard > STALL_SECONDS:
            failed += count - sent + len(connections.due)
            break
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Latency(
        requests=len(latencies),
        failed=failed,
        median=_quantile(latencies, 0.5),
        percentile_99=_quantile(latencies, 0.99),
        percentile_99_9=_quantile(latencies, 0.999),
        longest=_quantile(latencies, 1.0),
        own_percentile_99=_quantile(lateness, 0.99),
        own_cpu=(used.ru_utime + used.ru_stime) / (target.seconds + 1),
    )


def _quantile(seconds: list[float], quantile: float) -> float:
    return sorted(seconds)[int(quantile * (len(seconds) - 1))] * 1e6 if seconds else 0.0


if __name__ == "__main__":
    sys.stdout.write(
        msgspec.json.encode(_measure(msgspec.json.decode(sys.argv[1], type=Load))).decode()
    )
