"""Whether a database can be written: by its last commit, or by a small one that is made to find out.

Reads prove nothing: with a full disk, a lock, a missing right or a server that is read-only they
succeed, and every request that writes fails.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from pqkeep_protocol.startup.postgresql import causes

RECENT_SECONDS = 1.0
"""How long a commit that succeeded shows that another would."""
PROBED_BYTES = 32 * 1024
"""What a probe writes: no less than an ordinary commit, so that it needs as much space."""
LOCK_MILLISECONDS = 500
"""How long a probe waits for a lock of a table on PostgreSQL."""
PROBE_TABLE = "write_probe"
"""One row, which nothing reads. It is written on SQLite only."""


class WriteProblem(StrEnum):
    """Why something that is needed cannot be used, or can be read and not written."""

    NO_RESPONSE = "no-answer"
    FULL = "full"
    READ_ONLY = "read-only"
    FORBIDDEN = "forbidden"
    LOCKED = "locked"
    FAILED = "failed"


IN_WORDS: Mapping[WriteProblem, str] = {
    WriteProblem.NO_RESPONSE: "it does not answer",
    WriteProblem.FULL: "it can be read and not written: its disk, quota or memory is full",
    WriteProblem.READ_ONLY: "it can be read and not written: the server or the file system is"
    " read-only",
    WriteProblem.FORBIDDEN: "it refuses its user: a password or a right is missing",
    WriteProblem.LOCKED: "it can be read and not written: another program has locked it",
    WriteProblem.FAILED: "it cannot be written, and the log says why",
}
"""What people are told."""

_BY_SQLSTATE: Mapping[str, WriteProblem] = {
    "25006": WriteProblem.READ_ONLY,  # read_only_sql_transaction
    "28": WriteProblem.FORBIDDEN,  # invalid_authorization_specification
    "42501": WriteProblem.FORBIDDEN,  # insufficient_privilege
    "53": WriteProblem.FULL,  # insufficient_resources: disk_full, out_of_memory
    "53300": WriteProblem.NO_RESPONSE,  # too_many_connections
    "55P03": WriteProblem.LOCKED,  # lock_not_available
    "57014": WriteProblem.LOCKED,  # query_canceled: it has waited for too long
    "57": WriteProblem.NO_RESPONSE,  # operator_intervention: the server stops, or starts
    "58": WriteProblem.FAILED,  # system_error
    "08": WriteProblem.NO_RESPONSE,  # connection_exception
}
"""By the code, or by the class that its first two characters are."""
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
"""The bits of an extended error code that are its primary code."""
_NOT_WRITABLE = "TargetServerAttributeNotMatched"
"""The name of asyncpg's error where a server does not take writes."""


def problem_of(error: BaseException) -> WriteProblem:
    """Return what an error of SQLite, asyncpg or SQLAlchemy says."""
    for cause in causes(error):
        if isinstance(code := getattr(cause, "sqlite_errorcode", None), int):
            return _BY_SQLITE_CODE.get(code & _PRIMARY, WriteProblem.FAILED)
        if isinstance(state := getattr(cause, "sqlstate", None), str):
            found = _BY_SQLSTATE.get(state) or _BY_SQLSTATE.get(state[:2])
            return found or WriteProblem.FAILED
        if type(cause).__name__ == _NOT_WRITABLE:
            return WriteProblem.READ_ONLY
    return WriteProblem.NO_RESPONSE


class Commits:
    """The outcome of the last commit to one database, and whether it still says enough."""

    def __init__(self) -> None:
        self.problem: WriteProblem | None = None
        """Why the last commit failed; None where it succeeded."""
        self.number = 0
        """How many commits have succeeded."""
        self._succeeded_at = -math.inf
        self._is_doubtful = False
        self._waiting: set[asyncio.Event] = set()

    def succeeded(self) -> None:
        """Note a commit."""
        self.problem = None
        self.number += 1
        self._succeeded_at = asyncio.get_running_loop().time()
        for event in self._waiting:
            event.set()

    async def wait_for_another(self, number: int, seconds: float) -> None:
        """Wait until more than so many commits have succeeded, at most for some seconds."""
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
        """Note a commit that failed. It may be the fault of what was to be written."""
        self.problem = problem
        self._is_doubtful = True

    def require_probe(self) -> bool:
        """Return whether a commit has to be made to find out.

        That is so where there was none within RECENT_SECONDS, and where one has failed since this
        was asked last.
        """
        was_doubtful, self._is_doubtful = self._is_doubtful, False
        age = asyncio.get_running_loop().time() - self._succeeded_at
        return was_doubtful or age >= RECENT_SECONDS


def probe_statements(
    dialect: str, inserted: Sequence[str], updated: Mapping[str, str], deleted: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the SQL of a probe, for one transaction of this dialect that is committed.

    It fails where an ordinary transaction would. It changes nothing that is used, and the database
    does not grow. The tables are those that rows are inserted into, those that are updated, each
    with a column, and those that rows are deleted from.
    """
    if dialect == "sqlite":
        yield (
            f"UPDATE {PROBE_TABLE} SET written = written + 1, filler = randomblob({PROBED_BYTES})"  # noqa: S608 - of constants
        )
        return
    # Statements without rows need the rights and the locks of those with rows.
    inserts = (f'INSERT INTO "{name}" SELECT * FROM "{name}" WHERE false;' for name in inserted)  # noqa: S608 - names of the schema
    updates = (
        f'UPDATE "{name}" SET "{column}" = "{column}" WHERE false;'  # noqa: S608 - likewise
        for name, column in updated.items()
    )
    deletes = (f'DELETE FROM "{name}" WHERE false;' for name in deleted)  # noqa: S608 - likewise
    # A temporary table takes new space of the disk each time, and gives it back. Other tables have
    # space left in what they have.
    yield f"""
        DO $probe$ BEGIN
            PERFORM set_config('lock_timeout', '{LOCK_MILLISECONDS}ms', true);
            {" ".join((*inserts, *updates, *deletes))}
            CREATE TEMPORARY TABLE pqkeep_probe ON COMMIT DROP AS
                SELECT repeat('x', 1024) FROM generate_series(1, {PROBED_BYTES // 1024});
        END $probe$
    """  # noqa: S608 - likewise
