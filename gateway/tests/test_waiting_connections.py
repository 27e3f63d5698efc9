"""Connections that wait at another gateway's socket are accepted and served completely."""

import asyncio
import socket
from contextlib import closing

from tests.patience import PATIENCE

from pqkeep_gateway.process import take_waiting


class Echo(asyncio.Protocol):
    """Sends the received bytes back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.transport.close()


async def test_a_connection_that_was_accepted_is_served_though_no_more_are_taken() -> None:
    """A connection that is accepted while a gateway leaves still gets a response."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def last_connection() -> Echo:
            taking.cancel()
            return Echo()

        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"answered?")
        taking = asyncio.create_task(take_waiting([listener], last_connection))
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b"answered?"
        assert taking.cancelled()
        writer.close()
        await writer.wait_closed()
