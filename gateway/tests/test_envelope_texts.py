"""An envelope has one canonical text, and other texts are refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pqkeep_gateway.api.kem import ENVELOPE, ENVELOPE_HEADER, envelope_of
from pqkeep_gateway.http.field import FieldError
from pqkeep_protocol.envelopes import NUMBERS, Header
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyVersion

HEADERS = st.builds(
    Header,
    st.sampled_from(list(NUMBERS)),
    st.integers(1, MAX_KEY_VERSION).map(KeyVersion),
    st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z"),
)
TEXTS = st.builds(envelope_of, HEADERS, st.binary(max_size=200))
LETTERS = st.characters(codec="ascii")


def _read(text: object) -> tuple[Header, bytes] | None:
    try:
        return ENVELOPE.read({"envelope": text})
    except FieldError:
        return None


@given(header=HEADERS, blob=st.binary(max_size=200))
def test_what_is_written_is_read(header: Header, blob: bytes) -> None:
    """An encoded envelope decodes to the same header and blob, and its header also alone."""
    text = envelope_of(header, blob)
    assert _read(text) == (header, blob)
    assert ENVELOPE_HEADER.read({"envelope": text}) == header


@given(text=TEXTS, place=st.integers(0), letter=LETTERS)
def test_every_text_that_is_read_is_the_one_that_is_written(
    text: str, place: int, letter: str
) -> None:
    """A changed character makes the text invalid, or the canonical text of another envelope."""
    at = place % len(text)
    changed = text[:at] + letter + text[at + 1 :]
    found = _read(changed)
    assert found is None or envelope_of(*found) == changed


@example(text="pqk1.0/")
@example(text="pqk1.+A")
@given(text=st.text(max_size=300) | st.text(alphabet=LETTERS, max_size=300).map("pqk1.".__add__))
def test_any_text_is_refused_or_one_that_is_written(text: str) -> None:
    """Any text is refused, or is the canonical text of an envelope."""
    found = _read(text)
    assert found is None or envelope_of(*found) == text


@pytest.mark.parametrize("behind", ["!", "=", "ä", "AAAA" * 400_000])
def test_a_header_is_read_without_the_rest(behind: str) -> None:
    """Reading the header is cheap, even if the rest is large and invalid."""
    header = Header(next(iter(NUMBERS)), KeyVersion(7), "payments.cards")
    text = envelope_of(header, bytes(150)) + behind
    assert ENVELOPE_HEADER.read({"envelope": text}) == header
    assert _read(text) is None
