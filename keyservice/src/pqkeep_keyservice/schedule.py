"""Carries out what is due: rotates keys, schedules their archiving, and destroys private keys.

One task looks for keys, and for tenants, that are due, in pages by an index, and makes their changes
one after another, each with its record. What is due is decided once more on the key that a change
replaces: so a change is made once, and not at all where it was cancelled first. What cannot be
changed holds no other up and is tried again.

The time is the machine's clock. Where it was set forward by much, nothing is destroyed for a day, so
that a wrong clock is seen before its harm.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

from cachetools import LRUCache

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.key_versions import DueKey, count_due_keys, list_due_keys
from pqkeep_keyservice.storage.keyrings import list_due_destructions
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.transaction import Transactions
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

SECONDS = 10.0
"""Between two looks."""
AT_ONCE = 64
"""Keys on one page."""
CHANGES_AT_ONCE = 100
"""Changes of one key before others have their turn."""
CHANGE_SECONDS = 60.0
"""The deadline of one change."""
RETRY_SECONDS = 300.0
"""How long a key or a tenant rests that could not be changed."""
MAX_LEAP_SECONDS = 3600.0
"""How far the clock may be set forward."""
HOLD_SECONDS = 24 * 3600.0
"""For how long nothing is destroyed where it was set forward further."""
MAX_RESTING = 10_000


class Schedule:
    """Makes the changes that are due."""

    def __init__(self, store: KeyStore, transactions: Transactions, least_delay: timedelta) -> None:
        """Take how long a private key is kept, at least, once its destruction is asked for."""
        self._hold_seconds = min(HOLD_SECONDS, least_delay.total_seconds())
        self._store = store
        self._transactions = transactions
        self._resting: LRUCache[DueKey | TenantId, float] = LRUCache(MAX_RESTING)
        self._epoch = 0
        self._seen = 0.0, 0.0
        """The clock and the event loop's time at the last look."""
        self._held_until = float("-inf")
        """In the event loop's time: nothing is destroyed before."""
        self.changes: Counter[tuple[str, str]] = Counter()
        """How many changes were made, or failed, by operation and outcome."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(SECONDS)

    async def count(self) -> int:
        """Return how many keys are due now."""
        return await self._store.database.query(count_due_keys, clock.now())

    async def look(self) -> None:
        """Make every change that is due now, if the database is available."""
        try:
            now = clock.now()
            await self.carry_out(now, destroys=not self._is_held(now))
        except (KeyServiceError, DatabaseUnavailableError):
            pass  # the database is unavailable: nothing was done, and nothing is lost
        except Exception:  # noqa: BLE001 - tried again
            _LOG.exception("the schedule could not be carried out")

    async def carry_out(self, now: datetime, *, destroys: bool = True) -> None:
        """Make every change that is due, or every one that destroys no private key.

        Raises DatabaseUnavailableError.
        """
        after: DueKey | None = None
        while page := await self._store.database.query(list_due_keys, now, after, AT_ONCE):
            for key in page:
                await self._carry_out(
                    key,
                    partial(self._transactions.make_due_change, key.name, now, destroys=destroys),
                    tenant=str(key.tenant),
                    keyring=key.keyring,
                    algorithm=key.algorithm.value,
                )
            after = page[-1]
        if destroys:
            await self._destroy_tenants(now)

    async def _destroy_tenants(self, now: datetime) -> None:
        after: TenantId | None = None
        while page := await self._store.database.query(list_due_destructions, now, after, AT_ONCE):
            for tenant in page:
                step = partial(self._transactions.take_destruction_step, tenant, now)
                await self._carry_out(tenant, step, tenant=str(tenant))
            after = page[-1]

    async def _carry_out(
        self,
        due: DueKey | TenantId,
        change: Callable[[float], Awaitable[str | None]],
        **names: str,
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._resting.get(due, 0.0) > loop.time():
            return
        try:
            for _ in range(CHANGES_AT_ONCE):
                operation = await change(loop.time() + CHANGE_SECONDS)
                if operation is None:
                    break
                self.changes[operation, "success"] += 1
        except (KeyServiceError, DamagedKeyError) as error:
            self._resting[due] = loop.time() + RETRY_SECONDS
            self.changes["none", "failure"] += 1
            _LOG.error(
                "a change that is due cannot be made, and will be tried again",
                error=str(error),
                **names,
            )

    def _is_held(self, now: datetime) -> bool:
        """Return whether the clock was set forward by much in the last day.

        Since before an epoch the log alone tells: it has had no record for as long then.
        """
        loop_time, seconds = asyncio.get_running_loop().time(), now.timestamp()
        if self._epoch == self._store.writer.epoch:
            leap = (seconds - self._seen[0]) - (loop_time - self._seen[1])
            is_leap = leap > MAX_LEAP_SECONDS
        else:
            checked_at_us = self._store.checked_at_us
            leap = seconds - checked_at_us / 1_000_000
            is_leap = checked_at_us > 0 and leap > HOLD_SECONDS
        self._epoch, self._seen = self._store.writer.epoch, (seconds, loop_time)
        if is_leap and self._hold_seconds:
            self._held_until = loop_time + self._hold_seconds
            _LOG.error(
                "the clock went forward, or nothing was recorded for long: no private key is "
                "destroyed for a day",
                seconds=round(leap),
            )
        return loop_time < self._held_until
