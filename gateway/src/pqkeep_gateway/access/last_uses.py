"""When and from where credentials were used last: noted in memory, and stored now and then.

A request writes one entry of a dictionary. What was noted since it was stored last is lost with a
process that is killed; a newer use, of another gateway's, is never replaced by an older one.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.background import repeat
from pqkeep_gateway.unavailable import UnavailableError

STORE_SECONDS = 30.0
BATCH = 100
"""How many are stored in one transaction, between which others have their turn."""


class LastUse(NamedTuple):
    """One use of a credential."""

    at: float
    """Seconds since 1970, UTC."""
    source_address: str


SaveUses = Callable[[Mapping[bytes, LastUse]], Awaitable[None]]
"""Stores uses by the credentials' digests, where no newer one is. Raises UnavailableError."""


class LastUses:
    """Collects the last uses of API keys and operators' credentials."""

    def __init__(self, save: SaveUses, clock: Clock) -> None:
        self._save = save
        self._clock = clock
        self._noted: dict[bytes, tuple[float, str]] = {}

    def note(self, digest: bytes, source_address: str) -> None:
        """Note that the credential with this digest (32 bytes) was accepted now."""
        self._noted[digest] = self._clock(), source_address  # in every request

    async def run(self) -> None:
        """Store what was noted every STORE_SECONDS, and at the end."""
        try:
            await repeat(self.store, STORE_SECONDS)
        finally:
            with suppress(UnavailableError):  # logged where it was raised
                await self.store()

    async def store(self) -> None:
        """Store what was noted. Raises UnavailableError, and keeps it for the next time."""
        noted, self._noted = self._noted, {}
        digests = sorted(noted)  # gateways that store the same ones lock them in the same order
        try:
            for first in range(0, len(digests), BATCH):
                batch = digests[first : first + BATCH]
                await self._save({digest: LastUse(*noted[digest]) for digest in batch})
        except BaseException:
            self._noted = noted | self._noted
            raise
