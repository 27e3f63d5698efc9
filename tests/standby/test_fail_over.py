"""A killed or paused key service is replaced by its standby, and does no harm afterwards."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.fixtures.key_service import execute
from tests.standby.conftest import running_pair

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import ListKeys
from pqkeep_server.doctor import Note, examine

if TYPE_CHECKING:
    from tests.fixtures.caller import Caller
    from tests.fixtures.postgresql import PostgresServer
    from tests.standby.conftest import Pair

SECRET = base64.b64encode(b"a secret").decode()
PAUSES = int(os.environ.get("PQKEEP_PAUSES", "1000"))
PAIRS = 5
"""Installations that are paused at once, because a fail-over is mostly waiting."""


class Load:
    """Encrypts and rotates, and counts the responses."""

    def __init__(self, caller: Caller, seconds: float = 0.0) -> None:
        self._caller = caller
        self._seconds = seconds
        """Seconds between two requests of a thread."""
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.encrypted: list[str] = []
        """The request ids of successes."""
        self.rotated: list[int] = []
        self.others: list[int] = []
        """The statuses of failures."""

    def encrypt(self) -> None:
        """Encrypt until the load ends."""
        while not self._is_over.wait(self._seconds):
            response = self._caller.ask("POST", "/kem/encrypt", {"plaintext": SECRET})
            with self._lock:
                if response.status_code == 200:
                    self.encrypted.append(response.json()["request_id"])
                else:
                    self.others.append(response.status_code)

    def rotate(self) -> None:
        """Rotate until the load ends."""
        while not self._is_over.wait(0.05):
            response = self._caller.ask("POST", "/kms/keys/rotate", {"algorithm": "Kyber768"})
            if response.status_code == 201:
                self.rotated.append(response.json()["data"]["key_version"])
            else:
                self.others.append(response.status_code)

    def goes_on(self) -> Callable[[], bool]:
        """Return a function that becomes true after more successes."""
        before = len(self.encrypted)
        return lambda: len(self.encrypted) > before + 5

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Run the load for a block."""
        threads = [threading.Thread(target=each) for each in (self.encrypt,) * 3 + (self.rotate,)]
        for each in threads:
            each.start()
        try:
            yield self
        finally:
            self._is_over.set()
            for each in threads:
                each.join()


def check(pair: Pair, load: Load) -> None:
    """Each success has exactly one record. Versions have no gaps, and one version is active."""
    found = pair.sql(
        "SELECT request_id, count(*) FROM audit_records WHERE operation = 'encrypt'"
        " AND outcome = 'success' GROUP BY request_id"
    )
    records = {str(request): count for request, count in found}
    assert len(set(load.encrypted)) == len(load.encrypted)
    assert {records.get(each) for each in load.encrypted} <= {1}
    keys = pair.sql(
        "SELECT count(*), max(version), count(*) FILTER (WHERE status = 'active')"
        " FROM keys WHERE algorithm = 'Kyber768' GROUP BY tenant_id"
    )
    assert all((count, active) == (newest, 1) for count, newest, active in keys)
    assert len(set(load.rotated)) == len(load.rotated)
    assert set(load.others) <= {503, 504}
    ids = [number for (number,) in pair.sql("SELECT id FROM audit_records ORDER BY id")]
    assert ids == list(range(1, len(ids) + 1))


def tell(what: str, seconds: float) -> None:
    """Print the duration of a fail-over."""
    sys.stdout.write(f"{what}: answered after {seconds:.2f} s\n")


def is_ready(pair: Pair, number: int) -> bool:
    """Return True if a key service is a ready standby."""
    return "ready to take over" in pair.output(number)


def until_response(pair: Pair, caller: Caller) -> float:
    """Return the seconds until an operation succeeds."""
    began = time.monotonic()
    pair.until(lambda: caller.ask("POST", "/kem/encrypt", {"plaintext": SECRET}).is_success)
    return time.monotonic() - began


def test_a_standby_serves_when_the_other_is_killed(pair: Pair) -> None:
    """After kill -9 under load the standby serves, and the killed one becomes the standby."""
    caller = pair.new_tenant()
    with Load(caller).running() as load:
        for _ in range(2):
            pair.until(load.goes_on())
            killed = pair.active()
            pair.kill(killed)
            tell("kill -9", until_response(pair, caller))
            assert pair.active() == 1 - killed
            pair.start(killed)
            pair.until(partial(is_ready, pair, killed))
    check(pair, load)


def pause(pair: Pair, caller: Caller, seconds: float) -> None:
    """Pause the active key service after some seconds. Resume it after the standby has served."""
    time.sleep(seconds)
    paused = pair.active()
    pid = pair.processes[paused].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        until_response(pair, caller)
        tell("SIGSTOP", time.monotonic() - began)
        assert pair.active() != paused
        records = pair.sql("SELECT epoch FROM service_epoch")
    finally:
        os.kill(pid, signal.SIGCONT)
    refused = execute_on(pair, paused)
    assert "STANDBY" in refused or "UNAVAILABLE" in refused, refused
    assert pair.sql("SELECT epoch FROM service_epoch") >= records


def execute_on(pair: Pair, number: int) -> str:
    """Return a key service's response to a request."""
    socket = pair.layout.directory / "run" / ("keyservice.sock", "standby.sock")[number]
    request = ListKeys(tenant=TenantId(UUID(int=1)), algorithm=Algorithm.ML_KEM_768, status=None)
    try:
        execute(socket, request)
    except AssertionError as refusal:
        return str(refusal)
    return "answered"


def pauses(pair: Pair, count: int, seconds: float = 0.0) -> None:
    """Pause the active key service at random moments."""
    caller = pair.new_tenant()
    with Load(caller, seconds).running() as load:
        for _ in range(count):
            pause(pair, caller, secrets.randbelow(300) / 1000)
    check(pair, load)


@pytest.mark.threat("replaced-key-service")
def test_one_that_was_paused_answers_and_writes_nothing_more(pair: Pair) -> None:
    """A paused key service resumes after its standby took over, and refuses all requests."""
    pauses(pair, 2)


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_a_thousand_pauses(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """The same at a thousand random moments, in several installations at once."""
    with ExitStack() as stack:
        postgres_server.sql("ALTER ROLE pqkeep_keyservice CONNECTION LIMIT 100")
        stack.callback(postgres_server.sql, "ALTER ROLE pqkeep_keyservice CONNECTION LIMIT 10")
        folders = [tmp_path / str(number) for number in range(PAIRS)]
        for folder in folders:
            folder.mkdir()
        pairs = [stack.enter_context(running_pair(postgres_server, each)) for each in folders]
        pool = stack.enter_context(ThreadPoolExecutor(PAIRS))
        for done in [pool.submit(pauses, each, PAUSES // PAIRS, 0.02) for each in pairs]:
            done.result()


def test_the_doctor_names_who_serves(pair: Pair) -> None:
    """The report names the holder of the fencing token, or says that no key service serves or waits."""
    serving = pair.active()
    (said,) = holders(pair)
    assert f" {pair.processes[serving].pid}, active" in said
    pair.kill(1 - serving)
    pid = pair.processes[serving].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        pair.until(lambda: "no key service is active" in holders(pair)[0])
    finally:
        os.kill(pid, signal.SIGCONT)
        pair.start(1 - serving)
    pair.until(lambda: [type(each) for each in holders(pair)] == [Note])


def holders(pair: Pair) -> list[str]:
    """Return the doctor's lines about fencing tokens."""
    return [each for each in dict(examine(pair.layout))["key service"] if "epoch" in each]
