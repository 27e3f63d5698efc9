"""What the key store needs of a database, whichever it is: see sqlite.py and postgresql.py."""

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

import sqlalchemy as sa

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class DatabaseUnavailableError(Exception):
    """The database does not answer now. What was asked of it is not done, as far as one knows."""


class Database(Protocol):
    """One transaction at a time, and durable when it is over.

    Nobody else writes to it: keyrings are kept in memory.
    """

    @property
    def dialect(self) -> sa.Dialect:
        """What SQL is compiled for."""

    @property
    def epoch(self) -> int:
        """Counts how often the database was lost and found.

        Somebody else may have had it in between: what was read in an earlier epoch is out of date.
        """

    @property
    def is_scrubbed(self) -> bool:
        """Whether the last scrub could be done."""

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in a transaction. What it wrote is durable on return.

        Raises DatabaseUnavailableError. Whether anything was written is not known then.
        """

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that only reads, after every write that was asked for before.

        Raises DatabaseUnavailableError.
        """

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that only reads, and may take its time, on what is durable.

        It has a connection of its own, and holds nobody up. Raises DatabaseUnavailableError.
        """

    async def scrub(self) -> bool:
        """Leave no copy of what was deleted, as far as this database can; return whether it did."""

    async def close(self) -> None:
        """Wait for the last commit and let the database go."""
