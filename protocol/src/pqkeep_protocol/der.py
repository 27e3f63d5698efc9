"""A DER reader for keys and certificates, and names for other documents in their place.

It reads one encoding only: definite lengths in their shortest form. It names a document without
repeating any of its content.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

INTEGER, BIT_STRING, OCTET_STRING, OBJECT_IDENTIFIER, SEQUENCE = 0x02, 0x03, 0x04, 0x06, 0x30
_LONG_FORM = 0x80
_MAX_LENGTH_BYTES = 4
_MAX_ELEMENTS = 64
"""Elements in one sequence. Keys and certificates have under ten."""
_CERTIFICATE_PARTS = 6
_RSA_PRIVATE_PARTS = 9
_VERSION_TAG = 0xA0

_NIST = "60864801650304"
_ALGORITHMS: Mapping[str, str] = {
    "2a864886f70d010101": "RSA",
    "2a864886f70d010107": "RSA-OAEP",
    "2a864886f70d01010a": "RSA-PSS",
    "2a864886f70d010301": "Diffie-Hellman",
    "2a8648ce380401": "DSA",
    "2a8648ce3d0201": "EC",
    "2b656e": "X25519",
    "2b656f": "X448",
    "2b6570": "Ed25519",
    "2b6571": "Ed448",
    f"{_NIST}0401": "ML-KEM-512",
    f"{_NIST}0402": "ML-KEM-768",
    f"{_NIST}0403": "ML-KEM-1024",
    f"{_NIST}0311": "ML-DSA-44",
    f"{_NIST}0312": "ML-DSA-65",
    f"{_NIST}0313": "ML-DSA-87",
    **{
        f"{_NIST}03{number:02x}": f"SLH-DSA-{hash_}-{size}{kind}"
        for number, (hash_, size, kind) in enumerate(
            (
                (hash_, size, kind)
                for hash_ in ("SHA2", "SHAKE")
                for size in (128, 192, 256)
                for kind in "sf"
            ),
            start=20,
        )
    },
    **{
        f"{_NIST}03{number:02x}": name
        for number, name in enumerate(("HashML-DSA-44", "HashML-DSA-65", "HashML-DSA-87"), start=32)
    },
    **{f"{_NIST}03{number:02x}": "HashSLH-DSA" for number in range(35, 47)},
    "2b0601040183e62d81c87a": "X-Wing",
    **{f"2b060105050706{number:02x}": "another composite of ML-DSA" for number in range(37, 55)},
    "2b0601050507062d": "MLDSA65-ECDSA-P256-SHA512",
    "2a864886f70d0109100311": "HSS/LMS",
    "2b06010505070622": "XMSS",
    "2b06010505070623": "XMSS-MT",
}
"""The algorithms by object identifier: its content in hexadecimal."""


class DerError(ValueError):
    """The data is not DER. The message quotes none of it."""


class Element(NamedTuple):
    """One DER element."""

    tag: int
    content: memoryview
    whole: memoryview
    """Tag, length and content."""


def der(tag: int, content: bytes) -> bytes:
    """Return one DER element: tag, length, content."""
    size = len(content)
    if size < _LONG_FORM:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, _LONG_FORM | len(length))) + length + content


def elements(data: memoryview) -> Sequence[Element]:
    """Return the elements of the data, in order. Raises DerError."""
    parsed: list[Element] = []
    while data:
        if len(parsed) == _MAX_ELEMENTS:
            raise DerError("too many elements")
        element = _first(data)
        parsed.append(element)
        data = data[len(element.whole) :]
    return parsed


def only(data: memoryview, tag: int) -> memoryview:
    """Return the content of the only element, which must have this tag. Raises DerError."""
    element = _first(data)
    if element.tag != tag or len(element.whole) != len(data):
        raise DerError("another element")
    return element.content


def _first(data: memoryview) -> Element:
    if len(data) < 2:  # noqa: PLR2004 - tag and length
        raise DerError("cut off")
    size, start = data[1], 2
    if size >= _LONG_FORM:
        count = size - _LONG_FORM
        start += count
        length = bytes(data[2:start])
        size = int.from_bytes(length, "big")
        is_shortest = length[:1] != b"\0" and size >= _LONG_FORM
        if not (0 < count == len(length) <= _MAX_LENGTH_BYTES and is_shortest):
            raise DerError("not a length")
    end = start + size
    if end > len(data):
        raise DerError("cut off")
    return Element(data[0], data[start:end], data[:end])


def algorithm_in(identifier: memoryview) -> str:
    """Return the name of an AlgorithmIdentifier's algorithm. Raises DerError."""
    first = _first(identifier)
    if first.tag != OBJECT_IDENTIFIER:
        raise DerError("another element")
    return _ALGORITHMS.get(bytes(first.content).hex(), "an unknown algorithm")


def certified_key(data: memoryview) -> memoryview:
    """Return the SubjectPublicKeyInfo of a certificate (RFC 5280), which is not verified.

    Raises DerError if the data is not a certificate.
    """
    parts = elements(only(data, SEQUENCE))
    if [part.tag for part in parts] != [SEQUENCE, SEQUENCE, BIT_STRING]:
        raise DerError("no certificate")
    signed = elements(parts[0].content)
    if signed and signed[0].tag == _VERSION_TAG:
        signed = signed[1:]
    tags = [part.tag for part in signed[:_CERTIFICATE_PARTS]]
    if tags != [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE]:
        raise DerError("no certificate")
    return signed[_CERTIFICATE_PARTS - 1].whole


def form_of(data: memoryview) -> str:
    """Return the name of a DER document's kind, or "" if it is unknown."""
    try:
        return _form_of(elements(only(data, SEQUENCE)))
    except DerError:
        return ""


def _form_of(parts: Sequence[Element]) -> str:  # noqa: PLR0911 - one form per line
    tags = [part.tag for part in parts]
    if tags == [SEQUENCE, BIT_STRING]:
        return f"a public key of {algorithm_in(parts[0].content)}"
    if tags[:3] == [INTEGER, SEQUENCE, OCTET_STRING]:
        return f"a private key (PKCS#8) of {algorithm_in(parts[1].content)}"
    if tags == [SEQUENCE, OCTET_STRING]:
        return "an encrypted private key (PKCS#8)"
    if tags == [SEQUENCE, SEQUENCE, BIT_STRING]:
        signed = elements(parts[0].content)
        is_request = len(signed) < _CERTIFICATE_PARTS and signed[:1] and signed[0].tag == INTEGER
        return "a certificate request (PKCS#10)" if is_request else "a certificate"
    if tags[:2] == [INTEGER, OCTET_STRING]:
        return "an EC private key (SEC 1)"
    if len(tags) >= _RSA_PRIVATE_PARTS and set(tags) == {INTEGER}:
        return "an RSA private key (PKCS#1)"
    if tags == [INTEGER, INTEGER]:
        return "an RSA public key (PKCS#1), or an ECDSA signature"
    if tags == [OBJECT_IDENTIFIER, _VERSION_TAG]:
        return "a message or a list of certificates (PKCS#7)"
    return ""
