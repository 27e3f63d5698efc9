"""Whether a database can be written: judged by its last commit, or by a small probe commit.

Reads prove nothing. With a full disk, a lock, a missing right or a read-only server they succeed,
and every request that writes fails.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from pqkeep_protocol.startup.postgresql import causes

RECENT_SECONDS = 1.0
"""How long a successful commit shows that the next one would succeed."""
PROBED_BYTES = 32 * 1024
"""Bytes that a probe writes.

It writes as much as an ordinary commit, so it needs the same space.
"""
LOCK_MILLISECONDS = 500
"""How long a probe waits for a table lock on PostgreSQL."""
PROBE_TABLE = "write_probe"
"""A table of one row without meaning. Only SQLite uses it."""


class WriteProblem(StrEnum):
    """Why a database or other part is unusable or cannot be written."""

    NO_RESPONSE = "no-answer"
    FULL = "full"
    READ_ONLY = "read-only"
    FORBIDDEN = "forbidden"
    LOCKED = "locked"
    FAILED = "failed"


IN_WORDS: Mapping[WriteProblem, str] = {
    WriteProblem.NO_RESPONSE: "it does not respond",
    WriteProblem.FULL: "it is readable but not writable: its disk, quota or memory is full",
    WriteProblem.READ_ONLY: "it is readable but not writable: its server or file system is"
    " read-only",
    WriteProblem.FORBIDDEN: "it rejects its user: a password or a right is missing",
    WriteProblem.LOCKED: "it is readable but not writable: another program has locked it",
    WriteProblem.FAILED: "it cannot be written; see the log for the reason",
}
"""The text that describes each problem."""

_BY_SQLSTATE: Mapping[str, WriteProblem] = {
    "25006": WriteProblem.READ_ONLY,  # read_only_sql_transaction
    "28": WriteProblem.FORBIDDEN,  # invalid_authorization_specification
    "42501": WriteProblem.FORBIDDEN,  # insufficient_privilege
    "53": WriteProblem.FULL,  # insufficient_resources: disk_full, out_of_memory
    "53300": WriteProblem.NO_RESPONSE,  # too_many_connections
    "55P03": WriteProblem.LOCKED,  # lock_not_available
    "57014": WriteProblem.LOCKED,  # query_canceled: it waited too long
    "57": WriteProblem.NO_RESPONSE,  # operator_intervention: the server stops or starts
    "58": WriteProblem.FAILED,  # system_error
    "08": WriteProblem.NO_RESPONSE,  # connection_exception
}
"""By SQLSTATE, or by its class (its first two characters)."""
_BY_SQLITE_CODE: Mapping[int, WriteProblem] = {
    5: WriteProblem.LOCKED,  # SQLITE_BUSY
    6: WriteProblem.LOCKED,  # SQLITE_LOCKED
    7: WriteProblem.FULL,  # SQLITE_NOMEM
    8: WriteProblem.READ_ONLY,  # SQLITE_READONLY
    10: WriteProblem.FULL,  # SQLITE_IOERR: a quota, or a limit on the size of files
    13: WriteProblem.FULL,  # SQLITE_FULL
    14: WriteProblem.FORBIDDEN,  # SQLITE_CANTOPEN
}
_PRIMARY = 0xFF
"""The bits of an extended error code that hold the primary code."""
_NOT_WRITABLE = "TargetServerAttributeNotMatched"
"""The name of asyncpg's error for a server that refuses writes."""


def problem_of(error: BaseException) -> WriteProblem:
    """Return the problem behind an error of SQLite, asyncpg or SQLAlchemy."""
    for cause in causes(error):
        if isinstance(code := getattr(cause, "sqlite_errorcode", None), int):
            return _BY_SQLITE_CODE.get(code & _PRIMARY, WriteProblem.FAILED)
        if isinstance(state := getattr(cause, "sqlstate", None), str):
            problem = _BY_SQLSTATE.get(state) or _BY_SQLSTATE.get(state[:2])
            return problem or WriteProblem.FAILED
        if type(cause).__name__ == _NOT_WRITABLE:
            return WriteProblem.READ_ONLY
    return WriteProblem.NO_RESPONSE


class Commits:
    """The outcome of the last commit to one database, and whether it is recent enough."""

    def __init__(self) -> None:
        self.problem: WriteProblem | None = None
        """Why the last commit failed; None if it succeeded."""
        self.number = 0
        """The number of successful commits."""
        self._succeeded_at = -math.inf
        self._is_doubtful = False
        self._waiting: set[asyncio.Event] = set()

    def succeeded(self) -> None:
        """Note a successful commit."""
        self.problem = None
        self.number += 1
        self._succeeded_at = asyncio.get_running_loop().time()
        for event in self._waiting:
            event.set()

    async def wait_for_another(self, number: int, seconds: float) -> None:
        """Wait until more than ``number`` commits have succeeded, at most ``seconds``."""
        if self.number > number:
            return
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(event)

    def failed(self, problem: WriteProblem) -> None:
        """Note a failed commit. The data may be at fault, not the database."""
        self.problem = problem
        self._is_doubtful = True

    def require_probe(self) -> bool:
        """Return True if a probe commit is needed.

        It is needed if no commit succeeded within RECENT_SECONDS, or if one has failed since the
        last call.
        """
        was_doubtful, self._is_doubtful = self._is_doubtful, False
        age = asyncio.get_running_loop().time() - self._succeeded_at
        return was_doubtful or age >= RECENT_SECONDS


def probe_statements(
    dialect: str, inserted: Sequence[str], updated: Mapping[str, str], deleted: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the SQL of a probe, for one transaction that is committed.

    It fails if an ordinary transaction would fail. It changes no data in use, and the database does
    not grow. ``inserted`` and ``deleted`` name tables; ``updated`` maps a table to a column.
    """
    if dialect == "sqlite":
        yield (
            f"UPDATE {PROBE_TABLE} SET written = written + 1, filler = randomblob({PROBED_BYTES})"  # noqa: S608 - of constants
        )
        return
    # Statements without rows need the same rights and locks as those with rows.
    inserts = (f'INSERT INTO "{name}" SELECT * FROM "{name}" WHERE false;' for name in inserted)  # noqa: S608 - names of the schema
    updates = (
        f'UPDATE "{name}" SET "{column}" = "{column}" WHERE false;'  # noqa: S608 - names of the schema
        for name, column in updated.items()
    )
    deletes = (f'DELETE FROM "{name}" WHERE false;' for name in deleted)  # noqa: S608 - names of the schema
    # A temporary table needs new disk space each time, and frees it. An ordinary table may have
    # unused space, so a full disk would not show.
    yield f"""
        DO $probe$ BEGIN
            PERFORM set_config('lock_timeout', '{LOCK_MILLISECONDS}ms', true);
            {" ".join((*inserts, *updates, *deletes))}
            CREATE TEMPORARY TABLE pqkeep_probe ON COMMIT DROP AS
                SELECT repeat('x', 1024) FROM generate_series(1, {PROBED_BYTES // 1024});
        END $probe$
    """  # noqa: S608 - names of the schema
