"""Envelopes: ciphertexts as texts that name their key (docs/cryptography.md)."""

from dataclasses import replace
from typing import Any, NamedTuple, cast

import pybase64

from pqkeep_gateway.api.key_fields import MAX_CIPHERTEXT
from pqkeep_gateway.http.field import Field, InvalidValueError, Problem
from pqkeep_gateway.http.text import base64_size
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.envelopes import MAX_HEADER, PREFIX, Header, InvalidHeaderError, read_header
from pqkeep_protocol.keys import KeyVersion

_URL_SAFE = b"-_"
_NOT_URL_SAFE = frozenset("+/")
"""Base64 characters that pybase64 accepts in spite of their replacements."""
_MAX_TEXT = len(PREFIX) + base64_size(MAX_HEADER + MAX_CIPHERTEXT)
_HEADER_TEXT = len(PREFIX) + base64_size(MAX_HEADER)
"""Characters that hold the longest header."""
_NONE = "is not an envelope"


class Envelope(NamedTuple):
    """A ciphertext, and the header that identifies its key."""

    header: Header
    blob: bytes


def envelope_of(header: Header, blob: bytes) -> str:
    """Return an envelope as text."""
    return PREFIX + _encoded(header.encoded() + blob)


def _encoded(data: bytes) -> str:
    return pybase64.b64encode(data, altchars=_URL_SAFE).rstrip(b"=").decode("ascii")


def _parse(value: object) -> Envelope:
    """Return an envelope. Only its canonical text is accepted. Raises InvalidValueError."""
    data = _decoded(value)
    header = _header_of(data)
    blob = data[len(header.encoded()) :]
    if len(blob) > MAX_CIPHERTEXT:
        raise InvalidValueError(f"exceeds {MAX_CIPHERTEXT} bytes", Problem.TOO_LARGE)
    return Envelope(header, blob)


def _parse_header(value: object) -> Header:
    """Return the header of an envelope, without reading the rest. Raises InvalidValueError."""
    start = value[:_HEADER_TEXT] if isinstance(value, str) else value
    return _header_of(_decoded(start))


def _decoded(value: object) -> bytes:
    if not (isinstance(value, str) and value.startswith(PREFIX) and value.isascii()):
        raise InvalidValueError(_NONE)
    if len(value) > _MAX_TEXT:
        raise InvalidValueError(f"exceeds {MAX_CIPHERTEXT} bytes", Problem.TOO_LARGE)
    text = value[len(PREFIX) :]
    if any(character in text for character in _NOT_URL_SAFE):
        raise InvalidValueError(_NONE)
    try:
        data = pybase64.b64decode(text + "=" * (-len(text) % 4), altchars=_URL_SAFE, validate=True)
    except ValueError:
        raise InvalidValueError(_NONE) from None
    if _encoded(data) != text:
        raise InvalidValueError(_NONE)
    return data


def _header_of(data: bytes) -> Header:
    try:
        return read_header(data)
    except InvalidHeaderError:
        raise InvalidValueError(_NONE) from None


ENVELOPE: Field[Envelope] = Field(
    name="envelope",
    description="The `envelope` that encrypt returned. It names keyring, algorithm and version.",
    schema={
        "type": "string",
        "pattern": f"^{PREFIX.replace('.', '[.]')}[A-Za-z0-9_-]+$",
        "maxLength": _MAX_TEXT,
    },
    example=envelope_of(Header(Algorithm.ML_KEM_768, KeyVersion(1)), bytes(range(24))),
    parse=_parse,
    problems=frozenset({Problem.MALFORMED, Problem.TOO_LARGE}),
    made_by="encrypt",
)
ENVELOPE_HEADER = cast("Field[Header]", replace(ENVELOPE, parse=cast("Any", _parse_header)))
"""The header of the same text, for decisions that precede the reading of the body."""
