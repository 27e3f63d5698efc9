"""Timeouts of ten seconds: of requests, of calls, and of a paused process.

The three scenarios wait at the same time, and each test checks one of them.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.faults.conftest import FakeKeyService
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE

from pqkeep_protocol.codec import Answer, Call
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import Encrypt, Sign, Signed, Verified, Verify

API = "/api/v1"
"""Seconds: ten, and a large reserve for a busy machine."""
ENCRYPT = ("/kem/encrypt", {"plaintext": "QUJD"})
SIGN = ("/signature/sign", {"message": "QUJD"})
VERIFY = ("/signature/verify", {"message": "QUJD", "signature": "QUJD", "key_version": 1})
HEAD = (
    b"POST /api/v1/kem/encrypt HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: 24\r\n\r\n"
)


@dataclass(frozen=True)
class Seen:
    """One response: status, error code or an empty text, and seconds."""

    status: int
    code: str
    seconds: float


def ask(client: httpx2.Client, request: tuple[str, Mapping[str, object]]) -> Seen:
    """Send one request and wait for its response."""
    began = time.monotonic()
    response = client.post(API + request[0], json=request[1])
    code = response.json().get("error", {}).get("error_code", "")
    return Seen(response.status_code, code, time.monotonic() - began)


def send_slowly(base_url: str, sent: bytes) -> Seen:
    """Send a part of a request and return the gateway's response; 0 means none."""
    url = urlsplit(base_url)
    assert url.hostname is not None
    began = time.monotonic()
    with socket.create_connection((url.hostname, url.port), PATIENCE + 1) as connection:
        connection.sendall(sent)
        received = ""
        try:
            while chunk := connection.recv(65_536):
                received += chunk.decode()
        except TimeoutError:
            return Seen(0, "", time.monotonic() - began)
    code = "ERR_INVALID_001" if '"error_code":"ERR_INVALID_001"' in received else received
    return Seen(int(received.split()[1]), code, time.monotonic() - began)


def before_silence(client: httpx2.Client, fake: FakeKeyService) -> dict[str, list[Seen]]:
    """Use a key service that ignores encrypt, answers sign with wrong ids, and verify correctly."""

    def reply(call: Call) -> Answer | None:
        match call.request:
            case Sign():
                result = Signed(signature=b"x", version=KeyVersion(1))
                return Answer(call.id + 1_000_000, result)
            case Verify():
                return Answer(call.id, Verified())
            case Encrypt() | _:
                return None

    fake.reply = reply
    while not client.get("/healthz").is_success:
        time.sleep(0.02)
    with ThreadPoolExecutor(8) as pool:
        silence = [pool.submit(ask, client, ENCRYPT) for _ in range(3)]
        strange = [pool.submit(ask, client, SIGN) for _ in range(3)]
        time.sleep(0.5)
        meanwhile = [ask(client, VERIFY)]
        return {
            "silence": [waiting.result() for waiting in silence],
            "strange ids": [waiting.result() for waiting in strange],
            "meanwhile": meanwhile,
        }


def before_a_stopped_key_service(installation: Installation) -> dict[str, list[Seen]]:
    """Send requests while the key service is stopped by SIGSTOP, and after it continues."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    pid = installation.children()["pqkeep_keyservice"]
    headers = {"X-API-Key": tenant.api_key}
    with httpx2.Client(
        base_url=installation.base_url, headers=headers, timeout=PATIENCE, trust_env=False
    ) as client:
        os.kill(pid, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(4) as pool:
                stopped = list(pool.map(lambda _: ask(client, ENCRYPT), range(4)))
        finally:
            os.kill(pid, signal.SIGCONT)
        return {"stopped": stopped, "continued": [ask(client, ENCRYPT)]}


def with_slow_clients(base_url: str, api_key: str) -> dict[str, list[Seen]]:
    """Send requests that stop in the head, after the head, and in the body."""
    head = HEAD % api_key.encode()
    parts = {"in the head": head[:60], "before the body": head, "in the body": head + b'{"plain'}
    with ThreadPoolExecutor(3) as pool:
        seen = pool.map(lambda part: send_slowly(base_url, part), parts.values())
        return {where: [one] for where, one in zip(parts, seen, strict=True)}


@pytest.fixture(scope="module")
def seen(
    lying: tuple[httpx2.Client, FakeKeyService],
    tmp_path_factory: pytest.TempPathFactory,
    installation: Installation,
) -> dict[str, list[Seen]]:
    """The observations of all scenarios."""
    folder = tmp_path_factory.mktemp("stopped")
    with (
        running(folder) as stopped,
        ThreadPoolExecutor(3) as pool,
    ):
        waiting: list[Future[dict[str, list[Seen]]]] = [
            pool.submit(before_silence, *lying),
            pool.submit(before_a_stopped_key_service, stopped),
            pool.submit(with_slow_clients, installation.base_url, installation.ready["api_key"]),
        ]
        return {name: one for each in waiting for name, one in each.result().items()}


@pytest.mark.parametrize("what", ["silence", "strange ids", "stopped"])
def test_no_answer_in_time_is_504(seen: dict[str, list[Seen]], what: str) -> None:
    """If the key service does not reply, or not to this call, requests are 504 in time."""
    for one in seen[what]:
        assert (one.status, one.code) == (504, "ERR_TIMEOUT_001")
        assert one.seconds < PATIENCE


def test_other_calls_do_not_wait(seen: dict[str, list[Seen]]) -> None:
    """A call with a response does not wait for calls without one."""
    (one,) = seen["meanwhile"]
    assert one.status == 200
    assert one.seconds < min(waiting.seconds for waiting in seen["silence"])


def test_a_key_service_that_goes_on_works_again(seen: dict[str, list[Seen]]) -> None:
    """After SIGCONT the same key service responds, without any restart."""
    assert [one.status for one in seen["continued"]] == [200]


@pytest.mark.parametrize(
    "where",
    [
        "in the head",
        "before the body",
        "in the body",
    ],
)
def test_a_request_that_does_not_arrive_is_given_up(
    seen: dict[str, list[Seen]], where: str
) -> None:
    """A client that stops inside its request gets 400 within ten seconds."""
    (one,) = seen[where]
    assert (one.status, one.code) == (400, "ERR_INVALID_001")
    assert one.seconds < PATIENCE
