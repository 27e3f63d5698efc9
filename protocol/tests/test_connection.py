"""A connection on a real socket pair: how it ends, and when one end stops reading."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from tests.patience import PATIENCE

from pqkeep_protocol.codec import (
    TO_KEY_SERVICE,
    FramedConnection,
    Ping,
    Pong,
    ProtocolError,
    ToKeyService,
    Unreadable,
    encode,
)

COUNT = 60_000


class End:
    """One end of a connection, with its received frames and its end."""

    def __init__(
        self, *, patient: bool = True, admitted: bool = True, echoes: bool = False
    ) -> None:
        self.frames: list[ToKeyService | Unreadable] = []
        self.lost: list[Exception | None] = []
        self.over = asyncio.Event()
        self._echoes = echoes
        self.connection = FramedConnection(
            TO_KEY_SERVICE,
            on_frame=self._receive,
            on_lost=self._lose,
            reads_while_blocked=patient,
            accepts=lambda _: admitted,
        )

    def _receive(self, frame: ToKeyService | Unreadable) -> None:
        self.frames.append(frame)
        if self._echoes:
            self.connection.send(Pong(frame.id))

    def _lose(self, nonsense: Exception | None) -> None:
        self.lost.append(nonsense)
        self.over.set()


Connect = Callable[[End], Awaitable[socket.socket]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connect an end to a plain socket."""
    opened: list[tuple[socket.socket, End]] = []

    async def new(end: End) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.settimeout(0)  # the loop waits for it
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: end.connection, sock=ours)
        opened.append((theirs, end))
        return theirs

    yield new
    for peer, end in opened:
        peer.close()
        async with asyncio.timeout(PATIENCE):
            await end.over.wait()


async def test_who_hangs_up_has_said_no_nonsense(connect: Connect) -> None:
    """If the peer leaves, even within a frame, the end is told once, without an error."""
    end = End()
    peer = await connect(end)
    await asyncio.get_running_loop().sock_sendall(peer, encode(Ping(1)) + encode(Ping(2))[:-1])
    peer.close()
    await end.over.wait()
    assert end.frames == [Ping(1)]
    assert end.lost == [None]


async def test_nonsense_ends_the_connection_with_its_reason(connect: Connect) -> None:
    """An invalid frame ends the connection once, with a ProtocolError. Later bytes are unread."""
    end = End()
    peer = await connect(end)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(peer, encode(Ping(1)) + b"\xff" * 8 + encode(Ping(2)))
    await end.over.wait()
    assert end.frames == [Ping(1)]
    (reason,) = end.lost
    assert isinstance(reason, ProtocolError)
    assert await loop.sock_recv(peer, 100) == b""


async def test_a_frame_with_an_unreadable_rest_ends_nothing(connect: Connect) -> None:
    """Such a frame is delivered by its id, and the frames behind it are delivered."""
    end = End(echoes=True)
    peer = await connect(end)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(
        peer, encode(Ping(1)) + b"\0\0\0\x08\x93\xa4call\x02\xc1" + encode(Ping(3))
    )
    expected = b"".join(encode(Pong(number)) for number in (1, 2, 3))
    got = b""
    async with asyncio.timeout(PATIENCE):
        while len(got) < len(expected):
            got += await loop.sock_recv(peer, 100)
    assert got == expected
    assert end.frames == [Ping(1), Unreadable(2, "call"), Ping(3)]
    assert end.lost == []


async def test_a_connection_that_is_over_keeps_no_buffer(connect: Connect) -> None:
    """An ended connection releases its read buffer, even while an object refers to it."""
    end = End(admitted=False)
    assert len(end.connection.get_buffer(-1)) > 0
    await connect(end)
    await end.over.wait()
    assert len(end.connection.get_buffer(-1)) == 0


async def test_sending_on_a_connection_that_is_over_does_nothing(connect: Connect) -> None:
    """Sending and closing before the connection and after its end raise no error."""
    end = End()
    end.connection.send(Pong(1))
    end.connection.close()
    peer = await connect(end)
    peer.close()
    await end.over.wait()
    end.connection.send(Pong(2))
    end.connection.close()
    assert end.lost == [None]


async def test_closing_delivers_what_is_queued(connect: Connect) -> None:
    """Frames sent before close arrive, followed by the end of the stream."""
    end = End()
    peer = await connect(end)
    for number in range(COUNT):
        end.connection.send(Pong(2**40 + number))
    end.connection.close()
    loop, got = asyncio.get_running_loop(), bytearray()
    while data := await loop.sock_recv(peer, 2**20):
        got += data
    assert got == b"".join(encode(Pong(2**40 + number)) for number in range(COUNT))
    assert end.lost == [None]


async def test_who_is_not_admitted_is_not_heard(connect: Connect) -> None:
    """A rejected peer is disconnected. No frame is delivered or sent."""
    end = End(admitted=False, echoes=True)
    peer = await connect(end)
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(peer, encode(Ping(1)))
    await end.over.wait()
    end.connection.send(Pong(1))
    assert (end.frames, end.lost) == ([], [None])
    with suppress(ConnectionError):  # a reset, or the end of it
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == b""


@pytest.mark.parametrize("patient", [False, True])
async def test_only_the_patient_read_who_does_not_read(connect: Connect, *, patient: bool) -> None:
    """If the peer leaves responses unread, a patient end keeps reading, and another end pauses.

    When the peer reads again, the paused end continues, and all frames are processed in order.
    """
    end = End(patient=patient, echoes=True)
    peer = await connect(end)
    loop = asyncio.get_running_loop()
    frames = b"".join(encode(Ping(2**40 + number)) for number in range(COUNT))
    sending = asyncio.create_task(loop.sock_sendall(peer, frames))
    await asyncio.wait([sending], timeout=PATIENCE if patient else 0.5)
    assert sending.done() == patient
    if not patient:
        stopped = len(end.frames)
        await asyncio.sleep(0.1)
        assert len(end.frames) == stopped < COUNT
    expected = b"".join(encode(Pong(2**40 + number)) for number in range(COUNT))
    got = bytearray()
    async with asyncio.timeout(PATIENCE):
        while len(got) < len(expected):
            got += await loop.sock_recv(peer, 2**20)
        await sending
    assert got == expected


async def test_what_is_sent_in_one_turn_goes_out_together(connect: Connect) -> None:
    """Frames sent in one turn of the event loop arrive in order with a single read."""
    end = End()
    peer = await connect(end)
    frames = [Ping(number) for number in range(50)]
    for frame in frames:
        end.connection.send(frame)
    with pytest.raises(BlockingIOError):
        peer.recv(1)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        assert await loop.sock_recv(peer, 65_536) == b"".join(map(encode, frames))
