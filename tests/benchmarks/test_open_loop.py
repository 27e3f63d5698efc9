"""The load generator with a constant rate."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from benchmarks.open_loop import Load, load

PAUSE_SECONDS = 0.4
RATE = 100


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    status = 200
    pauses_at: float | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen = 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.seen += 1
            if self.server.seen == self.server.pauses_at:
                time.sleep(PAUSE_SECONDS)
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def server() -> Iterator[_Server]:
    """An HTTP server in this process."""
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


def _load(server: _Server, directory: Path) -> Load:
    body = directory / "body.json"
    body.write_text("{}")
    url = f"http://127.0.0.1:{server.server_port}/"
    return Load(url=url, body=str(body), rate=RATE, seconds=1, connections=4)


def test_a_pause_is_in_the_latency_of_all_requests_that_were_due_in_it(
    server: _Server, tmp_path: Path
) -> None:
    """A server that pauses for 0.4 s delays the 40 requests due then, although 4 connections wait."""
    server.pauses_at = RATE + 10
    found = load(_load(server, tmp_path), "key")
    assert (found.requests, found.failed) == (RATE, 0)
    assert found.longest >= PAUSE_SECONDS * 0.9e6
    assert found.percentile_99 >= PAUSE_SECONDS * 0.9e6  # of 100, so of more than one connection


def test_refused_requests_are_counted(server: _Server, tmp_path: Path) -> None:
    """Responses other than 200 are failures."""
    server.status = 503
    found = load(_load(server, tmp_path), "key")
    assert found.failed == 2 * RATE
