"""``pqkeepd backup``: both databases, the settings and the pepper, in one encrypted file.

The accounts are read at one moment and the keys at a later one. So each event is in the gateway's
outbox, in the audit log or in both, as during delivery, and never in neither; and a tenant that has
keys in the backup has an account there, unless it was created between the two moments.
Root keys are never in a backup.
"""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import sqlalchemy as sa

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.atomic_files import atomic_file
from pqkeep_server.backup.contents import End, Manifest, Rows, write
from pqkeep_server.backup.databases import ACCOUNTS, KEYS, Database, Run, snapshot
from pqkeep_server.backup.encrypted_file import Writer
from pqkeep_server.backup.recovery_key import read_public
from pqkeep_server.backup.tables import DatabaseError, revision, rows, tables
from pqkeep_server.initialise import Layout

Report = Callable[[str], None]
"""Shows what is being done now."""


class BackupError(Exception):
    """There is no backup. The message is for the person who wants it."""


async def backup(
    layout: Layout, recovery_key: Path, to: Path, *, version: str, report: Report
) -> None:
    """Back up a data directory, whether it is in use or not.

    Raises BackupError and RecoveryKeyError, and leaves no file then.
    """
    key = read_public(recovery_key)
    try:
        with atomic_file(to, 0o600) as file:
            writer = Writer(file, key, created_at_us=time.time_ns() // 1000, version=version)
            await _write(layout, writer, report)
    except (ConfigError, DatabaseError) as error:
        raise BackupError(str(error)) from None
    except OSError as error:
        raise BackupError(f"cannot make the backup {to}: {error}") from None


async def _write(layout: Layout, writer: Writer, report: Report) -> None:
    gateway = gateway_config.read(layout.gateway_settings)
    key_service = key_service_config.read(layout.key_service_settings)
    databases = (
        Database(ACCOUNTS, gateway.database, gateway.database_password_file),
        Database(KEYS, key_service.database, key_service.database_password_file),
    )
    async with AsyncExitStack() as stack:
        snapshots = {
            each.kind.name: await stack.enter_async_context(snapshot(each)) for each in databases
        }
        write(writer, await _manifest(layout, gateway.pepper_file, snapshots))
        counts = {
            name: await run(_write_rows, name, writer, report) for name, run in snapshots.items()
        }
    write(writer, End(counts=counts))
    writer.finish()


async def _manifest(layout: Layout, pepper: Path, snapshots: dict[str, Run]) -> Manifest:
    owner = layout.gateway.stat().st_uid  # root may back up what belongs to the services' user
    files = {
        layout.gateway_settings: layout.gateway_settings.read_bytes(),
        layout.key_service_settings: layout.key_service_settings.read_bytes(),
        layout.pepper: read_secret_file(pepper, "pepper", also_owned_by=owner),
    }
    if (credentials := layout.development_credentials).exists():
        files[credentials] = read_secret_file(credentials, "credentials", also_owned_by=owner)
    return Manifest(
        revisions={name: await run(revision) for name, run in snapshots.items()},
        root_keys=await snapshots[KEYS.name](_root_keys),
        files={str(path.relative_to(layout.directory)): data for path, data in files.items()},
    )


def _root_keys(connection: sa.Connection) -> dict[int, bytes]:
    table = sa.Table("root_keys", sa.MetaData(), autoload_with=connection)
    found = connection.execute(sa.select(table.c.id, table.c.check_value))
    return {row.id: row.check_value for row in found}


def _write_rows(
    connection: sa.Connection, database: str, writer: Writer, report: Report
) -> dict[str, int]:
    counts = {}
    for table in tables(connection):
        name, count = str(table.name), 0
        columns = tuple(str(column.name) for column in table.columns)
        for batch in rows(connection, table):
            write(writer, Rows(database, name, columns, batch))
            count += len(batch)
            report(f"{database}: {name}, {count:,} rows")
        counts[name] = count
    return counts
