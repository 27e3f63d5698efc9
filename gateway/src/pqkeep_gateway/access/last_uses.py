"""The last uses of each credential: their times and source addresses.

A request writes one dictionary entry, and the entries are stored every STORE_SECONDS. A killed
process loses the entries since. A newer use by another gateway is never overwritten.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from pqkeep_gateway.background import repeat
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.keys import TenantId

STORE_SECONDS = 30.0
BATCH = 100
"""Credentials per transaction, so that other transactions can run in between."""
MOST_ADDRESSES = 20
"""The newest source addresses of one credential that are stored at once."""


class LastUse(NamedTuple):
    """One use of a credential."""

    at: float
    """Seconds since 1970, UTC."""
    source_address: str


ApiKeyVersion = tuple[TenantId, int]


class UseStore(Protocol):
    """Where last uses are stored. Its methods raise UnavailableError."""

    async def save(self, uses: Mapping[bytes, Sequence[LastUse]], /) -> None:
        """Store the last use from each address by credential digest, the newest last.

        A newer stored use stays.
        """
        ...

    async def save_administration(self, administered: Mapping[ApiKeyVersion, float], /) -> None:
        """Store when API keys last did more than use keys (seconds since 1970)."""
        ...


class LastUses:
    """Collects the last uses of API keys and operators' credentials."""

    def __init__(self, store: UseStore) -> None:
        self._store = store
        self._noted: dict[tuple[bytes, str], float] = {}
        self._administered: dict[ApiKeyVersion, float] = {}

    def note(self, digest: bytes, source_address: str, at: float) -> None:
        """Note that the credential with this digest (32 bytes) was accepted.

        ``at``: seconds since 1970, UTC.
        """
        self._noted[digest, source_address] = at  # in each request

    def note_administration(self, tenant: TenantId, version: int, at: float) -> None:
        """Note that an API key did more than use keys. ``at``: seconds since 1970, UTC."""
        self._administered[tenant, version] = at

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
        administered, self._administered = self._administered, {}
        try:
            uses = _by_digest(noted)
            digests = sorted(uses)  # the same order in all gateways avoids deadlocks
            for first in range(0, len(digests), BATCH):
                batch = digests[first : first + BATCH]
                await self._store.save({digest: uses[digest] for digest in batch})
            if administered:
                await self._store.save_administration(dict(sorted(administered.items())))
        except BaseException:
            self._noted = noted | self._noted
            self._administered = administered | self._administered
            raise


def _by_digest(noted: Mapping[tuple[bytes, str], float]) -> Mapping[bytes, Sequence[LastUse]]:
    """Return the newest uses of each credential, the newest last."""
    uses: defaultdict[bytes, list[LastUse]] = defaultdict(list)
    for (digest, source_address), at in noted.items():
        uses[digest].append(LastUse(at, source_address))
    return {digest: sorted(found)[-MOST_ADDRESSES:] for digest, found in uses.items()}
