"""Lets the calls of tenants in whose keys are here, and none of a tenant's while its keys move.

A call that was let in is waited for: when a tenant leaves, none of its calls is under way, and none
begins. Which tenants have left is in the log; it is read once in each epoch.

As long as no tenant has left and none moves, the gate is open: a call is let in without a question,
and is counted by one number. Closing it for a tenant ends that: from then on calls are counted by
tenant, and those that were let in before are waited for, whichever tenant's they are.
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
    """Counts calls, and refuses those of tenants that have left."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._writer = store.writer
        self._writer.on_change(self._forget)
        self.is_open = False
        """Whether every tenant's call is let in: with ``uncounted`` one higher for as long as it takes.

        Who takes it down again calls ``left`` where the gate is not open any more.
        """
        self.uncounted = 0
        """How many calls are under way that were let in while the gate was open."""
        # By number: a UUID's own hash and comparison are functions in Python.
        self._away: frozenset[int] | None = None
        """None where it has to be read."""
        self._loads = 0
        self._closed: dict[int, asyncio.Event] = {}
        """Set when none of the tenant's calls is under way."""
        self._calls: Counter[int] = Counter()

    async def require(self, tenant: TenantId) -> None:
        """Raise TENANT_MOVED unless the tenant's keys are here, and DatabaseUnavailableError."""
        away = self._away
        if away is None:
            away = await self._load()
        if tenant.int in away or tenant.int in self._closed:
            raise KeyServiceError(ErrorKind.TENANT_MOVED)

    def call(self, tenant: TenantId) -> "_Call":
        """Return a block for a call of a tenant. Raises what ``require`` raises."""
        return _Call(self, tenant)

    @asynccontextmanager
    async def closed(self, tenant: TenantId, deadline: float) -> AsyncIterator[None]:
        """Let none of a tenant's calls in, and wait until none is under way.

        Afterwards what the log says is read again. Raises DEADLINE_EXCEEDED, in the event loop's
        time. One caller at a time.
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
        finally:  # before the gate opens, whatever has become of it
            self._forget()
            self._loads += 1
            del self._closed[tenant.int]

    def _forget(self) -> None:
        self.is_open, self._away = False, None

    async def _load(self) -> frozenset[int]:
        """Read who is away, and open the gate if nobody is."""
        while True:
            epoch, loads = self._writer.epoch, self._loads
            found = await self._store.database.read(list_tenants_away)
            if loads == self._loads:  # otherwise a tenant may have left since it was read
                away = frozenset(tenant.int for tenant in found)
                if epoch == self._writer.epoch:
                    self._away = away
                    self.is_open = not away and not self._closed
                return away

    def enter_from_memory(self, tenant: TenantId) -> Callable[[], None] | None:
        """Count a call if it is known that the tenant's keys are here; return what ends it.

        None where that is not known, or the keys are not here.
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
        """Count a call. Raises what ``require`` raises."""
        await self.require(tenant)
        self._calls[tenant.int] += 1

    def leave(self, tenant: TenantId) -> None:
        """Count it no more."""
        number = tenant.int
        self._calls[number] -= 1
        if not self._calls[number]:
            del self._calls[number]
            if number in self._closed:
                self._closed[number].set()

    def left(self) -> None:
        """Wake who waits for calls that were let in while the gate was open."""
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
