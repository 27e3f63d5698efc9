"""Gateway and key service as on two hosts: real processes, mutual TLS, and a relay."""

from __future__ import annotations

import base64
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from tests.faults.conftest import gateway_process, until_healthy
from tests.fixtures.key_service import running_key_service
from tests.fixtures.processes import HOST, children_by_module, free_port
from tests.fixtures.relay import Relay, unchanged
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.link import Role
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.link_certificates import issue
from pqkeep_server.settings_file import edited

CANARY = b"a plaintext that nobody between them reads"
LARGE = bytes(100_000)
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65


@dataclass
class TwoHosts:
    """A gateway and a key service that authenticate by certificates."""

    client: httpx2.Client
    relay: Relay
    port: int
    """The key service's."""
    certificates: Path
    outputs: Sequence[Path]
    processes: Sequence[int]

    def post(self, path: str, body: dict[str, object]) -> httpx2.Response:
        return self.client.post(f"/api/v1{path}", json=body)

    def encrypt(self, plaintext: bytes) -> httpx2.Response:
        return self.post("/kem/encrypt", {"plaintext": base64.b64encode(plaintext).decode()})

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, [each.read_text() for each in self.outputs]
            time.sleep(0.02)


def make(directory: Path, *, renew: bool = False) -> Path:
    """Make certificates, as ``pqkeepd certificates`` does."""
    hosts = [(Role.GATEWAY, HOST), (Role.KEY_SERVICE, HOST)]
    issue(directory, hosts, algorithm=None, days=90, renew=renew)
    return directory


def connect_by_tls(layout: Layout, certificates: Path, port: int, relay: int) -> None:
    """Configure both processes for two hosts."""
    own = {"certificate": "certificate.pem", "key": "key.pem", "ca": "ca.pem"}
    for path, folder, settings, address in (
        (
            layout.key_service_settings,
            certificates / f"keyservice-{HOST}",
            {"socket": None, "gateway_uid": None},
            {"listen": f"{HOST}:{port}"},
        ),
        (
            layout.gateway_settings,
            certificates / f"gateway-{HOST}",
            {"key_service_socket": None},
            {"key_service": f"{HOST}:{relay}"},
        ),
    ):
        files = {name: str(folder / file) for name, file in own.items()}
        path.write_text(edited(path.read_text(), {**settings, "link": {**address, **files}}))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """Yield two hosts: a gateway, a key service, and a tenant with keys."""
    folder = tmp_path_factory.mktemp("hosts")
    layout, outputs = Layout(folder / "data"), (folder / "keys", folder / "gateway")
    operator_key = new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator_key, signup="operator")
    certificates, port = make(folder / "certificates"), free_port()
    with ExitStack() as stack:
        relay = stack.enter_context(Relay(port))
        connect_by_tls(layout, certificates, port, relay.port)
        key_service = stack.enter_context(
            running_key_service(layout.key_service_settings, outputs[0], is_forked=False)
        )
        url = stack.enter_context(gateway_process(layout, outputs[1], is_forked=False))
        client = stack.enter_context(httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False))
        until_healthy(client)
        make_tenant(client, operator_key)
        gateway = children_by_module(os.getpid())["pqkeep_gateway"]  # the newest
        yield TwoHosts(client, relay, port, certificates, outputs, (key_service.pid, gateway))


def make_tenant(client: httpx2.Client, operator_key: str) -> None:
    """Make a tenant with keys, and use its API key for the client."""
    operator = {"X-API-Key": operator_key}
    tenant = client.post(
        "/api/v1/tenants", json={"name": "x", "plan": "enterprise_plus"}, headers=operator
    ).json()["data"]
    made = client.post(f"/api/v1/tenants/{tenant['id']}/api-keys", headers=operator)
    client.headers["X-API-Key"] = made.json()["data"]["api_key"]
    for algorithm in (KEM, SIGNATURE):
        made = client.post("/api/v1/kms/keys/generate", json={"algorithm": algorithm})
        made.raise_for_status()


@pytest.fixture
def link(hosts: TwoHosts) -> Iterator[TwoHosts]:
    """The established link. Its relay is honest again after the test."""
    until_healthy(hosts.client)
    yield hosts
    hosts.relay.tamper = unchanged


@pytest.mark.threat("link-attacker")
def test_operations_go_over_the_link(link: TwoHosts) -> None:
    """Encryption works over the link, and the link's traffic has no plaintext."""
    response = link.encrypt(CANARY)
    assert response.status_code == 200
    encrypted = {**response.json()["data"], "algorithm": KEM}
    fields = {name: encrypted[name] for name in ("algorithm", "ciphertext", "key_version")}
    decrypted = link.post("/kem/decrypt", fields).json()["data"]
    assert base64.b64decode(decrypted["plaintext"]) == CANARY
    passed = b"".join(map(b"".join, link.relay.sent)) + link.relay.received
    assert passed
    assert CANARY not in passed


def test_a_reload_drops_no_connection(link: TwoHosts) -> None:
    """After SIGHUP both ends use renewed certificates, and their connection stays."""
    before = len(link.relay.sent)
    make(link.certificates, renew=True)
    for process, output in zip(link.processes, link.outputs, strict=True):
        os.kill(process, signal.SIGHUP)
        link.until(lambda: "the link's certificate is reloaded" in output.read_text())  # noqa: B023 - at once
    assert link.encrypt(CANARY).status_code == 200
    assert len(link.relay.sent) == before
    identity = link.certificates / f"gateway-{HOST}"
    context = ssl.create_default_context(cafile=identity / "ca.pem")
    context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
    with (
        socket.create_connection((HOST, link.port)) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    renewed = (link.certificates / f"keyservice-{HOST}" / "certificate.pem").read_text()
    assert shown == ssl.PEM_cert_to_DER_cert(renewed)


def test_a_cut_link_recovers(link: TwoHosts) -> None:
    """After a cut of the link, the gateway reconnects by itself."""
    before = len(link.relay.sent)
    link.relay.cut()
    link.until(lambda: len(link.relay.sent) > before)
    until_healthy(link.client)
    assert link.encrypt(CANARY).status_code == 200


def version(link: TwoHosts) -> int:
    """Return the version of the active signature key."""
    response = link.post("/signature/sign", {"message": "QUJD"}).json()["data"]
    return int(response["key_version"])


@pytest.mark.threat("link-attacker")
def test_a_replayed_connection_does_nothing(link: TwoHosts) -> None:
    """A replay of a gateway's whole connection gets no response and changes nothing."""
    link.post("/kms/keys/rotate", {"algorithm": SIGNATURE}).raise_for_status()
    after = version(link)
    log = link.outputs[0].read_text()
    with socket.create_connection((HOST, link.port), PATIENCE) as replayed:
        replayed.sendall(b"".join(link.relay.sent[-1]))
        with suppress(ConnectionError):
            while replayed.recv(65536):  # the key service's half of a handshake
                pass
    link.until(lambda: "a handshake of the link failed" in link.outputs[0].read_text()[len(log) :])
    assert version(link) == after


@pytest.mark.threat("link-attacker")
def test_a_replayed_record_is_not_executed_twice(link: TwoHosts) -> None:
    """A repeated TLS record ends the connection, and its content is executed at most once."""
    before, connections = version(link), len(link.relay.sent)
    link.relay.tamper = lambda record: (record, record)
    link.post("/kms/keys/rotate", {"algorithm": SIGNATURE})
    link.relay.tamper = unchanged
    link.until(lambda: len(link.relay.sent) > connections)
    until_healthy(link.client)
    assert version(link) - before <= 1


@pytest.mark.threat("link-attacker")
def test_reordered_records_are_not_read(link: TwoHosts) -> None:
    """Reordered records end the connection. The call fails, and later calls succeed."""
    held: list[bytes] = []

    def swap(record: bytes) -> Sequence[bytes]:
        if not held:
            held.append(record)
            return ()
        link.relay.tamper = unchanged
        return (record, *held)

    connections = len(link.relay.sent)
    link.relay.tamper = swap
    assert link.encrypt(LARGE).status_code == 503
    link.until(lambda: len(link.relay.sent) > connections)
    until_healthy(link.client)
    assert link.encrypt(LARGE).status_code == 200
