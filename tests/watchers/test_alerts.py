"""Each alert is silent in a healthy installation, and active as soon as its fault occurs.

``make watchers`` runs the faults in real installations. An alert's ``for`` is not waited for.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.docs.runbooks import Shell, diagnosis, inline, places_of, scripts
from tests.docs.test_dashboard_and_alerts import alert_rules
from tests.e2e.test_refused_events import LATE
from tests.faults.conftest import gateway_process, until_healthy
from tests.faults.test_disk_full import _LIBC, limit_of
from tests.faults.test_two_hosts import connect_by_tls, make_tenant
from tests.fixtures import processes
from tests.fixtures.certificate import new_certificate
from tests.fixtures.installation import Installation, initialise_data, running
from tests.fixtures.witness import Witness, serving
from tests.patience import PATIENCE
from tests.standby.conftest import running_pair
from tests.watchers.conftest import Prometheus
from tests.witnesses.conftest import with_witness

from pqkeep_gateway.http.connection import LIMITS
from pqkeep_gateway.management.readiness import CHECK_SECONDS
from pqkeep_protocol.link import Role
from pqkeep_server.initialise import IN_FILES, Layout
from pqkeep_server.link_certificates import issue
from pqkeep_server.settings_file import edited

if TYPE_CHECKING:
    from tests.fixtures.postgresql import PostgresServer

T = TypeVar("T", bound=Callable[..., object])
SHOWN: set[str] = set()
"""The alerts with a fault in this file."""
EXPECTED = frozenset({"PqkeepNoBackup"})
"""The alerts of a new installation without a backup."""
BUSY = frozenset({"PqkeepEventLoopLag", "PqkeepSlow"})
"""The alerts of a machine that does other work, too."""
STARTED = "pqkeep_key_service_start_time_seconds"
DAY = 86400.0
KEM = {"algorithm": "Kyber768"}
PQKEEPD = processes.PQKEEPD


def shows(*alerts: str) -> Callable[[T], T]:
    """Name the alerts that a campaign's test shows."""
    SHOWN.update(alerts)

    def mark(test: T) -> T:
        marked: T = pytest.mark.campaign(pytest.mark.timeout(600)(test))
        return marked

    return mark


@pytest.fixture
def healthy(tmp_path: Path, prometheus: Prometheus) -> Iterator[Installation]:
    """A healthy installation that is watched. No other alert than EXPECTED is active."""
    with running(tmp_path, settings={}) as installation:
        watch(prometheus, installation)
        yield installation


def watch(prometheus: Prometheus, installation: Installation) -> None:
    """Watch an installation; check that it is silent."""
    demo = installation.demo()
    demo.ask("POST", "/kms/keys/generate", KEM)
    demo.post("/kem/encrypt", {"plaintext": "AAAA"})
    prometheus.targets = (installation.ready["management_url"],)
    prometheus.until_silent("PqkeepNotReady")
    prometheus.until_only(EXPECTED, BUSY)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def key_service_of(installation: Installation) -> int:
    """Return the key service's process id."""
    return installation.children()["pqkeep_keyservice"]


def gateway_of(installation: Installation) -> int:
    """Return the gateway's process id."""
    return installation.children()["pqkeep_gateway"]


def change(installation: Installation, statement: str, *values: object) -> None:
    """Change the accounts database."""
    path = installation.data / "gateway" / "accounts.sqlite3"
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as database, database:
        assert database.execute(statement, values).rowcount > 0


def test_each_alert_has_a_fault() -> None:
    """Each alert rule has a fault that it is shown to see."""
    assert {rule["alert"] for rule in alert_rules()} == SHOWN


@shows("PqkeepDown")
def test_a_gateway_that_ended(healthy: Installation, prometheus: Prometheus) -> None:
    """A gateway that does not respond is down."""
    healthy.stop()
    prometheus.until("PqkeepDown")


@shows("PqkeepNotReady", "PqkeepShardNotReady", "PqkeepServerErrors", "PqkeepAuditEventsDelayed")
def test_a_key_service_that_hangs(
    healthy: Installation, prometheus: Prometheus, shell: Shell
) -> None:
    """A hanging key service is noticed, with the failed requests and the waiting events."""
    (doctor,) = scripts("A part is not ready", places_of(healthy))
    headers = {"X-API-Key": healthy.ready["api_key"]}
    with (
        stopped(key_service_of(healthy)),
        httpx2.Client(
            base_url=healthy.base_url, headers=headers, timeout=PATIENCE, trust_env=False
        ) as client,
    ):
        prometheus.until("PqkeepNotReady", "PqkeepShardNotReady")
        assert "key_service" in shell(diagnosis(doctor), {})
        operator = {"X-API-Key": healthy.ready["operator_key"]}
        tenant = {"name": "waits", "plan": "free"}
        client.post("/api/v1/tenants", json=tenant, headers=operator)
        change(healthy, "UPDATE audit_outbox SET at_us = at_us - 100000000")
        prometheus.until(
            "PqkeepServerErrors",
            "PqkeepAuditEventsDelayed",
            do=lambda: client.post("/api/v1/kem/encrypt", json={"plaintext": "AAAA"}),
        )
    prometheus.until_silent("PqkeepNotReady", "PqkeepShardNotReady", "PqkeepAuditEventsDelayed")


@shows("PqkeepSlow")
def test_slow_operations(healthy: Installation, prometheus: Prometheus) -> None:
    """Operations that wait for a slow key service are noticed."""
    demo, key_service = healthy.demo(), key_service_of(healthy)

    def slow() -> None:
        os.kill(key_service, signal.SIGSTOP)
        with ExitStack() as stack:
            stack.callback(os.kill, key_service, signal.SIGCONT)
            stack.enter_context(continued(key_service, 0.8))
            demo.post("/kem/encrypt", {"plaintext": "AAAA"})

    prometheus.until("PqkeepSlow", do=slow)


@contextmanager
def continued(pid: int, seconds: float) -> Iterator[None]:
    """Let a stopped process continue after some seconds."""
    words = ["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {pid}"]
    with subprocess.Popen(words) as later:
        yield
        later.wait()


@shows("PqkeepEventLoopLag")
def test_a_late_event_loop(healthy: Installation, prometheus: Prometheus) -> None:
    """A process that does not get a core for half a second is noticed."""

    def pause() -> None:
        with stopped(gateway_of(healthy)):
            time.sleep(1.0)
        time.sleep(0.6)

    prometheus.until("PqkeepEventLoopLag", do=pause)


@shows("PqkeepKeyServiceClock")
def test_a_wrong_clock(healthy: Installation, prometheus: Prometheus, shell: Shell) -> None:
    """A key service's clock that differs from Prometheus's is noticed. No event was refused."""
    prometheus.until("PqkeepKeyServiceClock", ahead=30)
    (refused,) = inline("A clock is wrong", places_of(healthy))
    assert not shell(refused, {})


@shows("PqkeepAuditEventsRefused", "PqkeepMailDelayed")
def test_events_and_mails_that_stay(
    healthy: Installation, prometheus: Prometheus, shell: Shell
) -> None:
    """An event that the audit log refused, and an undelivered e-mail, are noticed."""
    change(
        healthy,
        "INSERT INTO audit_outbox (id, at_us, event, refusal, shard)"
        " VALUES ('2', ?, x'00', 'unreadable', 'default')",
        LATE,
    )
    prometheus.until("PqkeepAuditEventsRefused")
    listed, acknowledged = inline("The audit log refused an event", places_of(healthy))
    assert "unreadable" in shell(listed, {})
    shell(acknowledged, {})
    prometheus.until_silent("PqkeepAuditEventsRefused")
    shutil.rmtree(healthy.mailbox.folder)
    healthy.mailbox.folder.write_text("no folder")
    person = healthy.person(healthy.new_tenant().tenant_id, email="ada@example.org")
    person.ask("POST", "/auth/password-reset", {"email": "ada@example.org"})
    change(healthy, "UPDATE outgoing_mail SET created_at_us = created_at_us - 1000000000")
    prometheus.until("PqkeepMailDelayed")


@shows("PqkeepNoBackup", "PqkeepBackupOld")
def test_backups(healthy: Installation, prometheus: Prometheus, tmp_path: Path) -> None:
    """A missing backup is noticed until there is one, and a backup of three days ago."""
    prometheus.until("PqkeepNoBackup")
    private, public = tmp_path / "private", tmp_path / "public"
    commands: list[list[str | Path]] = [
        ["recovery-key", "create", "--private", private, "--public", public],
        ["backup", "--data", healthy.data, "--recovery-key", public, "--to", tmp_path / "backup"],
    ]
    for words in commands:
        subprocess.run([PQKEEPD, *words], check=True, capture_output=True)
    prometheus.until_silent("PqkeepNoBackup")
    assert "PqkeepBackupOld" not in prometheus.active()
    prometheus.until("PqkeepBackupOld", ahead=3 * DAY)


@shows("PqkeepFilesNearLimit")
def test_descriptors(healthy: Installation, prometheus: Prometheus) -> None:
    """A process near its limit of open files is noticed, until the limit is raised."""
    for pid in (key_service_of(healthy), gateway_of(healthy)):
        is_open = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (is_open + 4, before[1]))
        prometheus.until("PqkeepFilesNearLimit")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        prometheus.until_silent("PqkeepFilesNearLimit")


@shows("PqkeepRestarts")
def test_killed_processes(healthy: Installation, prometheus: Prometheus) -> None:
    """Alerts name processes that were killed twice, as if for their memory."""
    for _ in range(2):
        started = prometheus.value(STARTED)
        os.kill(key_service_of(healthy), signal.SIGKILL)
        prometheus.until_other(STARTED, started)
    prometheus.until("PqkeepRestarts")


@shows("PqkeepCredentialsRefused", "PqkeepRateLimitNear", "PqkeepRateLimitReached")
def test_wrong_and_busy_clients(healthy: Installation, prometheus: Prometheus) -> None:
    """A client with a wrong credential, and one at its rate limit, are noticed."""
    stranger = healthy.caller("pqk_" + "0" * 49)

    def guess() -> None:
        for _ in range(100):
            assert stranger.ask("GET", "/kms/keys").status_code == 401

    guess()
    prometheus.until("PqkeepCredentialsRefused", do=guess)
    tenant = healthy.new_tenant()
    limit = {"requests_per_minute": 10}
    healthy.operator().ask("PATCH", f"/tenants/{tenant.tenant_id}", limit)
    for _ in range(9):
        assert tenant.ask("GET", "/kms/keys").is_success
    prometheus.until("PqkeepRateLimitNear")
    assert "PqkeepRateLimitReached" not in prometheus.active()
    while tenant.ask("GET", "/kms/keys").is_success:
        pass
    prometheus.until("PqkeepRateLimitReached")


@shows("PqkeepQuotaNear", "PqkeepQuotaReached")
def test_quotas(healthy: Installation, prometheus: Prometheus) -> None:
    """Alerts name a tenant near its monthly quota, and a tenant that has used up its quota."""
    tenant = healthy.new_tenant("free")
    tenant.post("/kms/keys/generate", KEM, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "AAAA"})
    change(healthy, "UPDATE usage SET operations = 850 WHERE operations = 1")
    tenant.post("/kem/encrypt", {"plaintext": "AAAA"})
    prometheus.until("PqkeepQuotaNear")
    assert "PqkeepQuotaReached" not in prometheus.active()
    change(healthy, "UPDATE usage SET operations = 1000 WHERE operations = 851")
    assert tenant.ask("POST", "/kem/encrypt", {"plaintext": "AAAA"}).status_code == 403
    prometheus.until("PqkeepQuotaReached")


@shows("PqkeepWarnedOperations")
def test_a_rule_with_a_date(healthy: Installation, prometheus: Prometheus) -> None:
    """Operations that a rule will deny are noticed."""
    demo = healthy.demo()
    person = healthy.person(demo.tenant_id)
    rule = {"algorithms": ["Kyber768"], "warn_from": "2026-01-01T00:00:00Z"}
    person.ask_proven("PUT", "/rules/algorithms/end", rule).raise_for_status()
    assert "PqkeepWarnedOperations" not in prometheus.active()
    demo.post("/kem/encrypt", {"plaintext": "AAAA"})
    prometheus.until("PqkeepWarnedOperations")


@shows("PqkeepAuditCommitsFail")
def test_commits_that_fail(healthy: Installation, prometheus: Prometheus, shell: Shell) -> None:
    """Audit records that cannot be written are noticed."""
    (doctor,) = scripts("The audit log is behind", places_of(healthy))
    with limit_of("pqkeep_keyservice")(healthy):
        prometheus.until("PqkeepAuditCommitsFail", "PqkeepNotReady", do=partial(encrypt, healthy))
        assert "keys_database" in shell(diagnosis(doctor), {})


def encrypt(installation: Installation) -> int:
    """Return the status of an encryption, which may fail."""
    return httpx2.post(
        f"{installation.base_url}/api/v1/kem/encrypt",
        json={"plaintext": "AAAA"},
        headers={"X-API-Key": installation.ready["api_key"]},
        timeout=PATIENCE,
        trust_env=False,
    ).status_code


@shows("PqkeepDiskLow", "PqkeepDiskFills")
def test_a_disk_that_fills(tmp_path: Path, prometheus: Prometheus) -> None:
    """Alerts name a disk with less than 1 GiB, and a disk that will soon be full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if _LIBC.mount(b"none", bytes(disk), b"tmpfs", 0, b"size=1100m"):
        pytest.skip("cannot mount a file system here")
    try:
        with running(tmp_path, data=disk / "data", settings={}) as installation:
            watch(prometheus, installation)
            (disk / "ballast").write_bytes(bytes(150 << 20))
            prometheus.until("PqkeepDiskLow", "PqkeepDiskFills")
            (disk / "ballast").unlink()
            prometheus.until_silent("PqkeepDiskLow")
    finally:
        _LIBC.umount2(bytes(disk), 0)


@shows("PqkeepConnectionsRefused")
def test_too_many_connections(healthy: Installation, prometheus: Prometheus) -> None:
    """A client that opens more connections than an address may have is noticed."""
    url = urlsplit(healthy.base_url)
    assert url.hostname is not None
    address = url.hostname, url.port
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)

        def flood() -> None:
            for _ in range(LIMITS.per_address):
                stack.enter_context(socket.create_connection(address))

        prometheus.until("PqkeepConnectionsRefused", do=flood)


BEHIND = """
import time
real = time.time_ns
time.time_ns = lambda: real() - 600 * 10**9
"""
AHEAD = """
import time
real = time.time_ns
time.time_ns = lambda: real() + 2 * 24 * 3600 * 10**9
"""
UNSIGNED = """
import asyncio
from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
async def hang(self):
    await asyncio.Event().wait()
CheckpointSigner._run = hang
"""
FAULTY = """
from pqkeep_keyservice import server
def fail(_):
    raise RuntimeError
server.keyless.respond = fail
"""
"""Faults of a key service: code that runs at its start."""


@dataclass(frozen=True)
class Watched:
    """A gateway and a key service of their own, with a tenant."""

    client: httpx2.Client
    gateway: int

    def post(self, path: str, body: object) -> httpx2.Response:
        """Send a request of the tenant."""
        return self.client.post(f"/api/v1{path}", json=body)


@contextmanager
def watched(
    layout: Layout,
    prometheus: Prometheus,
    fault: str = "",
    *,
    tls: bool | ssl.SSLContext = True,
    makes_tenant: bool = True,
) -> Iterator[Watched]:
    """Run and watch a gateway, and a key service with a fault."""
    folder = layout.directory
    code = f"import sys\nfrom pqkeep_keyservice.process import main\n{fault}\nsys.exit(main())"
    words: list[str | Path] = [sys.executable, "-P", "-c", code, layout.key_service_settings]
    operator_key = json.loads(layout.development_credentials.read_text())["operator_key"]
    with ExitStack() as stack:
        stack.enter_context(processes.running(words, folder / "keys"))
        management = stack.enter_context(socket.create_server((processes.HOST, 0)))
        prometheus.targets = (f"http://{processes.HOST}:{management.getsockname()[1]}",)
        url = stack.enter_context(
            gateway_process(layout, folder / "gateway.log", is_forked=False, management=management)
        )
        if tls is not True:
            url = url.replace("http:", "https:")
        client = stack.enter_context(
            httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False, verify=tls)
        )
        until_healthy(client)
        if makes_tenant:
            make_tenant(client, operator_key)
            time.sleep(CHECK_SECONDS + 1)  # no older number is scraped
        (pid,) = processes.children_that_run("pqkeep_gateway", os.getpid())
        yield Watched(client, pid)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A data directory for ``watched``."""
    initialise_data(tmp_path / "data", IN_FILES, {})
    return Layout(tmp_path / "data")


@shows("PqkeepInternalErrors")
def test_internal_errors(layout: Layout, prometheus: Prometheus) -> None:
    """One unexpected error of a part is noticed, also the first one."""
    with watched(layout, prometheus, FAULTY) as running:
        prometheus.until_silent("PqkeepInternalErrors", "PqkeepNotReady")
        assert running.post("/tools/random", {}).status_code == 500
        prometheus.until("PqkeepInternalErrors")


@shows("PqkeepAuditLogUnsigned")
def test_an_unsigned_log(layout: Layout, prometheus: Prometheus) -> None:
    """An audit log that grows without checkpoints is noticed."""
    with watched(layout, prometheus, UNSIGNED):
        prometheus.until("PqkeepAuditLogUnsigned")


@shows("PqkeepAuditSinkBehind")
def test_a_sink_that_is_gone(layout: Layout, prometheus: Prometheus) -> None:
    """An alert names a sink that lacks the records of ten minutes.

    It ends when the sink accepts them.
    """
    sink = layout.gateway / "sink"
    settings = layout.gateway_settings.read_text()
    layout.gateway_settings.write_text(edited(settings, {"audit_sink": f"file://{sink}/log"}))
    with watched(layout, prometheus, BEHIND):
        prometheus.until("PqkeepAuditSinkBehind")
        sink.mkdir()
        prometheus.until_silent("PqkeepAuditSinkBehind")


@shows("PqkeepScheduleDue")
def test_a_due_rotation(tmp_path: Path, prometheus: Prometheus) -> None:
    """A key that is due to be rotated, which a rule denies, is noticed."""
    with running(tmp_path, settings={}) as installation:
        demo = installation.demo()
        person = installation.person(demo.tenant_id)
        demo.post("/kms/keyrings", {"name": "old", "rotation_days": 1}, status=201)
        demo.post("/kms/keys/generate", {**KEM, "keyring": "old"}, status=201)
        rule = {"algorithms": ["Kyber768"], "deny_from": "2026-01-01T00:00:00Z"}
        person.ask_proven("PUT", "/rules/algorithms/end", rule).raise_for_status()
        watch_silent(prometheus, installation)
    prometheus.is_known = False
    with watched(Layout(tmp_path / "data"), prometheus, AHEAD):
        prometheus.until("PqkeepScheduleDue")


def watch_silent(prometheus: Prometheus, installation: Installation) -> None:
    """Check that an installation has no key that is due."""
    prometheus.targets = (installation.ready["management_url"],)
    assert "PqkeepScheduleDue" not in prometheus.active()


@shows("PqkeepCertificateExpires")
def test_a_certificate(
    layout: Layout, prometheus: Prometheus, shell: Shell, tmp_path: Path
) -> None:
    """A certificate that expires within two weeks is noticed, until the page's commands renew it."""
    certificate = new_certificate(layout.gateway, "gateway", timedelta(days=30))
    files = {"tls_certificate": str(certificate.path), "tls_key": str(certificate.key)}
    settings = layout.gateway_settings.read_text()
    layout.gateway_settings.write_text(edited(settings, files))
    with watched(layout, prometheus, tls=certificate.client()) as running:
        prometheus.until_silent("PqkeepCertificateExpires")
        new_certificate(layout.gateway, "gateway", timedelta(days=10))
        os.kill(running.gateway, signal.SIGHUP)
        prometheus.until("PqkeepCertificateExpires")
        address = urlsplit(str(running.client.base_url))
        places = {
            r"\bDIR/gateway/certificate.pem": str(certificate.path),
            r"\bDIR/gateway/key.pem": str(certificate.key),
            r"\bDIR\b": str(layout.directory),
            r"\bHOST:PORT\b": f"{address.hostname}:{address.port}",
            r"-o pqkeep-gateway -g pqkeep-gateway ": "",
        }
        look, replace, see = scripts("A certificate expired", places)
        doctor, renew = inline("A certificate expired", places)
        assert str(certificate.path) in shell(diagnosis(doctor), {})
        before, after = shell(look, {}), new_certificate(tmp_path, "new", timedelta(days=90))
        after.path.rename(tmp_path / "fullchain.pem")
        after.key.rename(tmp_path / "privkey.pem")
        shell(replace, {})
        os.kill(running.gateway, signal.SIGHUP)
        prometheus.until_silent("PqkeepCertificateExpires")
        assert shell(see, {}).strip() in shell(look, {})
        assert shell(look, {}) != before
    hosts = [(Role.GATEWAY, processes.HOST), (Role.KEY_SERVICE, processes.HOST)]
    issue(tmp_path / "link", hosts, algorithm=None, days=90, renew=False)
    link = tmp_path / "link" / f"gateway-{processes.HOST}" / "certificate.pem"
    first = link.read_bytes()
    shell(renew, {})
    assert link.read_bytes() != first


@shows("PqkeepLinkCertificateExpires")
def test_the_links_certificates(layout: Layout, prometheus: Prometheus) -> None:
    """The link's certificates, for ten days, are noticed; those for a year are not."""
    certificates, port = layout.directory / "link", processes.free_port()
    hosts = [(Role.GATEWAY, processes.HOST), (Role.KEY_SERVICE, processes.HOST)]
    issue(certificates, hosts, algorithm=None, days=90, renew=False)
    connect_by_tls(layout, certificates, port, port)
    with watched(layout, prometheus):
        assert "PqkeepLinkCertificateExpires" not in prometheus.active()
    shutil.rmtree(certificates)
    issue(certificates, hosts, algorithm=None, days=10, renew=False)
    prometheus.is_known = False
    with watched(layout, prometheus, makes_tenant=False):
        prometheus.until("PqkeepLinkCertificateExpires")


@shows("PqkeepWitnessesAway", "PqkeepWitnessConflict")
def test_a_witness(tmp_path: Path, prometheus: Prometheus, shell: Shell) -> None:
    """Alerts name a witness that never cosigned, or has another history, until it is repaired."""
    witness, data = Witness(), tmp_path / "data"

    @contextmanager
    def started() -> Iterator[Installation]:
        with running(tmp_path, data=data) as installation:  # each start submits a checkpoint
            installation.demo().get("/kms/keys")
            prometheus.targets = (installation.ready["management_url"],)
            yield installation

    with serving(witness.add_checkpoint) as url:
        with_witness(data, url, witness.vkey)
        with started() as installation:
            prometheus.until("PqkeepWitnessesAway")
            witness.trust(installation.demo().get("/audit/keys")["note_key"])
        with started():
            prometheus.until_silent("PqkeepWitnessesAway")
            assert "PqkeepWitnessConflict" not in prometheus.active()
        ((origin, known),) = witness.trees.items()
        witness.trees[origin] = known[0], bytes(32)
        with started() as installation:
            prometheus.until("PqkeepWitnessConflict")
            doctor, cosigned = inline("A witness does not cosign", places_of(installation))
            assert "has cosigned another history" in shell(diagnosis(doctor), {})
            environment = installation.environment(installation.ready["api_key"])
            assert witness.vkey.partition("+")[0] in shell(cosigned, environment)
        witness.trees[origin] = known
        with started():
            prometheus.until_silent("PqkeepWitnessConflict")
            assert "PqkeepWitnessesAway" not in prometheus.active()


@shows("PqkeepNoActiveKeyService", "PqkeepKeyServiceTookOver")
def test_a_standby(tmp_path: Path, prometheus: Prometheus, postgres_server: PostgresServer) -> None:
    """A takeover is noticed, and a time without an active key service."""
    with (
        running_pair(postgres_server, tmp_path) as pair,
        socket.create_server((processes.HOST, 0)) as management,
        gateway_process(pair.layout, tmp_path / "watched", management=management),
    ):
        prometheus.targets = (f"http://{processes.HOST}:{management.getsockname()[1]}",)
        prometheus.until_silent("PqkeepNotReady", "PqkeepNoActiveKeyService")
        assert "PqkeepKeyServiceTookOver" not in prometheus.active()
        pair.kill(pair.active())
        prometheus.until("PqkeepKeyServiceTookOver")
        with postgres_server.frozen(urlsplit(pair.stores.keys).path[1:]):
            prometheus.until("PqkeepNoActiveKeyService")
