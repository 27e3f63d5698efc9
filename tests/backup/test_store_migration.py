"""``pqkeepd migrate-store`` moves an installation to PostgreSQL; ``migrate`` updates schemas."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from tests.backup.conftest import Command, Outputs
from tests.fixtures.installation import Installation, running
from tests.fixtures.postgresql import options_of

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_server.initialise import Layout, Stores

ALGORITHMS = (Algorithm.ML_KEM_768, Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128F)
STOPPED_FIRST = "stop it first"


@dataclass(frozen=True)
class Moving:
    """A stopped installation, its target, and its ciphertexts and signatures."""

    layout: Layout
    databases: Stores
    ready: dict[str, str]
    outputs: Outputs
    records: int
    while_it_ran: dict[str, tuple[int, str]]
    """The output of the commands."""

    @property
    def arguments(self) -> tuple[str | Path, ...]:
        """The arguments of the command that moves it."""
        return ("migrate-store", "--data", self.layout.directory, *options_of(self.databases))

    def settings(self) -> dict[Path, str]:
        """Return both settings files."""
        files = (self.layout.gateway_settings, self.layout.key_service_settings)
        return {file: file.read_text() for file in files}


@pytest.fixture(scope="module")
def moving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, command: Command
) -> Iterator[Moving]:
    """An installation with keys of three algorithms, and empty databases."""
    own_postgresql: Callable[[], AbstractContextManager[Stores]]
    own_postgresql = request.getfixturevalue("own_postgresql")
    folder = tmp_path_factory.mktemp("moving")
    layout = Layout(folder / "data")
    with own_postgresql() as databases:
        with running(folder, data=layout.directory) as installation:
            outputs = Outputs.of(installation.demo(), ALGORITHMS)
            records = len(_records(installation))
            said = {
                "migrate": command("migrate", "--data", layout.directory),
                "migrate-store": command(
                    "migrate-store", "--data", layout.directory, *options_of(databases)
                ),
            }
        yield Moving(layout, databases, installation.ready, outputs, records, said)


def _records(installation: Installation) -> list[dict[str, object]]:
    found: list[dict[str, object]] = installation.operator().get("/audit/records", limit=500)[
        "records"
    ]
    return found


def _tables(url: str) -> int:
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)


def test_nothing_is_moved_while_it_runs(moving: Moving) -> None:
    """Both commands refuse an installation that is running."""
    for status, said in moving.while_it_ran.values():
        assert status == 1
        assert STOPPED_FIRST in said
    assert _tables(moving.databases.keys) == _tables(moving.databases.accounts) == 0


@pytest.mark.parametrize("file", ["gateway/accounts.sqlite3", "keyservice/keys.sqlite3"])
def test_nothing_is_moved_that_somebody_has_open(
    moving: Moving, command: Command, file: str
) -> None:
    """A file that another process has open is not moved, and nothing changes."""
    before = moving.settings()
    with closing(sqlite3.connect(moving.layout.directory / file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("SELECT count(*) FROM alembic_version").fetchone()
        status, said = command(*moving.arguments)
    assert (status, "locked" in said) == (1, True), said
    assert moving.settings() == before
    assert _tables(moving.databases.keys) * _tables(moving.databases.accounts) == 0


def test_migrate_finds_this_version(moving: Moving, command: Command) -> None:
    """If the service is stopped, migrate updates the schemas, and can be repeated."""
    for _ in range(2):
        status, said = command("migrate", "--data", moving.layout.directory)
        assert status == 0, said


def test_it_goes_on_after_a_cut(moving: Moving, command: Command) -> None:
    """After an interruption it compares its copies and finishes. A further run does nothing."""
    before = moving.settings()
    status, said = command(*moving.arguments)
    assert status == 0, said
    assert "audit records, root " in said
    after = moving.settings()
    for cut in (tuple(before), (moving.layout.key_service_settings,)):
        for file in cut:
            file.write_text(before[file])
        status, said = command(*moving.arguments)
        assert status == 0, said
        assert moving.settings() == after
    status, said = command(*moving.arguments)
    assert (status, "already" in said) == (0, True)
    assert moving.databases.keys in after[moving.layout.key_service_settings]
    assert moving.databases.accounts in after[moving.layout.gateway_settings]


def test_what_is_no_copy_is_refused(moving: Moving, command: Command) -> None:
    """A file that changed after it was copied is not replaced by the older copy."""
    after = moving.settings()
    file = moving.layout.key_service / "keys.sqlite3"
    kept = file.read_bytes()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM audit_checkpoints WHERE size = 1")
        connection.execute("UPDATE keys SET created_at_us = created_at_us + 1")
    path = moving.layout.key_service_settings
    path.write_text(path.read_text().replace(moving.databases.keys, "keys.sqlite3"))
    changed = moving.settings()
    status, said = command(*moving.arguments)
    assert (status, "has other data" in said) == (1, True), said
    assert moving.settings() == changed
    file.write_bytes(kept)
    path.write_text(after[path])


def test_everything_is_of_use_on_the_server(moving: Moving, tmp_path: Path) -> None:
    """API keys, ciphertexts and signatures are valid, and the audit log continues."""
    with running(tmp_path, data=moving.layout.directory) as installation:
        assert installation.ready["api_key"] == moving.ready["api_key"]
        moving.outputs.check(installation.demo())
        records = _records(installation)
        assert [each["id"] for each in records] == list(range(1, len(records) + 1))
        assert len(records) > moving.records
        assert "continue-log" not in {each["operation"] for each in records}
