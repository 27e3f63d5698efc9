"""The gateway's HTTP server in the process of the tests."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.connection import LIMITS, Listener, application
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.tls_server import TlsServer


class Server:
    """Serves an application as the gateway serves its own, in this process."""

    def __init__(
        self,
        tls: TlsServer | None = None,
        per_address: int = LIMITS.per_address,
        *,
        takes_lists: bool = False,
    ) -> None:
        self._tls = tls
        self._takes_lists = takes_lists
        self._per_address = per_address
        self.state: Listener
        self.port = 0

    @asynccontextmanager
    async def serving(self, app: ASGIApp) -> AsyncIterator[None]:
        """Accept connections."""
        arrivals = SourceBudget(Limit(LIMITS.new_per_second, 1), time.monotonic)
        counted = Connections(LIMITS.connections, self._per_address, arrivals)
        self.state = Listener(
            application(app),
            counted,
            RequestObserver(),
            tls=self._tls,
            takes_lists=self._takes_lists,
        )
        server = await asyncio.get_running_loop().create_server(
            self.state.connection, "127.0.0.1", 0
        )
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield

    async def sent(self, data: bytes) -> socket.socket:
        """Return a new connection over which some bytes have been sent."""
        client = socket.socket()
        client.settimeout(0)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await loop.sock_sendall(client, data)
        return client

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Run the event loop until a condition is true."""
        while not is_so():  # noqa: ASYNC110 - there are no events for it
            await asyncio.sleep(0.001)
