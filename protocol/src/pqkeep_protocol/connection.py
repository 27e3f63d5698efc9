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


class FramedConnection(asyncio.BufferedProtocol, Generic[Frame]):
    """Hands every frame to ``on_frame`` and says once, by ``on_lost``, that it is over.

    What is no frame ends the connection, and ``on_lost`` is told so by a ProtocolError. Sending on
    a connection that is over does nothing.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Frame],
        *,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[ProtocolError | None], None],
        patient: bool = True,
        admit: Callable[[asyncio.Transport], bool] = lambda _: True,
    ) -> None:
        """Receive frames of one direction, TO_KEY_SERVICE or TO_GATEWAY, from an admitted peer.

        One that is not patient reads nothing from a peer that does not read its answers. Only one
        end of a connection may be so, or both could wait for each other.
        """
        self._decoder = FrameDecoder(decoder)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._patient = patient
        self._admit = admit
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytearray] = []
        self._nonsense: ProtocolError | None = None

    def send(self, frame: ToKeyService | ToGateway) -> None:
        """Queue one frame. Raises ProtocolError if it is too large to send.

        What is sent in one turn of the event loop goes out together, and wakes the peer once.
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's call."""
        connected = cast(asyncio.Transport, transport)
        if self._admit(connected):
            self._transport = connected
        else:
            connected.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's call."""
        self._transport = None
        self._on_lost(self._nonsense)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.writelines(outgoing)

    def pause_writing(self) -> None:
        """Asyncio's call."""
        if self._transport is not None and not self._patient:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Asyncio's call."""
        if self._transport is not None and not self._patient:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Asyncio's call."""
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio's call."""
        try:
            for frame in self._decoder.filled(nbytes):
                self._on_frame(frame)
        except ProtocolError as nonsense:
            self._nonsense = nonsense
            if self._transport is not None:
                self._transport.abort()
