"""Bodies that were refused and are sent all the same: read and thrown away, in turns.

Whoever refuses a body has to take it from the client, which could lose the answer otherwise. A
hundred clients that send as fast as they can would have the event loop do nothing else.
"""

import asyncio
from collections import deque

from pqkeep_gateway.http.transport import GatheringTransport


class UnreadBodies:
    """Takes one piece of one connection in each turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[GatheringTransport] = deque()

    def wait(self, transport: GatheringTransport) -> None:
        """Read nothing more of a connection until it is its turn."""
        transport.pause_reading()
        self._waiting.append(transport)
        if len(self._waiting) == 1:
            self._next_turn()

    def _go_on(self) -> None:
        transport = self._waiting.popleft()
        if self._waiting:
            self._next_turn()
        if not transport.is_gone():
            transport.resume_reading()

    def _next_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)
