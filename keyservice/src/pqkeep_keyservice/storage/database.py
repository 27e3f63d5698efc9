"""The interface of a database; sqlite.py and fenced_database.py implement it.

``Inserts`` collects the rows of a transaction without a database, so that one statement can insert
them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

from pqkeep_keyservice.storage.writer import Writer
from pqkeep_protocol.commits import WriteProblem

Rows = Mapping[sa.Table, Sequence[tuple[Any, ...]]]
"""Rows by table. Each has a value for each column, in the table's order."""


class NotOnlyInsertsError(Exception):
    """The transaction needs a statement other than an INSERT."""


class Inserts:
    """Replaces a connection: it collects the rows of INSERTs, and refuses other statements."""

    dialect = DefaultDialect()
    """A neutral dialect, so that no code uses a feature of one database."""

    def __init__(self, texts: Mapping[str, sa.Table]) -> None:
        """Take the INSERTs that run as text. Each has all columns of its table."""
        self.rows: dict[sa.Table, Sequence[tuple[Any, ...]]] = {}
        self._texts = texts

    def exec_driver_sql(self, statement: str, rows: Sequence[tuple[Any, ...]] = ()) -> None:
        """Collect the rows of an INSERT among the texts. Raises NotOnlyInsertsError."""
        table = self._texts.get(statement)
        if table is None:
            raise NotOnlyInsertsError
        self.rows[table] = rows

    def execute(self, statement: sa.Executable, rows: object = None) -> None:
        """Collect an INSERT's rows, given by column names. Raises NotOnlyInsertsError."""
        if not isinstance(statement, sa.Insert) or not isinstance(rows, list):
            raise NotOnlyInsertsError
        table = statement.table
        assert isinstance(table, sa.Table)  # noqa: S101
        self.rows[table] = [tuple(row[column.name] for column in table.columns) for row in rows]


T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class DatabaseUnavailableError(Exception):
    """The database does not respond. A write may or may not be committed."""

    def __init__(self, message: str = "", problem: WriteProblem = WriteProblem.NO_RESPONSE) -> None:
        super().__init__(message)
        self.problem = problem


class Database(Protocol):
    """Runs one transaction at a time. Each is durable once it has ended.

    This process is the only writer, because it caches keys in memory.
    """

    dialect: sa.Dialect
    """The dialect in which SQL is compiled."""
    writer: Writer
    """The epoch, and whether this process may write, as far as this process knows.

    Another key service may have written between two epochs. So data from an earlier epoch is
    outdated.
    """
    is_scrubbed: bool
    """Whether the last scrub succeeded."""

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in a transaction. Its writes are durable on return.

        Raises DatabaseUnavailableError, which leaves open whether they were committed.
        """

    async def insert(
        self, plan: Callable[[*Arguments], tuple[Rows, T] | None], *arguments: *Arguments
    ) -> T | None:
        """Insert the rows that ``plan`` returns, and return its other result.

        The effect equals ``write``, in less time. Returns None without doing anything if ``plan``
        returns None. It also does so if this database currently has no faster way than ``write``.
        Raises DatabaseUnavailableError, which leaves open whether anything was committed.
        """

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that only reads, after all earlier writes of this process.

        Raises DatabaseUnavailableError.
        """

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a slow function that only reads durable data.

        It has its own connection, so that no other transaction waits for it. Raises
        DatabaseUnavailableError, also if this process is no longer the writer.
        """

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a query even on a standby: for this process's own checks, never for a response.

        Raises DatabaseUnavailableError.
        """

    async def scrub(self) -> bool:
        """Remove copies of deleted data as far as possible. Return whether that succeeded."""

    async def close(self) -> None:
        """Wait for the last commit, close the connections and release the lock."""
