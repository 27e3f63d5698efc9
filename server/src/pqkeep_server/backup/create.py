"""``pqkeepd backup``: both databases, the settings and the pepper, in one encrypted file.

The accounts are read at one moment and the keys at a later one. So each event is in the gateway's
outbox, in the audit log or in both, as during delivery, and never in neither; and a tenant that has
keys in the backup has an account there, unless it was created between the two moments.
Root keys are never in a backup.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.checkpoints import log_id
from pqkeep_keyservice.ledger.tree import log_size
from pqkeep_keyservice.storage.key_versions import find_generation
from pqkeep_keyservice.storage.root_keys import list_check_values, require_root_keys
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.atomic_files import atomic_file
from pqkeep_server.backup.contents import Manifest, Rows, finish, write
from pqkeep_server.backup.databases import ACCOUNTS, KEYS, Database, Run, snapshot
from pqkeep_server.backup.encrypted_file import Origin, Writer
from pqkeep_server.backup.recovery_key import PublicHalf, read_public
from pqkeep_server.backup.tables import DatabaseError, revision, rows, tables
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.root_key_owner import read_root_keys

Report = Callable[[str], None]
"""Shows what is being done now."""


class BackupError(Exception):
    """There is no backup. The message is for the person who wants it."""


async def backup(
    layout: Layout, recovery_key: Path, to: Path, *, version: str, report: Report
) -> Origin:
    """Back up a data directory, whether it is in use or not; return what the backup is of.

    Raises BackupError and RecoveryKeyError, and leaves no file then.
    """
    key = read_public(recovery_key)
    try:
        with atomic_file(to, 0o600) as file:
            return await _write(layout, file, key, version, report)
    except (ConfigError, DatabaseError) as error:
        raise BackupError(str(error)) from None
    except OSError as error:
        raise BackupError(f"cannot make the backup {to}: {error}") from None


async def _write(
    layout: Layout, file: BinaryIO, key: PublicHalf, version: str, report: Report
) -> Origin:
    with acting_as_owner_of(layout.gateway):
        gateway = gateway_config.read(layout.gateway_settings)
    with acting_as_owner_of(layout.key_service):
        key_service = key_service_config.read(layout.key_service_settings)
    _require_one_installation(gateway, key_service)
    sealer = Sealer(read_root_keys(key_service.root_key_sources, layout.key_service))
    databases = (
        Database(ACCOUNTS, gateway.database, gateway.database_password_file),
        Database(KEYS, key_service.database, key_service.database_password_file),
    )
    async with AsyncExitStack() as stack:
        snapshots = {
            each.kind.name: await stack.enter_async_context(_owner_s_snapshot(each, layout))
            for each in databases
        }
        origin = await snapshots[KEYS.name](_origin, version)
        require_root_keys(sealer, origin.root_keys)
        writer = Writer(file, key, origin)
        write(writer, await _manifest(layout, gateway.pepper_file, snapshots))
        counts = {
            name: await run(_write_rows, name, writer, report) for name, run in snapshots.items()
        }
    finish(writer, counts, sealer)
    return origin


@asynccontextmanager
async def _owner_s_snapshot(database: Database, layout: Layout) -> AsyncIterator[Run]:
    """Begin a snapshot as the user whose database it is, and end it as that user.

    Opening a SQLite file can delete another file that the journal beside it names.
    """
    folder = layout.directory / database.kind.folder
    acting = ExitStack()
    async with AsyncExitStack() as stack:
        stack.callback(acting.close)
        with acting_as_owner_of(folder):
            run = await stack.enter_async_context(snapshot(database))
        stack.callback(acting.enter_context, acting_as_owner_of(folder))
        yield run


def _require_one_installation(
    gateway: gateway_config.Config, key_service: key_service_config.Config
) -> None:
    """Refuse a gateway's folder that is not in use, as there is on the key service's own host."""
    if len(gateway.key_services) > 1:
        names = ", ".join(sorted(gateway.key_services))
        raise BackupError(
            f"the settings name several shards ({names}), and a backup is of one: back up each"
            " database by its own means, with each root key and the pepper"
        )
    served = key_service.socket if gateway.has_local_key_service else key_service.link
    if served is None:
        raise BackupError(
            "the settings are not of one installation: the key service does not serve this gateway,"
            " because one of them names the link and the other a socket"
        )


async def _manifest(layout: Layout, pepper: Path, snapshots: dict[str, Run]) -> Manifest:
    files = {}
    with acting_as_owner_of(layout.gateway):
        files[layout.gateway_settings] = layout.gateway_settings.read_bytes()
        files[layout.pepper] = read_secret_file(pepper, "pepper")
    with acting_as_owner_of(layout.key_service):
        files[layout.key_service_settings] = layout.key_service_settings.read_bytes()
    if (credentials := layout.development_credentials).exists():
        files[credentials] = read_secret_file(credentials, "credentials")
    return Manifest(
        revisions={name: await run(revision) for name, run in snapshots.items()},
        files={str(path.relative_to(layout.directory)): data for path, data in files.items()},
    )


def _origin(connection: sa.Connection, version: str) -> Origin:
    return Origin(
        created_at_us=time.time_ns() // 1000,
        version=version,
        log_id=str(log_id(connection)),
        generation=find_generation(connection),
        records=log_size(connection),
        root_keys=list_check_values(connection),
    )


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
