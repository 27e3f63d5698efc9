"""The TCP listener with mutual TLS: which peers it serves, and the cost of refusing others."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.link import ANY, CLIENT, CODE, HOST, SERVER, unchecked
from tests.patience import PATIENCE

from pqkeep_keyservice import listeners
from pqkeep_keyservice.server import MAX_CONNECTIONS, Server
from pqkeep_protocol.administration import ReloadRootKeys
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    Refusal,
    ToGateway,
    Unreadable,
    encode,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.link import Identity, LinkTls, Role
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.settings import NetworkAddress

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService
    from tests.fixtures.link import LinkCa

LOOPBACK = "127.0.0.1"
STRANGER = "127.0.0.2"
FLOOD = 1000


class Peer:
    """A connection to the port, with or without TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = FrameDecoder(TO_GATEWAY)

    async def ask(self, frame: Ping | Call) -> ToGateway | Unreadable | None:
        """Return the response to a frame, or None if the connection ends."""
        with suppress(OSError):
            self.writer.write(encode(frame))
            async with asyncio.timeout(PATIENCE):
                while data := await self.reader.read(4096):
                    self._decoder.space()[: len(data)] = data
                    for response in self._decoder.filled(len(data)):
                        return response
        return None

    async def is_hung_up(self) -> bool:
        """Return whether the connection ends without another byte."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read() == b""
            except OSError:
                return True


Connect = Callable[[ssl.SSLContext | None], Awaitable[Peer]]


@pytest.fixture
def tls(link_ca: LinkCa) -> LinkTls:
    """Return the key service's end."""
    return LinkTls(link_ca.identity(Role.KEY_SERVICE, name="keyservice"))


@pytest.fixture(autouse=True)
def handshake_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a handshake take long on a busy machine."""
    monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", PATIENCE)


@pytest.fixture
async def server(service: InProcessService) -> AsyncIterator[Server]:
    """Return a key service that does not listen yet."""
    parts = service.parts
    started = Server(
        parts.transactions,
        parts.batches,
        parts.audit_service,
        parts.administration,
        parts.metrics,
        parts.activation,
    )
    await parts.activation.start()
    yield started
    await started.drain(PATIENCE)


@pytest.fixture
async def port(server: Server, tls: LinkTls) -> int:
    """Return the key service's port."""
    return server.listen_to_hosts(tls, NetworkAddress(f"{LOOPBACK}:0"))


@pytest.fixture
async def connect(port: int) -> AsyncIterator[Connect]:
    """Return a function that connects to the port."""
    opened: list[Peer] = []

    async def new(context: ssl.SSLContext | None) -> Peer:
        name = None if context is None else HOST
        streams = await asyncio.open_connection(LOOPBACK, port, ssl=context, server_hostname=name)
        opened.append(Peer(*streams))
        return opened[-1]

    yield new
    for connection in opened:
        connection.writer.close()
    await asyncio.sleep(0)


async def test_a_gateway_is_served(connect: Connect, link_ca: LinkCa) -> None:
    """A peer with a gateway's certificate is served by TLS 1.3, without a resumption ticket."""
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    assert await gateway.ask(Ping(7)) == Pong(7)
    connection = gateway.writer.get_extra_info("ssl_object")
    assert connection.version() == "TLSv1.3"
    assert connection.session is None or not connection.session.has_ticket


async def test_a_gateway_that_is_gone_is_noticed(
    connect: Connect, server: Server, link_ca: LinkCa
) -> None:
    """The kernel ends a connection after the other host is silent for ten seconds."""
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    assert await gateway.ask(Ping(1)) == Pong(1)
    (connection,) = server._connections
    assert connection._transport is not None
    held = connection._transport.get_extra_info("socket")
    assert held.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000


def _nobody(ca: LinkCa, other: LinkCa) -> None:
    return None


WRONG: dict[str, Callable[[LinkCa, LinkCa], Identity | None]] = {
    "no certificate": _nobody,
    "another CA": lambda ca, other: other.identity(Role.GATEWAY),
    "expired": lambda ca, other: ca.identity(Role.GATEWAY, days=-1),
    "a key service's": lambda ca, other: ca.identity(Role.KEY_SERVICE),
    "a key service's, for clients too": lambda ca, other: ca.identity(
        Role.KEY_SERVICE, usage=CLIENT
    ),
    "no extended key usage": lambda ca, other: ca.identity(Role.GATEWAY, has_usage=False),
    "any extended key usage": lambda ca, other: ca.identity(Role.GATEWAY, usage=ANY),
    "for servers": lambda ca, other: ca.identity(Role.GATEWAY, usage=SERVER),
    "for signed code": lambda ca, other: ca.identity(Role.GATEWAY, usage=CODE),
    "a CA": lambda ca, other: ca.identity(Role.GATEWAY, is_ca=True),
    "both roles": lambda ca, other: ca.identity(Role.GATEWAY, uris=list(Role)),
    "no role": lambda ca, other: ca.identity(Role.GATEWAY, uris=[]),
    "another application's": lambda ca, other: ca.identity(
        Role.GATEWAY, uris=["spiffe://example.org/gateway"]
    ),
}


@pytest.mark.threat("wrong-certificate", "stolen-gateway-certificate")
@pytest.mark.parametrize("made", WRONG.values(), ids=WRONG.keys())
async def test_others_are_refused_before_a_frame_is_read(
    connect: Connect,
    server: Server,
    link_ca: LinkCa,
    other_ca: LinkCa,
    made: Callable[[LinkCa, LinkCa], Identity | None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A peer without a gateway's certificate is disconnected and logged before a frame is read."""
    with suppress(OSError):
        stranger = await connect(unchecked(made(link_ca, other_ca), link_ca))
        assert await stranger.ask(Ping(1)) is None
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    assert await gateway.ask(Ping(2)) == Pong(2)
    assert len(server._connections) == 1
    logged = ("a handshake of the link failed", "refused a peer with a certificate of another role")
    assert sum(caplog.text.count(text) for text in logged) == 1


async def test_a_gateway_on_another_host_administers_nothing(
    connect: Connect, link_ca: LinkCa
) -> None:
    """A verified gateway cannot send the operator's requests."""
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    attribution = Attribution("r", "operator", "a", "y")
    reload = Call(1, 20_000, attribution, ReloadRootKeys(tenant=INSTALLATION))
    assert await gateway.ask(reload) == Refusal(1, ErrorKind.UNSUPPORTED)
    assert await gateway.ask(Ping(2)) == Pong(2)


async def test_older_tls_is_refused(
    connect: Connect, link_ca: LinkCa, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway's certificate does not work with TLS 1.2."""
    context = unchecked(link_ca.identity(Role.GATEWAY), link_ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(context)
    assert "UNSUPPORTED_PROTOCOL" in caplog.text


async def test_plain_frames_are_not_read(connect: Connect, server: Server) -> None:
    """A peer without TLS is disconnected, and gets no connection buffers."""
    stranger = await connect(None)
    await stranger.ask(Ping(1))
    assert await stranger.is_hung_up()
    assert not server._connections


@pytest.mark.threat("link-attacker")
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_cut_handshake_harms_nobody(
    connect: Connect,
    server: Server,
    link_ca: LinkCa,
    caplog: pytest.LogCaptureFixture,
    *,
    is_reset: bool,
) -> None:
    """A connection may end at any byte of a gateway's handshake or first frame.

    Its request is not executed or kept. Each cut handshake makes one log line.
    """
    context = link_ca.tls(Role.GATEWAY).context
    for is_second, share in product((False, True), (0.0, 0.01, 0.5, 0.99)):
        caplog.clear()
        await _cut(await connect(None), context, share, is_second=is_second, is_reset=is_reset)
        while not _is_over(server):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
        gateway = await connect(context)
        assert await gateway.ask(Ping(2)) == Pong(2)
        gateway.writer.close()
        assert "ERROR" not in [record.levelname for record in caplog.records], caplog.text
        assert caplog.text.count("a handshake of the link failed") <= 1, caplog.text


async def test_a_cut_frame_is_not_executed(
    connect: Connect, server: Server, link_ca: LinkCa
) -> None:
    """Half of a frame, or bytes that are not of TLS, end a verified connection without a response."""
    context = link_ca.tls(Role.GATEWAY).context
    for said in (encode(Ping(1))[:-1], b""):
        peer = await connect(context)
        assert await peer.ask(Ping(1)) == Pong(1)
        peer.writer.write(said)
        if not said:
            raw = peer.writer.get_extra_info("socket")
            os.write(raw.fileno(), encode(Ping(1)))  # not encrypted
        else:
            peer.writer.close()
        assert await peer.is_hung_up()
        while not _is_over(server):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)


def _is_over(server: Server) -> bool:
    assert server._link_listener is not None
    return not server._link_listener._handshakes and not server._connections


async def _cut(
    peer: Peer, context: ssl.SSLContext, share: float, *, is_second: bool, is_reset: bool
) -> None:
    """Send a part of a gateway's flight, which ends with a frame; then end the connection."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    if is_second:
        peer.writer.write(outgoing.read())
        while client.version() is None or not outgoing.pending:
            incoming.write(await peer.reader.read(65_536))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
        client.write(encode(Ping(1)))
    part = outgoing.read()
    peer.writer.write(part[: int(len(part) * share)])
    await peer.writer.drain()
    if is_reset:
        held = peer.writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()
    else:
        peer.writer.close()


@pytest.mark.threat("link-attacker")
async def test_half_open_handshakes_lock_nobody_out(
    connect: Connect, server: Server, port: int, link_ca: LinkCa
) -> None:
    """A thousand half-open handshakes have a limited cost, and end no gateway's handshake.

    They do not end the handshake of a later gateway, or of an earlier slow one.
    """
    slow = socket.create_connection((LOOPBACK, port))
    flood = (STRANGER, 0)
    silent = [socket.create_connection((LOOPBACK, port), PATIENCE, flood) for _ in range(FLOOD)]
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    assert await gateway.ask(Ping(1)) == Pong(1)
    context = link_ca.tls(Role.GATEWAY).context
    slow.settimeout(0)
    patient = Peer(
        *await asyncio.open_connection(sock=slow, ssl=context, server_hostname=HOST),
    )
    assert await patient.ask(Ping(2)) == Pong(2)
    patient.writer.close()
    listener = server._link_listener
    assert listener is not None
    assert len(listener._handshakes) <= listeners.MAX_HANDSHAKES
    assert len(server._connections) <= 2
    for connection in silent[: FLOOD - listeners.MAX_HANDSHAKES]:
        connection.settimeout(PATIENCE)
        assert connection.recv(1) == b""
    for connection in silent:
        connection.close()


@pytest.mark.threat("link-attacker")
async def test_a_silent_handshake_is_ended(
    connect: Connect, link_ca: LinkCa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that never finishes its handshake is disconnected. A gateway then connects."""
    monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", 0.05)
    assert await (await connect(None)).is_hung_up()
    monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", PATIENCE)
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    assert await gateway.ask(Ping(1)) == Pong(1)


async def test_connections_are_bounded(
    connect: Connect, server: Server, link_ca: LinkCa, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond MAX_CONNECTIONS even a gateway is refused, and earlier connections stay."""
    context = link_ca.tls(Role.GATEWAY).context
    gateways = [await connect(context) for _ in range(MAX_CONNECTIONS)]
    assert await gateways[-1].ask(Ping(1)) == Pong(1)
    assert await (await connect(context)).is_hung_up()
    assert await gateways[0].ask(Ping(2)) == Pong(2)
    assert caplog.text.count("too many connections") == 1


@pytest.mark.threat("compromised-gateway")
async def test_no_host_shuts_another_out(connect: Connect, port: int, link_ca: LinkCa) -> None:
    """A new host's connection replaces the oldest of another host.

    It never replaces its own host's.
    """
    context = link_ca.tls(Role.GATEWAY).context
    gateways = [await connect(context) for _ in range(MAX_CONNECTIONS)]
    assert await gateways[-1].ask(Ping(1)) == Pong(1)
    streams = await asyncio.open_connection(
        LOOPBACK, port, ssl=context, server_hostname=HOST, local_addr=(STRANGER, 0)
    )
    other = Peer(*streams)
    assert await other.ask(Ping(2)) == Pong(2)
    assert await gateways[0].is_hung_up()
    assert await (await connect(context)).is_hung_up()
    assert await gateways[1].ask(Ping(3)) == Pong(3)
    assert await other.ask(Ping(4)) == Pong(4)
    other.writer.close()


async def test_addresses_are_no_further_gateways(port: int, link_ca: LinkCa) -> None:
    """A gateway with many addresses ends no connection of another certificate."""
    served, many = (link_ca.tls(Role.GATEWAY).context for _ in range(2))

    async def new(context: ssl.SSLContext, address: str) -> Peer:
        streams = await asyncio.open_connection(
            LOOPBACK, port, ssl=context, server_hostname=HOST, local_addr=(address, 0)
        )
        return Peer(*streams)

    gateways = [await new(served, LOOPBACK) for _ in range(3)]
    others = [await new(many, f"127.0.1.{number}") for number in range(1, MAX_CONNECTIONS - 2)]
    for peer in (*gateways, *others):
        assert await peer.ask(Ping(1)) == Pong(1)
    refused = [await new(many, f"127.0.2.{number}") for number in range(1, 4)]
    for peer in refused:
        assert await peer.is_hung_up()
    gateways.append(await new(served, STRANGER))
    for gateway in gateways:
        assert await gateway.ask(Ping(2)) == Pong(2)
    assert await others[0].is_hung_up()
    for peer in (*gateways, *others, *refused):
        peer.writer.close()


async def test_a_reload_drops_no_connection(
    connect: Connect, link_ca: LinkCa, other_ca: LinkCa, tls: LinkTls
) -> None:
    """After a reload with another CA, new peers need its certificates. Open connections stay."""
    old = link_ca.tls(Role.GATEWAY).context
    gateway = await connect(old)
    new_identity = other_ca.identity(Role.KEY_SERVICE)
    own = tls._identity
    for path, new in zip(
        (own.certificate, own.key, own.ca),
        (new_identity.certificate, new_identity.key, new_identity.ca),
        strict=True,
    ):
        path.write_bytes(new.read_bytes())
    tls.reload()
    assert await gateway.ask(Ping(1)) == Pong(1)
    newcomer = await connect(other_ca.tls(Role.GATEWAY).context)
    assert await newcomer.ask(Ping(2)) == Pong(2)
    with suppress(OSError):
        old_one = await connect(unchecked(link_ca.identity(Role.GATEWAY), link_ca))
        assert await old_one.ask(Ping(3)) is None


async def test_drain_ends_handshakes_and_connections(
    connect: Connect, server: Server, link_ca: LinkCa
) -> None:
    """During a drain, existing handshakes and connections end, and new ones are refused."""
    silent = await connect(None)
    gateway = await connect(link_ca.tls(Role.GATEWAY).context)
    assert await gateway.ask(Ping(1)) == Pong(1)
    await server.drain(PATIENCE)
    assert await silent.is_hung_up()
    assert await gateway.is_hung_up()
    with pytest.raises(ConnectionRefusedError):
        await connect(None)
