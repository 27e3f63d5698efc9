"""Clients and command recognize wrong, endless and foreign responses, and end."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from sdk.tests.cli.conftest import Command
from tests.patience import PATIENCE

import pqkeep._call
from pqkeep import Client, MalformedResponseError, PqkeepError, UnavailableError

API_KEY = "pqk_" + "0" * 49
Connect = Callable[..., Client]
Serve = Callable[[Callable[[], Iterator[bytes]]], str]
KEY = {
    "key_version": 1,
    "algorithm": "Kyber768",
    "status": "active",
    "public_key": "AAA=",
    "created_at": "2026-01-01T00:00:00Z",
}


def answered(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return a complete response."""
    head = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "Connection: close")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def listed(place: object, items: Sequence[object] = (KEY,)) -> bytes:
    """Return a page of keys with the position of the next page."""
    return answered(json.dumps({"data": {"keys": items, "next": place}}).encode())


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer each connection with the pieces of the next response. Return the address."""
    listeners: list[socket.socket] = []

    def start(responses: Callable[[], Iterator[bytes]]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            pieces = responses()
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    received = b""
                    while b"\r\n\r\n" not in received:
                        received += connection.recv(65_536)
                    connection.sendall(next(pieces))

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


WHOLE = json.dumps({"data": {"keys": [KEY], "next": None}}).encode()
DEEP = b'{"data":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
RESPONSES: dict[str, tuple[bytes, type[PqkeepError]]] = {
    "nothing": (b"", UnavailableError),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", UnavailableError),
    "a cut head": (b"HTTP/1.1 200 OK\r\nContent-Le", UnavailableError),
    "a cut body": (answered(WHOLE)[:-1], UnavailableError),
    "a body longer than was said": (
        answered(WHOLE).replace(b"Content-Length: ", b"Content-Length: 1\r\nX: "),
        MalformedResponseError,
    ),
    "two lengths": (answered(WHOLE, "Content-Length: 1"), UnavailableError),
    "a length that is none": (answered(WHOLE).replace(b"Length: ", b"Length: -"), UnavailableError),
    "a head of a megabyte": (answered(WHOLE, "X: " + "a" * 1_000_000), UnavailableError),
    "a bomb": (
        answered(gzip.compress(bytes(200_000_000), 9), "Content-Encoding: gzip"),
        MalformedResponseError,
    ),
    "two encodings": (
        answered(gzip.compress(gzip.compress(WHOLE)), "Content-Encoding: gzip, gzip"),
        MalformedResponseError,
    ),
    "a redirect": (
        answered(b"", "Location: http://127.0.0.2:1/", status="307 Elsewhere"),
        MalformedResponseError,
    ),
    "deep JSON": (answered(DEEP), MalformedResponseError),
    "half of JSON": (answered(WHOLE[:-1]), MalformedResponseError),
    "a name twice": (
        answered(WHOLE.replace(b'"status"', b'"algorithm": "X-Wing", "status"')),
        MalformedResponseError,
    ),
    "two datas": (
        answered(WHOLE.replace(b'{"data"', b'{"data": {}, "data"')),
        MalformedResponseError,
    ),
    "a huge number": (
        answered(WHOLE.replace(b"1,", b"9" * 5_000 + b",", 1)),
        MalformedResponseError,
    ),
    "no number": (answered(WHOLE.replace(b"1,", b"NaN,", 1)), MalformedResponseError),
    "another type": (answered(WHOLE.replace(b"1,", b'"1",', 1)), MalformedResponseError),
    "a list": (answered(b"[]"), MalformedResponseError),
    "no UTF-8": (answered(WHOLE.replace(b"active", b"\xff")), MalformedResponseError),
    "an error without JSON": (answered(b"oops", status="500 No"), UnavailableError),
    "an informational answer only": (b"HTTP/1.1 100 Continue\r\n\r\n", UnavailableError),
    "a status that is none": (answered(WHOLE, status="999 Odd"), PqkeepError),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_an_answer_that_is_none(connect: Connect, serve: Serve, name: str) -> None:
    """Each invalid response raises the documented exception, with a message and without the API key."""
    response, error = RESPONSES[name]
    url = serve(lambda: itertools.repeat(response))
    with pytest.raises(error) as caught:
        connect(url, API_KEY, timeout=PATIENCE).keys.list()
    assert isinstance(caught.value, PqkeepError)
    assert len(str(caught.value)) > 10
    assert API_KEY not in str(caught.value)


@pytest.mark.parametrize("name", RESPONSES)
def test_the_command_and_an_answer_that_is_none(nobody: Command, serve: Serve, name: str) -> None:
    """The exit status is 1, or 8 if a retry may succeed. It is never 7."""
    response, error = RESPONSES[name]
    url = serve(lambda: itertools.repeat(response))
    command = nobody.as_(PQKEEP_URL=url, PQKEEP_API_KEY=API_KEY)
    ended = command("keys", "list")
    assert ended.status == (8 if error is UnavailableError else 1), ended.err
    assert "a bug in pqkeep" not in ended.err
    assert ended.out == b""


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100])
def test_pages_in_a_circle(connect: Connect, serve: Serve, length: int) -> None:
    """Pages in a cycle of any length end with an error."""
    url = serve(lambda: (listed(f"place-{number % length}") for number in itertools.count()))
    with pytest.raises(MalformedResponseError, match="repeat"):
        connect(url, API_KEY).keys.list()


@pytest.mark.parametrize("items", [(), (KEY,)])
def test_pages_without_end(
    connect: Connect, serve: Serve, monkeypatch: pytest.MonkeyPatch, items: Sequence[object]
) -> None:
    """A list without an end ends with an error."""
    monkeypatch.setattr(pqkeep._call, "MOST_PAGES", 50)
    url = serve(lambda: (listed(f"place-{number}", items) for number in itertools.count()))
    with pytest.raises(MalformedResponseError, match="more than"):
        connect(url, API_KEY).keys.list()


def b64(size: int) -> str:
    """Return a number of bytes in base64."""
    return base64.b64encode(bytes(size)).decode()


ENCAPSULATED = {
    "kem_ciphertext": b64(1088),
    "shared_secret": b64(32),
    "key_version": 3,
    "algorithm": "Kyber768",
}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({}, None),
        ({"key_version": 2}, "key_version"),
        ({"algorithm": "X-Wing", "kem_ciphertext": b64(1120)}, "algorithm"),
        ({"keyring": "other"}, "keyring"),
        ({"shared_secret": b64(31)}, "shared_secret"),
        ({"shared_secret": ""}, "shared_secret"),
        ({"kem_ciphertext": b64(1120)}, "kem_ciphertext"),
        ({"algorithm": "Kyber9000"}, "algorithm"),
    ],
)
def test_an_answer_to_another_request(
    connect: Connect, serve: Serve, changed: dict[str, Any], field: str | None
) -> None:
    """A response about another key, or with a secret of another size, is refused."""
    response = answered(json.dumps({"data": {**ENCAPSULATED, **changed}}).encode())
    kem = connect(serve(lambda: itertools.repeat(response)), API_KEY).kem
    expected = pytest.raises(MalformedResponseError, match=field) if field else nullcontext()
    with expected:
        kem.encapsulate(algorithm="Kyber768", key_version=3, keyring="payments")
