"""Files of lines are compressed only for clients that accept it."""

from __future__ import annotations

import gzip
import os

import pytest

from pqkeep_gateway.http.responses import GzipStream, accepts_gzip

ACCEPTED = {
    b"gzip": True,
    b"GZIP": True,
    b"deflate, gzip;q=0.5": True,
    b"br , gzip ; q=1.0": True,
    b"gzip;q=0": False,
    b"gzip; q=0.000": False,
    b"identity": False,
    b"xgzip, gzipx": False,
    b"*": False,
    b"": False,
    b"gzip;q=0.001": True,
    b",;,": False,
}


@pytest.mark.parametrize(("header", "is_accepted"), ACCEPTED.items())
def test_who_accepts_gzip(header: bytes, is_accepted: bool) -> None:  # noqa: FBT001
    """Gzip must be named in any case, with a weight other than 0."""
    assert accepts_gzip({b"accept-encoding": header}) is is_accepted


def test_nobody_accepts_it_without_saying_so() -> None:
    """Without Accept-Encoding nothing is compressed."""
    assert not accepts_gzip({})


async def test_a_stream_is_one_gzip_file() -> None:
    """Any chunks decompress to the original bytes."""
    chunks = [b"", b"line\n" * 100_000, os.urandom(70_000), b"end\n"]
    stream = GzipStream()
    sent = b"".join([await stream.compress(chunk) for chunk in chunks]) + stream.end()
    assert gzip.decompress(sent) == b"".join(chunks)
    assert len(sent) < 80_000
