"""kill -9 before every statement and every change of a file leaves no partial change.

``make campaigns`` kills at some of those points, ``make failpoints`` at each.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import pytest
from tests.backup.conftest import Command, RecoveryKey
from tests.fixtures.key_service import HungUpError, execute
from tests.patience import PATIENCE
from tests.sampling import step

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.storage.database import open_database
from pqkeep_keyservice import config
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.operations.scheduled import DueChange
from pqkeep_keyservice.root_key_sources.sources import read_root_keys
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import ReloadRootKeys, RootKeys
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import SignCheckpoint
from pqkeep_protocol.keys import INSTALLATION, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Decrypt,
    Encrypt,
    GenerateKey,
    ListKeys,
    RotateKey,
    ScheduleArchive,
)
from pqkeep_server.backup.authentication import authenticate
from pqkeep_server.backup.contents import End
from pqkeep_server.initialise import Layout, initialise

AskFile = Callable[..., list[tuple[Any, ...]]]

TENANT = TenantId(UUID(int=7))
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
TEXT = b"what was there before"
MANY = 1_000
"""More points than any run has."""
LAUNCHER = Path(__file__).parent / "failpoint.py"

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]


class Outcome(Protocol):
    """The result of a run."""

    def __call__(self) -> int:
        """Wait for the end; return the exit status."""


class Launcher:
    """Runs programs that kill themselves at a point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.armed = folder / "armed"
        self.output = folder / "output"
        self._process = subprocess.Popen(
            [sys.executable, LAUNCHER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.defpath},
        )

    def start(self, program: str, *arguments: str | Path, kinds: str = "all", last: int = 0) -> int:
        """Start a program; return its process id."""
        wanted = {
            "program": program,
            "arguments": [str(argument) for argument in arguments],
            "output": str(self.output),
            "kinds": kinds,
            "last": last,
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def ended(self) -> int:
        """Wait for the program's end; return its exit status."""
        return self._answer()

    def run(self, program: str, *arguments: str | Path, kinds: str = "all", last: int = 0) -> int:
        """Run a program from its first point on to its end; return its exit status."""
        self.armed.touch()
        self.start(program, *arguments, kinds=kinds, last=last)
        status = self.ended()
        self.armed.unlink()
        return status

    def close(self) -> None:
        """End the launcher, which runs nothing then."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(PATIENCE) == 0

    def _answer(self) -> int:
        assert self._process.stdout
        return int(self._process.stdout.readline())


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher of programs that change files in this test's folder."""
    with closing(Launcher(tmp_path)) as opened:
        yield opened


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher for a key service beside the killed command."""
    folder = tmp_path / "services"
    folder.mkdir()
    with closing(Launcher(folder)) as opened:
        yield opened


def ask(layout: Layout, request: Any) -> Any:
    """Return the key service's response. Raises HungUpError."""
    return execute(layout.socket, request)


@dataclass
class Service:
    """A key service that a launcher starts, stops and kills."""

    launcher: Launcher
    layout: Layout
    pid: int = 0

    def start(self, last: int = 0) -> None:
        """Start it and wait until it responds."""
        self.layout.socket.unlink(missing_ok=True)
        self.pid = self.launcher.start(
            "pqkeep_keyservice", self.layout.key_service_settings, last=last
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(HungUpError, FileNotFoundError):
                ask(self.layout, ListKeys(tenant=TENANT, algorithm=None, status=None))
                return
            assert time.monotonic() < deadline, self.launcher.output.read_text()
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.launcher.ended()


@dataclass(frozen=True)
class Base:
    """A data directory with keys of two algorithms, and ciphertexts of versions 1 and 2."""

    layout: Layout
    ciphertexts: dict[int, bytes]

    def copy(self, folder: Path) -> Layout:
        """Copy it over an existing directory."""
        shutil.rmtree(folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.sock")
        return Layout(Path(shutil.copytree(self.layout.directory, folder, ignore=ignored)))

    def require_all_open(self, layout: Layout) -> None:
        """Decrypt with every version except archived ones."""
        listed = ask(layout, ListKeys(tenant=TENANT, algorithm=KEM, status=None)).keys
        for key in listed:
            if key.status is KeyStatus.ARCHIVED or key.version not in self.ciphertexts:
                continue
            opened = ask(
                layout,
                Decrypt(
                    tenant=TENANT,
                    algorithm=KEM,
                    version=key.version,
                    ciphertext=self.ciphertexts[key.version],
                ),
            )
            assert opened.plaintext == TEXT


async def make_accounts(layout: Layout) -> None:
    """Make the accounts database."""
    await (await open_database(str(layout.gateway / "accounts.sqlite3"))).dispose()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """Make it, once."""
    folder = tmp_path_factory.mktemp("base")
    layout = Layout(folder / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    asyncio.run(make_accounts(layout))
    ciphertexts = {}
    with closing(Launcher(folder)) as launcher:
        service = Service(launcher, layout)
        service.start()
        for algorithm in (KEM, SIGNATURE):
            ask(layout, GenerateKey(tenant=TENANT, algorithm=algorithm, quota=None))
        for version in (1, 2):
            if version > 1:
                ask(layout, RotateKey(tenant=TENANT, algorithm=KEM))
            sealed = ask(
                layout, Encrypt(tenant=TENANT, algorithm=KEM, version=None, plaintext=TEXT)
            )
            ciphertexts[version] = sealed.ciphertext
        ask(layout, SignCheckpoint(tenant=INSTALLATION, algorithm=SIGNATURE))  # makes the log's key
        service.stop()
    return Base(layout, ciphertexts)


def records(ask_file: AskFile, layout: Layout) -> Counter[tuple[str, str]]:
    """Return the number of records of each operation and outcome."""
    found = ask_file(
        layout.key_service / "keys.sqlite3", "SELECT operation, outcome FROM audit_records"
    )
    return Counter((operation, outcome) for operation, outcome in found)


CHANGES = {
    "rotate-key": RotateKey(tenant=TENANT, algorithm=KEM),
    "archive-key": ScheduleArchive(days=0, tenant=TENANT, algorithm=KEM, version=KeyVersion(1)),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_a_change_of_a_key_is_whole(
    operation: str, base: Base, launcher: Launcher, ask_file: AskFile, tmp_path: Path
) -> None:
    """After a kill in rotate or archive, change and record both exist, or both are missing."""
    seen = set()
    for last in count(1):
        layout = base.copy(tmp_path / "data")
        before = records(ask_file, layout)[operation, "success"]
        service = Service(launcher, layout)
        service.start(last)
        launcher.armed.touch()
        try:
            ask(layout, CHANGES[operation])
            is_answered = True
        except HungUpError:
            is_answered = False
        launcher.armed.unlink()
        service.stop()

        service.start()
        keys = ask(layout, ListKeys(tenant=TENANT, algorithm=KEM, status=None)).keys
        assert [key.version for key in keys] == list(range(1, len(keys) + 1))
        assert sum(key.status is KeyStatus.ACTIVE for key in keys) == 1
        changed = {
            "rotate-key": len(keys) == 3,
            "archive-key": keys[0].status is KeyStatus.ARCHIVED,
        }[operation]
        base.require_all_open(layout)
        service.stop()
        assert records(ask_file, layout)[operation, "success"] - before == changed
        assert changed or not is_answered
        seen.add(changed)
        if is_answered:
            break
        assert last < MANY
    assert seen == {True, False}


async def make_overdue(layout: Layout) -> None:
    """Make version 1 overdue for archiving since yesterday."""
    settings = config.read(layout.key_service_settings)
    sealer = Sealer(read_root_keys(settings.root_key_sources))
    database = SqliteDatabase(settings.database.location)
    try:
        store = KeyStore(database, sealer)
        await store.check()
        versions = await store.find_key_versions(KeyName(TENANT, KEM))
        yesterday = datetime.now(UTC) - timedelta(days=1)
        change = KeyChange(versions, versions.with_archive_scheduled(KeyVersion(1), yesterday))
        scheduled = DueChange(Operation.SCHEDULE_ARCHIVE, KeyVersion(1), "test", change)
        assert await store.commit([(scheduled.record, change)]) == [CommitOutcome.DURABLE]
    finally:
        await database.close()


def test_what_is_due_survives_every_kill(
    base: Base, launcher: Launcher, ask_file: AskFile, tmp_path: Path
) -> None:
    """After a kill anywhere in an automatic destruction, it is done exactly once after a restart."""
    overdue = Base(base.copy(tmp_path / "overdue"), base.ciphertexts)
    asyncio.run(make_overdue(overdue.layout))
    is_killed = True
    for last in count(1, step(4)):
        layout = overdue.copy(tmp_path / "data")
        database = layout.key_service / "keys.sqlite3"

        def is_archived(database: Path = database) -> bool:
            query = "SELECT count(*) FROM keys WHERE status = 'archived' AND sealed_seed IS NULL"
            return ask_file(database, query) == [(1,)]

        launcher.armed.touch()
        pid = launcher.start("pqkeep_keyservice", layout.key_service_settings, last=last)
        deadline = time.monotonic() + PATIENCE
        while not is_archived() and not (is_killed := has_ended(pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        launcher.armed.unlink()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        launcher.ended()

        service = Service(launcher, layout)
        service.start()
        while not is_archived():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        base.require_all_open(layout)
        service.stop()
        assert records(ask_file, layout)["archive-key", "success"] == 1
        if not is_killed:
            break
        assert last < MANY
    assert last > 1


def has_ended(pid: int) -> bool:
    """Return True if a process has ended and its launcher knows."""
    return not Path(f"/proc/{pid}").exists()


def reload_root_keys(layout: Layout) -> RootKeys:
    """Make the key service read its settings."""
    response: RootKeys = execute(layout.operator_socket, ReloadRootKeys(tenant=INSTALLATION))
    return response


def until_renewed(layout: Layout) -> None:
    """Wait until everything is sealed under root key 2."""
    deadline = time.monotonic() + PATIENCE
    while reload_root_keys(layout) != RootKeys(in_use=(2,), remaining=0, damaged=0):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def set_root_keys(layout: Layout, said: str) -> None:
    """Write the key service's settings."""
    layout.key_service_settings.write_text(
        'socket = "../run/keyservice.sock"\noperator_socket = "../run/operator.sock"\n'
        f'gateway_uid = "same"\ndatabase = "keys.sqlite3"\n{said}\n'
    )


def test_a_new_root_key_survives_every_kill(
    base: Base, launcher: Launcher, ask_file: AskFile, tmp_path: Path
) -> None:
    """After a kill anywhere, the key service continues at its next start, and has each record once."""
    for last in count(1, step(6)):
        layout = base.copy(tmp_path / "data")
        service = Service(launcher, layout)
        service.start(last)
        new = layout.key_service / "root-2.key"
        new.write_bytes(os.urandom(32))
        new.chmod(0o400)
        set_root_keys(layout, 'root_keys = {1 = {file = "root.key"}, 2 = {file = "root-2.key"}}')
        launcher.armed.touch()
        try:
            until_renewed(layout)
            is_killed = False
        except HungUpError:
            is_killed = True
        launcher.armed.unlink()
        if is_killed:
            service.stop()
            service.start()
            until_renewed(layout)
        layout.root_key.unlink()
        set_root_keys(layout, 'root_keys = {2 = {file = "root-2.key"}}')
        until_renewed(layout)
        base.require_all_open(layout)
        service.stop()

        written = records(ask_file, layout)
        assert written["rotate-root-key", "begun"] == 1
        assert written["rotate-root-key", "completed"] == 1
        keys = layout.key_service / "keys.sqlite3"
        assert ask_file(keys, "SELECT id FROM root_keys") == [(2,)]
        assert ask_file(keys, "SELECT DISTINCT hex(substr(sealed_seed, 2, 1)) FROM keys") == [
            ("02",)
        ]
        ((rings,),) = ask_file(keys, "SELECT count(*) FROM key_revisions")
        assert written["rotate-root-key", "success"] == rings  # each in one change
        if not is_killed:
            break
        assert last < MANY
    assert last > rings


def test_the_command_survives_every_kill(
    base: Base, launcher: Launcher, services: Launcher, ask_file: AskFile, tmp_path: Path
) -> None:
    """After a kill anywhere, a repeated root-key rotate ends with one root key for everything."""
    for last in count(1, step(4)):
        layout = base.copy(tmp_path / "data")
        service = Service(services, layout)
        service.start()
        status = launcher.run("rotate", layout.directory, last=last)
        if status:
            assert status == -signal.SIGKILL, launcher.output.read_text()
            assert launcher.run("rotate", layout.directory) == 0, launcher.output.read_text()
        service.stop()
        service.start()
        base.require_all_open(layout)
        service.stop()
        ((newest,),) = ask_file(layout.key_service / "keys.sqlite3", "SELECT id FROM root_keys")
        assert f'[root_keys.{newest}]\nfile = "root-{newest}.key"' in (
            layout.key_service_settings.read_text()
        )
        if not status:
            break
        assert last < MANY
    assert newest == 2
    assert [path.name for path in layout.key_service.glob("root*.key")] == ["root-2.key"]


def is_whole(file: Path, recovery_key: RecoveryKey, root_key: Path) -> bool:
    """Return True if a backup can be read to its end, and is authentic."""
    *_, last = authenticate(file, recovery_key.private, [RootKeySource(file=root_key)]).messages()
    return isinstance(last, End)


def test_a_killed_backup_leaves_none(
    base: Base,
    launcher: Launcher,
    recovery_key: RecoveryKey,
    tmp_path: Path,
) -> None:
    """After a kill anywhere, a backup is complete or missing."""
    to = tmp_path / "backup"
    for last in count(1):
        status = launcher.run(
            *("pqkeepd", "backup", "--data", base.layout.directory),
            *("--recovery-key", recovery_key.public, "--to", to),
            last=last,
        )
        assert to.exists() or status
        if to.exists():
            assert is_whole(to, recovery_key, base.layout.root_key)
            to.unlink()
        if status == 0:
            break
        assert status == -signal.SIGKILL, launcher.output.read_text()
        assert last < MANY
    assert last > 2


@pytest.mark.parametrize(("kinds", "distance"), [("files", step(2)), ("all", step(20))])
def test_a_killed_restore_leaves_none(
    kinds: str,
    distance: int,
    base: Base,
    launcher: Launcher,
    recovery_key: RecoveryKey,
    command: Command,
    ask_file: AskFile,
    tmp_path: Path,
) -> None:
    """After a kill anywhere, a restored installation is complete or missing."""
    file, new = tmp_path / "backup", tmp_path / "new"
    status, said = command(
        *("backup", "--data", base.layout.directory, "--to", file),
        *("--recovery-key", recovery_key.public),
    )
    assert status == 0, said
    keys = "SELECT * FROM keys WHERE tenant_id = ? ORDER BY algorithm, version"
    wanted = ask_file(base.layout.key_service / "keys.sqlite3", keys, TENANT.hex)
    for last in count(1, distance):
        status = launcher.run(
            *("pqkeepd", "restore", file, "--recovery-key", recovery_key.private),
            *("--root-key", base.layout.root_key, "--data", new, "--newest", "0.0"),
            kinds=kinds,
            last=last,
        )
        assert new.exists() or status
        if new.exists():
            assert ask_file(new / "keyservice" / "keys.sqlite3", keys, TENANT.hex) == wanted
            assert (new / "gateway" / "settings.toml").exists()
            shutil.rmtree(new)
        if status == 0:
            break
        assert status == -signal.SIGKILL, launcher.output.read_text()
        assert last < MANY
    assert last > 2 * distance
