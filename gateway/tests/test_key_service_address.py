"""The gateway connects only to key services with the right CA, role and name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.link import ANY, CLIENT, HOST, SERVER, unchecked
from tests.patience import PATIENCE

from pqkeep_gateway.key_client import RemoteHost
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    TO_KEY_SERVICE,
    Accepts,
    FramedConnection,
    FrameDecoder,
    Ping,
    Pong,
    ToGateway,
    encode,
)
from pqkeep_protocol.link import Identity, Role
from pqkeep_protocol.startup.settings import NetworkAddress

if TYPE_CHECKING:
    from tests.fixtures.link import LinkCa

LOOPBACK = "127.0.0.1"


class FakeKeyService:
    """Responds to pings, and keeps the received bytes."""

    def __init__(self) -> None:
        self.received = b""
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        decoder = FrameDecoder(TO_KEY_SERVICE)
        try:
            while data := await reader.read(4096):
                self.received += data
                decoder.space()[: len(data)] = data
                for frame in decoder.filled(len(data)):
                    writer.write(encode(Pong(frame.id)))
        except OSError:
            pass
        finally:
            writer.close()


Listen = Callable[[ssl.SSLContext], Awaitable[NetworkAddress]]


@pytest.fixture
def fake() -> FakeKeyService:
    """A fake key service."""
    return FakeKeyService()


@pytest.fixture
async def listen(fake: FakeKeyService) -> AsyncIterator[Listen]:
    """Start the server with the test's TLS context."""
    servers: list[asyncio.Server] = []

    async def start(context: ssl.SSLContext) -> NetworkAddress:
        servers.append(await asyncio.start_server(fake.serve, LOOPBACK, 0, ssl=context))
        return NetworkAddress(f"{LOOPBACK}:{servers[-1].sockets[0].getsockname()[1]}")

    yield start
    for server in servers:
        server.close()


async def is_answered(address: RemoteHost) -> bool:
    """Return whether an address responds to a ping. Raises OSError."""
    responses: asyncio.Queue[object] = asyncio.Queue()

    def new(accepts: Accepts) -> FramedConnection[ToGateway]:
        return FramedConnection(
            TO_GATEWAY, on_frame=responses.put_nowait, on_lost=responses.put_nowait, accepts=accepts
        )

    connection = await address.connect(new)
    connection.send(Ping(1))
    try:
        return await responses.get() == Pong(1)
    finally:
        connection.close()


async def test_the_key_service_is_reached(listen: Listen, link_ca: LinkCa) -> None:
    """With the right CA, role and name the key service is reached, and its expiry is known."""
    key_service, gateway = link_ca.tls(Role.KEY_SERVICE), link_ca.tls(Role.GATEWAY)
    address = await listen(key_service.context)
    assert await is_answered(RemoteHost(address, HOST, gateway))
    assert gateway.peer_expires_at == key_service.expires_at


async def test_another_name_is_refused(
    listen: Listen, link_ca: LinkCa, fake: FakeKeyService
) -> None:
    """A key service with another name in its certificate gets nothing."""
    address = await listen(unchecked(link_ca.identity(Role.KEY_SERVICE), link_ca, is_server=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await is_answered(RemoteHost(address, "other.example.org", link_ca.tls(Role.GATEWAY)))
    assert fake.received == b""


WRONG: dict[str, Callable[[LinkCa, LinkCa], Identity]] = {
    "another CA": lambda ca, other: other.identity(Role.KEY_SERVICE),
    "expired": lambda ca, other: ca.identity(Role.KEY_SERVICE, days=-1),
    "a gateway's": lambda ca, other: ca.identity(Role.GATEWAY),
    "a gateway's, for servers too": lambda ca, other: ca.identity(Role.GATEWAY, usage=SERVER),
    "no extended key usage": lambda ca, other: ca.identity(Role.KEY_SERVICE, has_usage=False),
    "any extended key usage": lambda ca, other: ca.identity(Role.KEY_SERVICE, usage=ANY),
    "for clients": lambda ca, other: ca.identity(Role.KEY_SERVICE, usage=CLIENT),
    "a CA": lambda ca, other: ca.identity(Role.KEY_SERVICE, is_ca=True),
    "both roles": lambda ca, other: ca.identity(Role.KEY_SERVICE, uris=list(Role)),
    "no role": lambda ca, other: ca.identity(Role.KEY_SERVICE, uris=[]),
}


@pytest.mark.threat("wrong-certificate", "stolen-gateway-certificate")
@pytest.mark.parametrize("made", WRONG.values(), ids=WRONG.keys())
async def test_others_get_nothing(
    listen: Listen,
    link_ca: LinkCa,
    other_ca: LinkCa,
    fake: FakeKeyService,
    made: Callable[[LinkCa, LinkCa], Identity],
) -> None:
    """A server without a key service's certificate of the CA gets no byte."""
    context = unchecked(made(link_ca, other_ca), link_ca, is_server=True)
    address = await listen(context)
    with suppress(ssl.SSLCertVerificationError):
        assert not await is_answered(RemoteHost(address, HOST, link_ca.tls(Role.GATEWAY)))
    assert fake.received == b""


async def test_tls_1_2_is_refused(listen: Listen, link_ca: LinkCa, fake: FakeKeyService) -> None:
    """A key service that supports only TLS 1.2 is refused."""
    context = unchecked(link_ca.identity(Role.KEY_SERVICE), link_ca, is_server=True)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    address = await listen(context)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await is_answered(RemoteHost(address, HOST, link_ca.tls(Role.GATEWAY)))
    assert fake.connections == 0


PLAIN = {
    "nothing, and the end": b"",
    "a frame without TLS": encode(Pong(1)),
    "a response of HTTP": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "an alert": bytes.fromhex("15030300020228"),
    "a record that is too long": bytes.fromhex("160303ffff") + bytes(100),
}


@pytest.mark.threat("link-attacker")
@pytest.mark.parametrize("said", PLAIN.values(), ids=PLAIN.keys())
async def test_a_peer_without_tls_gets_nothing(link_ca: LinkCa, said: bytes) -> None:
    """A peer that does not speak TLS gets no frame, and the connection fails."""
    await _get_nothing(link_ca, lambda _: said)


@pytest.mark.threat("link-attacker")
@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
async def test_a_handshake_that_is_cut_fails(link_ca: LinkCa, share: float) -> None:
    """A connection that ends within the key service's side of the handshake gets no frame."""
    context = link_ca.tls(Role.KEY_SERVICE).context

    def flight(hello: bytes) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        incoming.write(hello)
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
        whole = outgoing.read()
        return whole[: int(len(whole) * share)]

    await _get_nothing(link_ca, flight)


async def _get_nothing(ca: LinkCa, respond: Callable[[bytes], bytes]) -> None:
    """Connect to a peer with this response to the gateway's first bytes."""
    received, is_over = b"", asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        received = await reader.read(65_536)
        writer.write(respond(received))
        with suppress(OSError):
            writer.write_eof()
            received += await reader.read()
        writer.close()
        is_over.set()

    async with await asyncio.start_server(serve, LOOPBACK, 0) as server:
        address = NetworkAddress(f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(OSError):  # noqa: PT011 - of TLS, or a connection that ends
                await is_answered(RemoteHost(address, HOST, ca.tls(Role.GATEWAY)))
            await is_over.wait()
            await asyncio.sleep(0)
    assert received
    assert encode(Ping(1)) not in received
