"""Bodies that were refused and are sent all the same: read and thrown away, in turns.

Whoever refuses a body has to take it from the client, which could lose the answer otherwise. A
hundred clients that send as fast as they can would have the event loop do nothing else.
"""

from functools import partial

from pqkeep_gateway.http.transport import GatheringTransport
from pqkeep_gateway.http.turns import Turns


class UnreadBodies:
    """Takes one piece of one connection in each turn of the event loop."""

    def __init__(self) -> None:
        self._turns = Turns()

    def wait(self, transport: GatheringTransport) -> None:
        """Read nothing more of a connection until it is its turn."""
        transport.pause_reading()
        self._turns.wait(partial(_read_on, transport))


def _read_on(transport: GatheringTransport) -> None:
    if not transport.is_gone():
        transport.resume_reading()
