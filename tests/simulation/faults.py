"""The faults of a run. The seed decides their kinds and times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tests.simulation.choices import Choices
from tests.simulation.database import Server
from tests.simulation.event_loop import Process, SimulatedLoop
from tests.simulation.installation import Installation, KeyService, WallClock

COMMIT_FAILURES = (0.0, 0.0, 0.02, 0.1)
"""The probability that a session is lost with a commit."""


class Faults:
    """Causes one fault after the other until stopped, and then repairs everything."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        installation: Installation,
        server: Server,
        wall_clock: WallClock,
    ) -> None:
        self._loop = loop
        self._choices = Choices(seed, "faults")
        self._installation = installation
        self._server = server
        self._wall_clock = wall_clock
        self._kinds = [kind for kind in KINDS if self._choices.happens(0.5)] or [*KINDS]
        self._longest_pause = self._choices.one_of((1.0, 4.0, 12.0))
        self._paused: list[Process] = []
        server.fails_commits = self._choices.one_of(COMMIT_FAILURES)

    async def run(self) -> None:
        """Cause faults until cancelled."""
        while True:
            await asyncio.sleep(self._choices.delay(0.05, self._longest_pause))
            kind = self._choices.one_of(self._kinds)
            self._server.tell("fault", kind)
            KINDS[kind](self)

    def heal(self) -> None:
        """Repair all faults."""
        server = self._server
        server.fails_commits = server.down_until = server.slow_until = 0.0
        server.refused_until.clear()
        for connection in self._installation.network.connections:
            connection.slow_until = 0.0
        for process in self._paused:
            self._resume(process)

    def cut(self) -> None:
        """Cut a connection between a gateway and a key service."""
        open_ = [each for each in self._installation.network.connections if each.is_open]
        if open_:
            self._choices.one_of(open_).cut()

    def stall(self) -> None:
        """Stall a connection for some time: a partition, or a slow reader."""
        open_ = [each for each in self._installation.network.connections if each.is_open]
        if open_:
            until = self._loop.time() + self._choices.delay(0.05, 12.0)
            self._choices.one_of(open_).slow_until = until

    def pause_gateway(self) -> None:
        """Pause a gateway."""
        self._pause(self._choices.one_of(self._installation.gateways))

    def pause_service(self) -> None:
        """Pause a key service."""
        if (service := self._service()) is not None:
            self._pause(service.process)

    def kill_service(self) -> None:
        """Kill a key service."""
        if (service := self._service()) is not None:
            service.process.kill()

    def stop_service(self) -> None:
        """Stop a key service in an orderly way."""
        if (service := self._service()) is not None:
            self._loop.call_soon(service.stop.set, context=service.process.context.copy())

    def end_session(self) -> None:
        """End the session with the lock, and perhaps isolate its process."""
        holder = self._server.holder
        if holder is not None:
            if self._choices.happens(0.5):
                until = self._loop.time() + self._choices.delay(0.1, 6.0)
                self._server.refused_until[holder.process] = until
            self._server.end(holder)

    def restart_database(self) -> None:
        """Restart the database server."""
        self._server.restart(self._choices.delay(0.05, 4.0))

    def slow_database(self) -> None:
        """Delay the database's responses, sometimes beyond all timeouts."""
        self._server.slow_seconds = self._choices.delay(0.05, 7.0)
        self._server.slow_until = self._loop.time() + self._choices.delay(0.1, 3.0)

    def pass_days(self) -> None:
        """Move the machine's clock some days forward."""
        self._wall_clock.days += 1 + self._choices.below(12)

    def _service(self) -> KeyService | None:
        alive = [
            each
            for _, each in sorted(self._installation.services.items())
            if not each.process.is_stopped
        ]
        return self._choices.one_of(alive) if alive else None

    def _pause(self, process: Process) -> None:
        if not process.is_stopped:
            process.pause()
            self._paused.append(process)
            self._loop.call_later(self._choices.delay(0.05, 16.0), self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.is_stopped and not process.is_killed:
            self._loop.resume(process)


KINDS: Mapping[str, Callable[[Faults], None]] = {
    "cut": Faults.cut,
    "stall": Faults.stall,
    "pause gateway": Faults.pause_gateway,
    "pause service": Faults.pause_service,
    "kill service": Faults.kill_service,
    "stop service": Faults.stop_service,
    "end session": Faults.end_session,
    "restart database": Faults.restart_database,
    "slow database": Faults.slow_database,
    "days pass": Faults.pass_days,
}
