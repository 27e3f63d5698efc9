"""Bodies of refused requests are discarded in turns."""

from __future__ import annotations

import asyncio

from pqkeep_gateway.http.connections import UnreadBodies
from pqkeep_gateway.http.transport import GatheringTransport


class Transport(asyncio.Transport):
    """Notes whether it is being read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.is_aborted = False

    def pause_reading(self) -> None:
        """Read no more."""
        self.is_read = False

    def resume_reading(self) -> None:
        """Resume reading, which a closed transport cannot."""
        assert not self.is_aborted
        self.is_read = True

    def abort(self) -> None:
        """Close."""
        self.is_aborted = True

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_aborted


async def test_one_connection_is_read_in_each_turn() -> None:
    """Each event-loop turn reads one connection, in order, and skips closed connections."""
    bodies = UnreadBodies()
    transports = [Transport() for _ in range(4)]
    loop = asyncio.get_running_loop()
    for transport in transports:
        bodies.wait(GatheringTransport(transport, loop))
    transports[1].abort()
    seen = []
    for _ in range(5):
        seen.append([transport.is_read for transport in transports])
        await asyncio.sleep(0)
    assert seen[0] == [False] * 4
    assert [sum(item) for item in seen] == [0, 1, 1, 2, 3]
    assert seen[4] == [True, False, True, True]
