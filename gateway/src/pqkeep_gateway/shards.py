"""Which shard's key service a request goes to: its tenant's.

A tenant's placement is read with its credential, and is as current as that: a request goes where its
tenant was when it was admitted. For whatever is not of an admitted tenant it is read when it is
needed. What concerns no tenant is in the shard ``default``.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, KeyService, R_co, Request
from pqkeep_protocol.shards import DEFAULT_SHARD
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


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


_ADMITTED: ContextVar[tuple[TenantId, Placement] | None] = ContextVar("admitted", default=None)


def admit(tenant: TenantId, placement: Placement) -> None:
    """Have the rest of the current task ask the tenant's key service there."""
    _ADMITTED.set((tenant, placement))


def _placement_of(tenant: TenantId) -> Placement | None:
    """Return where a tenant was when the current task's request was admitted, if it is that one's."""
    admitted = _ADMITTED.get()
    # By number: a UUID's own comparison is a function in Python.
    if admitted is not None and admitted[0].int == tenant.int:
        return admitted[1]
    return HERE if tenant == INSTALLATION else None


class Shards:
    """The key services of all shards, and as a KeyService the one of each request's tenant."""

    def __init__(
        self,
        services: Mapping[str, KeyService],
        directory: PlacementDirectory,
        departures: Departures,
    ) -> None:
        self._services = services
        self._directory = directory
        self._departures = departures

    def through(self, wrap: Callable[[KeyService], KeyService]) -> "Shards":
        """Return the same shards, with each key service as a function returns it."""
        services = {name: wrap(service) for name, service in self._services.items()}
        return Shards(services, self._directory, self._departures)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, ``default`` first."""
        return tuple(sorted(self._services, key=lambda name: (name != DEFAULT_SHARD, name)))

    async def execute(self, request: Request[R_co], attribution: Attribution, /) -> R_co:
        """Have the key service of the request's tenant carry it out. Raises KeyServiceError.

        TENANT_MOVED where the tenant is being moved, UNAVAILABLE where its shard has no settings.
        Raises UnavailableError, too.
        """
        placement = _placement_of(request.tenant) or await self._directory.find(request.tenant)
        try:
            return await self._execute(placement, request, attribution)
        except KeyServiceError as error:
            if error.kind is not ErrorKind.TENANT_MOVED:
                raise
        self._departures.add(request.tenant, placement.shard)
        now = await self._directory.find(request.tenant)
        if now.shard == placement.shard:
            raise KeyServiceError(ErrorKind.TENANT_MOVED)
        admit(request.tenant, now)  # nothing was done, and so it may be asked again
        return await self._execute(now, request, attribution)

    async def recording(self, tenant: TenantId) -> str:
        """Return the shard whose log has the events of a tenant, also while it is being moved.

        Raises UnavailableError.
        """
        return (_placement_of(tenant) or await self._directory.find(tenant)).shard

    async def residence(self, tenant: TenantId) -> str:
        """Return the shard where a tenant is now, wherever it was when its request was admitted.

        Raises UnavailableError.
        """
        return (await self._directory.find(tenant)).shard

    async def recorded(self, tenant: TenantId) -> tuple[str, ...]:
        """Return the shards whose logs have a tenant's records, in the order of its coming there.

        Raises UnavailableError.
        """
        if len(self._services) == 1:
            return (await self.recording(tenant),)
        return tuple(await self._directory.visited(tenant))

    def of(self, shard: str) -> KeyService:
        """Return a shard's key service. Raises UnknownShardError."""
        try:
            return self._services[shard]
        except KeyError:
            raise UnknownShardError from None

    @property
    def all(self) -> tuple[KeyService, ...]:
        """The key services of all shards."""
        return tuple(self._services.values())

    def _execute(
        self, placement: Placement, request: Request[R_co], attribution: Attribution
    ) -> Awaitable[R_co]:
        if placement.is_moving:
            raise KeyServiceError(ErrorKind.TENANT_MOVED)
        return self._configured(placement.shard).execute(request, attribution)

    def _configured(self, shard: str) -> KeyService:
        try:
            return self._services[shard]
        except KeyError:
            _LOG.error("a tenant is in a shard that the settings do not name", shard=shard)
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
