"""Which shard's key service a request goes to: its tenant's.

A tenant's placement is read with its credential, and is as current as that: a request goes where its
tenant was when it was admitted. For whatever is not of an admitted tenant it is read when it is
needed. What concerns no tenant is in the shard ``default``.

A request takes this way only where the settings name two shards or more.
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
from pqkeep_protocol.messages import Attribution, GetActiveKey, GetKey, GetKeyring, Request
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

R = TypeVar("R")

LOOK_UPS = (GetActiveKey, GetKey, GetKeyring)
"""What a rehearsal asks a key service."""


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


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tenant is."""

    shard: str = DEFAULT_SHARD
    is_moving: bool = False
    """Whether it is on its way to another shard: nothing is done with its keys then."""


HERE = Placement()
DEPARTURES = 10_000


class PlacementDirectory(Protocol):
    """Where placements are looked up."""

    async def find(self, tenant: TenantId) -> Placement:
        """Return where a tenant is, or will be: ``default`` for an unknown one.

        Raises UnavailableError.
        """
        ...

    async def visited(self, tenant: TenantId) -> Sequence[str]:
        """Return the shards whose logs have a tenant's records, in the order of its coming there.

        Raises UnavailableError.
        """
        ...


class UnknownShardError(UnavailableError):
    """The settings name no such shard."""


class Departures:
    """Tenants that a shard has said to have left it, until their placement is read again."""

    def __init__(self) -> None:
        self._left: dict[TenantId, str] = {}
        """The oldest first."""

    def add(self, tenant: TenantId, shard: str) -> None:
        """Note that a shard has said so."""
        if len(self._left) >= DEPARTURES and tenant not in self._left:
            del self._left[next(iter(self._left))]
        self._left[tenant] = shard

    def is_current(self, tenant: TenantId, placement: Placement) -> bool:
        """Return whether a placement that is remembered may be used.

        Where it may not, it is read again, and is taken as it is then.
        """
        if placement.is_moving:
            return False
        return not self._left or self._left.pop(tenant, None) != placement.shard


Then = Callable[[R | KeyServiceError], None]
"""What a call is told: the result, or why there is none."""


class TenantKeyService(Protocol):
    """The key service for requests of tenants. Each tenant is where its placement says."""

    def call(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None,
        then: Then[R],
        /,
    ) -> None:
        """Send a request now, and call ``then`` once with the outcome, from the event loop.

        ``then`` is never called before this returns, and must not raise. ``placement`` is that of
        the request's tenant; None: it is looked up where that is needed.
        """
        ...

    async def execute(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None = None,
        /,
    ) -> R:
        """Have a request carried out. Raises KeyServiceError; in a rehearsal see ``awaited``."""
        ...


async def awaited(
    keys: TenantKeyService,
    request: Request[R],
    attribution: Attribution,
    placement: Placement | None,
) -> R:
    """Call a key service and wait for the outcome. Raises KeyServiceError.

    A rehearsal makes look-ups only: everything else raises RehearsedError.
    """
    if not isinstance(request, LOOK_UPS):
        before_change()
    response: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    keys.call(request, attributed(attribution), placement, partial(settle, response))
    try:
        return await response
    finally:
        del response  # its exception has this frame, and those of the request


def settle(waiting: "asyncio.Future[R]", outcome: R | KeyServiceError) -> None:
    """End the wait for an outcome, unless it was given up."""
    if waiting.done():
        return
    if isinstance(outcome, KeyServiceError):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)


def unnamed(shard: str) -> ErrorKind:
    """Log that a tenant is in a shard without settings; return why its requests are refused."""
    _LOG.error("a tenant is in a shard that the settings do not name", shard=shard)
    return ErrorKind.UNAVAILABLE


class Shards:
    """The key services of all shards, and as a TenantKeyService the one of each request's tenant.

    With one shard its key client is used directly instead, and placements are not looked up.
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
        """Return the same shards, with each key service as a function returns it."""
        services = {name: wrap(service) for name, service in self._services.items()}
        return Shards(services, self._directory, self._departures)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, ``default`` first."""
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

        If the tenant has left that shard, nothing was done there, and its new one is asked, once.
        TENANT_MOVED while the tenant is being moved, UNAVAILABLE if its shard has no settings.
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
        """Have a request carried out in the shard of its tenant. Raises KeyServiceError.

        Raises UnavailableError, too.
        """
        if placement is None and request.tenant != INSTALLATION:
            placement = await self._directory.find(request.tenant)
        return await awaited(self, request, attribution, placement)

    async def recording(self, tenant: TenantId, placement: Placement | None = None) -> str:
        """Return the shard whose log has the events of a tenant, also while it is being moved.

        ``placement``: where it was when its request was admitted. Raises UnavailableError.
        """
        if placement is not None:
            return placement.shard
        return HERE.shard if tenant == INSTALLATION else await self.residence(tenant)

    async def residence(self, tenant: TenantId) -> str:
        """Return the shard where a tenant is now, wherever it was when its request was admitted.

        Raises UnavailableError.
        """
        return (await self._directory.find(tenant)).shard

    async def recorded(
        self, tenant: TenantId, placement: Placement | None = None
    ) -> tuple[str, ...]:
        """Return the shards whose logs have a tenant's records, in the order of its coming there.

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
        """The key service for requests of admitted tenants. With one shard it is asked directly."""
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
        """Send a request where its tenant is now, unless that is the shard which it has left."""

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
"""Returns all shards that ever were, by name. Raises UnavailableError."""


def removal(shard: str) -> Event:
    """Return the event by which the log of the installation says that a shard was removed."""
    attribution = Attribution("", "pqkeepd", "")
    return event(attribution, INSTALLATION, AuditEvent.REMOVE_SHARD, policy=f"shard-{shard}")
