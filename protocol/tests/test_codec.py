"""Frames arrive unchanged, in pieces of any size, up to their maximum size."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.sampling import step

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import (
    MAX_FRAME,
    TO_GATEWAY,
    TO_KEY_SERVICE,
    Answer,
    Call,
    FrameDecoder,
    Ping,
    ProtocolError,
    encode,
)
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Decrypted, Encrypt

NewDecoder = Callable[[], FrameDecoder[Any]]
Feed = Callable[[FrameDecoder[Any], bytes | bytearray], list[Any]]
LENGTH = 4
quick = settings(max_examples=60, deadline=None)
of_each_kind = settings(max_examples=60 // step(6), deadline=None)


def test_every_kind_of_frame_round_trips(
    kinds_of_frame: list[SearchStrategy[Any]], new_decoder: NewDecoder, feed: Feed
) -> None:
    """A frame of any kind is decoded as an equal value of the same type."""

    def check(frame: Any) -> None:
        assert feed(new_decoder(), encode(frame)) == [frame]

    for kind in kinds_of_frame:  # all kinds in one example would be more than Hypothesis draws
        of_each_kind(given(kind)(check))()


@quick
@given(data=st.data())
def test_the_pieces_of_a_stream_do_not_matter(
    data: st.DataObject, frames: SearchStrategy[Any], new_decoder: NewDecoder, feed: Feed
) -> None:
    """A stream that is cut anywhere gives its frames in order."""
    sent = data.draw(st.lists(frames, min_size=1, max_size=6))
    stream = b"".join(encode(frame) for frame in sent)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=20)))
    decoder = new_decoder()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += feed(decoder, stream[start:end])
    assert got == sent


def test_byte_by_byte_a_frame_comes_with_its_last_byte() -> None:
    """A frame is delivered with its last byte, and not earlier."""
    decoder = FrameDecoder(TO_KEY_SERVICE)
    stream = encode(Ping(7))
    for byte in stream[:-1]:
        decoder.space()[0] = byte
        assert list(decoder.filled(1)) == []
    decoder.space()[0] = stream[-1]
    assert list(decoder.filled(1)) == [Ping(7)]


def test_nothing_secret_is_printed(kinds_of_frame: list[SearchStrategy[Any]], marker: str) -> None:
    """The repr of a request or result is only its type, so no field reaches a log."""

    def check(frame: Any) -> None:
        message = getattr(frame, "request", None) or getattr(frame, "result", None)
        if message is not None:
            assert repr(message) == str(message) == f"<{type(message).__name__}>"
            assert f"<{type(message).__name__}>" in repr(frame)
        if isinstance(frame, Answer):
            assert marker not in repr(frame)

    for kind in kinds_of_frame:
        of_each_kind(given(kind)(check))()


def _call(plaintext_size: int) -> Call:
    request = Encrypt(
        tenant=TenantId(UUID(int=1)),
        algorithm=Algorithm.ML_KEM_768,
        version=None,
        plaintext=bytes(plaintext_size),
    )
    return Call(1, 1000, Attribution("r", "p", "a", "y"), request)


def test_the_largest_frame_passes_and_one_byte_more_does_not(feed: Feed) -> None:
    """A frame of MAX_FRAME is encoded. One byte more is refused."""
    overhead = len(encode(_call(MAX_FRAME // 2))) - LENGTH - MAX_FRAME // 2
    largest = _call(MAX_FRAME - overhead)
    stream = encode(largest)
    assert len(stream) == LENGTH + MAX_FRAME
    assert feed(FrameDecoder(TO_KEY_SERVICE), stream * 2) == [largest, largest]
    with pytest.raises(ProtocolError):
        encode(_call(MAX_FRAME - overhead + 1))


def test_an_oversized_answer_refuses_to_encode() -> None:
    """A result larger than a frame is the sender's error, and the stream stays intact."""
    with pytest.raises(ProtocolError):
        encode(Answer(1, Decrypted(plaintext=bytes(MAX_FRAME))))


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 2**31, 2**32 - 1])
def test_an_oversized_frame_is_refused_by_its_length_alone(length: int) -> None:
    """A length over the limit is refused before any further byte is read or stored."""
    decoder = FrameDecoder(TO_GATEWAY)
    space = len(decoder.space())
    decoder.space()[:LENGTH] = length.to_bytes(LENGTH, "big")
    with pytest.raises(ProtocolError):
        list(decoder.filled(LENGTH))
    assert len(decoder.space()) >= space - LENGTH


def test_the_buffer_has_room_for_the_largest_frame(feed: Feed) -> None:
    """The buffer has space for the last byte of the largest frame."""
    decoder = FrameDecoder(TO_GATEWAY)
    assert feed(decoder, MAX_FRAME.to_bytes(LENGTH, "big") + bytes(MAX_FRAME - 1)) == []
    assert len(decoder.space()) > 0


def test_the_buffer_grows_with_the_frames(feed: Feed) -> None:
    """The buffer starts small, and grows for good to the largest frame."""
    decoder = FrameDecoder(TO_KEY_SERVICE)
    small = len(decoder.space())
    assert feed(decoder, encode(Ping(1)) * 100_000) == [Ping(1)] * 100_000
    assert len(decoder.space()) == small < MAX_FRAME // 8
    large = encode(_call(2 * small))
    for _ in range(3):
        assert len(feed(decoder, large)) == 1
        assert len(decoder.space()) == len(large) + small


def test_frames_before_the_broken_one_are_handed_over(feed: Feed) -> None:
    """Frames before an invalid one in the same read are delivered."""
    decoder = FrameDecoder(TO_KEY_SERVICE)
    stream = encode(Ping(1)) + encode(Ping(2)) + b"\xff\xff\xff\xff"
    decoder.space()[: len(stream)] = stream
    got = decoder.filled(len(stream))
    assert [next(got), next(got)] == [Ping(1), Ping(2)]
    with pytest.raises(ProtocolError):
        next(got)


def test_ids_have_64_bits(feed: Feed) -> None:
    """The largest 64-bit id comes back unchanged. A larger one cannot be sent."""
    assert feed(FrameDecoder(TO_KEY_SERVICE), encode(Ping(2**64 - 1))) == [Ping(2**64 - 1)]
    with pytest.raises(OverflowError):
        encode(Ping(2**64))
