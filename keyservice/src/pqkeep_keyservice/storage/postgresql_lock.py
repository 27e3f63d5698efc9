"""Which session may write to a PostgreSQL database: the one that has its lock, in its epoch.

A lock alone is not enough: a process that is paused keeps its session, and with it the lock. So the
session says again and again, in the one row of ``service_epoch``, until when no other may end it.
A key service that waits for the lock ends a session whose time is over, unless the server is at
work for it just then: that is a slow disk, and no silent process. All times are the database
server's. Each transaction that writes locks that row and so requires that its epoch is the current
one: what an earlier epoch's session still tried could not be committed, even without the lock.
"""

import os
import socket
from dataclasses import dataclass

import asyncpg

from pqkeep_keyservice.storage.schema import SERVICE_EPOCH

LOCK = 0x7071_6B65_6570_0001
"""The advisory lock of the key service: "pqkeep", 1."""
HELD_SECONDS = 2.0
"""How long a session is not ended that has not been heard of."""
RENEW_SECONDS = 0.5
"""Between two renewals of that time."""
BUSY_SECONDS = 4.0
"""How long the server may be at work on one statement of the session: as long as a transaction may
take."""
POLL_SECONDS = 0.2
"""Between two looks at the lock of another key service."""

_TABLE = SERVICE_EPOCH.name
_NOW_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_TAKE = f"SELECT pg_try_advisory_lock({LOCK})"
_EXISTS = f"SELECT to_regclass('{_TABLE}') IS NOT NULL"
_BEGIN_EPOCH = f"""
    UPDATE {_TABLE} SET epoch = epoch + 1, takeovers = takeovers + $1, holder = $2,
        backend_pid = pg_backend_pid(), held_until_us = {_NOW_US} + $3,
        backend_start_us = (
            SELECT (extract(epoch FROM backend_start) * 1000000)::bigint
            FROM pg_stat_activity WHERE pid = pg_backend_pid()
        )
    RETURNING epoch, takeovers
"""  # noqa: S608 - of constants
_END_HOLDER = f"""
    SELECT pg_terminate_backend(lock.pid, 1000) FROM {_TABLE} AS held
    JOIN pg_locks AS lock ON lock.pid = held.backend_pid
    JOIN pg_stat_activity AS session ON session.pid = lock.pid
    WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
        AND lock.classid = {LOCK >> 32} AND lock.objid = {LOCK & 0xFFFF_FFFF}
        AND session.datname = current_database()
        AND (extract(epoch FROM session.backend_start) * 1000000)::bigint = held.backend_start_us
        AND held.held_until_us < {_NOW_US}
        AND (
            session.state <> 'active'
            OR session.query_start < clock_timestamp() - interval '{BUSY_SECONDS} seconds'
        )
"""  # noqa: S608 - of constants


@dataclass(frozen=True, slots=True)
class Epoch:
    """A time during which one session is the only one that writes."""

    number: int
    takeovers: int
    """How many epochs were begun by a key service that had waited for another."""


async def take_lock(driver: asyncpg.Connection) -> bool:
    """Take the lock for a session, if it is free."""
    taken: bool = await driver.fetchval(_TAKE)
    return taken


async def has_epochs(driver: asyncpg.Connection) -> bool:
    """Return whether the database has its tables."""
    exists: bool = await driver.fetchval(_EXISTS)
    return exists


async def begin_epoch(driver: asyncpg.Connection, seconds: float, *, has_waited: bool) -> Epoch:
    """Begin an epoch for a session that has the lock, and must not be ended for some seconds."""
    holder = f"{socket.gethostname()} {os.getpid()}"[:255]
    held_us = int(seconds * 1_000_000)
    row = await driver.fetchrow(_BEGIN_EPOCH, int(has_waited), holder, held_us)
    if row is None:
        raise LostEpochError("the table of epochs is empty")
    return Epoch(*row)


async def end_silent_holder(driver: asyncpg.Connection) -> bool:
    """End the session that has the lock, if its time is over; return whether it was.

    Waits up to a second until it is gone, so that the next to ask for the lock is this one.
    """
    return bool(await driver.fetch(_END_HOLDER))


class LostEpochError(Exception):
    """The epoch is over: another session has begun one."""


async def begin(driver: asyncpg.Connection, epoch: int, *, writes: bool, renews: bool) -> None:
    """Begin a transaction. Raises LostEpochError where it must not write any more."""
    if renews:
        held_us = int(HELD_SECONDS * 1_000_000)
        check = f"UPDATE {_TABLE} SET held_until_us = {_NOW_US} + {held_us} WHERE epoch = {epoch:d}"  # noqa: S608 - numbers
    elif writes:
        check = f"SELECT FROM {_TABLE} WHERE epoch = {epoch:d} FOR SHARE"
    else:
        check = f"SELECT FROM {_TABLE} WHERE epoch = {epoch:d}"
    done = await driver.execute(f"BEGIN; {check}")
    if not done.endswith(" 1"):
        raise LostEpochError("another session has begun an epoch")
