"""Reads databases for ``pqkeepd doctor``: a shard's active key service, root keys and clocks.

With standbys, the key services alone cannot tell which one is active: one that does not respond may
hold the lock.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import sqlalchemy as sa

from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.storage.root_keys import list_check_values
from pqkeep_keyservice.storage.schema import ROOT_KEYS, SERVICE_EPOCH
from pqkeep_protocol.startup.postgresql import problem_with
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_server.backup.databases import Database, keys_of, snapshot
from pqkeep_server.backup.tables import DatabaseError
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of

SECONDS = 10.0
SILENT_SECONDS = 2.0
"""Time after which a silent holder counts as inactive."""
_QUERY = f"""
    SELECT epoch, holder, held_until_us - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        (SELECT count(*) FROM pg_locks AS lock JOIN pg_stat_activity AS session USING (pid)
         WHERE lock.locktype = 'advisory' AND lock.granted AND pid = held.backend_pid
            AND session.datname = current_database())
    FROM {SERVICE_EPOCH.name} AS held
"""  # noqa: S608 - of constants


_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class Holder(NamedTuple):
    """The key service with a shard's newest fencing token (its epoch)."""

    shard: str
    epoch: int
    name: str
    """The key service's host and process id."""
    silent: timedelta | None
    """Time without a sign of life, or None if the key service is active."""

    def __str__(self) -> str:
        which = f"the shard {self.shard}: epoch {self.epoch} of {self.name}"
        if self.silent is None:
            return f"{which}, active"
        seconds = round(self.silent.total_seconds())
        return f"{which}, silent for {seconds} s: no key service is active, start one"


def epoch_holder(shard: Layout) -> Holder | None:
    """Return the holder, or None for a database in a file. Raises ConfigError if it is unreachable."""
    with acting_as_owner_of(shard.key_service):
        settings = key_service_config.read(shard.key_service_settings)
        return asyncio.run(_holder(settings)) if settings.database.is_on_server else None


def seconds_ahead(database: DatabaseAddress, password_file: Path | None) -> float:
    """Return the seconds by which a database server's clock is ahead of this host's.

    Raises ConfigError if the server does not respond.
    """
    before = time.time()
    (there,) = asyncio.run(_row(database, password_file, _CLOCK)) or (before,)
    now = time.time()
    return max(there - now, 0.0) if there > before else there - before


def root_key_check_values(shard: Layout) -> Mapping[int, bytes]:
    """Return the check values of root keys in a shard's database, by id.

    An unused database has none. Raises ConfigError if the database cannot be read.
    """
    with acting_as_owner_of(shard.key_service):
        settings = key_service_config.read(shard.key_service_settings)
        try:
            return asyncio.run(_check_values(shard, settings))
        except (DatabaseError, TimeoutError) as error:
            raise ConfigError(str(error)) from None


async def _check_values(shard: Layout, settings: key_service_config.Config) -> Mapping[int, bytes]:
    database = Database(keys_of(shard.shard), settings.database, settings.database_password_file)

    def find(connection: sa.Connection) -> Mapping[int, bytes]:
        is_new = not sa.inspect(connection).has_table(ROOT_KEYS.name)
        return {} if is_new else list_check_values(connection)

    async with asyncio.timeout(SECONDS), snapshot(database) as run:
        return await run(find)


async def _row(
    database: DatabaseAddress, password_file: Path | None, query: str
) -> Sequence[Any] | None:
    """Return the first row of a query. Raises ConfigError."""
    location = database.location
    try:
        async with asyncio.timeout(SECONDS):
            connection = await asyncpg.connect(location, passfile=password_file, timeout=SECONDS)
            try:
                row: Sequence[Any] | None = await connection.fetchrow(query)
                return row
            finally:
                connection.terminate()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise ConfigError(problem_with(error, location)) from None


async def _holder(settings: key_service_config.Config) -> Holder:
    location = settings.database.location
    row = await _row(settings.database, settings.database_password_file, _QUERY)
    if row is None:
        raise ConfigError(f"no key service has used the database {location} yet: start one")
    epoch, name, left_us, locks = row
    late = timedelta(microseconds=-left_us)
    is_served = locks and late < timedelta(seconds=SILENT_SECONDS)
    return Holder(settings.shard, epoch, name, None if is_served else max(late, timedelta()))
