"""An installation by init and start: two users that cannot reach each other's files."""

from __future__ import annotations

import base64
import os
import resource
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.caller import Caller, client_of
from tests.fixtures.certificate import new_certificate
from tests.fixtures.two_users import (
    ENVIRONMENT,
    GATEWAY,
    GROUP,
    IDS,
    KEY_SERVICE,
    STRANGER,
    initialised,
    pqkeepd,
    pqkeepd_program,
    python,
)
from tests.patience import PATIENCE

from pqkeep_protocol.link import Role
from pqkeep_server.backup import recovery_key
from pqkeep_server.initialise import Layout
from pqkeep_server.link_certificates import issue
from pqkeep_server.settings_file import edited

OK = 200
MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SECRETS = dict.fromkeys(
    (
        *("AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "PGPASSWORD", "PQKEEP_API_KEY", "SSLKEYLOGFILE"),
        *("PQKEEP_PROFILE", "VAULT_TOKEN", "USER", "TMPDIR"),
    ),
    "/nonexistent/secret-of-root",
)
BOTH = {"LC_TIME": "C", "TZ": "UTC", "SSL_CERT_DIR": "/etc/ssl/certs", "PGAPPNAME": "pqkeep"}
OF_THE_GATEWAY = {
    "PQKEEP_GATEWAY_ACCESS_LOG": "false",
    "OTEL_SERVICE_NAME": "pqkeep",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1",
}
OF_THE_KEY_SERVICE = {
    "PQKEEP_KEYSERVICE_LOG_FORMAT": "auto",
    "CREDENTIALS_DIRECTORY": "/run/credentials/pqkeep",
    "SOFTHSM2_CONF": "/etc/softhsm2.conf",
    "VENDORS_HSM_CONFIGURATION": "/etc/vendor",
}
OF_ROOT = {
    **processes.ENVIRONMENT,
    **SECRETS,
    **BOTH,
    **OF_THE_GATEWAY,
    **OF_THE_KEY_SERVICE,
    "PQKEEP_START_KEY_SERVICE_ENVIRONMENT": '["VENDORS_HSM_CONFIGURATION"]',
}
"""The environment of ``pqkeepd start``."""


def run_as(uid: int, program: str, *arguments: object) -> str:
    """Run a Python program as a user in pqkeep's group, or as a stranger; return its output."""
    ended = subprocess.run(
        [python(), "-c", program, *map(str, arguments)],
        user=uid,
        group=uid,
        extra_groups=[] if uid == STRANGER else [GROUP],
        cwd="/",
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@dataclass
class Production:
    """A running installation."""

    layout: Layout
    process: subprocess.Popen[bytes]
    output: Path
    port: int
    management: str
    """The management address."""
    tenant: Caller

    def pid(self, module: str) -> int:
        """Return a process's id."""
        return processes.children_by_module(self.process.pid)[module]

    def encrypts(self) -> bool:
        """Return True if encryption and decryption work."""
        body = {"plaintext": base64.b64encode(b"text").decode()}
        sealed = self.tenant.post("/kem/encrypt", body, status=200)
        fields = {name: sealed[name] for name in ("ciphertext", "key_version")}
        opened = self.tenant.post("/kem/decrypt", fields, status=200)
        return bool(opened["plaintext"] == body["plaintext"])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Make a folder that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="pqkeep-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture(scope="module")
def production(folder: Path) -> Iterator[Production]:
    """Run an installation."""
    layout, credential = initialised(folder / "data")
    port = processes.free_port()
    settings = layout.gateway_settings
    management = f"{processes.HOST}:{processes.free_port()}"
    changed = {"port": port, "management_address": management}
    settings.write_text(edited(settings.read_text(), changed))
    output, url = folder / "output", f"http://{processes.HOST}:{port}"

    def is_ready() -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{url}/healthz", timeout=PATIENCE).status_code == OK
        return False

    with processes.running(
        [*pqkeepd_program(), "start", "--data", layout.directory], output, environment=OF_ROOT
    ) as process:
        processes.wait_until(is_ready, process, output)
        with client_of(url, credential) as client:
            operator = Caller(client, "")
            made = operator.post("/tenants", {"name": "one", "plan": "enterprise"}, status=201)
            key = operator.post(f"/tenants/{made['id']}/api-keys", status=201)
        with client_of(url, key["api_key"]) as client:
            tenant = Caller(client, made["id"])
            tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
            yield Production(layout, process, output, port, management, tenant)


def owners(layout: Layout) -> dict[str, tuple[int, int]]:
    """Return owner and mode of all files in a data directory."""
    return {
        str(path.relative_to(layout.directory)): (
            path.lstat().st_uid,
            stat.S_IMODE(path.lstat().st_mode),
        )
        for path in layout.directory.rglob("*")
    }


def test_each_process_is_its_own_user(production: Production) -> None:
    """Both processes run as pqkeep's group without root's rights, new privileges or core dumps."""
    for module, uid in (("pqkeep_gateway", GATEWAY), ("pqkeep_keyservice", KEY_SERVICE)):
        proc = Path(f"/proc/{production.pid(module)}")
        status = dict(
            line.split(":\t", 1)
            for line in (proc / "status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["Uid"].split() == [str(uid)] * 4
        assert status["Gid"].split() == [str(uid)] * 4
        assert status["Groups"].split() == [str(GROUP)]
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) == 0
        (core,) = [line for line in (proc / "limits").read_text().splitlines() if "core" in line]
        assert core.split()[4:6] == ["0", "0"]
        assert (proc / "mem").stat().st_uid == 0  # root's: not dumpable


@pytest.mark.parametrize(
    ("module", "own", "home"),
    [
        ("pqkeep_gateway", OF_THE_GATEWAY, "gateway"),
        ("pqkeep_keyservice", OF_THE_KEY_SERVICE, "keyservice"),
    ],
)
def test_a_process_gets_only_its_variables(
    production: Production, module: str, own: dict[str, str], home: str
) -> None:
    """No process gets a variable of root that it does not read, whatever the name."""
    text = Path(f"/proc/{production.pid(module)}/environ").read_text()
    environment = dict(line.split("=", 1) for line in text.split("\0") if line)
    for made in ("PYTHONPATH", "LC_CTYPE"):  # of pqkeepd_program, and of Python for the C locale
        del environment[made]
    assert environment == {
        "PATH": processes.ENVIRONMENT["PATH"],
        "HOME": str(production.layout.directory / home),
        **BOTH,
        **own,
    }


def test_what_waits_holds_little_memory(production: Production) -> None:
    """After the first start, the supervisor uses at most 30 MB, and all processes 186 MB."""
    supervisor = production.process.pid
    modules = "pqkeep_gateway", "pqkeep_keyservice"
    others = {pid for each in modules for pid in processes.children_that_run(each, supervisor)}
    assert len(others) == len(modules)
    assert resident(supervisor) <= 30 * MIB
    assert resident(supervisor) + sum(map(resident, others)) <= 186 * MIB


def resident(pid: int) -> int:
    """Return a process's bytes in memory."""
    _, pages, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return int(pages) * resource.getpagesize()


def test_both_are_seen_from_outside(production: Production) -> None:
    """The configured management address reports that all parts are ready."""
    url = f"http://{production.management}"
    assert httpx2.get(f"{url}/readyz", timeout=PATIENCE, trust_env=False).status_code == 200
    metrics = httpx2.get(f"{url}/metrics", timeout=PATIENCE, trust_env=False).text
    assert '\npqkeep_keys_database_up{shard="default"} 1.0\n' in metrics


def test_every_file_has_its_owner(production: Production) -> None:
    """Each process's user owns its files. Other users can reach only the sockets."""
    assert production.encrypts()
    for name, (owner, mode) in owners(production.layout).items():
        first = name.partition("/")[0]
        if first in {"lock", "start.toml"}:
            assert (owner, mode) == (0, 0o600)
        elif first == "run":
            assert owner == KEY_SERVICE
            modes = {"run": 0o750, "run/keyservice.sock": 0o660, "run/operator.sock": 0o600}
            assert mode == modes[name]
        else:
            assert owner == {"gateway": GATEWAY, "keyservice": KEY_SERVICE}[first]
            assert mode & 0o077 == 0


JOURNAL = """
import sqlite3, struct, sys
database, named = sys.argv[1:]
connection = sqlite3.connect(database)
connection.execute("CREATE TABLE one (a)")
connection.commit()
(pages,), = connection.execute("PRAGMA page_count")
(size,), = connection.execute("PRAGMA page_size")
connection.close()
magic, name = bytes.fromhex("d9d505f920a163d7"), named.encode()
journal = magic + struct.pack(">5I", 0, 1, pages, 512, size).ljust(504, b"\\0")
journal += struct.pack(">I", 2**30 // size + 1) + name + struct.pack(">2I", len(name), sum(name))
open(database + "-journal", "wb").write(journal + magic)
"""


@pytest.mark.threat("compromised-gateway", "gateway-user")
def test_a_backup_by_root_does_nothing_that_the_gateway_could_not(folder: Path) -> None:
    """With a planted name in the gateway's journal, SQLite as root would delete the root key.

    It stays.
    """
    layout, _ = initialised(folder / "hostile")
    public = folder / "recovery.public"
    recovery_key.create("ML-KEM-1024", folder / "recovery.private", public)
    accounts, target = layout.gateway / "accounts.sqlite3", folder / "backup"
    run_as(GATEWAY, JOURNAL, accounts, layout.root_key)
    backup = ("backup", "--data", layout.directory, "--recovery-key", public, "--to", target)
    assert pqkeepd(*backup).returncode == 1
    assert layout.root_key.exists()
    assert not target.exists()


READ = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb").close()
        print("read", path)
    except PermissionError:
        pass
"""
PTRACE = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
    done = libc.ptrace(request, int(sys.argv[1]), None, None)
    print(done, errno.errorcode[ctypes.get_errno()])
"""


@pytest.mark.threat("compromised-gateway")
def test_the_gateways_user_reads_no_file_of_the_key_service(production: Production) -> None:
    """The gateway's user cannot read the key service's files or memory, while encryption works."""
    pid = production.pid("pqkeep_keyservice")
    files = [path for path in production.layout.key_service.rglob("*") if path.is_file()]
    assert {"root.key", "keys.sqlite3", "settings.toml"} <= {path.name for path in files}
    inside = [f"/proc/{pid}/{name}" for name in ("mem", "maps", "environ")]
    assert run_as(GATEWAY, READ, *files, *inside) == ""
    assert run_as(GATEWAY, READ, production.layout.pepper).startswith("read")
    assert run_as(GATEWAY, PTRACE, pid) == "-1 EPERM\n-1 EPERM"
    assert production.encrypts()


CONNECT = """
import socket, sys
from pqkeep_protocol.codec import Ping, encode
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(150)
try:
    peer.connect(sys.argv[1])
    peer.sendall(encode(Ping(1)))
    print(len(peer.recv(100)))
except PermissionError:
    print("closed")
except ConnectionError:
    print(0)
"""


def test_a_third_user_is_refused(production: Production) -> None:
    """Another user does not reach the socket, and gets no response even if modes allowed it."""
    layout = production.layout
    assert run_as(STRANGER, CONNECT, layout.socket) == "closed"
    assert run_as(GATEWAY, CONNECT, layout.operator_socket) == "closed"
    changed = (layout.run, layout.socket, layout.operator_socket)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in changed]
    try:
        for path in changed:
            path.chmod(0o777)
        assert run_as(STRANGER, CONNECT, layout.socket) == "0"
        assert run_as(0, CONNECT, layout.socket) == "0"
        assert run_as(GATEWAY, CONNECT, layout.operator_socket) == "0"
    finally:
        for path, mode in zip(changed, modes, strict=True):
            path.chmod(mode)
    assert run_as(GATEWAY, CONNECT, layout.socket) != "0"
    assert production.encrypts()


ASK = """
import socket, sys, time, uuid
from pqkeep_protocol.administration import ReloadRootKeys
from pqkeep_protocol.audit import Event, RecordEvents
from pqkeep_protocol.codec import TO_GATEWAY, Call, FrameDecoder, encode
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution
now = time.time_ns() // 1000
def event(operation, at_us):
    return Event(id=uuid.uuid4(), at_us=at_us, tenant=INSTALLATION, principal="p",
        operation=operation, algorithm=None, key_version=None, outcome="success",
        request_id="r", source_address="a", policy="")
events = (event("suspend-tenant", now), event("rotate-root-key", now), event("encrypt", now),
    event("suspend-tenant", now - 10**14), event("resume-tenant", now + 10**14))
peer, decoder = socket.socket(socket.AF_UNIX), FrameDecoder(TO_GATEWAY)
peer.settimeout(150)
peer.connect(sys.argv[1])
for number, request in enumerate((ReloadRootKeys(tenant=INSTALLATION),
        RecordEvents(tenant=INSTALLATION, events=events))):
    peer.sendall(encode(Call(number, 20000, Attribution("r", "p", "a", "y"), request)))
    frames = []
    while not frames:
        frames = list(decoder.filled(peer.recv_into(decoder.space())))
    if number == 0:
        print(frames[0].kind)
    else:
        refused = {each.id: each.reason for each in frames[0].result.refused}
        print(*(refused.get(each.id, "recorded") for each in events))
"""


@pytest.mark.threat("compromised-gateway")
def test_the_gateway_gets_no_administration(production: Production) -> None:
    """The gateway cannot administer. Its unlisted and wrongly timed events are refused."""
    administration, events = run_as(GATEWAY, ASK, production.layout.socket).splitlines()
    assert administration == "unsupported"
    assert events == "recorded not-an-event not-an-event out-of-time out-of-time"


def test_operators_are_the_gateways_user_s_too(production: Production) -> None:
    """The gateway's user can list operators, although only root can read the data directory's names."""
    ended = subprocess.run(
        [*pqkeepd_program(), "operator", "list", "--data", production.layout.directory],
        user=GATEWAY,
        group=GATEWAY,
        extra_groups=[GROUP],
        cwd="/",
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_start_says_what_makes_an_installation(folder: Path) -> None:
    """Without an installation, start names the directory and the command that makes one."""
    none = folder / "nothing"
    ended = pqkeepd("start", "--data", none)
    assert ended.returncode == os.EX_CONFIG
    assert ended.stderr == f"pqkeepd: {none} has no installation: make one with pqkeepd init\n"


@pytest.mark.parametrize(
    "command",
    [
        *(("operator", "list"), ("refused-events",), ("migrate",), ("migrate-store",)),
        *(("root-key", "rotate"), ("transfer-key", "rotate"), ("shard", "list")),
        ("backup", "--recovery-key", "recovery.public", "--to", "backup"),
    ],
)
def test_commands_say_what_makes_an_installation(folder: Path, command: tuple[str, ...]) -> None:
    """Without an installation, each command names the directory and the command that creates one."""
    none = folder / "nothing"
    ended = pqkeepd(*command, "--data", none)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"pqkeepd: {none} has no installation: make one with pqkeepd init\n"


def test_the_doctor_finds_what_is_wrong(production: Production) -> None:
    """Doctor approves a running installation, and names a file that others may read."""
    layout = production.layout
    well = pqkeepd("doctor", "--data", layout.directory)
    assert {"settings: good", "users: good", "files: good", "gateway: good"} <= set(
        well.stdout.splitlines()
    ), well.stdout
    layout.root_key.chmod(0o440)
    try:
        ill = pqkeepd("doctor", "--data", layout.directory)
    finally:
        layout.root_key.chmod(0o400)
    assert ill.returncode == 1
    assert f"files: wrong\n  other users have access to {layout.root_key}" in ill.stdout


def test_the_doctor_says_which_process_does_not_answer_and_where(folder: Path) -> None:
    """Doctor names the addresses of the processes of a stopped installation."""
    layout, _ = initialised(folder / "stopped")
    settings = layout.gateway_settings
    settings.write_text(edited(settings.read_text(), {"management_address": "127.0.0.1:1"}))
    report = pqkeepd("doctor", "--data", layout.directory)
    assert report.returncode == 1
    socket = f"{layout.run}/operator.sock: No such file or directory"
    assert f"the key service does not respond at {socket}" in report.stdout
    assert "the gateway does not respond at 127.0.0.1 port 1: Connection refused" in report.stdout


def test_the_links_files_are_read_as_the_process_would(folder: Path) -> None:
    """Root's config check finds link files that the process's user may not read."""
    layout, _ = initialised(folder / "linked")
    link = layout.gateway / "link"
    issue(link, [(Role.GATEWAY, "g")], algorithm="P-256", days=90, renew=False)
    files = {"certificate": "certificate.pem", "key": "key.pem", "ca": "ca.pem"}
    table = {name: f"link/gateway-g/{file}" for name, file in files.items()}
    changed = {"key_service_socket": None, "link": {"key_service": "k:1", **table}}
    settings = layout.gateway_settings
    settings.write_text(edited(settings.read_text(), changed))
    refused = pqkeepd("config", "check", settings)
    assert refused.returncode == os.EX_CONFIG
    assert "Permission denied" in refused.stderr
    for path in (link, *link.rglob("*")):
        os.chown(path, GATEWAY, GATEWAY)
    assert pqkeepd("config", "check", settings).returncode == os.EX_OK


def test_the_certificate_is_read_as_the_gateway_would(folder: Path) -> None:
    """Root's config check finds a TLS key that the gateway's user may not read."""
    layout, _ = initialised(folder / "certified")
    certificate = new_certificate(layout.gateway)
    settings = layout.gateway_settings
    changed = {"tls_certificate": certificate.path.name, "tls_key": certificate.key.name}
    settings.write_text(edited(settings.read_text(), changed))
    refused = pqkeepd("config", "check", settings)
    assert refused.returncode == os.EX_CONFIG
    assert f"{certificate.key}: Permission denied" in refused.stderr
    for path in (certificate.path, certificate.key):
        os.chown(path, GATEWAY, GATEWAY)
    assert pqkeepd("config", "check", settings).returncode == os.EX_OK


def test_the_root_key_is_rotated_and_backed_up(production: Production, folder: Path) -> None:
    """Root's commands work while the service runs.

    Every file keeps its owner, also after a restore.
    """
    layout = production.layout
    data = ("--data", layout.directory)
    rotated = pqkeepd("root-key", "rotate", *data)
    assert rotated.returncode == 0, rotated.stderr
    private, public = folder / "recovery.key", folder / "recovery.pub"
    made = pqkeepd("recovery-key", "create", "--private", private, "--public", public)
    assert made.returncode == 0, made.stderr
    kept = pqkeepd("backup", *data, "--recovery-key", public, "--to", folder / "backup")
    assert kept.returncode == 0, kept.stderr
    test_every_file_has_its_owner(production)
    root_key = folder / "root.key"
    root_key.write_bytes((layout.key_service / "root-2.key").read_bytes())
    root_key.chmod(0o400)
    again = folder / "restored"
    restored = pqkeepd(
        *("restore", folder / "backup", "--recovery-key", private, "--root-key", root_key),
        *("--data", again, "--older", *IDS),
    )
    assert restored.returncode == 0, restored.stderr
    files = owners(Layout(again))
    assert {"gateway/accounts.sqlite3", "keyservice/keys.sqlite3", "run"} <= files.keys()
    for name, (owner, mode) in files.items():
        users = {"gateway": GATEWAY, "keyservice": KEY_SERVICE, "run": KEY_SERVICE}
        assert owner == users.get(name.partition("/")[0], 0), name
        assert mode & 0o077 == (0o050 if name == "run" else 0), name
    settings = (again / "keyservice" / "settings.toml").read_text()
    assert f"\ngateway_uid = {GATEWAY}\n" in settings


def test_one_user_for_both_is_refused(folder: Path) -> None:
    """With equal user ids, start and the key service end with status 78 and the reason."""
    layout, _ = initialised(folder / "equal")
    settings = layout.key_service_settings
    settings.write_text(edited(settings.read_text(), {"gateway_uid": KEY_SERVICE}))
    for path in (layout.gateway, *layout.gateway.iterdir()):
        os.chown(path, KEY_SERVICE, KEY_SERVICE)
    started = pqkeepd("start", "--data", layout.directory)
    assert started.returncode == os.EX_CONFIG
    assert "need two different users" in started.stderr
    alone = subprocess.run(
        [python(), "-P", "-m", "pqkeep_keyservice", settings],
        user=KEY_SERVICE,
        group=KEY_SERVICE,
        extra_groups=[GROUP],
        cwd="/",
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert alone.returncode == os.EX_CONFIG
    assert "gateway_uid" in alone.stderr


def test_start_needs_root(folder: Path) -> None:
    """Without root, start and init refuse; the message names the command that works."""
    for command in ("init", "start"):
        ended = subprocess.run(
            [*pqkeepd_program(), command, "--data", folder / "none"],
            user=STRANGER,
            group=STRANGER,
            extra_groups=[],
            cwd="/",
            env=dict(processes.ENVIRONMENT),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode in {1, os.EX_CONFIG}
        assert "needs root" in ended.stderr
        assert "pqkeepd dev" in ended.stderr
