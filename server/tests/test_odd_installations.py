"""Every command of ``pqkeepd``, on installations in every possible state."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.fixtures import unprivileged
from tests.fixtures.installation import Installation, running
from tests.fixtures.processes import HOST
from tests.fixtures.two_users import pqkeepd_program
from tests.patience import PATIENCE
from tests.sampling import sampled

from pqkeep_server.initialise import Layout, Stores, initialise

TENANT = "00000000-0000-4000-8000-000000000001"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS {} FROM c"

COMMANDS: dict[str, str] = {
    "doctor": "doctor --data {data}",
    "config check": "config check {data}",
    "config check of a file": "config check {data}/gateway/settings.toml",
    "backup": "backup --data {data} --recovery-key {own}/public --to {own}/backup",
    "migrate": "migrate --data {data}",
    "migrate-store": "migrate-store --data {data} --keys-database postgresql://a@127.0.0.1:9/b",
    "root-key rotate": "root-key rotate --data {data}",
    "shard add": "shard add b --data {data}",
    "shard list": "shard list --data {data}",
    "shard move": f"shard move {TENANT} --to b --data {{data}}",
    "shard move, cancelled": f"shard move {TENANT} --cancel --data {{data}}",
    "shard drain": "shard drain default --data {data}",
    "shard drain, cancelled": "shard drain default --cancel --data {data}",
    "shard remove": "shard remove b --data {data}",
    "transfer-key rotate": "transfer-key rotate --data {data}",
    "operator add": "operator add ada --data {data}",
    "operator rotate": "operator rotate ada --data {data}",
    "operator remove": "operator remove ada --data {data}",
    "operator list": "operator list --data {data}",
    "refused-events": "refused-events --data {data}",
    "start": "start --data {data}",
    "init": "init --data {data} --user-ids 64101 64102 64103",
    "restore": "restore {data}/gateway/pepper --data {own}/new --recovery-key {own}/private",
    "restore into it": "restore {data}/gateway/pepper --data {data} --recovery-key {own}/private",
    "certificates": "certificates {data} --gateway a.example",
    "admin create": f"admin create --email a@b.c --tenant {TENANT}"
    " --operator-key-file {data}/gateway/pepper --url http://127.0.0.1:9",
}


SERVING: dict[str, str] = {
    "dev": "dev --port 0 --data {data}",
    "gateway": "gateway {data}/gateway/settings.toml",
    "keyservice": "keyservice {data}/keyservice/settings.toml",
}
"""Commands that run until they are stopped. If they cannot run, they end."""
OVER = (
    "restore {own}/backup --older --data {data} --recovery-key {own}/private"
    " --root-key {data}/keyservice/root.key"
)


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _link_to(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return link


def _holding(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(data)

    return write


def _endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def _sql(*statements: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.touch(0o600)
        database = sqlite3.connect(path)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    return run


def _removed(path: Path) -> None:
    path.unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": _removed,
    "a folder": _folder,
    "a FIFO": _fifo,
    "a link to /dev/zero": _link_to("/dev/zero"),
    "endless": _endless,
    "random": _holding(os.urandom(5000)),
}
SCHEMAS: dict[str, Callable[[Path], None]] = {
    "of a newer version": _sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('9999')",
    ),
    "with an endless version": _sql(
        f"CREATE VIEW alembic_version AS {ENDLESS.format('version_num')}",
    ),
    "with endless operators": _sql(f"CREATE VIEW operators AS {ENDLESS.format('name')}"),
}
FILES = ("gateway/settings.toml", "gateway/accounts.sqlite3", "keyservice/keys.sqlite3")
ACCOUNTS = "gateway/accounts.sqlite3"
READING = ("doctor", "backup", "shard list", "operator list", "refused-events")
"""Commands for the tests with damaged files."""


def _nothing(_: Layout) -> None:
    pass


def _without(*names: str) -> Callable[[Layout], None]:
    def remove(layout: Layout) -> None:
        for name in names:
            shutil.rmtree(layout.directory / name)

    return remove


def _is_file(layout: Layout) -> None:
    shutil.rmtree(layout.directory)
    layout.directory.touch()


def _damaged(name: str, damage: Callable[[Path], None]) -> Callable[[Layout], None]:
    return lambda layout: damage(layout.directory / name)


def _both_settings(damage: Callable[[Path], None]) -> Callable[[Layout], None]:
    def spoil(layout: Layout) -> None:
        damage(layout.gateway_settings)
        damage(layout.key_service_settings)

    return spoil


STATES: dict[str, Callable[[Layout], None]] = {
    "never started": _nothing,
    "not there": lambda layout: shutil.rmtree(layout.directory),
    "empty": _without("gateway", "keyservice", "run"),
    "a file": _is_file,
    "without the gateway's folder": _without("gateway"),
    "without the key service's folder": _without("keyservice"),
}
DAMAGED: dict[str, Callable[[Layout], None]] = {
    **{f"{name} {damage}": _damaged(name, DAMAGES[damage]) for name in FILES for damage in DAMAGES},
    **{f"accounts {schema}": _damaged(ACCOUNTS, SCHEMAS[schema]) for schema in SCHEMAS},
    "a FIFO beside the accounts": _damaged(f"{ACCOUNTS}-wal", _fifo),
}


@pytest.fixture(scope="module")
def template(
    tmp_path_factory: pytest.TempPathFactory, pqkeepd_command: Sequence[str | Path]
) -> Path:
    """A folder with an installation before its first start, and a recovery key."""
    folder = tmp_path_factory.mktemp("template")
    initialise(Layout(folder / "data"), "operator", signup="operator")
    halves = ("--private", folder / "private", "--public", folder / "public")
    subprocess.run(
        [*pqkeepd_command, "recovery-key", "create", *halves], check=True, timeout=PATIENCE
    )
    return folder


def _problems(
    names: Iterable[str],
    state: Callable[[Layout], None],
    template: Path,
    folder: Path,
    program: Sequence[str | Path],
) -> list[str]:
    """Run commands, each on a new installation in a state; return the problems."""
    problems = []
    for name in names:
        own = folder / name.replace(" ", "-")
        shutil.copytree(template, own)
        state(Layout(own / "data"))
        command = (COMMANDS | SERVING)[name]
        words = [part.format(data=own / "data", own=own) for part in command.split()]
        ended = subprocess.run(
            [*program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        said = ended.stdout + ended.stderr
        if "Traceback" in said or not 0 <= ended.returncode <= os.EX_CONFIG:
            problems.append(f"{name}: {ended.returncode} {said[-300:]}")
        elif ended.returncode != 0 and not said.strip():
            problems.append(f"{name}: {ended.returncode} without a word")
    return problems


@pytest.mark.parametrize("state", sampled(STATES, 2))
def test_no_command_fails_or_waits(
    state: str, template: Path, tmp_path: Path, pqkeepd_command: Sequence[str | Path]
) -> None:
    """Each command ends, with a message if it cannot work, and never with a traceback."""
    assert not _problems(COMMANDS, STATES[state], template, tmp_path, pqkeepd_command)


@pytest.mark.threat("gateway-user")
@pytest.mark.parametrize("state", sampled(DAMAGED, 3))
def test_no_command_fails_or_waits_for_a_damaged_file(
    state: str, template: Path, tmp_path: Path, pqkeepd_command: Sequence[str | Path]
) -> None:
    """No damaged or endless file makes a command fail or wait."""
    assert not _problems(READING, DAMAGED[state], template, tmp_path, pqkeepd_command)


UNUSABLE: dict[str, Callable[[Layout], None]] = {
    **{name: STATES[name] for name in ("empty", "a file")},
    **{
        f"settings {damage}": _both_settings(DAMAGES[damage])
        for damage in DAMAGES
        if damage != "missing"
    },
}


@pytest.mark.parametrize("state", sampled(UNUSABLE, 3))
def test_what_cannot_serve_ends(
    state: str, template: Path, tmp_path: Path, pqkeepd_command: Sequence[str | Path]
) -> None:
    """Serving commands end with a message if their settings are invalid, and never wait."""
    names = set(SERVING) - (
        {"dev"} if state == "empty" else set()
    )  # dev makes an installation there
    assert not _problems(sorted(names), UNUSABLE[state], template, tmp_path, pqkeepd_command)


def test_a_command_has_a_time_limit(tmp_path: Path) -> None:
    """A command that hangs, in any thread, ends with status 1 and a message."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (
        "import sys\nfrom pqkeep_server.exit_status import time_limit\n"
        "with time_limit(0.1): open(sys.argv[1]).read()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, fifo],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1
    assert "stopped after 0.1 seconds" in ended.stderr


RUNNING = {
    "start": ("start", "another pqkeepd uses"),
    "dev": ("dev", "another pqkeepd uses"),
    "init": ("init", "exists already"),
    "restore": ("restore over it", "not empty"),
    "migrate": ("migrate", "stop it first"),
    "migrate-store": ("migrate-store", "stop it first"),
    "keyservice": ("keyservice", "another key service"),
}
"""Commands that must not touch a running installation, with their messages."""


@pytest.fixture(scope="module")
def live(
    tmp_path_factory: pytest.TempPathFactory,
    template: Path,
    pqkeepd_command: Sequence[str | Path],
) -> Iterator[Installation]:
    """A running installation, with a backup of it and a recovery key."""
    folder = tmp_path_factory.mktemp("live")
    for half in ("private", "public"):
        shutil.copy(template / half, folder)
    with running(folder, is_forked=False) as installation:
        words = COMMANDS["backup"].format(data=installation.data, own=folder).split()
        subprocess.run([*pqkeepd_command, *words], check=True, timeout=PATIENCE)
        yield installation


@pytest.mark.parametrize("case", RUNNING)
def test_an_installation_that_runs_is_left_alone(
    case: str, live: Installation, pqkeepd_command: Sequence[str | Path]
) -> None:
    """A second start, and commands for a whole installation, end with the reason; it keeps running."""
    name, expected = RUNNING[case]
    own = live.data.parent
    command = (COMMANDS | SERVING | {"restore over it": OVER})[name]
    program = pqkeepd_program() if name == "init" else pqkeepd_command  # its users must reach it
    before = live.children()
    ended = subprocess.run(
        [*program, *command.format(data=live.data, own=own).split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode not in {0, -signal.SIGTERM}, said
    assert expected in said
    assert "Traceback" not in said
    assert live.children() == before
    assert live.demo().get("/kms/keys")["total"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told(template: Path) -> None:
    """A user who may not read an installation gets a message from each command, and changes nothing."""
    with unprivileged.own_folder("other-user") as folder:
        installation = folder / "theirs"
        shutil.copytree(template, installation)
        folder.chmod(0o755)
        program = ("/usr/bin/setpriv", "--reuid=64104", "--regid=64104", "--clear-groups")
        problems = []
        for name in (*READING, "migrate", "root-key rotate", "shard add", "dev", "gateway"):
            command = (COMMANDS | SERVING)[name]
            words = command.format(data=installation / "data", own=installation).split()
            ended = subprocess.run(
                [*program, *pqkeepd_program(), *words],
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            said = (ended.stdout + ended.stderr).strip()
            if "Traceback" in said or ended.returncode == 0 or not said:
                problems.append(f"{name}: {ended.returncode} {said[-300:]}")
        assert not problems


def test_a_peer_that_hangs_is_named(tmp_path: Path, pqkeepd_command: Sequence[str | Path]) -> None:
    """If a database or the key service hangs, commands end within a minute and name the cause."""
    layout = Layout(tmp_path / "data")
    with socket.create_server((HOST, 0)) as database, socket.socket(socket.AF_UNIX) as key_service:
        url = f"postgresql://a@{HOST}:{database.getsockname()[1]}/b"
        initialise(layout, "operator", signup="operator", stores=Stores(accounts=url, keys=url))
        key_service.bind(str(layout.operator_socket))
        key_service.listen()
        expected = {
            "migrate": "the keys database cannot be reached",
            "shard move": "the accounts database cannot be reached",
            "root-key rotate": "does not respond",
        }
        running = {}
        for name in expected:
            words = COMMANDS[name].format(data=layout.directory).split()
            running[name] = subprocess.Popen(
                [*pqkeepd_command, *words], stderr=subprocess.PIPE, text=True
            )
        deadline = time.monotonic() + PATIENCE
        for name, process in running.items():
            _, said = process.communicate(timeout=deadline - time.monotonic())
            assert process.returncode == 1, said
            assert expected[name] in said
            assert "Traceback" not in said
