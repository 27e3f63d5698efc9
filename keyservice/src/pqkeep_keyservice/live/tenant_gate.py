"""Admits the calls of tenants with keys in this shard, and stops a tenant's calls during its move.

When a tenant leaves, the gate waits for its calls in flight and admits no new ones. The log names
the tenants that have left. It is read once in each epoch.

While all tenants are here and none moves, the gate is open: calls are admitted without a look-up,
and only counted in total. Closing the gate for a tenant ends that. From then on calls are counted
by tenant, and the gate also waits for all earlier calls of any tenant.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from pqkeep_keyservice.ledger.moves import list_tenants_away
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId


class TenantGate:
    """Counts calls, and refuses those of departed tenants."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._writer = store.writer
        self._writer.on_change(self._forget)
        self.is_open = False
        """Whether all calls are admitted. Each call then increments ``uncounted`` while it runs.

        At its end, if the gate is no longer open, it calls ``left``.
        """
        self.uncounted = 0
        """Calls in flight that were admitted through the open gate."""
        # By integer: the hash and comparison of a UUID are Python functions.
        self._away: frozenset[int] | None = None
        """The departed tenants. None if they must be read."""
        self._loads = 0
        self._closed: dict[int, asyncio.Event] = {}
        """Each event is set when the tenant has no call in flight."""
        self._calls: Counter[int] = Counter()

    async def require(self, tenant: TenantId) -> None:
        """Raise TENANT_MOVED if the tenant's keys are elsewhere; or DatabaseUnavailableError."""
        away = self._away
        if away is None:
            away = await self._load()
        if tenant.int in away or tenant.int in self._closed:
            raise KeyServiceError(ErrorKind.TENANT_MOVED)

    def call(self, tenant: TenantId) -> "_Call":
        """Return a context manager for a tenant's call. Raises the errors of ``require``."""
        return _Call(self, tenant)

    @asynccontextmanager
    async def closed(self, tenant: TenantId, deadline: float) -> AsyncIterator[None]:
        """Stop a tenant's new calls, and wait until none is in flight.

        On exit, departures are read from the log again. Raises DEADLINE_EXCEEDED (event loop's
        time). Only one caller at a time.
        """
        emptied = self._closed[tenant.int] = asyncio.Event()
        self.is_open = False
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    while self._calls[tenant.int] or self.uncounted:
                        emptied.clear()
                        await emptied.wait()
            except TimeoutError:
                raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
            yield
        finally:  # also after an error, before the gate opens
            self._forget()
            self._loads += 1
            del self._closed[tenant.int]

    def _forget(self) -> None:
        self.is_open, self._away = False, None

    async def _load(self) -> frozenset[int]:
        """Read the departed tenants, and open the gate if there are none."""
        while True:
            epoch, loads = self._writer.epoch, self._loads
            tenants = await self._store.database.read(list_tenants_away)
            if loads == self._loads:  # otherwise a tenant may have left since the read
                away = frozenset(tenant.int for tenant in tenants)
                if epoch == self._writer.epoch:
                    self._away = away
                    self.is_open = not away and not self._closed
                return away

    def enter_from_memory(self, tenant: TenantId) -> Callable[[], None] | None:
        """Count a call without reading the log. Return a function that ends it.

        Return None if the log must be read, or the keys are elsewhere.
        """
        if self.is_open:
            self.uncounted += 1
            return self._leave_uncounted
        away, number = self._away, tenant.int
        if away is None or number in away or number in self._closed:
            return None
        self._calls[number] += 1
        return partial(self.leave, tenant)

    def _leave_uncounted(self) -> None:
        self.uncounted -= 1
        if not self.is_open:
            self.left()

    async def enter(self, tenant: TenantId) -> None:
        """Admit and count a call. Raises the errors of ``require``."""
        await self.require(tenant)
        self._calls[tenant.int] += 1

    def leave(self, tenant: TenantId) -> None:
        """End a counted call."""
        number = tenant.int
        self._calls[number] -= 1
        if not self._calls[number]:
            del self._calls[number]
            if number in self._closed:
                self._closed[number].set()

    def left(self) -> None:
        """Wake the callers that wait for calls admitted through the open gate."""
        for emptied in self._closed.values():
            emptied.set()


class _Call:
    __slots__ = ("_gate", "_tenant")

    def __init__(self, gate: TenantGate, tenant: TenantId) -> None:
        self._gate = gate
        self._tenant = tenant

    async def __aenter__(self) -> None:
        await self._gate.enter(self._tenant)

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave(self._tenant)
