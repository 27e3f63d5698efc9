"""Each envelope header has a single encoding, and other data is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_protocol.algorithms import ALGORITHMS, Kind
from pqkeep_protocol.envelopes import MAX_HEADER, NUMBERS, Header, InvalidHeaderError, read_header
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyVersion

HEADERS = st.builds(
    Header,
    st.sampled_from(list(NUMBERS)),
    st.integers(1, MAX_KEY_VERSION).map(KeyVersion),
    st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z"),
)
GOOD = Header(next(iter(NUMBERS)), KeyVersion(7), "payments.cards").encoded()


def test_every_kem_has_a_number_of_its_own() -> None:
    """Every encrypting algorithm has its own number in a header."""
    assert NUMBERS.keys() == {
        a for a, spec in ALGORITHMS.items() if spec.kind in {Kind.KEM, Kind.CIPHER}
    }
    assert len(set(NUMBERS.values())) == len(NUMBERS)


@given(header=HEADERS, behind=st.binary(max_size=80))
def test_a_header_is_read_as_it_was_written(header: Header, behind: bytes) -> None:
    """A header decodes correctly with any data after it."""
    encoded = header.encoded()
    assert len(encoded) <= MAX_HEADER
    assert read_header(encoded + behind) == header


@given(data=st.binary(max_size=90))
def test_what_is_read_is_what_would_be_written(data: bytes) -> None:
    """Any data is refused, or begins with the only encoding of its header."""
    try:
        header = read_header(data)
    except InvalidHeaderError:
        return
    assert data.startswith(header.encoded())


@given(one=HEADERS, other=HEADERS, tail=st.binary(max_size=8), rest=st.binary(max_size=8))
def test_headers_before_data_are_unambiguous(
    one: Header, other: Header, tail: bytes, rest: bytes
) -> None:
    """No two pairs of header and associated data are bound by equal bytes."""
    if (one, tail) != (other, rest):
        assert one.bound() + tail != other.bound() + rest


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(GOOD[:5], id="half of the fixed part"),
        pytest.param(GOOD[:-1], id="a name that is cut short"),
        pytest.param(b"\0" + GOOD[1:], id="algorithm 0"),
        pytest.param(b"\5" + GOOD[1:], id="algorithm 5"),
        pytest.param(GOOD[:1] + bytes(4) + GOOD[5:], id="version 0"),
        pytest.param(GOOD[:1] + b"\x80\0\0\0" + GOOD[5:], id="a version that cannot be"),
        pytest.param(GOOD[:5] + b"\0", id="no name"),
        pytest.param(GOOD[:5] + b"\x81" + b"a" * 129, id="a name of 129 letters"),
        pytest.param(GOOD[:5] + b"\1-", id="a name that begins with a dash"),
        pytest.param(GOOD[:5] + b"\1.", id="a name that begins with a dot"),
        pytest.param(GOOD[:5] + b"\2a\n", id="a line feed"),
        pytest.param(GOOD[:5] + b"\2a/", id="a slash"),
        pytest.param(GOOD[:5] + "\2ä".encode("latin-1"), id="no ASCII"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    """Invalid names, versions and algorithms are refused."""
    with pytest.raises(InvalidHeaderError):
        read_header(data)
