"""For any input the decoder returns frames or raises ProtocolError, and nothing else.

A frame with a readable kind and id is returned as Unreadable, and the frames behind it are read.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.sampling import step

from pqkeep_protocol.codec import (
    TO_GATEWAY,
    TO_KEY_SERVICE,
    FrameDecoder,
    ProtocolError,
    Unreadable,
    encode,
)

NewDecoder = Callable[[], FrameDecoder[Any]]
Feed = Callable[[FrameDecoder[Any], bytes | bytearray], list[Any]]
fuzzing = settings(max_examples=300 // step(3), deadline=None)


def framed(body: bytes) -> bytes:
    """Return a body after its length."""
    return len(body).to_bytes(4, "big") + body


def survives(feed: Feed, decoder: FrameDecoder[Any], stream: bytes) -> None:
    """Fail on any exception but ProtocolError, and on a message that quotes the input."""
    refused = None
    try:
        feed(decoder, stream)
    except ProtocolError as error:
        refused = error
    assert str(refused) in {"None", "not a frame", "frame too large"}
    assert refused is None or refused.__cause__ is None


@fuzzing
@given(stream=st.binary(max_size=2048))
def test_any_bytes(stream: bytes, new_decoder: NewDecoder, feed: Feed) -> None:
    """Arbitrary bytes raise no other exception."""
    survives(feed, new_decoder(), stream)


@fuzzing
@given(body=st.binary(max_size=2048))
def test_any_body(body: bytes, new_decoder: NewDecoder, feed: Feed) -> None:
    """Arbitrary bytes after their correct length are decoded or refused."""
    decoder = new_decoder()
    try:
        assert len(feed(decoder, framed(body))) == 1
    except ProtocolError:
        return


@fuzzing
@given(data=st.data())
def test_damaged_frames(
    data: st.DataObject, frames: SearchStrategy[Any], new_decoder: NewDecoder, feed: Feed
) -> None:
    """A valid frame with bytes changed, added or removed raises no other exception."""
    stream = bytearray(encode(data.draw(frames)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        match data.draw(st.sampled_from(["flip", "set", "cut", "insert"])):
            case "flip":
                stream[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                stream[at] = data.draw(st.integers(0, 255))
            case "cut":
                del stream[at : at + data.draw(st.integers(1, 8))]
            case _:
                stream[at:at] = data.draw(st.binary(max_size=8))
        if not stream:
            break
    survives(feed, new_decoder(), bytes(stream))
    if len(stream) > 4:  # the same damage, behind the right length
        survives(feed, new_decoder(), framed(bytes(stream[4:])))


@fuzzing
@given(data=st.data())
def test_truncated_bodies(
    data: st.DataObject, frames: SearchStrategy[Any], new_decoder: NewDecoder, feed: Feed
) -> None:
    """A truncated body is never a frame. From its id on, only the id of it is known."""
    frame = data.draw(frames)
    body, beginning = bytes(encode(frame))[4:], beginning_of(frame)
    kept = data.draw(st.integers(0, len(body) - 1) | st.integers(0, len(beginning)))
    if len(beginning) <= kept < len(body):
        assert feed(new_decoder(), framed(body[:kept])) == [unreadable(frame)]
    elif kept < len(beginning):
        with pytest.raises(ProtocolError):
            feed(new_decoder(), framed(body[:kept]))


@fuzzing
@given(data=st.data())
def test_damage_behind_the_id(
    data: st.DataObject, frames: SearchStrategy[Any], new_decoder: NewDecoder, feed: Feed
) -> None:
    """Whatever follows its id, a frame keeps the id, and the next frame is read."""
    frame, following = data.draw(frames), data.draw(frames)
    beginning = beginning_of(frame)
    rest = bytes(encode(frame))[4 + len(beginning) :]
    if data.draw(st.booleans()):
        rest = data.draw(st.binary(max_size=256))
    elif rest:
        at = data.draw(st.integers(0, len(rest) - 1))
        rest = rest[:at] + data.draw(st.binary(max_size=8)) + rest[at + 1 :]
    damaged, untouched = feed(new_decoder(), framed(beginning + rest) + encode(following))
    assert damaged.id == frame.id
    assert untouched == following
    if isinstance(damaged, Unreadable):
        assert damaged == unreadable(frame)


def beginning_of(frame: Any) -> bytes:
    """Return the bytes of a frame's body up to its id."""
    array = bytes(encode(frame)[4:5])
    return array + msgspec.msgpack.encode((frame.__struct_config__.tag, frame.id))[1:]


def unreadable(frame: Any) -> Unreadable:
    """Return the id and the kind of a frame with an unreadable rest."""
    return Unreadable(frame.id, frame.__struct_config__.tag)


CALL = b"\x95\xa4call\x01\x02\x94\xa1r\xa1p\xa1a\xa1y"
"""A call of number 1, with 2 ms and an attribution, up to its request."""
REQUEST = b"\x94\xaarotate-key\xc4\x10" + bytes(16) + b"\xa7default\xa8Kyber768"
ANSWER = b"\x93\xa6answer\x01\x93\xa3key\xc0\x95\xa8Kyber768\x01\xa6active\xc4\x01k"
"""An answer of number 1, with a key, up to the time of its creation."""

HOSTILE = {
    "an empty body": b"",
    "100,000 nested arrays": b"\x91" * 100_000,
    "nested arrays in a field that is not known": b"\x93\xa4ping\x01" + b"\x91" * 100_000 + b"\xc0",
    "nested arrays to the gateway": b"\x93\xa4pong\x01" + b"\x91" * 100_000 + b"\xc0",
    "nested maps": b"\x92\xa4ping" + b"\x81" * 100_000,
    "invalid UTF-8": CALL.replace(b"\xa1r", b"\xa1\xff") + REQUEST,
    "a lone surrogate": CALL.replace(b"\xa1r", b"\xa3\xed\xa0\x80") + REQUEST,
    "an array of 2**32 - 1 keys": b"\x93\xa6answer\x01\x93\xa4keys\xc0\xdd\xff\xff\xff\xff",
    "bytes of 2**32 - 1": b"\x93\xa6answer\x01\x93\xa9decrypted\xc0\xc6\xff\xff\xff\xff",
    "a number that is a fraction": b"\x92\xa4ping\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00",
    "a number that is not one": b"\x92\xa4ping\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "a number as text": b"\x92\xa4ping\xa11",
    "a tag that does not exist": b"\x92\xa4pung\x01",
    "no tag": b"\x91\x01",
    "an unknown msgpack byte": b"\xc1",
    "two frames in one": b"\x92\xa4ping\x01\x92\xa4ping\x02",
    "a call without a request": CALL + b"\xc0",
    "a tenant that is too short": CALL + REQUEST.replace(b"\xc4\x10\x00", b"\xc4\x0f"),
    "an unknown algorithm": CALL + REQUEST.replace(b"768", b"769"),
    "an unknown operation": CALL + REQUEST.replace(b"rotate", b"rotten"),
    "a time after all time": ANSWER + b"\xc7\x0c\xff" + bytes(4) + b"\x7f" + b"\xff" * 7,
    "a time that is none": ANSWER + b"\xaanot a time",
}


@pytest.mark.parametrize("body", [CALL + REQUEST, ANSWER + b"\xd6\xff" + bytes(4)])
def test_the_hostile_bodies_are_close_to_valid_ones(body: bytes, feed: Feed) -> None:
    """Each hostile body is a valid one with a single fault, so that fault is the reason."""
    decoder: FrameDecoder[Any] = FrameDecoder(TO_GATEWAY if b"answer" in body else TO_KEY_SERVICE)
    assert len(feed(decoder, framed(body))) == 1


KINDS = {
    "to the key service": (b"\xa4call\x01", b"\xa4ping\x01"),
    "to the gateway": (b"\xa4pong\x01",),
}
KINDS["to the gateway"] += (b"\xa6answer\x01",)
"""Kinds with the id 1."""


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bodies(body: bytes, direction: str, new_decoder: NewDecoder, feed: Feed) -> None:
    """Each hostile body is refused in both directions, without a crash or a large allocation.

    In its own direction, one with an id is Unreadable.
    """
    if body[1:].startswith(KINDS[direction]):
        (frame,) = feed(new_decoder(), framed(body))
        assert frame == Unreadable(1, body[2 : body.index(b"\x01")].decode())
    else:
        with pytest.raises(ProtocolError):
            feed(new_decoder(), framed(body))


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\xcc\x80", 128),
        (b"\xcd\x01\x00", 256),
        (b"\xce\x00\x01\x00\x00", 65_536),
        (b"\xcf" + b"\xff" * 8, 2**64 - 1),
        (b"\xcf" + b"\xff" * 7, None),
        (b"\xd0\x80", None),
        (b"\xff", None),
        (b"\xc0", None),
    ],
)
def test_ids_of_every_size_are_read(number: bytes, value: int | None, feed: Feed) -> None:
    """An id of each size is read in front of an unreadable rest. No other value is an id."""
    frame = framed(b"\x94\xa4call" + number)
    if value is None:
        with pytest.raises(ProtocolError):
            feed(FrameDecoder(TO_KEY_SERVICE), frame)
    else:
        assert feed(FrameDecoder(TO_KEY_SERVICE), frame) == [Unreadable(value, "call")]


@pytest.mark.parametrize("number", [b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7)])
def test_huge_numbers_are_numbers(number: bytes, new_decoder: NewDecoder, feed: Feed) -> None:
    """The largest and smallest numbers of msgpack are decoded like any other."""
    for tag in (b"ping", b"pong"):
        survives(feed, new_decoder(), framed(b"\x92\xa4" + tag + number))
