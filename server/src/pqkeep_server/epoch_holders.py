"""Who serves a shard whose database is on a server: what the database says.

Of a shard with standbys the key services alone cannot tell: one that does not answer may be the
one that has the lock.
"""

import asyncio
from datetime import timedelta
from typing import NamedTuple

import asyncpg

from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.storage.schema import SERVICE_EPOCH
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of

SECONDS = 10.0
SILENT_SECONDS = 2.0
"""After which a holder that has not been heard of is one that does not serve."""
_QUERY = f"""
    SELECT epoch, holder, held_until_us - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        (SELECT count(*) FROM pg_locks AS lock JOIN pg_stat_activity AS session USING (pid)
         WHERE lock.locktype = 'advisory' AND lock.granted AND pid = held.backend_pid
            AND session.datname = current_database())
    FROM {SERVICE_EPOCH.name} AS held
"""  # noqa: S608 - of constants


class Holder(NamedTuple):
    """The key service that began a shard's newest epoch."""

    shard: str
    epoch: int
    name: str
    """Its host and process id."""
    silent: timedelta | None
    """Since when it should have been heard of; None where it serves."""

    def __str__(self) -> str:
        which = f"the shard {self.shard}: epoch {self.epoch}, of {self.name}"
        if self.silent is None:
            return f"{which}, which serves"
        seconds = round(self.silent.total_seconds())
        return f"{which}, which has not been heard of for {seconds} s: nobody serves the shard"


def epoch_holder(shard: Layout) -> Holder | None:
    """Return it; None where the database is a file. Raises ConfigError where it does not answer."""
    with acting_as_owner_of(shard.key_service):
        settings = key_service_config.read(shard.key_service_settings)
        return asyncio.run(_holder(settings)) if settings.database.is_on_server else None


async def _holder(settings: key_service_config.Config) -> Holder:
    location = settings.database.location
    try:
        async with asyncio.timeout(SECONDS):
            connection = await asyncpg.connect(
                location, passfile=settings.database_password_file, timeout=SECONDS
            )
            try:
                row = await connection.fetchrow(_QUERY)
            finally:
                connection.terminate()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise ConfigError(f"the database {location}: {str(error) or 'does not answer'}") from None
    if row is None:
        raise ConfigError(f"the database {location} has had no key service yet")
    epoch, name, left_us, locks = row
    late = timedelta(microseconds=-left_us)
    is_served = locks and late < timedelta(seconds=SILENT_SECONDS)
    return Holder(settings.shard, epoch, name, None if is_served else max(late, timedelta()))
