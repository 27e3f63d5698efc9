"""How long a database on a server may take for what."""

from dataclasses import dataclass

TRANSACTION_SECONDS = "pqkeep_transaction_seconds"
"""The option of an engine that limits the time of its transactions."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long each step may take, in seconds: a server may hang."""

    connect: float = 2.0
    wait: float = 2.0
    """For a free connection of the pool."""
    statement: float = 3.0
    """Also for a lock."""
    transaction: float = 4.0
    """With the wait for a connection."""


LIMITS = TimeLimits()
