"""Text from outside: encodings, blocks between markers (RFC 7468), base64 and JSON."""

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_LINES = re.compile(r"\r\n|\r|\n")
_LABEL = r"([!-,.-~]{1,30}(?:[ -][!-,.-~]{1,30}){0,7})"
_BEGIN = re.compile(f"-----BEGIN {_LABEL} *-----")
_DAMAGED_MARKER = re.compile(
    r"[-\u2010-\u2015\u2212]\s{0,4}(?:BEGIN|END) [A-Z0-9 -]{1,80}[-\u2010-\u2015\u2212]"
)
_AT_LINE = re.compile(r"(?:^|[\r\n])[ \t]*-----BEGIN ")
_END = re.compile(f"-----END {_LABEL} *-----")
_PLAIN_LABEL = re.compile(r"[A-Z0-9]{1,12}(?:[ -][A-Z0-9]{1,12}){0,4}")
_QUOTED = re.compile(r"(?:^|[\r\n])[ \t]*(?:[>|] ?|- )+-----BEGIN ")
_HEADER = re.compile(r"[!-9;-~]+:(?: |$)")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/_=-]")
_HEXADECIMAL = re.compile(r"(?:0[xX])?[0-9A-Fa-f]{2}(?:[\s:]*[0-9A-Fa-f]{2})*:?")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_WHITE = re.compile(r"\s+")
_GROUP = 4


class TextError(ValueError):
    """The text is damaged. The message gives the reason without quoting the text."""


class Block(NamedTuple):
    """The contents between two markers."""

    label: str
    data: bytes
    is_encrypted: bool
    """True if the header says that the block is encrypted (RFC 1421)."""


def as_text(data: bytes) -> str | None:
    """Return data as text without a byte-order mark. None if it is not text.

    Text around markers may have another encoding.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            text = _decoded(data[len(mark) :], encoding)
            if text is not None:
                return text
    text = _decoded(data, "utf-8")
    for odd, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):  # without a mark
        if text is None and len(data) > 1 and not len(data) % 2 and not any(data[odd::2]):
            text = _decoded(data, encoding)
    if text is None and b"-----BEGIN " in data:
        return data.decode("latin-1")
    return text


def is_utf_16(data: bytes) -> bool:
    """Return True if data is UTF-16 text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return as_text(data) is not None
    return bool(data) and (not any(data[1::2]) or not any(data[::2])) and as_text(data) is not None


def has_markers(text: str) -> bool:
    """Return True if the text has markers, damaged ones included."""
    return _DAMAGED_MARKER.search(text) is not None


def blocks(text: str) -> Sequence[Block]:
    """Return the blocks in a text. Other text may surround them. Raises TextError."""
    if "\\n" in text and len(_LINES.split(text.strip())) == 1:  # as it stands in JSON or a shell
        text = text.replace("\\r", "").replace("\\n", "\n")
    if _QUOTED.search(text):
        raise TextError("its lines begin with a quotation mark such as '> ', as in an e-mail")
    return tuple(_blocks(text))


def begins_block(text: str) -> bool:
    """Return True if a line of the text is a marker."""
    return _AT_LINE.search(text) is not None


def base64_bytes(text: str) -> bytes:
    """Decode base64 or base64url, with or without padding. Raises TextError."""
    compact = _WHITE.sub("", text)
    if _NOT_BASE64.search(compact):
        raise TextError("it has a character that is not base64")
    body = compact.rstrip("=")
    if "=" in body:
        raise TextError("its base64 has characters after the padding")
    if {"-", "_"} & set(body) and {"+", "/"} & set(body):
        raise TextError("it mixes base64 and base64url")
    missing = -len(body) % _GROUP
    if missing == _GROUP - 1 or len(compact) - len(body) not in {0, missing}:
        raise TextError("its base64 has a wrong length")
    standard = body.replace("-", "+").replace("_", "/") + "=" * missing
    try:
        data = b64decode(standard, validate=True)
    except binascii.Error:  # it cannot be: see above
        raise TextError("its base64 is damaged") from None
    if b64encode(data).decode("ascii") != standard:
        raise TextError("its base64 was cut, or its last character is damaged")
    return data


def hexadecimal_bytes(text: str) -> bytes | None:
    """Decode hexadecimal digits. None for other text."""
    stripped = text.strip()
    if not _HEXADECIMAL.fullmatch(stripped):
        return None
    return bytes.fromhex(re.sub(r"[\s:]|^0[xX]", "", stripped))


def json_value(text: str) -> object:
    """Parse JSON. Raises TextError, also for a duplicate name."""
    try:
        return cast("object", _DECODER.decode(text.strip()))
    except TextError:
        raise
    except (ValueError, RecursionError):  # whose message may quote the text
        pass
    raise TextError("it begins like JSON, but is truncated or damaged")


def _decoded(data: bytes, encoding: str) -> str | None:
    """Decode text. Return None if it is not text, or looks like UTF-16 only by chance."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    is_likely = encoding == "utf-8" or 2 * len(text.encode("ascii", "ignore")) >= len(text)
    return text if is_likely and not _CONTROL.search(text) else None


def _blocks(text: str) -> Iterator[Block]:
    at = 0
    while begin := _BEGIN.search(text, at):
        label = _shown(begin[1])
        end = _END.search(text, begin.end())
        following = _BEGIN.search(text, begin.end())
        if end is None or (following is not None and following.start() < end.start()):
            raise TextError(f"its block {label} has no end: it was cut")
        if end[1] != begin[1]:
            raise TextError(f"it begins with {label} and ends with {_shown(end[1])}")
        _require_no_marker(text[at : begin.start()])
        yield _block(label, text[begin.end() : end.start()])
        at = end.end()
    _require_no_marker(text[at:])


def _shown(label: str) -> str:
    """Return a label if it can be shown safely: damaged markers may contain anything."""
    return label if _PLAIN_LABEL.fullmatch(label) else "(unknown label)"


def _require_no_marker(text: str) -> None:
    if _DAMAGED_MARKER.search(text):
        raise TextError(
            "a marker is damaged: a block stands between -----BEGIN LABEL----- and "
            "-----END LABEL-----, with five hyphens"
        )


def _block(label: str, body: str) -> Block:
    lines = [line.strip() for line in _LINES.split(body.strip())]
    is_encrypted = False
    if _HEADER.match(lines[0]):
        headers = lines[: lines.index("")] if "" in lines else lines
        lines = lines[len(headers) :]
        is_encrypted = any("ENCRYPTED" in header for header in headers)
    compact = "".join(lines)
    if label.startswith("PGP "):  # it ends with a checksum, which is no base64
        return Block(label, b"", is_encrypted)
    if not compact:
        raise TextError(f"its block {label} is empty")
    try:
        return Block(label, base64_bytes(compact), is_encrypted)
    except TextError as error:
        raise TextError(f"its block {label} is damaged: {error}") from None


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise TextError("it is JSON with a duplicate name")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
