"""Time limits for a database on a server."""

from dataclasses import dataclass

TRANSACTION_SECONDS = "pqkeep_transaction_seconds"
"""The option of an engine with the time limit of its transactions."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The longest time of each step, in seconds: a server may hang."""

    connect: float = 2.0
    wait: float = 2.0
    """The wait for a free connection of the pool."""
    statement: float = 3.0
    """One statement, with the wait for a lock."""
    transaction: float = 4.0
    """One transaction, with the wait for a connection."""
    file_lock: float = 5.0
    """The wait for the write lock of an SQLite file."""


LIMITS = TimeLimits()
