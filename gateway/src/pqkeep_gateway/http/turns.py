"""Work of many connections of which a piece of one is done in each turn of the event loop.

What costs little for one client would keep everybody else waiting if hundreds sent it at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Does one piece of work in each turn, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, work: Callable[[], object]) -> None:
        """Have some work done when it is its turn."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._next_turn()

    def _go_on(self) -> None:
        work = self._waiting.popleft()
        if self._waiting:
            self._next_turn()
        work()

    def _next_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)
