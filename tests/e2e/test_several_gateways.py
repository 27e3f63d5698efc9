"""Several gateways on one host: their Valkey, their renewal under load, and refusals."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import httpx2
import pytest
from tests.e2e.test_two_users import OK, folder, run_as
from tests.fixtures import processes
from tests.fixtures.caller import TLS, Caller, client_of
from tests.fixtures.two_users import GATEWAY, PATHS, initialised, pqkeepd, pqkeepd_program

from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

__all__ = ["folder"]

COUNT = 2
SECONDS = 300.0
PAUSE_SECONDS = 0.02
"""Between the requests of a thread, because the reloads need the processors too."""
PATH = "/api/v1/kem/encrypt"
BODY = {"plaintext": "aGVsbG8="}
BACKPORT = "from asyncio import timeout\n"
"""The redis package needs async_timeout for Python 3.11.0 to 3.11.2."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def new_client() -> httpx2.Client:
    """Return a client with its own connections."""
    return httpx2.Client(trust_env=False, verify=TLS, timeout=SECONDS)


def get(url: str) -> httpx2.Response:
    """Send a request over a new connection."""
    with new_client() as client:
        return client.get(url)


def until_healthy(url: str) -> None:
    """Wait until the gateway of a new connection is healthy. On a busy machine a ping may fail."""
    deadline = time.monotonic() + SECONDS
    while get(f"{url}/healthz").status_code != HTTPStatus.OK:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class SeveralGateways:
    """A running installation."""

    layout: Layout
    pid: int
    output: Path
    url: str
    management: list[str]
    api_key: str
    operator_key: str

    def gateways(self) -> set[int]:
        """Return the process ids of the gateways, including draining ones."""
        return processes.children_that_run("pqkeep_gateway", self.pid)

    def until(self, text: str, times: int) -> None:
        """Wait until the log has a text this many times."""
        deadline = time.monotonic() + SECONDS
        while self.output.read_text().count(text) < times:
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    def settled(self) -> set[int]:
        """Return the process ids of the gateways, once none is draining."""
        deadline = time.monotonic() + SECONDS
        while len(found := self.gateways()) > COUNT:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found

    def until_gone(self, processes: set[int]) -> None:
        """Wait until processes have ended."""
        deadline = time.monotonic() + SECONDS
        while processes & self.gateways():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def change(self, **settings: object) -> None:
        """Change settings of the gateway."""
        file = self.layout.gateway_settings
        file.write_text(edited(file.read_text(), settings))


@pytest.fixture(scope="module")
def several(folder: Path) -> Iterator[SeveralGateways]:
    """Run two gateways, without a Redis or Valkey in the settings."""
    layout, credential = initialised(folder / "several")
    port, first = processes.free_port(), processes.free_ports(COUNT)
    host = processes.HOST
    file = layout.gateway_settings
    changed = {"port": port, "management_address": f"{host}:{first}"}
    file.write_text(edited(file.read_text(), changed))
    layout.start_settings.write_text(f"gateways = {COUNT}\n")
    output, url = folder / "several.log", f"http://{host}:{port}"
    management = [f"http://{host}:{first + number}" for number in range(COUNT)]

    def is_ready() -> bool:
        with suppress(httpx2.HTTPError):
            asked = [get(f"{each}/readyz") for each in management]
            return all(each.status_code == OK for each in asked)
        return False

    libraries = folder / "libraries"
    libraries.mkdir(mode=0o755)
    (libraries / "async_timeout.py").write_text(BACKPORT)
    (libraries / "async_timeout.py").chmod(0o644)
    command = pqkeepd_program(f"{PATHS}{os.pathsep}{libraries}")
    with processes.running([*command, "start", "--data", layout.directory], output) as process:
        processes.wait_until(is_ready, process, output)
        with client_of(url, credential) as client:
            operator = Caller(client, "")
            plan = {"name": "several", "plan": "enterprise_plus"}
            made = operator.post("/tenants", plan, status=201)
            key = operator.post(f"/tenants/{made['id']}/api-keys", status=201)
        with client_of(url, key["api_key"]) as client:
            Caller(client, made["id"]).post(
                "/kms/keys/generate", {"algorithm": "Kyber768"}, status=201
            )
        api_key = key["api_key"]
        yield SeveralGateways(layout, process.pid, output, url, management, api_key, credential)


@contextmanager
def load(several: SeveralGateways) -> Iterator[Counter[str]]:
    """Send requests over kept and new connections; yield the results."""
    seen: Counter[str] = Counter()
    stop = threading.Event()
    headers = {"X-API-Key": several.api_key}

    def send(*, keeps: bool) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(new_client())
            while not stop.wait(PAUSE_SECONDS):
                if not keeps:
                    client = new_client()
                try:
                    response = client.post(several.url + PATH, json=BODY, headers=headers)
                    seen[str(response.status_code)] += 1
                    if keeps and response.headers.get("connection") == "close":
                        seen["last of a connection"] += 1
                except httpx2.HTTPError as error:
                    seen[type(error).__name__] += 1
                if not keeps:
                    client.close()

    threads = [threading.Thread(target=send, kwargs={"keeps": n % 2 == 0}) for n in range(6)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS)


def test_every_gateway_serves_and_is_seen(several: SeveralGateways) -> None:
    """New connections reach each process. Their metrics have successive ports."""
    for _ in range(60):
        until_healthy(several.url)
    assert len(several.gateways()) == COUNT
    for url in several.management:
        assert "\npqkeep_requests_total{" in get(f"{url}/metrics").text


@pytest.mark.parametrize("number", range(COUNT))
def test_the_others_take_the_new_connections_of_one_that_hangs(
    several: SeveralGateways, number: int
) -> None:
    """While a gateway is stopped (SIGSTOP), each of forty new connections is served."""
    stopped = sorted(several.settled())[number]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(new_client()) for _ in range(40)]
            statuses = {each.get(f"{several.url}/healthz").status_code for each in clients}
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert statuses == {OK}


@pytest.mark.threat("rate-limit-store")
def test_the_valkey_is_the_gateways_alone(several: SeveralGateways) -> None:
    """Valkey's folder and socket belong to the gateway's user. Its clients cannot administer it."""
    (path,) = several.layout.valkey.glob("*.sock")
    for each, mode in ((several.layout.valkey, 0o700), (path, 0o700)):
        assert each.stat().st_uid == GATEWAY
        assert stat.S_IMODE(each.stat().st_mode) == mode
    ask = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(b"CONFIG GET *\\r\\n")
print(peer.recv(100).split()[0].decode())
"""
    assert run_as(GATEWAY, ask, path) == "-NOPERM"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.campaign)])
def test_reloads_under_load_refuse_and_break_nothing(several: SeveralGateways, times: int) -> None:
    """During SIGHUPs every request on kept and new connections gets its response."""
    before = several.gateways()
    renewed = several.output.read_text().count("a process was renewed")
    with load(several) as seen:
        for number in range(1, times + 1):
            os.kill(several.pid, signal.SIGHUP)
            several.until("a process was renewed", renewed + COUNT * number)
        several.until_gone(before)  # they wait for their connections' next requests
    assert set(seen) == {"200", "last of a connection"}


@pytest.mark.timeout(600)
def test_changed_settings_are_those_of_the_next_requests(several: SeveralGateways) -> None:
    """After SIGHUP a changed setting applies on every gateway."""
    renewed = several.output.read_text().count("a process was renewed")
    several.change(access_log=True)
    os.kill(several.pid, signal.SIGHUP)
    several.until("a process was renewed", renewed + COUNT)
    lines = several.output.read_text().count('"route": "/healthz"')
    for _ in range(20):
        get(f"{several.url}/healthz")
    several.until('"route": "/healthz"', lines + 20)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session_lifetime_days": 0}, "session_lifetime_days"),
        ({"port": 1}, "changed settings need a restart: port"),
        ({"plans_file": "missing.toml"}, "a new process did not start"),
    ],
)
def test_settings_that_cannot_be_used_change_nothing(
    several: SeveralGateways, settings: dict[str, object], message: str
) -> None:
    """The running gateways continue, and the log says why the new settings do not apply."""
    file = several.layout.gateway_settings
    text, before = file.read_text(), several.settled()
    said = several.output.read_text().count(message)
    try:
        several.change(**settings)
        os.kill(several.pid, signal.SIGHUP)
        several.until(message, said + 1)
    finally:
        file.write_text(text)
    assert before <= several.gateways()
    until_healthy(several.url)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_an_added_shard_is_served_after_a_renewal(several: SeveralGateways) -> None:
    """SIGHUP starts its key service and renews every gateway, under load and without an error."""
    before = several.settled()
    added = pqkeepd("shard", "add", "b", "--data", several.layout.directory)
    assert added.returncode == 0, added.stderr
    renewed = several.output.read_text().count("a process was renewed")
    with load(several) as seen:
        os.kill(several.pid, signal.SIGHUP)
        several.until("a process was renewed", renewed + COUNT)
        several.until_gone(before)
    assert set(seen) == {"200", "last of a connection"}
    deadline = time.monotonic() + SECONDS
    while any(get(f"{each}/readyz").json()["degraded"] for each in several.management):
        assert time.monotonic() < deadline, several.output.read_text()
    with client_of(several.url, several.operator_key) as client:
        operator = Caller(client, "")
        plan = {"name": "in b", "plan": "enterprise_plus", "shard": "b"}
        made = operator.post("/tenants", plan, status=201)
        key = operator.post(f"/tenants/{made['id']}/api-keys", status=201)["api_key"]
    with client_of(several.url, key) as client:
        tenant = Caller(client, made["id"])
        tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    for _ in range(10 * COUNT):  # the kernel chooses the gateway of a new connection
        with client_of(several.url, key) as client:
            made = Caller(client, "").post("/kem/encrypt", BODY)
            secret = {name: made[name] for name in ("ciphertext", "key_version")}
            assert Caller(client, "").post("/kem/decrypt", secret)["plaintext"] == BODY["plaintext"]
    listed = pqkeepd("shard", "list", "--data", several.layout.directory).stdout
    assert "b\t1 tenant\topen\t0 moves" in listed.splitlines()


def test_a_port_that_another_program_has_is_refused(several: SeveralGateways, folder: Path) -> None:
    """Another installation with several gateways cannot share this one's port."""
    layout, _ = initialised(folder / "another")
    layout.start_settings.write_text("gateways = 2\n")
    port = int(several.url.rpartition(":")[2])
    file = layout.gateway_settings
    file.write_text(edited(file.read_text(), {"port": port, "management_address": "off"}))
    ended = pqkeepd("start", "--data", layout.directory)
    assert ended.returncode == os.EX_CONFIG
    assert f"cannot listen on 127.0.0.1, port {port}" in ended.stderr


def test_without_a_valkey_it_is_said_what_to_do(folder: Path) -> None:
    """Two gateways without shared rate limits are refused with status 78."""
    layout, _ = initialised(folder / "none")
    layout.start_settings.write_text('gateways = 2\nvalkey_server = "missing"\n')
    file = layout.gateway_settings
    file.write_text(edited(file.read_text(), {"port": 0, "management_address": "off"}))
    ended = pqkeepd("start", "--data", layout.directory)
    assert ended.returncode == os.EX_CONFIG
    assert "valkey_server: the program" in ended.stderr
