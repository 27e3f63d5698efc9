"""Strict DER (X.690): definite and minimal lengths, and no trailing bytes."""

from collections.abc import Sequence
from typing import NamedTuple

INTEGER, BIT_STRING, OCTET_STRING, OBJECT_IDENTIFIER = 0x02, 0x03, 0x04, 0x06
SEQUENCE = 0x30
_LONG = 0x80
_LONGEST_LENGTH = 4
_MOST_ELEMENTS = 64
"""The most elements in a constructed element. Keys, signatures and certificates have fewer than
ten.
"""
_LONGEST_IDENTIFIER = 64
"""The most bytes of an object identifier. Real keys' identifiers have fewer than twenty."""
_TWO = 2
"""The first two arcs share one number. Arcs 0 and 1 have 40 numbers each; the rest belongs to arc
2.
"""


class Element(NamedTuple):
    """One element: its tag, and its contents."""

    tag: int
    content: bytes


class DerError(ValueError):
    """The data is not DER. The message gives the reason without the data."""


class BerError(DerError):
    """The data is BER, but not DER."""


def elements(data: bytes) -> Sequence[Element]:
    """Return all elements inside a constructed element's content. Raises DerError."""
    found: list[Element] = []
    while data:
        if len(found) == _MOST_ELEMENTS:
            raise DerError("it has too many parts")
        element, data = first(data)
        found.append(element)
    return found


def single(data: bytes) -> Element:
    """Return data as one element. Raises DerError."""
    element, rest = first(data)
    if rest:
        raise DerError(f"bytes follow its end: {len(rest)}")
    return element


def sequence(data: bytes) -> Sequence[Element]:
    """Return the members of data that is one SEQUENCE. Raises DerError."""
    tag, content = single(data)
    if tag != SEQUENCE:
        raise DerError("it is not a SEQUENCE")
    return elements(content)


def encoded(tag: int, content: bytes) -> bytes:
    """Encode one element as DER."""
    size = len(content)
    if size < _LONG:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, _LONG | len(length))) + length + content


def object_identifier(dotted: str) -> bytes:
    """Encode an object identifier as DER."""
    first, second, *rest = map(int, dotted.split("."))
    content = b"".join(_base_128(arc) for arc in (40 * first + second, *rest))
    return encoded(OBJECT_IDENTIFIER, content)


def dotted(content: bytes) -> str:
    """Return an object identifier as numbers with dots. Raises DerError."""
    if not content or content[-1] & _LONG or len(content) > _LONGEST_IDENTIFIER:
        raise DerError("it has a damaged object identifier")
    arcs: list[int] = []
    arc = 0
    for byte in content:
        arc = arc << 7 | byte & 0x7F
        if not byte & _LONG:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, _TWO)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))


def first(data: bytes) -> tuple[Element, bytes]:
    """Return the first element, and the bytes after it. Raises DerError."""
    if len(data) < _TWO:
        raise DerError("it was cut")
    size, start = data[1], _TWO
    if size == _LONG:
        raise BerError("it has an indefinite length, which is BER and not DER")
    if size & _LONG:
        count = size & 0x7F
        start += count
        if count > _LONGEST_LENGTH:
            raise DerError("it has a length of too many bytes")
        if len(data) < start:
            raise DerError("it was cut")
        size = int.from_bytes(data[_TWO:start])
        if size < _LONG or not data[_TWO]:
            raise BerError("it has a length that is not in its shortest form")
    if len(data) < start + size:
        raise DerError(f"it was cut: {start + size - len(data)} bytes are missing")
    return Element(data[0], data[start : start + size]), data[start + size :]


def _base_128(arc: int) -> bytes:
    digits = [arc & 0x7F]
    while arc := arc >> 7:
        digits.append(_LONG | arc & 0x7F)
    return bytes(reversed(digits))
