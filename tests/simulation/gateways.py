"""Gateways: the product's routing between shards, with an accounts database that never fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.choices import Choices
from tests.simulation.event_loop import Process

from pqkeep_gateway.key_client import KeyClient
from pqkeep_gateway.shards import Departures, Placement, Shards, StoredShard
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, Request


class Placements:
    """The tenants' shards in the accounts database. Each change is one transaction."""

    def __init__(self, placed: Mapping[TenantId, str], choices: Choices) -> None:
        self.at = {tenant: Placement(shard) for tenant, shard in placed.items()}
        self._shards = sorted(set(placed.values()))
        self._choices = choices

    async def _wait(self) -> None:
        await asyncio.sleep(self._choices.delay(0.0002, 0.01))

    async def find(self, tenant: TenantId) -> Placement:
        """See ``PlacementDirectory``."""
        await self._wait()
        found = self.at[tenant]
        await self._wait()
        return found

    async def visited(self, tenant: TenantId) -> Sequence[str]:
        """See ``PlacementDirectory``: no simulated client asks for its log."""
        raise AssertionError(tenant)

    async def list(self) -> Sequence[StoredShard]:
        """See ``SqlShards``."""
        await self._wait()
        counts = Counter(each.shard for each in self.at.values())
        return [StoredShard(name, draining=False, tenants=counts[name]) for name in self._shards]

    async def begin_move(self, tenant: TenantId) -> str:
        """See ``SqlShards``."""
        await self._wait()
        shard = self.at[tenant].shard
        self.at[tenant] = Placement(shard, is_moving=True)
        await self._wait()
        return shard

    async def end_move(self, tenant: TenantId, source: str, target: str) -> None:
        """See ``SqlShards``."""
        await self._wait()
        if self.at[tenant] == Placement(source, is_moving=True):
            self.at[tenant] = Placement(target)
        await self._wait()


class Gateway:
    """A gateway's process, of which only the routing to key services is simulated.

    It forgets a remembered placement only after a shard's refusal, like admission.
    """

    def __init__(
        self, process: Process, services: Mapping[str, KeyClient], placements: Placements
    ) -> None:
        self.process = process
        self._placements = placements
        self._remembered = dict(placements.at)
        self._departures = Departures()
        self._shards = Shards(services, placements, self._departures)

    async def execute(self, request: Request[Any], attribution: Attribution) -> Any:
        """Execute a request in its tenant's key service. Raises KeyServiceError."""
        tenant, placement = request.tenant, None
        if tenant != INSTALLATION:
            placement = self._remembered[tenant]
            if not self._departures.is_current(tenant, placement):
                placement = self._remembered[tenant] = await self._placements.find(tenant)
        return await self._shards.execute(request, attribution, placement)
