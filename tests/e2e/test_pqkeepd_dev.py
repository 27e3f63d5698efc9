"""``pqkeepd dev`` as a program: its ready file, its end, its restart, and its errors."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation, initialise_data
from tests.fixtures.preloaded import ForkedProcess, start_forked
from tests.patience import PATIENCE
from tests.sampling import later

from pqkeep_server import valkey
from pqkeep_server.dev import require_shared_rate_limits
from pqkeep_server.dev_directory import DevError
from pqkeep_server.doctor import examine
from pqkeep_server.initialise import IN_FILES, Layout

KYBER = {"algorithm": "Kyber768"}

Run = Callable[..., ForkedProcess]


@pytest.fixture(scope="module")
def pqkeepd() -> Run:
    """Start a command that must fail, with its output in a file."""
    return lambda output, *arguments: start_forked(arguments, output)


def mode(path: Path) -> int:
    """Return a file's permissions."""
    return path.stat().st_mode & 0o777


def test_the_ready_file(start: Callable[..., Installation], tmp_path: Path) -> None:
    """The ready file is private JSON with a client's settings, all of which work at once."""
    installation = start()
    assert mode(tmp_path / "ready.json") == 0o600
    ready = json.loads((tmp_path / "ready.json").read_text())
    assert ready.keys() == {
        *(
            "base_url",
            "tenant_id",
            "api_key",
            "operator_key",
            "owner_invitation",
            "owner_password",
            "portal_link",
            "portal_url",
            "management_url",
            "management_urls",
            "mailbox",
        ),
    }
    assert ready["base_url"].startswith("http://127.0.0.1:")
    assert str(uuid.UUID(ready["tenant_id"])) == ready["tenant_id"]
    tenant = installation.demo().get(f"/tenants/{ready['tenant_id']}")
    assert tenant["plan"] == "enterprise_plus"
    assert installation.operator().get(f"/tenants/{ready['tenant_id']}") == tenant
    fields = {"token": ready["owner_invitation"], "password": "the horse prefers oats"}
    assert installation.caller(None).post("/auth/accept-invitation", fields, status=201)


def test_a_doctor_finds_its_gateway(start: Callable[..., Installation]) -> None:
    """Each start has a new management port, and pqkeepd doctor finds it."""
    installation = start()
    problems = dict(examine(Layout(installation.data)))
    assert problems["gateway"] == []
    installation.process.send_signal(signal.SIGTERM)
    installation.process.wait()
    (problem,) = dict(examine(Layout(installation.data)))["gateway"]
    assert "the gateway does not respond at 127.0.0.1" in problem


def test_a_doctor_finds_a_key_service_that_hangs(start: Callable[..., Installation]) -> None:
    """A stopped key service process is reported as not responding until it continues."""
    installation = start()
    pid = installation.children()["pqkeep_keyservice"]
    os.kill(pid, signal.SIGSTOP)
    try:
        found = dict(examine(Layout(installation.data)))["key service"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert any("does not respond within 5 s" in problem for problem in found), found
    found = dict(examine(Layout(installation.data)))["key service"]
    assert not any("respond" in problem for problem in found), found


def test_a_start_warns_once(start: Callable[..., Installation]) -> None:
    """A start logs each warning once, and none about parts that start later."""
    lines = [json.loads(line) for line in start().output.splitlines() if line.startswith("{")]
    warnings = [line for line in lines if line.get("level") == "warning"]
    waiting = "requests are not answered yet"
    told = [(line["event"], line.get("error")) for line in warnings if line["event"] != waiting]
    assert len(told) == len(set(told)), told
    assert "a part does not answer what it is asked" not in dict(told)


def test_everything_in_the_data_directory_is_private(start: Callable[..., Installation]) -> None:
    """Other users cannot read any file of a data directory, or connect to its socket."""
    installation = start()
    installation.demo().post("/kms/keys/generate", KYBER, status=201)
    paths = list(installation.data.rglob("*"))
    assert {"root.key", "pepper", "keys.sqlite3", "accounts.sqlite3", "dev.json", "mailbox"} <= {
        path.name for path in paths
    }
    assert installation.mailbox.messages("owner@localhost", "invitation")
    paths = list(installation.data.rglob("*"))
    for path in [installation.data, *paths]:
        assert mode(path) & 0o077 == 0, path


def test_only_loopback_is_served(start: Callable[..., Installation]) -> None:
    """The only open port belongs to 127.0.0.1."""
    installation = start()
    port = int(installation.base_url.rsplit(":", 1)[1])
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
    ]
    assert listening == [f"0100007F:{port:04X}"]


def test_a_restart_keeps_everything(start: Callable[..., Installation]) -> None:
    """After a restart the same credentials work and old ciphertexts decrypt."""
    first = start()
    ready = dict(first.ready)
    demo = first.demo()
    demo.post("/kms/keys/generate", KYBER, status=201)
    made = demo.post("/kem/encrypt", {"plaintext": "QUJD"})
    keys = demo.get("/kms/keys")
    assert first.stop() == 0

    second = start()
    anew = {
        "base_url": "",
        "management_url": "",
        "management_urls": [],
        "owner_invitation": "",
        "portal_link": "",
        "portal_url": "",
    }  # other ports, another invitation
    assert second.ready | anew == ready | anew
    demo = second.demo()
    assert demo.get("/kms/keys") == keys
    body = {"ciphertext": made["ciphertext"], "key_version": 1}
    assert demo.post("/kem/decrypt", body)["plaintext"] == "QUJD"
    name = f"tenant {uuid.uuid4()}"
    assert second.operator().post("/tenants", {"name": name}, status=201)["name"] == name


@pytest.mark.parametrize("number", [later(signal.SIGINT), signal.SIGTERM, later(signal.SIGHUP)])
def test_it_ends_cleanly(start: Callable[..., Installation], number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with status 0, without processes or an open port left."""
    installation = start(is_forked=number is not signal.SIGTERM)
    pids = list(installation.children().values())
    assert len(pids) == 2
    port = int(installation.base_url.rsplit(":", 1)[1])
    assert installation.stop(number) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with socket.socket() as connection:
        assert connection.connect_ex(("127.0.0.1", port)) != 0
    before, found, trace = installation.output.partition("Traceback")
    assert not found, before[-1000:] + trace[:5000]
    assert '"level": "error"' not in installation.output


def test_it_ends_while_clients_are_connected(start: Callable[..., Installation]) -> None:
    """A kept-alive connection does not delay its end."""
    installation = start()
    url = installation.base_url.removeprefix("http://").split(":")
    with socket.create_connection((url[0], int(url[1])), PATIENCE) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        assert installation.stop() == 0


def refusal(pqkeepd: Run, tmp_path: Path, *arguments: str) -> str:
    """Run a command that must fail with status 1; return its output."""
    output = tmp_path / "refusal"
    process = pqkeepd(output, "dev", *arguments)
    try:
        assert process.wait(PATIENCE) == 1
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        raise
    text = output.read_text()
    assert "Traceback" not in text
    return text


def test_a_data_directory_belongs_to_one(
    start: Callable[..., Installation], pqkeepd: Run, tmp_path: Path
) -> None:
    """A second pqkeepd on the same data is refused with the reason; the first one continues."""
    installation = start()
    said = refusal(pqkeepd, tmp_path, "--port", "0", "--data", str(installation.data))
    assert f"another pqkeepd uses the data directory {installation.data}" in said
    assert installation.demo().get("/kms/keys")["total"] == 0


def test_a_port_in_use(pqkeepd: Run, tmp_path: Path) -> None:
    """For a port in use the command names it and ends; the data directory stays usable."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(pqkeepd, tmp_path, "--port", str(port), "--data", str(tmp_path / "data"))
    assert (
        f"cannot listen on 127.0.0.1, port {port}: Address already in use; name another port with --port"
        in said
    )


def test_a_start_after_a_port_in_use(
    start: Callable[..., Installation], pqkeepd: Run, tmp_path: Path
) -> None:
    """After a failed first start with a used port, the next start completes the data."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusal(pqkeepd, tmp_path, "--port", str(port), "--data", str(tmp_path / "data"))
    assert start().demo().get("/kms/keys")["total"] == 0


def spoil_root_key(data: Path) -> None:
    """Replace the root key by another one."""
    path = data / "keyservice" / "root.key"
    path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o400)
    os.write(descriptor, secrets.token_bytes(32))
    os.close(descriptor)


def spoil_database(path: Path) -> None:
    """Replace a database by another file, without its side files."""
    for each in path.parent.glob(path.name + "*"):
        each.unlink()
    path.write_bytes(b"no database" * 999)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another root key": (spoil_root_key, "root key"),
    "no root key": (lambda data: (data / "keyservice/root.key").unlink(), "root key"),
    "a root key that others can read": (
        lambda data: (data / "keyservice/root.key").chmod(0o444),
        "root key",
    ),
    "no pepper": (lambda data: (data / "gateway/pepper").unlink(), "pepper"),
    "a pepper that others can read": (
        lambda data: (data / "gateway/pepper").chmod(0o444),
        "pepper",
    ),
    "keys that are no database": (
        lambda data: spoil_database(data / "keyservice/keys.sqlite3"),
        "keys.sqlite3",
    ),
    "accounts that are no database": (
        lambda data: spoil_database(data / "gateway/accounts.sqlite3"),
        "accounts.sqlite3",
    ),
    "settings that do not exist": (
        lambda data: (data / "gateway/settings.toml").write_text("unknown = 1\n"),
        "settings.toml",
    ),
    "no dev.json": (lambda data: (data / "dev.json").unlink(), "dev.json"),
    "dev.json cut off": (lambda data: (data / "dev.json").write_text("{"), "dev.json"),
    "a path too long for a socket": (lambda _: None, "socket"),
}
"""Damages of a data directory, each with words of the message."""


@pytest.fixture(scope="module")
def refusals(
    pqkeepd: Run,
    tmp_path_factory: pytest.TempPathFactory,
    made_data: Callable[[Path], Path],
) -> dict[str, tuple[int | None, str]]:
    """Start on every damaged directory at once; return status and output of each."""
    folder = tmp_path_factory.mktemp("damaged")
    running = {}
    for number, (name, (spoil, _)) in enumerate(DAMAGES.items()):
        data = made_data(folder / (str(number) if "too long" not in name else "x" * 110))
        spoil(data)
        output = folder / f"{number}.output"
        running[name] = (pqkeepd(output, "dev", "--port", "0", "--data", str(data)), output)
    ended: dict[str, tuple[int | None, str]] = {}
    deadline = time.monotonic() + PATIENCE
    for name, (process, output) in running.items():
        try:
            status: int | None = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        ended[name] = (status, output.read_text())
    return ended


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data(refusals: dict[str, tuple[int | None, str]], damage: str) -> None:
    """Unusable data ends it with status 1 and the reason, without endless retries."""
    status, said = refusals[damage]
    assert status == 1
    assert DAMAGES[damage][1] in said
    assert "will be started again" not in said
    assert "Traceback" not in said


def test_a_directory_of_something_else(pqkeepd: Run, tmp_path: Path) -> None:
    """Another program's files in the folder are named and not changed."""
    (tmp_path / "data" / "keyservice" / "theirs").mkdir(parents=True)
    (tmp_path / "data").chmod(0o700)
    said = refusal(pqkeepd, tmp_path, "--port", "0", "--data", str(tmp_path / "data"))
    assert "keyservice" in said


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o711])
def test_a_directory_that_others_may_read(pqkeepd: Run, tmp_path: Path, mode: int) -> None:
    """A data directory that others may read is refused, and nothing is written to it."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    said = refusal(pqkeepd, tmp_path, "--port", "0", "--data", str(data))
    assert "other users have access to the data directory" in said
    assert not list(data.iterdir())


def test_an_accounts_database_that_others_may_read(
    start: Callable[..., Installation], pqkeepd: Run, tmp_path: Path
) -> None:
    """An accounts database that others may read is refused, like the keys database."""
    start().stop()
    (tmp_path / "data" / "gateway" / "accounts.sqlite3").chmod(0o644)
    said = refusal(pqkeepd, tmp_path, "--port", "0", "--data", str(tmp_path / "data"))
    assert "accounts.sqlite3; its mode must be 0600" in said


def test_a_ready_file_that_cannot_be(pqkeepd: Run, tmp_path: Path) -> None:
    """If the ready file cannot be written, the command names it and stops its processes."""
    ready_file = tmp_path / "nowhere" / "ready.json"
    said = refusal(
        pqkeepd,
        tmp_path,
        *("--port", "0", "--data", str(tmp_path / "data"), "--ready-file", str(ready_file)),
    )
    assert f"cannot write {ready_file}" in said


def test_tls_is_for_another_command(pqkeepd: Run, tmp_path: Path) -> None:
    """Settings with a certificate are refused, because all printed addresses are plain HTTP."""
    data = tmp_path / "data"
    initialise_data(data, IN_FILES, {"tls_certificate": "c.pem", "tls_key": "k.pem"})
    said = refusal(pqkeepd, tmp_path, "--port", "0", "--data", str(data))
    assert "remove tls_certificate" in said


def test_databases_do_not_move(
    start: Callable[..., Installation], pqkeepd: Run, tmp_path: Path
) -> None:
    """A data directory with SQLite files is refused with a database on a server."""
    start().stop()
    elsewhere = "--keys-database", "postgresql://role@127.0.0.1:9/name"
    said = refusal(pqkeepd, tmp_path, "--port", "0", "--data", str(tmp_path / "data"), *elsewhere)
    assert "already uses other databases" in said


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_what_is_no_port(pqkeepd: Run, tmp_path: Path, port: str) -> None:
    """An invalid port is a usage error: status 2."""
    process = pqkeepd(tmp_path / "output", "dev", "--port", port)
    assert process.wait(PATIENCE) == 2


@pytest.mark.parametrize("option", ["--accounts-database", "--keys-database"])
@pytest.mark.parametrize("address", ["mysql://canary:canary@127.0.0.1/name", "canary.sqlite3"])
def test_what_is_no_address_of_a_server(
    pqkeepd: Run, tmp_path: Path, option: str, address: str
) -> None:
    """An invalid server address is a usage error with the option's name, without the address."""
    output, data = tmp_path / "output", tmp_path / "data"
    assert pqkeepd(output, "dev", "--data", str(data), option, address).wait(PATIENCE) == 2
    assert option in output.read_text()
    assert "canary" not in output.read_text()
    assert not data.exists()


def test_several_gateways_without_a_valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several gateways without a Valkey are refused before anything is made, with advice."""
    monkeypatch.setattr(valkey, "PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    data = tmp_path / "data"
    with pytest.raises(DevError, match="package valkey-server"):
        require_shared_rate_limits(data, 2, None)
    require_shared_rate_limits(data, 2, "redis://127.0.0.1:1")
    require_shared_rate_limits(data, 1, None)
    initialise_data(data, IN_FILES, {})
    with pytest.raises(DevError, match="package valkey-server"):
        require_shared_rate_limits(data, 2, None)
    with (data / "gateway" / "settings.toml").open("a") as settings:
        settings.write('redis_url = "redis://127.0.0.1:1"\n')
    require_shared_rate_limits(data, 2, None)
