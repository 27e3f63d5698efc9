"""Shards as the operator sees them: how many tenants each has, and whether it takes new ones."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pqkeep_gateway.audit_events import event
from pqkeep_gateway.shards import Placement
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution

SERVING: Final = "serving"
MOVING: Final = "moving"
"""The states of a tenant in its shard."""


class ShardNotFoundError(Exception):
    """The settings name no such shard."""


class ShardFullError(Exception):
    """The shard is being drained, and takes no new tenants."""


class ShardInUseError(Exception):
    """The shard is needed. The message says what for, for the operator."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard that the accounts database knows."""

    name: str
    draining: bool
    """Whether it takes no new tenants."""
    tenants: int
    """How many tenants it has, without deleted ones."""
    moving: int = 0
    """How many of them are on their way to another shard, and answered 503."""


class TenantPlacements(Protocol):
    """Where tenants are, as the operator's commands change it. Raises UnavailableError."""

    async def find(self, tenant: TenantId) -> Placement:
        """Return where a tenant is; ``default`` for an unknown one."""
        ...

    async def list(self) -> Sequence[StoredShard]:
        """Return all shards that ever were, by name."""
        ...

    async def tenants_in(self, shard: str) -> Sequence[TenantId]:
        """Return the tenants of a shard, but for deleted ones."""
        ...

    async def begin_move(self, tenant: TenantId) -> str:
        """Have a tenant's requests refused; return its shard. Raises TenantNotFoundError."""
        ...

    async def end_move(self, tenant: TenantId, source: str, target: str) -> None:
        """Have a tenant served in the shard where it is now. Raises ShardNotFoundError."""
        ...

    async def set_draining(self, shard: str, *, draining: bool) -> None:
        """Put no new tenants into a shard, or do again. Raises ShardNotFoundError."""
        ...

    async def remove(self, shard: str, audit_event: Event, *, leaves_records: bool) -> int:
        """Forget that tenants have records in a drained shard; return how many have.

        Raises ShardInUseError where that is any, unless their records may be left, and where the
        shard takes tenants, has some, or events wait for its log. Raises ShardNotFoundError.
        """
        ...


ListShards = Callable[[], Awaitable[Sequence[StoredShard]]]
"""Returns all shards that ever were, by name. Raises UnavailableError."""


def removal(shard: str) -> Event:
    """Return the event by which the log of the installation says that a shard was removed."""
    attribution = Attribution("", "pqkeepd", "")
    return event(attribution, INSTALLATION, AuditEvent.REMOVE_SHARD, policy=f"shard-{shard}")
