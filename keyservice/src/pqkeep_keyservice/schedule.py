"""Makes due changes: rotates keys, schedules their archiving, and destroys private keys.

One task finds due keys and destructions in pages, by an index. It makes their changes one after another,
each with a record. Each change is checked again against the key that it replaces. So it is made
once, and never after its cancellation. A failing change delays no other, and is retried.

The time is the machine's clock. After a large step forward, nothing is destroyed for a day. So an
operator can notice a wrong clock before it does harm.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

from cachetools import LRUCache

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.key_versions import DueKey, count_due_keys, list_due_keys
from pqkeep_keyservice.storage.keyrings import list_due_destructions
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.transaction import Transactions
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

SECONDS = 10.0
"""The time between two searches for due changes."""
AT_ONCE = 64
"""Keys on one page of due keys."""
CHANGES_AT_ONCE = 100
"""Changes of one key before other keys have their turn."""
CHANGE_SECONDS = 60.0
"""The time limit of one change."""
RETRY_SECONDS = 300.0
"""The pause after a failed change of a key or keyring."""
MAX_LEAP_SECONDS = 3600.0
"""The largest step forward of the clock that is accepted."""
HOLD_SECONDS = 24 * 3600.0
"""The pause in destructions after a larger step."""
MAX_RESTING = 10_000


class Schedule:
    """Makes due changes."""

    def __init__(self, store: KeyStore, transactions: Transactions, least_delay: timedelta) -> None:
        """Take the minimum delay between a destruction's request and the destruction."""
        self._hold_seconds = min(HOLD_SECONDS, least_delay.total_seconds())
        self._store = store
        self._transactions = transactions
        self._resting: LRUCache[DueKey | KeyringId, float] = LRUCache(MAX_RESTING)
        self._epoch = 0
        self._seen = 0.0, 0.0
        """The clock and the event loop's time at the last search."""
        self._held_until = float("-inf")
        """The event loop's time before which nothing is destroyed."""
        self.changes: Counter[tuple[str, str]] = Counter()
        """The number of changes by operation and outcome."""

    async def run(self) -> None:
        """Make due changes repeatedly, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(SECONDS)

    async def count(self) -> int:
        """Return the number of keys with a due change."""
        return await self._store.database.query(count_due_keys, clock.now())

    async def look(self) -> None:
        """Make all due changes, if the database is available."""
        try:
            now = clock.now()
            await self.carry_out(now, destroys=not self._is_held(now))
        except (KeyServiceError, DatabaseUnavailableError):
            pass  # the database is unavailable: nothing is lost, and the next search retries
        except Exception:  # noqa: BLE001 - the next search retries
            _LOG.exception("the schedule could not be carried out")

    async def carry_out(self, now: datetime, *, destroys: bool = True) -> None:
        """Make all due changes; without ``destroys``, only changes that keep all private keys.

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
            await self._destroy_keyrings(now)

    async def _destroy_keyrings(self, now: datetime) -> None:
        after: KeyringId | None = None
        while page := await self._store.database.query(list_due_destructions, now, after, AT_ONCE):
            for due in page:
                step = partial(self._transactions.take_destruction_step, due, now)
                await self._carry_out(due, step, tenant=str(due.tenant), keyring=due.keyring)
            after = page[-1]

    async def _carry_out(
        self,
        due: DueKey | KeyringId,
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
                rule=getattr(getattr(error, "notice", None), "rule", None),
                **names,
            )

    def _is_held(self, now: datetime) -> bool:
        """Return whether the clock stepped far forward within the last day.

        For the time before this epoch, the newest record is the only evidence. A long time without
        records looks the same as a step.
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
