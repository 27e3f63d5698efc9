"""The last use of each credential: its time and source address.

A request writes one dictionary entry, and the entries are stored every STORE_SECONDS. A killed
process loses the entries since. A newer use by another gateway is never overwritten.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from pqkeep_gateway.background import repeat
from pqkeep_gateway.unavailable import UnavailableError

STORE_SECONDS = 30.0
BATCH = 100
"""Uses per transaction, so that other transactions can run in between."""


class LastUse(NamedTuple):
    """One use of a credential."""

    at: float
    """Seconds since 1970, UTC."""
    source_address: str


SaveUses = Callable[[Mapping[bytes, LastUse]], Awaitable[None]]
"""Stores uses by credential digest, unless a newer use is stored. Raises UnavailableError."""


class LastUses:
    """Collects the last uses of API keys and operators' credentials."""

    def __init__(self, save: SaveUses) -> None:
        self._save = save
        self._noted: dict[bytes, tuple[float, str]] = {}

    def note(self, digest: bytes, source_address: str, at: float) -> None:
        """Note that the credential with this digest (32 bytes) was accepted.

        ``at``: seconds since 1970, UTC.
        """
        self._noted[digest] = at, source_address  # in each request

    async def run(self) -> None:
        """Store the noted uses every STORE_SECONDS, and at the end."""
        try:
            await repeat(self.store, STORE_SECONDS)
        finally:
            with suppress(UnavailableError):  # logged where it was raised
                await self.store()

    async def store(self) -> None:
        """Store the noted uses. After UnavailableError they are kept for the next time."""
        noted, self._noted = self._noted, {}
        digests = sorted(noted)  # the same order in all gateways avoids deadlocks
        try:
            for first in range(0, len(digests), BATCH):
                batch = digests[first : first + BATCH]
                await self._save({digest: LastUse(*noted[digest]) for digest in batch})
        except BaseException:
            self._noted = noted | self._noted
            raise
