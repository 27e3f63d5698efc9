"""kill -9 during work: acknowledged results are there, and the service recovers."""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

pytestmark = pytest.mark.campaign

THREADS = 8
BACK_SECONDS = 20.0
"""Seconds: more than a start takes on a busy machine."""
STEP_SECONDS = 0.7
API = "/api/v1"
AWAY = {502: "ERR_BAD_GATEWAY_001", 503: "ERR_SERVICE_001", 504: "ERR_TIMEOUT_001"}
KEM, SIGNATURE = {"algorithm": "Kyber768"}, {"algorithm": "Dilithium3"}


@dataclass
class Acknowledged:
    """Everything that a 2xx response acknowledged."""

    operations: dict[str, str] = field(default_factory=dict)
    """Operation by request id."""
    ciphertexts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Plaintext, and the request that must return it."""
    signatures: list[dict[str, Any]] = field(default_factory=list)
    keys: list[tuple[str, int, str]] = field(default_factory=list)
    """Algorithm, version, public key."""
    refused: Counter[int] = field(default_factory=Counter)
    broken: int = 0


class Work:
    """One thread of requests: encrypt, sign, and sometimes a rotation."""

    def __init__(self, client: httpx2.Client, headers: dict[str, str], done: Acknowledged) -> None:
        self._client = client
        self._headers = headers
        self._done = done

    def run(self, stop: threading.Event) -> None:
        """Send requests until told to stop, or until a limit."""
        for turn in range(5_000):
            if stop.is_set():
                return
            text = secrets.token_hex(16)
            if made := self._ask("encrypt", "/kem/encrypt", {"plaintext": text}):
                body = {"ciphertext": made["ciphertext"], "key_version": made["key_version"]}
                self._done.ciphertexts.append((text, body))
            if made := self._ask("sign", "/signature/sign", {"message": text}):
                body = {"signature": made["signature"], "key_version": made["key_version"]}
                self._done.signatures.append({"message": text, **body})
            if turn % 8 == 0 and (made := self._ask("rotate-key", "/kms/keys/rotate", KEM)):
                self._done.keys.append(("Kyber768", made["key_version"], made["public_key"]))

    def _ask(self, operation: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request_id = str(uuid.uuid4())
        headers = {**self._headers, "X-Request-ID": request_id}
        try:
            response = self._client.post(API + path, json=body, headers=headers)
        except httpx2.TransportError:
            self._done.broken += 1
            time.sleep(0.01)
            return {}
        content = response.json()
        assert content["request_id"] == request_id
        if response.is_success:
            self._done.operations[request_id] = operation
            data: dict[str, Any] = content["data"]
            return data
        assert AWAY.get(response.status_code) == content["error"]["error_code"], content
        self._done.refused[response.status_code] += 1
        return {}


@pytest.mark.threat("crash")
@pytest.mark.parametrize("victim", ["pqkeep_gateway", "pqkeep_keyservice"])
def test_kill_in_the_middle_of_requests(start: Callable[..., Installation], victim: str) -> None:
    """The service recovers in seconds, and each acknowledged operation has one audit record.

    Until then clients get only 502, 503, 504 or a broken connection.
    """
    began = time.monotonic()
    installation = start()
    soon = BACK_SECONDS + time.monotonic() - began
    tenant = installation.new_tenant()
    done = Acknowledged()
    for named in (KEM, SIGNATURE):
        made = tenant.post("/kms/keys/generate", named, status=201)
        done.keys.append((made["algorithm"], made["key_version"], made["public_key"]))

    stop = threading.Event()
    limits = httpx2.Limits(max_connections=THREADS + 1)
    with (
        httpx2.Client(
            base_url=installation.base_url, timeout=PATIENCE, limits=limits, trust_env=False
        ) as client,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        work = Work(client, {"X-API-Key": tenant.api_key}, done)
        threads = [pool.submit(work.run, stop) for _ in range(THREADS)]
        try:
            time.sleep(STEP_SECONDS)
            before = len(done.operations)
            old = installation.children()[victim]
            os.kill(old, signal.SIGKILL)
            back_after = _until_back(installation, tenant.api_key)
            time.sleep(STEP_SECONDS)
        finally:
            stop.set()
        for thread in threads:
            thread.result()

    assert before > 0
    assert len(done.operations) > before
    assert done.refused or done.broken
    assert back_after < soon
    assert installation.children()[victim] != old
    assert len(installation.children()) == 2
    _everything_is_there(tenant, done)
    _everything_is_recorded_once(installation, done)


def _until_back(installation: Installation, api_key: str) -> float:
    """Return the seconds until an operation of the key service succeeds again."""
    began = time.monotonic()
    with httpx2.Client(
        base_url=installation.base_url, headers={"X-API-Key": api_key}, timeout=2, trust_env=False
    ) as client:
        while time.monotonic() - began < PATIENCE:
            with suppress(httpx2.TransportError):
                response = client.post(f"{API}/kem/encrypt", json={"plaintext": "QUJD"})
                if response.is_success:
                    return time.monotonic() - began
            time.sleep(0.02)
    raise AssertionError("the service did not come back")


def _everything_is_there(tenant: Caller, done: Acknowledged) -> None:
    listed = {
        (key["algorithm"], key["key_version"], key["public_key"])
        for key in tenant.get("/kms/keys")["keys"]
    }
    assert len(done.keys) == len(set(done.keys))
    assert set(done.keys) <= listed
    for text, body in done.ciphertexts:
        assert tenant.post("/kem/decrypt", body)["plaintext"] == text
    for body in done.signatures:
        assert tenant.post("/signature/verify", body)["valid"] is True


def _everything_is_recorded_once(installation: Installation, done: Acknowledged) -> None:
    database = installation.data / "keyservice" / "keys.sqlite3"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT request_id, operation FROM audit_records WHERE outcome = 'success'"
        ).fetchall()
    records = Counter(rows)
    for request in done.operations.items():
        assert records[request] == 1, request


def test_kill_of_pqkeepd(
    start: Callable[..., Installation], child_processes: Callable[[int], dict[str, int]]
) -> None:
    """If pqkeepd itself is killed, both processes end, and the next start finds all data."""
    installation = start()
    tenant = installation.demo()
    tenant.post("/kms/keys/generate", KEM, status=201)
    made = tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    pids = list(installation.children().values())
    assert len(pids) == 2
    os.kill(installation.process.pid, signal.SIGKILL)
    installation.process.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)

    again = start().demo()
    body = {"ciphertext": made["ciphertext"], "key_version": 1}
    assert again.post("/kem/decrypt", body)["plaintext"] == "QUJD"


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - not a file to have a path for
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False
