"""Bech32 (BIP 173) for bytes, without the limit of 90 characters, as age writes its keys."""

from collections.abc import Iterable, Sequence

_CHARACTERS = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BITS = 5
"""Bits of a character."""
_CHECKSUM = 6
"""Characters of the checksum."""


def encode(prefix: str, data: bytes) -> str:
    """Return data with its human-readable part, in lower case."""
    count = -(-8 * len(data) // _BITS)
    bits = int.from_bytes(data, "big") << _BITS * count - 8 * len(data)
    values = _values(bits, count)
    checksum = _remainder((*_expanded(prefix), *values, *bytes(_CHECKSUM))) ^ 1
    text = "".join(_CHARACTERS[value] for value in (*values, *_values(checksum, _CHECKSUM)))
    return f"{prefix}1{text}"


def decode(text: str) -> tuple[str, bytes]:
    """Return the human-readable part, in lower case, and the data.

    Raises ValueError for text that ``encode`` does not write, in lower or upper case. The message
    repeats none of the text.
    """
    if not text.isascii() or text not in {text.lower(), text.upper()}:
        raise ValueError("not in one case of ASCII letters")
    prefix, _, body = text.lower().rpartition("1")
    values = [_CHARACTERS.find(character) for character in body]
    if not prefix or not all("!" <= character <= "~" for character in prefix):
        raise ValueError("without a readable beginning")
    if -1 in values or len(values) < _CHECKSUM:
        raise ValueError("with other characters, or cut")
    if _remainder((*_expanded(prefix), *values)) != 1:
        raise ValueError("with a wrong checksum")
    bits = 0
    for value in values[:-_CHECKSUM]:
        bits = bits << _BITS | value
    size, padding = divmod(_BITS * (len(values) - _CHECKSUM), 8)
    if padding >= _BITS or bits & (1 << padding) - 1:
        raise ValueError("with bits after its data")
    return prefix, (bits >> padding).to_bytes(size, "big")


def _values(bits: int, count: int) -> Sequence[int]:
    return [bits >> _BITS * place & 31 for place in reversed(range(count))]


def _expanded(prefix: str) -> Sequence[int]:
    return [*(ord(one) >> _BITS for one in prefix), 0, *(ord(one) & 31 for one in prefix)]


def _remainder(values: Iterable[int]) -> int:
    remainder = 1
    for value in values:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << _BITS ^ value
        for place, generator in enumerate(_GENERATORS):
            remainder ^= generator if top >> place & 1 else 0
    return remainder
