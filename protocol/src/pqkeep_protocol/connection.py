"""One end of the connection between the two processes: frames in, frames out, over asyncio."""

import asyncio
from collections.abc import Callable
from typing import Generic, cast

import msgspec

from pqkeep_protocol.codec import (
    Frame,
    FrameDecoder,
    ProtocolError,
    ToGateway,
    ToKeyService,
    encode,
)

Accepts = Callable[[asyncio.Transport], bool]
"""Decides whether a peer is one to exchange frames with."""


class FramedConnection(asyncio.BufferedProtocol, Generic[Frame]):
    """Passes every frame to ``on_frame``, and the end of the connection, once, to ``on_lost``.

    An invalid frame ends the connection, and ``on_lost`` gets the ProtocolError; otherwise it gets
    the transport's error, if there was one. Sending on a connection that has ended does nothing.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Frame],
        *,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[Exception | None], None],
        reads_while_blocked: bool = True,
        accepts: Accepts = lambda _: True,
    ) -> None:
        """Receive frames of one direction, TO_KEY_SERVICE or TO_GATEWAY, from an accepted peer.

        Without ``reads_while_blocked`` nothing is read from a peer that does not read what was
        sent to it. Only one end of a connection may be so, or both could wait for each other.
        """
        self._decoder = FrameDecoder(decoder)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reads_while_blocked = reads_while_blocked
        self._accepts = accepts
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytearray] = []
        self._error: ProtocolError | None = None

    def send(self, frame: ToKeyService | ToGateway) -> None:
        """Queue one frame. Raises ProtocolError if it is too large to send.

        Frames queued in one iteration of the event loop are written together, and wake the peer
        once.
        """
        if self._transport is not None:
            data = encode(frame)
            if not self._outgoing:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outgoing.append(data)

    def close(self) -> None:
        """End the connection after what is queued."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now, without what is queued."""
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast(asyncio.Transport, transport)
        if self._accepts(connected):
            self._transport = connected
        else:
            connected.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._decoder.close()
        self._on_lost(self._error or exc)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            # Not writelines: in asyncio of Python 3.12 and 3.13 it never pauses the protocol.
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def pause_writing(self) -> None:
        if self._transport is not None and not self._reads_while_blocked:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._reads_while_blocked:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._decoder.filled(nbytes):
                self._on_frame(frame)
        except ProtocolError as error:
            self._error = error
            if self._transport is not None:
                self._transport.abort()
