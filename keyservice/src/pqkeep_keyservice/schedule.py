"""Carries out what is due: archives private keys, rotates keys, and schedules their archiving.

One task looks for keys that are due, in pages by an index, and makes their changes one after
another, each with its record. What is due is decided once more on the key that a change replaces:
so a change is made once, and not at all where it was cancelled first. A key that cannot be changed
holds no other up and is tried again.
"""

import asyncio
from collections import Counter
from datetime import datetime

from cachetools import LRUCache

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.due_keys import DueKey, count_due_keys, list_due_keys
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.transaction import Transactions
from pqkeep_protocol.errors import KeyServiceError
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
"""How long a key rests that could not be changed."""
MAX_RESTING = 10_000


class Schedule:
    """Makes the changes that are due."""

    def __init__(self, store: KeyStore, transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions
        self._resting: LRUCache[DueKey, float] = LRUCache(MAX_RESTING)
        self.changes: Counter[tuple[str, str]] = Counter()
        """How many changes were made, or failed, by operation and outcome."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(SECONDS)

    async def count(self) -> int:
        """Return how many keys are due now."""
        return await self._store.query(count_due_keys, clock.now())

    async def look(self) -> None:
        """Make every change that is due now, if the database is available."""
        try:
            await self.carry_out(clock.now())
        except (KeyServiceError, DatabaseUnavailableError):
            pass  # the database is unavailable: nothing was done, and nothing is lost
        except Exception:  # noqa: BLE001 - tried again
            _LOG.exception("the schedule could not be carried out")

    async def carry_out(self, now: datetime) -> None:
        """Make every change that is due. Raises DatabaseUnavailableError."""
        after: DueKey | None = None
        while page := await self._store.query(list_due_keys, now, after, AT_ONCE):
            for key in page:
                await self._carry_out(key, now)
            after = page[-1]

    async def _carry_out(self, key: DueKey, now: datetime) -> None:
        loop = asyncio.get_running_loop()
        if self._resting.get(key, 0.0) > loop.time():
            return
        try:
            for _ in range(CHANGES_AT_ONCE):
                deadline = loop.time() + CHANGE_SECONDS
                operation = await self._transactions.make_due_change(key.name, now, deadline)
                if operation is None:
                    break
                self.changes[operation, "success"] += 1
        except (KeyServiceError, DamagedKeyError) as error:
            self._resting[key] = loop.time() + RETRY_SECONDS
            self.changes["none", "failure"] += 1
            _LOG.error(
                "a change that is due cannot be made, and will be tried again",
                tenant=str(key.tenant),
                keyring=key.keyring,
                algorithm=key.algorithm.value,
                error=str(error),
            )
