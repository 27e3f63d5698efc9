"""Routes each request to the key service of its tenant's shard.

A tenant's placement is read with its credential: a request goes to the tenant's shard at the time
of its admission. Without an admitted tenant, the placement is read when needed. Requests without a
tenant go to the shard ``default``. With a single shard, requests bypass this module.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from pqkeep_gateway.audit_events import event
from pqkeep_gateway.rehearsal import attributed, before_change
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD, INSTALLATION, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    GetActiveKey,
    GetKey,
    GetKeyring,
    ListRules,
    Request,
)
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

R = TypeVar("R")

LOOK_UPS = (GetActiveKey, GetKey, GetKeyring, ListRules)
"""The key service requests that a rehearsal may send."""


SERVING: Final = "serving"
MOVING: Final = "moving"
"""The states of a tenant in its shard."""


class ShardNotFoundError(Exception):
    """No such shard in the settings."""


class ShardFullError(Exception):
    """The shard is being drained and accepts no new tenants."""


class ShardInUseError(Exception):
    """The shard is still in use. The message has the reason, for the operator."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard in the accounts database."""

    name: str
    draining: bool
    """Whether it accepts no new tenants."""
    tenants: int
    """The number of its tenants, without deleted ones."""
    moving: int = 0
    """The number of its tenants that are moving to another shard. Their requests get 503."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The shard of a tenant."""

    shard: str = DEFAULT_SHARD
    is_moving: bool = False
    """Whether the tenant is moving to another shard. Its keys cannot be used during the move."""


HERE = Placement()
DEPARTURES = 10_000


class PlacementDirectory(Protocol):
    """The source of placements."""

    async def find(self, tenant: TenantId) -> Placement:
        """Return a tenant's placement; ``default`` for an unknown tenant.

        Raises UnavailableError.
        """
        ...

    async def visited(self, tenant: TenantId) -> Sequence[str]:
        """Return the shards with a tenant's records, in the order of its arrival.

        Raises UnavailableError.
        """
        ...


class UnknownShardError(UnavailableError):
    """No such shard in the settings."""


class Departures:
    """Tenants that have left a shard, as the shard reported.

    A new look at the placement removes them.
    """

    def __init__(self) -> None:
        self._left: dict[TenantId, str] = {}
        """The departed tenants, the oldest entry first."""

    def add(self, tenant: TenantId, shard: str) -> None:
        """Note a shard's report."""
        if len(self._left) >= DEPARTURES and tenant not in self._left:
            del self._left[next(iter(self._left))]
        self._left[tenant] = shard

    def is_current(self, tenant: TenantId, placement: Placement) -> bool:
        """Return whether a cached placement may be used.

        If not, the caller must read the placement again, and may use what it reads.
        """
        if placement.is_moving:
            return False
        return not self._left or self._left.pop(tenant, None) != placement.shard


Then = Callable[[R | KeyServiceError], None]
"""The callback of a call: it takes the result or the error."""


class TenantKeyService(Protocol):
    """The key service for requests of tenants, at each tenant's placement."""

    def call(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None,
        then: Then[R],
        /,
    ) -> None:
        """Send a request now, and call ``then`` once with the outcome, from the event loop.

        ``then`` is never called before this returns, and must not raise. ``placement``: that of the
        request's tenant; None: it is looked up if needed.
        """
        ...

    async def execute(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None = None,
        /,
    ) -> R:
        """Execute a request. Raises KeyServiceError; in a rehearsal see ``awaited``."""
        ...


async def awaited(
    keys: TenantKeyService,
    request: Request[R],
    attribution: Attribution,
    placement: Placement | None,
) -> R:
    """Call a key service and wait for the outcome. Raises KeyServiceError.

    A rehearsal may only look up: everything else raises RehearsedError.
    """
    if not isinstance(request, LOOK_UPS):
        before_change()
    response: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    keys.call(request, attributed(attribution), placement, partial(settle, response))
    try:
        return await response
    finally:
        del response  # its exception refers to this frame and the request's


def settle(waiting: "asyncio.Future[R]", outcome: R | KeyServiceError) -> None:
    """Set the outcome of a wait, unless it was cancelled."""
    if waiting.done():
        return
    if isinstance(outcome, KeyServiceError):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)


def unnamed(shard: str) -> ErrorKind:
    """Log that a tenant is in a shard without settings; return the error of its requests."""
    _LOG.error("a tenant is in a shard that the settings do not name", shard=shard)
    return ErrorKind.UNAVAILABLE


class Shards:
    """The key services of all shards.

    As a TenantKeyService it chooses the one of each request's tenant. With one shard its key client
    is used directly, and placements are not looked up.
    """

    def __init__(
        self,
        services: Mapping[str, TenantKeyService],
        directory: PlacementDirectory,
        departures: Departures,
    ) -> None:
        self._services = services
        self._directory = directory
        self._departures = departures
        self._asking_again: set[asyncio.Task[None]] = set()

    def through(self, wrap: Callable[[TenantKeyService], TenantKeyService]) -> "Shards":
        """Return the same shards with wrapped key services."""
        services = {name: wrap(service) for name, service in self._services.items()}
        return Shards(services, self._directory, self._departures)

    @property
    def names(self) -> tuple[str, ...]:
        """The shards' names, ``default`` first."""
        return tuple(sorted(self._services, key=lambda name: (name != DEFAULT_SHARD, name)))

    def call(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None,
        then: Then[R],
        /,
    ) -> None:
        """Send a request to the shard of its tenant; see TenantKeyService.

        If the tenant has left that shard, the request was not executed there. It is then sent once
        to the new shard. The outcome is TENANT_MOVED while the tenant is being moved, UNAVAILABLE
        if its shard has no settings.
        """
        if placement is None and request.tenant == INSTALLATION:
            placement = HERE
        if placement is None:
            self._look_up(request, attribution, None, then)
            return

        def told(outcome: R | KeyServiceError) -> None:
            if isinstance(outcome, KeyServiceError) and outcome.kind is ErrorKind.TENANT_MOVED:
                self._departures.add(request.tenant, placement.shard)
                self._look_up(request, attribution, placement.shard, then)
            else:
                then(outcome)

        self._call_at(placement, request, attribution, told)

    async def execute(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None = None,
        /,
    ) -> R:
        """Execute a request in the shard of its tenant.

        Raises KeyServiceError and UnavailableError.
        """
        if placement is None and request.tenant != INSTALLATION:
            placement = await self._directory.find(request.tenant)
        return await awaited(self, request, attribution, placement)

    async def recording(self, tenant: TenantId, placement: Placement | None = None) -> str:
        """Return the shard whose log gets a tenant's events, even while the tenant is being moved.

        ``placement``: the placement when its request was admitted. Raises UnavailableError.
        """
        if placement is not None:
            return placement.shard
        return HERE.shard if tenant == INSTALLATION else await self.residence(tenant)

    async def residence(self, tenant: TenantId) -> str:
        """Return the tenant's current shard. Raises UnavailableError.

        It can differ from the shard of its request's admission.
        """
        return (await self._directory.find(tenant)).shard

    async def recorded(
        self, tenant: TenantId, placement: Placement | None = None
    ) -> tuple[str, ...]:
        """Return the shards with a tenant's records, in the order of its arrival.

        ``placement``: as for ``recording``. Raises UnavailableError.
        """
        if len(self._services) == 1:
            return (await self.recording(tenant, placement),)
        return tuple(await self._directory.visited(tenant))

    def of(self, shard: str) -> TenantKeyService:
        """Return a shard's key service. Raises UnknownShardError."""
        try:
            return self._services[shard]
        except KeyError:
            raise UnknownShardError from None

    @property
    def keys(self) -> TenantKeyService:
        """The key service for admitted tenants; with one shard, its key client itself."""
        return self if len(self._services) > 1 else next(iter(self._services.values()))

    @property
    def all(self) -> tuple[TenantKeyService, ...]:
        """The key services of all shards."""
        return tuple(self._services.values())

    def _call_at(
        self, placement: Placement, request: Request[R], attribution: Attribution, then: Then[R]
    ) -> None:
        service = self._services.get(placement.shard)
        if service is None:
            refusal = KeyServiceError(unnamed(placement.shard))
        elif placement.is_moving:
            refusal = KeyServiceError(ErrorKind.TENANT_MOVED)
        else:
            service.call(request, attribution, placement, then)
            return
        asyncio.get_running_loop().call_soon(then, refusal)

    def _look_up(
        self, request: Request[R], attribution: Attribution, left: str | None, then: Then[R]
    ) -> None:
        """Send a request to the tenant's current shard, unless the tenant has just left it."""

        async def find() -> None:
            try:
                found = await self._directory.find(request.tenant)
            except UnavailableError:
                then(KeyServiceError(ErrorKind.UNAVAILABLE))
                return
            if left is None:
                self.call(request, attribution, found, then)
            elif found.shard == left:
                then(KeyServiceError(ErrorKind.TENANT_MOVED))
            else:
                self._call_at(found, request, attribution, then)

        task = asyncio.create_task(find())
        self._asking_again.add(task)
        task.add_done_callback(self._asking_again.discard)


ListShards = Callable[[], Awaitable[Sequence[StoredShard]]]
"""Returns all shards that ever existed, by name. Raises UnavailableError."""


def removal(shard: str) -> Event:
    """Return the event for the installation's log that a shard was removed."""
    attribution = Attribution("", "pqkeepd", "")
    return event(attribution, INSTALLATION, AuditEvent.REMOVE_SHARD, policy=f"shard-{shard}")
