"""The interface of a database; sqlite.py and fenced_database.py implement it.

What a transaction would insert is noted without a database, so that it can be one statement.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

from pqkeep_keyservice.storage.writer import Writer
from pqkeep_protocol.commits import WriteProblem

Rows = Mapping[sa.Table, Sequence[tuple[Any, ...]]]
"""Some for each of the tables, with a value for each column, in the order of the columns."""


class NotOnlyInsertsError(Exception):
    """Another statement than an INSERT is needed."""


class Inserts:
    """Stands in for a connection: notes the rows of INSERTs, and refuses every other statement."""

    dialect = DefaultDialect()
    """Of no kind of database: nothing is executed in a way that one of them alone has."""

    def __init__(self, texts: Mapping[str, sa.Table]) -> None:
        """Take the INSERTs that are executed as a text, each with all columns of its table."""
        self.rows: dict[sa.Table, Sequence[tuple[Any, ...]]] = {}
        self._texts = texts

    def exec_driver_sql(self, statement: str, rows: Sequence[tuple[Any, ...]] = ()) -> None:
        """Note the rows of an INSERT that is one of the texts. Raises NotOnlyInsertsError."""
        table = self._texts.get(statement)
        if table is None:
            raise NotOnlyInsertsError
        self.rows[table] = rows

    def execute(self, statement: sa.Executable, rows: object = None) -> None:
        """Note the rows of an INSERT, each by the names of its columns. Raises NotOnlyInsertsError."""
        if not isinstance(statement, sa.Insert) or not isinstance(rows, list):
            raise NotOnlyInsertsError
        table = statement.table
        assert isinstance(table, sa.Table)  # noqa: S101
        self.rows[table] = [tuple(row[column.name] for column in table.columns) for row in rows]


T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class DatabaseUnavailableError(Exception):
    """The database does not answer now. Whether a write was committed is unknown."""

    def __init__(self, message: str = "", problem: WriteProblem = WriteProblem.NO_RESPONSE) -> None:
        super().__init__(message)
        self.problem = problem


class Database(Protocol):
    """One transaction at a time, durable once it has ended.

    This process is the only writer, because keys are cached in memory.
    """

    dialect: sa.Dialect
    """The dialect that SQL is compiled for."""
    writer: Writer
    """Whether this process is the writer now, as far as it knows, and in which epoch.

    Another key service may have been the writer between two epochs: what was read in an earlier one
    is out of date.
    """
    is_scrubbed: bool
    """Whether the last scrub succeeded."""

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in a transaction. What it wrote is durable on return.

        Raises DatabaseUnavailableError: whether anything was written is unknown then.
        """

    async def insert(
        self, plan: Callable[[*Arguments], tuple[Rows, T] | None], *arguments: *Arguments
    ) -> T | None:
        """Insert the rows that a function returns, and return what it returns with them.

        That is as ``write`` does it, in less time. None: nothing was done, because the function has
        returned None, or because this database has no faster way now than ``write``. Raises
        DatabaseUnavailableError: whether anything was written is unknown then.
        """

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that only reads, after all earlier writes.

        Raises DatabaseUnavailableError.
        """

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a slow function that only reads, on what is durable.

        It has a connection of its own, and no other transaction waits for it. Raises
        DatabaseUnavailableError, also where this process is not the writer any more.
        """

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a query, whoever is the writer: for what this process checks, never for an answer.

        Raises DatabaseUnavailableError.
        """

    async def scrub(self) -> bool:
        """Remove copies of deleted data, as far as this database can; return whether it succeeded."""

    async def close(self) -> None:
        """Wait for the last commit, close the connections and release the lock."""
