"""Base64 that is not the canonical encoding of its bytes is refused."""

import re
from base64 import b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_gateway.http.field import (
    InvalidValueError,
    decode_base64,
    decode_base64_into_buffer,
)
from pqkeep_gateway.http.text import ANY_BASE64, base64_pattern

BOTH = pytest.mark.parametrize("decode", [decode_base64, decode_base64_into_buffer])
Decode = Callable[[object], bytes | bytearray]
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@BOTH
@given(data=st.binary(max_size=40))
def test_the_canonical_form_is_read(decode: Decode, data: bytes) -> None:
    """Encoded bytes are decoded to the same bytes, and match the schemas."""
    text = b64encode(data).decode()
    assert decode(text) == data
    assert re.fullmatch(ANY_BASE64, text)
    assert re.fullmatch(base64_pattern([len(data)]), text)


@BOTH
@pytest.mark.parametrize("canonical", ["AA==", "AAA=", "/w==", "//8=", "AAAAAA==", "AAAAAAA="])
def test_bits_that_stand_for_nothing_are_zero(decode: Decode, canonical: str) -> None:
    """Only last characters without unused bits are accepted, by the schema too."""
    body, padding = canonical.rstrip("="), canonical.count("=")
    accepted = []
    for character in ALPHABET:
        text = body[:-1] + character + "=" * padding
        try:
            decode(text)
        except InvalidValueError:
            assert not re.fullmatch(ANY_BASE64, text)
        else:
            assert re.fullmatch(ANY_BASE64, text)
            accepted.append(character)
    assert len(accepted) == 64 >> 2 * padding


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        *("A", "AA", "AAA", "AA=", "AAA==", "A===", "=", "====", "AAAA=", "AAAA====", "AA==AA=="),
        *(
            "AA==\n",
            " AA==",
            "AA ==",
            "AA==\x00",
            "A\nA==",
            "-_==",
            "-A==",
            "AÄ==",
            "AA﹦=",
            "AA%3D",
        ),
        *(None, 1, b"AA==", ["AA=="]),
    ],
    ids=repr,
)
def test_what_is_no_base64_is_refused(decode: Decode, text: object) -> None:
    """White space, another alphabet, and missing, wrong or extra padding are refused."""
    with pytest.raises(InvalidValueError):
        decode(text)


@BOTH
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (7, "not a number"),
        ({}, "not an object"),
        (True, "not true or false"),
        ("-_-_", "base64url"),
        ("QUJD-_==", "base64url"),
        ("QUI", "padding"),
        ("Q/I", "padding"),
        ("QUJD\nQUJD", "line breaks"),
        ("QUJD\r\n", "line breaks"),
        (" QUJD", "white space"),
        ("data:;base64,QUJD", "data: URL"),
        ("data:text/plain,abc", "data: URL"),
        ("-----BEGIN PUBLIC KEY-----\nQUJD\n-----END PUBLIC KEY-----\n", "PEM"),
        ("\ufeffQUJD", "byte-order mark"),
        ('{"kty": "AKP"}', "JSON"),
        ('["QUJD"]', "JSON"),
        ('"QUJD"', "quotation marks"),
        ("e30.QUJD_-.QUJD", "a JWS"),
        ("0a1b2c", "hexadecimal"),
        ("0x0a1b2c0d", "hexadecimal"),
        ("0A:1B:2C:0D", "hexadecimal"),
        ("0a1b2c0d\n", "hexadecimal"),
        ("QUL=", "last character"),
        ("QUI=QUJD", "in the alphabet"),
        ("AÄ==", "in the alphabet"),
    ],
)
def test_what_it_is_instead_is_named(decode: Decode, value: object, said: str) -> None:
    """The error names the form of a text that is not base64, without its content."""
    with pytest.raises(InvalidValueError) as refused:
        decode(value)
    assert said in refused.value.message
    assert str(value) not in refused.value.message
