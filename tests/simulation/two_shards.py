"""Two shards, and tenants that move between them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.history import FindingError
from tests.simulation.installation import PATHS, WallClock, replaced
from tests.simulation.move_command import Operator
from tests.simulation.run import Report, Simulation
from tests.simulation.workload import TENANTS

from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_server import key_service_client


class TwoShards(Simulation):
    """An installation with two shards, its clients, an operator, and faults."""

    paths: ClassVar = {DEFAULT_SHARD: PATHS, "b": ("c", "d")}
    placed: ClassVar = dict(zip(TENANTS, paths, strict=True))

    def __init__(
        self, seed: int, loop: SimulatedLoop, file: Path, wall_clock: WallClock, report: Report
    ) -> None:
        super().__init__(seed, loop, file, wall_clock, report)
        self._operator = Operator(loop, seed, self.shards, self._placements, self.tell)

    async def main(self) -> None:
        """See above."""
        with replaced(key_service_client, "_ask", self._operator.ask):
            await super().main()

    def _start_troubles(self) -> list[asyncio.Task[None]]:
        moving = self._loop.start(self._operator.process, self._operator.run())
        return [*super()._start_troubles(), moving]

    async def _end(self) -> None:
        await self._loop.start(self._operator.process, self._operator.finish())
        for client in self._clients[:2]:
            for tenant in TENANTS:
                await self._recovered(client, tenant)
        await super()._end()
        for name, shard in self.shards.items():
            if shard.server.looker.execute("SELECT 1 FROM tenant_bundles").fetchone():
                raise FindingError("bundles", f"{name} has the bundle of a move that has ended")
