"""``pqkeepd backup``: all databases, the settings and the pepper, in one encrypted file.

The accounts are read first, the keys of each shard later. So each event is in the gateway's outbox,
in the audit log, or in both. A tenant with keys in the backup also has an account there, unless it
was created between the two reads. A tenant that moves between the reads could be in two shards of
the backup, or in none: ``placements.py`` finds such a tenant, and the reads are repeated.
Root keys and the transfer key are never in a backup.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.checkpoints import log_id
from pqkeep_keyservice.ledger.merkle import log_size
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.root_key_sources.sources import read
from pqkeep_keyservice.storage.key_versions import find_generation
from pqkeep_keyservice.storage.root_keys import check_shard, list_check_values, require_root_keys
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError, read_file
from pqkeep_server.atomic_files import atomic_file
from pqkeep_server.backup.contents import Manifest, Rows, finish, write
from pqkeep_server.backup.databases import (
    ACCOUNTS,
    Database,
    DatabaseKind,
    Run,
    keys_of,
    snapshot,
)
from pqkeep_server.backup.encrypted_file import Origin, ShardOrigin, Writer
from pqkeep_server.backup.placements import unsettled
from pqkeep_server.backup.recovery_key import PublicHalf, read_public
from pqkeep_server.backup.tables import DatabaseError, revision, rows, tables
from pqkeep_server.exit_status import message_of
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of, run_as_owner_of

TRIES = 60
SECONDS_BETWEEN = 0.5
"""Attempts, and seconds between them, to read the databases while no tenant is being moved."""
Report = Callable[[str], None]
"""Shows the current step."""


class BackupError(Exception):
    """The backup could not be made. The message is for the operator."""


async def backup(
    layout: Layout, recovery_key: Path, to: Path, *, version: str, report: Report
) -> Origin:
    """Back up a data directory, in use or not, and return the backup's origin.

    Raises BackupError and RecoveryKeyError, and then leaves no file.
    """
    key = read_public(recovery_key)
    try:
        with atomic_file(to, 0o600) as file:
            return await _write(layout, file, key, version, report)
    except (ConfigError, DatabaseError) as error:
        raise BackupError(str(error)) from None
    except OSError as error:
        raise BackupError(f"cannot make the backup {to}: {message_of(error)}") from None


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard with its key service on this host."""

    layout: Layout
    settings: key_service_config.Config
    sealer: Sealer = field(repr=False)

    @property
    def kind(self) -> DatabaseKind:
        return keys_of(self.layout.shard)

    @property
    def database(self) -> Database:
        return Database(self.kind, self.settings.database, self.settings.database_password_file)


async def _write(
    layout: Layout, file: BinaryIO, key: PublicHalf, version: str, report: Report
) -> Origin:
    with acting_as_owner_of(layout.gateway):
        gateway = gateway_config.read(layout.gateway_settings)
    names = sorted(gateway.key_services, key=lambda name: (name != DEFAULT_SHARD, name))
    shards = {name: _shard(layout, gateway, name) for name in names}
    accounts = Database(ACCOUNTS, gateway.database, gateway.database_password_file)
    async with AsyncExitStack() as stack:
        snapshots = await _settled(stack, layout, accounts, shards, report)
        origin = Origin.of(
            {
                name: await snapshots[shard.kind.name](_shard_origin, name)
                for name, shard in shards.items()
            },
            created_at_us=time.time_ns() // 1000,
            version=version,
        )
        for name, shard in shards.items():
            require_root_keys(shard.sealer, origin.shards[name].root_keys)
        writer = Writer(file, key, origin)
        manifest = await _manifest(layout, shards.values(), gateway.pepper_file, snapshots)
        write(writer, manifest)
        counts = {
            name: await run(_write_rows, name, writer, report) for name, run in snapshots.items()
        }
    finish(writer, counts, {name: shard.sealer for name, shard in shards.items()})
    return origin


async def _settled(
    stack: AsyncExitStack,
    layout: Layout,
    accounts: Database,
    shards: Mapping[str, _Shard],
    report: Report,
) -> dict[str, Run]:
    """Begin snapshots in which each tenant is in exactly one shard. The accounts' snapshot is first.

    Raises BackupError if a tenant is still being moved after the last attempt.
    """
    databases = (accounts, *(shard.database for shard in shards.values()))
    for tries in range(TRIES):
        if tries:
            report("waiting for a tenant that is being moved")
            await asyncio.sleep(SECONDS_BETWEEN)
        async with AsyncExitStack() as attempt:
            snapshots = {
                database.kind.name: await attempt.enter_async_context(
                    _owner_s_snapshot(database, layout)
                )
                for database in databases
            }
            keys = {name: snapshots[shard.kind.name] for name, shard in shards.items()}
            moving = None
            if len(shards) > 1:
                moving = await unsettled(snapshots[accounts.kind.name], keys)
            if moving is None:
                stack.push_async_exit(attempt.pop_all())
                return snapshots
    raise BackupError(
        f"tenant {moving} is being moved to another shard: make the backup when pqkeepd shard move"
        " has ended. If the move was interrupted, run it again first"
    )


@asynccontextmanager
async def _owner_s_snapshot(database: Database, layout: Layout) -> AsyncIterator[Run]:
    """Begin and end a snapshot as the owner of the database.

    Opening a SQLite file can delete another file: the one that the journal beside it names.
    """
    folder = layout.directory / database.kind.folder
    acting = ExitStack()
    async with AsyncExitStack() as stack:
        stack.callback(acting.close)
        with acting_as_owner_of(folder):
            run = await stack.enter_async_context(snapshot(database))
            if not await run(revision):
                raise BackupError(
                    f"the database {database.address.location} has no tables: start the installation"
                    " once, then make the backup"
                )
        stack.callback(acting.enter_context, acting_as_owner_of(folder))
        yield run


def _shard(layout: Layout, gateway: gateway_config.Config, name: str) -> _Shard:
    """Find a shard's key service in the data directory. Raises BackupError and ConfigError.

    A folder that is not in use is refused: the host of the gateway can have one.
    """
    own = Layout(layout.directory, name)
    if not own.key_service_settings.exists():
        raise BackupError(
            f"the shard {name} has no folder {own.key_service.name} in {layout.directory}: make the"
            " backup on the host that has the key services of all shards"
        )
    with acting_as_owner_of(own.key_service):
        settings = key_service_config.read(own.key_service_settings)
    if settings.shard != name:
        raise BackupError(
            f'{own.key_service_settings} has shard = "{settings.shard}", but is in the folder of'
            f" the shard {name}: correct the setting"
        )
    served = gateway.key_services[name]
    if not (served.sockets and settings.socket) and not (served.addresses and settings.link):
        raise BackupError(
            "the gateway and the key service belong to different installations: one names the link"
            " in its settings, the other a socket. Correct the settings"
        )
    return _Shard(own, settings, Sealer(read_root_keys(settings.root_key_sources, own.key_service)))


def read_root_keys(sources: Mapping[int, RootKeySource], owned: Path) -> dict[int, Secret]:
    """Read root keys as the owner of a file or folder. Raises ConfigError.

    That user chose the token's library and the root key command, so root must not run them.
    """
    user = owned.stat().st_uid

    def read_one(source: RootKeySource) -> Secret:
        if source.file is not None:
            return read_root_key(source.file, also_owned_by=user)
        return Secret(run_as_owner_of(owned, lambda: bytes(read(source).reveal())))

    return {key_id: read_one(source) for key_id, source in sources.items()}


async def _manifest(
    layout: Layout, shards: Iterable[_Shard], pepper: Path, snapshots: Mapping[str, Run]
) -> Manifest:
    files = {}
    with acting_as_owner_of(layout.gateway):
        files[layout.gateway_settings] = read_file(layout.gateway_settings)
        files[layout.pepper] = read_secret_file(pepper, "pepper")
    for shard in shards:
        path = shard.layout.key_service_settings
        with acting_as_owner_of(shard.layout.key_service):
            files[path] = read_file(path)
    if (credentials := layout.development_credentials).exists():
        files[credentials] = read_secret_file(credentials, "credentials")
    if layout.start_settings.exists():
        files[layout.start_settings] = read_file(layout.start_settings)
    return Manifest(
        revisions={name: await run(revision) for name, run in snapshots.items()},
        files={str(path.relative_to(layout.directory)): data for path, data in files.items()},
    )


def _shard_origin(connection: sa.Connection, shard: str) -> ShardOrigin:
    check_shard(connection, shard)
    return ShardOrigin(
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
