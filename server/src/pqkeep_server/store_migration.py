"""``pqkeepd migrate-store``: moves the databases of a stopped installation to a server.

Each database is copied in one transaction and compared row by row before the commit. At the end the
settings name the server. Until then only an empty database has changed. Another run continues after
the last finished step.
"""

import hashlib
import stat
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import sqlalchemy as sa

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.ledger.checkpoints import check_log
from pqkeep_keyservice.ledger.merkle import Frontier, leaf_hash, log_size
from pqkeep_keyservice.ledger.search import record_texts
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress, read_text
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.backup.databases import (
    ACCOUNTS,
    KEYS,
    Database,
    DatabaseKind,
    Run,
    exclusive,
    restoring,
    snapshot,
)
from pqkeep_server.backup.tables import (
    DatabaseError,
    create_empty_tables,
    finish,
    insert,
    revision,
    rows,
    tables,
)
from pqkeep_server.data_lock import locked
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.settings_file import SettingsFileError, edited

Report = Callable[[str], None]
"""Shows the current step."""

_ENCODER = msgspec.msgpack.Encoder()
_MODULUS = 1 << 256


class StoreMigrationError(Exception):
    """The installation still uses its files. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A summary of a database's contents, to compare two databases."""

    revision: str
    tables: Mapping[str, tuple[int, int]]
    """Return the number of rows of each table, and the sum of the rows' hashes."""
    records: int = 0
    root: bytes = field(default=b"", repr=False)
    """Size and root of the audit log, computed from the records. Only the keys database has one."""

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(count for count, _ in self.tables.values())


async def migrate_store(
    layout: Layout, targets: Mapping[DatabaseKind, Database], *, report: Report
) -> Mapping[DatabaseKind, Contents]:
    """Move databases to empty databases on a server.

    Return the contents of the databases moved now.

    Raises StoreMigrationError. The settings are then unchanged.
    """
    try:
        with locked(layout.directory):
            return await _migrate(layout, targets, report)
    except BlockingIOError:
        raise StoreMigrationError(
            f"another pqkeepd uses {layout.directory}: stop it first"
        ) from None
    except (ConfigError, DatabaseError, SettingsFileError) as error:
        raise StoreMigrationError(str(error)) from None
    except OSError as error:
        raise StoreMigrationError(f"cannot move the databases: {error}") from None


async def _migrate(
    layout: Layout, targets: Mapping[DatabaseKind, Database], report: Report
) -> Mapping[DatabaseKind, Contents]:
    settings = {ACCOUNTS: layout.gateway_settings, KEYS: layout.key_service_settings}
    sources = {
        ACCOUNTS: gateway_config.read(settings[ACCOUNTS]).database,
        KEYS: key_service_config.read(settings[KEYS]).database,
    }
    pending = [kind for kind, target in targets.items() if sources[kind] != target.address]
    moved = {}
    async with AsyncExitStack() as stack:
        for kind in pending:
            with acting_as_owner_of(settings[kind].parent):
                source = await stack.enter_async_context(exclusive(_file(kind, sources[kind])))
                moved[kind] = await _copy(source, targets[kind], report)
        for kind in pending:
            with acting_as_owner_of(settings[kind].parent):
                _write_settings(settings[kind], targets[kind])
    return moved


def _file(kind: DatabaseKind, address: DatabaseAddress) -> Database:
    if address.is_on_server:
        raise StoreMigrationError(f"the {kind.name} database is already on a server")
    return Database(kind, address)


async def _copy(source: Run, target: Database, report: Report) -> Contents:
    """Copy a database unless an earlier run has, and return its contents."""
    kind = target.kind
    report(f"{kind.name}: reading")
    expected = await source(_contents, kind)
    async with snapshot(target) as run:
        if await run(tables):
            report(f"{kind.name}: comparing")
            _require_same(expected, await run(_contents, kind), target)
            return expected
    async with restoring(target) as run:
        into = await run(create_empty_tables, kind.migrations, expected.revision)
        for table in await source(tables):
            count, names = 0, table.columns.keys()
            for batch in await source(rows, table):
                await run(insert, into[table.name], names, batch)
                count += len(batch)
                report(f"{kind.name}: {table.name}, {count:,} rows")
        await run(finish, kind.migrations)
        report(f"{kind.name}: comparing")
        _require_same(expected, await run(_contents, kind), target)
    return expected


def _require_same(expected: Contents, found: Contents, target: Database) -> None:
    if found != expected:
        raise DatabaseError(
            f"the database {target.address.location} has other data: name an empty database"
        )


def _contents(connection: sa.Connection, kind: DatabaseKind) -> Contents:
    found = {table.name: _sum(connection, table) for table in tables(connection)}
    if kind is not KEYS:
        return Contents(revision(connection), found)
    check_log(connection)
    size = log_size(connection)
    frontier, _ = Frontier().with_leaves(map(leaf_hash, record_texts(connection, 0, size)))
    return Contents(revision(connection), found, frontier.size, frontier.root())


def _sum(connection: sa.Connection, table: sa.Table) -> tuple[int, int]:
    count = total = 0
    names = sorted(table.columns.keys())
    positions = [table.columns.keys().index(name) for name in names]
    for batch in rows(connection, table):
        for row in batch:
            data = _ENCODER.encode([row[position] for position in positions])
            total += int.from_bytes(hashlib.sha256(data).digest())
        count += len(batch)
    return count, total % _MODULUS


def _write_settings(path: Path, target: Database) -> None:
    passwords = target.password_file
    settings = {
        "database": target.address.location,
        "database_password_file": None if passwords is None else str(passwords),
    }
    text = edited(read_text(path), settings)
    mode = stat.S_IMODE(path.stat().st_mode)
    write_atomically(path.resolve(), text.encode(), mode, replace=True)
