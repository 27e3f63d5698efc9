"""Shards as the operator sees them: how many tenants each has, and whether it takes new ones."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

SERVING: Final = "serving"
MOVING: Final = "moving"
"""The states of a tenant in its shard."""


class ShardNotFoundError(Exception):
    """The settings name no such shard."""


class ShardFullError(Exception):
    """The shard is being drained, and takes no new tenants."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard that the accounts database knows."""

    name: str
    draining: bool
    """Whether it takes no new tenants."""
    tenants: int
    """How many tenants it has, without deleted ones."""


ListShards = Callable[[], Awaitable[Sequence[StoredShard]]]
"""Returns all shards that ever were, by name. Raises UnavailableError."""
