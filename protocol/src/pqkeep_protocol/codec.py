"""Frames between the two processes: a 4-byte big-endian length, then one msgpack array.

For any input the decoder returns frames or raises ProtocolError. It refuses a frame longer than
MAX_FRAME before it reads the body. A frame with a readable beginning and an unreadable rest becomes
Unreadable: only that request fails, and the connection goes on. Only FramedConnection does I/O.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args
from uuid import UUID

import msgspec
from msgspec import Struct

from pqkeep_protocol.administration import AnyAdministrationRequest, AnyAdministrationResult
from pqkeep_protocol.audit import AnyAuditRequest, AnyAuditResult
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import DEFAULT_SHARD, ShardName
from pqkeep_protocol.messages import (
    AnyKeylessRequest,
    AnyKeylessResult,
    AnyRequest,
    AnyResult,
    Attribution,
    Batch,
    BatchResults,
    Destructions,
    ListDestructions,
    Result,
)
from pqkeep_protocol.metrics import GetMetrics, Metrics
from pqkeep_protocol.rules import RuleNotice

MAX_FRAME = 4 * 1024 * 1024
"""Bytes in a frame: 128 of the largest signatures, or a 4 MiB body after base64 decoding."""

MAX_IN_FLIGHT = 1024
"""Calls in flight on one connection. The next one is refused with OVERLOADED."""

_LENGTH = 4
_READ_AHEAD = 256 * 1024


class ProtocolError(Exception):
    """The peer sent an invalid frame. The connection must be closed."""


class Unreadable(NamedTuple):
    """A received frame of which only the kind and the id can be read."""

    id: int
    kind: str


class Call(Struct, frozen=True, array_like=True, tag="call"):
    """Requests one operation. One Answer or one Refusal follows."""

    id: int
    timeout_ms: int
    """The remaining time. It is relative: the clocks of two machines may differ."""
    attribution: Attribution
    request: (
        AnyRequest
        | AnyKeylessRequest
        | Batch
        | ListDestructions
        | AnyAuditRequest
        | AnyAdministrationRequest
        | GetMetrics
    )


class Ping(Struct, frozen=True, array_like=True, tag="ping"):
    """Checks that the peer is alive. A Pong follows."""

    id: int
    asks_database: bool = False
    """Whether the Pong names the database."""


class Answer(Struct, frozen=True, array_like=True, tag="answer"):
    """The result of a call. Its audit record is durable."""

    id: int
    result: (
        AnyResult
        | AnyKeylessResult
        | BatchResults
        | Destructions
        | AnyAuditResult
        | AnyAdministrationResult
        | Metrics
    )


class Refusal(Struct, frozen=True, array_like=True, tag="refusal"):
    """The reason for a missing result."""

    id: int
    kind: ErrorKind
    notice: RuleNotice | None = None
    """The rule that refused, if ``kind`` is RULE_DENIED."""


class Pong(Struct, frozen=True, array_like=True, tag="pong"):
    """The response to a Ping."""

    id: int
    shard: ShardName = DEFAULT_SHARD
    """The shard of the key service."""
    epoch: int = 1
    """The fencing token of the key service; 0 if it is not active."""
    database: UUID | None = None
    """The id of the key service's database, if the Ping asks for it and it is known."""


RESULT_TYPE: Mapping[type[Struct], type[Result]] = {
    request: get_args(request.__orig_bases__[0])[0]
    for request in get_args(
        AnyRequest
        | AnyKeylessRequest
        | Batch
        | ListDestructions
        | AnyAuditRequest
        | AnyAdministrationRequest
        | GetMetrics
    )
}
"""The result type of each request, from its base class. It checks responses."""

ToKeyService = Call | Ping
ToGateway = Answer | Refusal | Pong
Frame = TypeVar("Frame")

TO_KEY_SERVICE: msgspec.msgpack.Decoder[ToKeyService] = msgspec.msgpack.Decoder(ToKeyService)
TO_GATEWAY: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")


def encode(frame: ToKeyService | ToGateway) -> bytearray:
    """Return the frame after its length. Raises ProtocolError if it is too large."""
    buffer = bytearray(_LENGTH)
    _ENCODER.encode_into(frame, buffer, _LENGTH)
    length = len(buffer) - _LENGTH
    if length > MAX_FRAME:
        raise ProtocolError("frame too large")
    buffer[:_LENGTH] = length.to_bytes(_LENGTH, "big")
    return buffer


_ARRAY, _TEXT = 0b1001, 0b101
"""The first bits of a short msgpack array, and of a short text."""
_FIRST_LONG_NUMBER = 0x80
_NUMBER_SIZE: Mapping[int, int] = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Bytes of a msgpack number after its first byte. A number below 128 has only that one."""


def _beginning(body: bytes) -> Unreadable | None:
    """Return the kind and the id at the beginning of a frame: ``[kind, id, ...``."""
    if len(body) < 3 or body[0] >> 4 != _ARRAY or body[1] >> 5 != _TEXT:  # noqa: PLR2004
        return None
    end = 2 + (body[1] & 0b11111)
    kind, number = body[2:end], body[end:]
    if not number:
        return None
    if number[0] < _FIRST_LONG_NUMBER:
        return Unreadable(number[0], kind.decode("latin-1"))
    size = _NUMBER_SIZE.get(number[0], 0)
    if not size or len(number) <= size:
        return None
    return Unreadable(int.from_bytes(number[1 : 1 + size], "big"), kind.decode("latin-1"))


_LONGEST_BEGINNING = 2 + 0b11111 + 9


class FrameDecoder(Generic[Frame]):
    """Decodes a stream of bytes into frames. The buffer grows with the largest frame."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Frame]) -> None:
        """Decode frames of one direction: TO_KEY_SERVICE or TO_GATEWAY."""
        self._decoder = decoder
        kinds: tuple[Any, ...] = get_args(decoder.type)
        self._kinds = frozenset(str(kind.__struct_config__.tag) for kind in kinds)
        self._buffer = memoryview(bytearray(_READ_AHEAD))
        self._filled = 0

    def space(self) -> memoryview:
        """Return the free part of the buffer, for the next bytes; never empty."""
        return self._buffer[self._filled :]

    def close(self) -> None:
        """Release the buffer for good."""
        self._buffer = memoryview(b"")

    def filled(self, size: int) -> Iterator[Frame | Unreadable]:
        """Yield the frames that are complete after ``size`` new bytes in the buffer.

        Raises ProtocolError for a frame without a readable length, kind or id.
        """
        self._filled += size
        start = needed = 0
        try:
            while self._filled - start >= _LENGTH:
                body = start + _LENGTH
                length = int.from_bytes(self._buffer[start:body], "big")
                if length > MAX_FRAME:
                    raise ProtocolError("frame too large")
                if self._filled < body + length:
                    needed = _LENGTH + length
                    break
                start = body + length
                yield self._decoded(self._buffer[body:start])
        finally:
            rest = self._buffer[start : self._filled]
            if needed > len(self._buffer):
                self._buffer = memoryview(bytearray(needed + _READ_AHEAD))
            self._filled -= start
            self._buffer[: self._filled] = rest

    def _decoded(self, body: memoryview) -> Frame | Unreadable:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            pass  # the library's message can quote the data
        unreadable = _beginning(bytes(body[:_LONGEST_BEGINNING]))
        if unreadable is None or unreadable.kind not in self._kinds:
            raise ProtocolError("not a frame")
        return unreadable


Accepts = Callable[[asyncio.Transport], bool]
"""Decides whether to exchange frames with a peer."""


class FramedConnection(asyncio.BufferedProtocol, Generic[Frame]):
    """Passes every frame to ``on_frame``, and the end of the connection, once, to ``on_lost``.

    An invalid frame ends the connection, and ``on_lost`` gets the ProtocolError. Otherwise it gets
    the transport's error, if there is one. An Unreadable frame ends nothing: ``on_frame`` gets it.
    Sending on an ended connection does nothing.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Frame],
        *,
        on_frame: Callable[[Frame | Unreadable], None],
        on_lost: Callable[[Exception | None], None],
        reads_while_blocked: bool = True,
        accepts: Accepts = lambda _: True,
    ) -> None:
        """Receive frames of one direction, TO_KEY_SERVICE or TO_GATEWAY, from an accepted peer.

        Without ``reads_while_blocked`` it stops reading from a peer that does not read. Only one
        end of a connection may do that: otherwise both could wait for each other.
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
        """End the connection after the queued frames."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now, and drop the queued frames."""
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
