"""``pqkeepd restore``: an installation from an authentic backup.

Files are written to a temporary folder beside the new data directory, rows in one transaction on
each server. Both take effect once the last segment has proved that nothing is missing.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.examination import Examined, examine
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.checkpoints import check_log
from pqkeep_keyservice.ledger.merkle import log_size
from pqkeep_keyservice.storage.root_keys import check_shard
from pqkeep_keyservice.succession import DueDestruction, continue_log, list_due
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_server.atomic_files import sync
from pqkeep_server.backup.authentication import AuthenticBackup
from pqkeep_server.backup.contents import End, Manifest, Message, Rows
from pqkeep_server.backup.databases import (
    ACCOUNTS,
    Database,
    DatabaseKind,
    Run,
    keys_of,
    restoring,
    snapshot,
)
from pqkeep_server.backup.encrypted_file import BackupFileError, Origin, damaged
from pqkeep_server.backup.placements import unsettled
from pqkeep_server.backup.restored_files import write_files
from pqkeep_server.backup.tables import (
    DatabaseError,
    create_empty_tables,
    finish,
    insert,
    revision,
    tables,
)
from pqkeep_server.data_lock import locked
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import SettingsFileError
from pqkeep_server.users import Users, give_to

Report = Callable[[str], None]
"""Shows the current step."""
SESSIONS = (
    *("operator_sessions", "spent_refresh_tokens", "step_up_tokens", "challenges"),
    *("password_resets", "sessions"),
)
"""Tables of sessions and sign-in tokens. They may have been revoked after the backup was made."""


class RestoreError(Exception):
    """Nothing was restored. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a restore."""

    data: Path
    """A directory that is empty or does not exist yet."""
    servers: Mapping[DatabaseKind, Database] = field(default_factory=dict)
    """The databases on a PostgreSQL server, by kind; the others become files."""
    users: Users | None = None
    """The users that own the two processes' files, or None if one user runs both processes."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The facts about a restored installation that the operator has to know."""

    logs: Mapping[str, UUID]
    """The new ids of the audit logs, by shard."""
    due: Sequence[DueDestruction]
    """Scheduled destructions, in the order of their time."""
    tenants: Mapping[UUID, str]
    """The names of the tenants."""


@dataclass(slots=True)
class _Restored:
    """A database, and the transaction that fills it."""

    database: Database
    run: Run
    tables: dict[str, sa.Table]
    counts: dict[str, int]
    """Rows so far, by table."""


def on_server(kind: DatabaseKind, url: str, password_file: Path | None) -> Database:
    """Return a database on a PostgreSQL server."""
    return Database(
        kind, DatabaseAddress(url), None if password_file is None else password_file.absolute()
    )


async def restore(
    backup: AuthenticBackup, target: Target, *, keep: Collection[str], report: Report
) -> Restored:
    """Restore a backup with the settings named in ``keep``, and end all sessions.

    Raises RestoreError, and then leaves nothing.
    """
    try:
        with _draft(target.data) as draft:
            layout = Layout(draft)
            restored = await _restore(backup, layout, target, keep, report)
            if target.users is not None:
                for shard in restored.logs:
                    own = Layout(draft, shard).key_service
                    give_to(target.users, layout.gateway, own, layout.run)
                draft.chmod(0o711)
            _sync_all(draft)
            draft.rename(target.data)
            sync(target.data.parent)
            return restored
    except BackupFileError as error:
        raise RestoreError(f"cannot restore {backup.file}: {error}") from None
    except (ConfigError, DatabaseError, SettingsFileError) as error:
        raise RestoreError(str(error)) from None
    except DamagedKeyError:
        raise RestoreError("the backup's keys that sign the audit log are damaged") from None
    except OSError as error:
        raise RestoreError(f"cannot restore {backup.file}: {error}") from None


async def drill(backup: AuthenticBackup, *, report: Report) -> Examined:
    """Restore a backup into a temporary folder, examine it, and remove the folder.

    Raises RestoreError.
    """
    with tempfile.TemporaryDirectory(prefix="pqkeep-drill-") as scratch:
        layout = Layout(Path(scratch) / "restored")
        await restore(backup, Target(layout.directory), keep=(), report=report)
        report("examining keys and audit log")
        try:
            async with snapshot(_in_file(ACCOUNTS, layout)) as accounts:
                await accounts(revision)
            found = []
            for shard, sealer in backup.sealers.items():
                async with snapshot(_in_file(keys_of(shard), layout)) as keys:
                    found.append(await keys(examine, sealer))
        except (ConfigError, DatabaseError) as error:
            raise RestoreError(str(error)) from None
    return Examined(
        keys=sum(counts.keys for counts in found),
        records=sum(counts.records for counts in found),
        checkpoints=sum(counts.checkpoints for counts in found),
    )


async def _restore(
    backup: AuthenticBackup,
    layout: Layout,
    target: Target,
    keep: Collection[str],
    report: Report,
) -> Restored:
    shards = {shard: keys_of(shard) for shard in backup.origin.shards}
    if unknown := target.servers.keys() - {ACCOUNTS, *shards.values()}:
        raise RestoreError(f"the backup has no database {min(kind.name for kind in unknown)}")
    databases = {
        kind.name: target.servers.get(kind) or _in_file(kind, layout)
        for kind in (ACCOUNTS, *shards.values())
    }
    gateway_uid = "same" if target.users is None else target.users.gateway.uid
    write_files(layout, backup.manifest, backup.root_keys, databases, keep, gateway_uid=gateway_uid)
    gateway_config.read(layout.gateway_settings)
    for shard in shards:
        key_service_config.read(Layout(layout.directory, shard).key_service_settings)
    revisions = backup.manifest.revisions
    if revisions.keys() != databases.keys():
        raise damaged()
    async with AsyncExitStack() as stack:
        restored: dict[str, _Restored] = {}
        for name, database in databases.items():
            run = await stack.enter_async_context(restoring(database))
            tables = await run(create_empty_tables, database.kind.migrations, revisions[name])
            restored[name] = _Restored(database, run, tables, dict.fromkeys(tables, 0))
        for message in backup.messages():
            await _apply(message, restored, report)
        for name, copy in restored.items():
            report(f"{name}: bringing the schema up to date")
            await copy.run(finish, copy.database.kind.migrations)
        keys = {shard: restored[kind.name].run for shard, kind in shards.items()}
        await _require_agreement(backup.origin, restored[ACCOUNTS.name].run, keys)
        accounts = restored[ACCOUNTS.name].run
        await accounts(_end_sessions)
        logs: dict[str, UUID] = {}
        due: list[DueDestruction] = []
        for shard, run in keys.items():
            logs[shard] = await run(continue_log, backup.sealers[shard])
            due += await run(list_due, backup.sealers[shard])
        return Restored(logs, sorted(due, key=attrgetter("at")), await accounts(_tenant_names))


def _end_sessions(connection: sa.Connection) -> None:
    by_name = {table.name: table for table in tables(connection)}
    for name in SESSIONS:
        connection.execute(sa.delete(by_name[name]))


def _tenant_names(connection: sa.Connection) -> Mapping[UUID, str]:
    (tenants,) = (table for table in tables(connection) if table.name == "tenants")
    rows = connection.execute(sa.select(tenants.c.id, tenants.c.name))
    return {UUID(str(tenant)): name for tenant, name in rows}


async def _require_agreement(origin: Origin, accounts: Run, keys: Mapping[str, Run]) -> None:
    """Raise RestoreError unless each database is of its shard, and each tenant in exactly one."""
    for shard, run in keys.items():
        await run(check_shard, shard)
        await run(check_log)
        if await run(log_size) != origin.shards[shard].records:
            raise damaged()
    if len(keys) > 1 and (tenant := await unsettled(accounts, keys)) is not None:
        raise RestoreError(f"tenant {tenant} is in no shard of the backup, or in several")


async def _apply(message: Message, restored: Mapping[str, _Restored], report: Report) -> None:
    match message:
        case Rows(database, table, columns, rows):
            into = restored.get(database)
            if into is None or table not in into.tables:
                raise DatabaseError(
                    f"the backup has a table {table} that this version does not know"
                )
            await into.run(insert, into.tables[table], columns, rows)
            into.counts[table] += len(rows)
            report(f"{database}: {table}, {into.counts[table]:,} rows")
        case End(counts=counts):
            if counts != {name: copy.counts for name, copy in restored.items()}:
                raise BackupFileError("rows are missing in the backup: use another one")
        case Manifest():
            raise damaged()


def _in_file(kind: DatabaseKind, layout: Layout) -> Database:
    return Database(kind, DatabaseAddress(kind.file, layout.directory / kind.folder))


@contextmanager
def _draft(data: Path) -> Iterator[Path]:
    """Yield a locked temporary folder beside the data directory, and delete it unless renamed."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise RestoreError(f"{data} is not empty: name an empty or a new directory")
    parent = data.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{data.name}.", dir=parent))
    try:
        with locked(draft):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(path, name))
        sync(Path(path))
