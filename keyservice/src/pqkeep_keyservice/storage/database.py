"""The interface of a database; sqlite.py and postgresql.py implement it."""

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

import sqlalchemy as sa

from pqkeep_keyservice.storage.inserts import Rows
from pqkeep_protocol.commits import WriteProblem

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class DatabaseUnavailableError(Exception):
    """The database does not answer now. Whether a write was committed is unknown."""

    def __init__(self, message: str = "", problem: WriteProblem = WriteProblem.NO_ANSWER) -> None:
        super().__init__(message)
        self.problem = problem


class Database(Protocol):
    """One transaction at a time, durable once it has ended.

    This process is the only writer, because keys are cached in memory.
    """

    @property
    def dialect(self) -> sa.Dialect:
        """The dialect that SQL is compiled for."""

    @property
    def epoch(self) -> int:
        """The number of the connection that holds the database's lock.

        Another key service may have held it in between: what was read in an earlier epoch is
        out of date.
        """

    @property
    def takeovers(self) -> int:
        """How many epochs were begun by a key service that had waited for another."""

    @property
    def is_open(self) -> bool:
        """Whether this process is the writer now, as far as it knows."""

    @property
    def is_standing_by(self) -> bool:
        """Whether another key service is the writer, and this one waits to be."""

    async def next_epoch(self, after: int) -> int:
        """Wait until this process is the writer in another epoch than that; return its number."""

    @property
    def is_scrubbed(self) -> bool:
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
