"""The key exchange group of a TLS 1.3 handshake, read from the server's first message.

Python's ssl tells it from 3.15 on. ServerHello and HelloRetryRequest are in the clear, and both
have the group that the server has chosen in their extension key_share (RFC 8446, 4.1.3 and 4.2.8).
"""

from collections.abc import Mapping

NAMES: Mapping[int, str] = {
    0x0017: "secp256r1",
    0x0018: "secp384r1",
    0x0019: "secp521r1",
    0x001D: "x25519",
    0x001E: "x448",
    0x0200: "MLKEM512",
    0x0201: "MLKEM768",
    0x0202: "MLKEM1024",
    0x11EB: "SecP256r1MLKEM768",
    0x11EC: "X25519MLKEM768",
    0x11ED: "SecP384r1MLKEM1024",
}
"""The registry of TLS supported groups, as far as OpenSSL has them by default; others get a number."""
POST_QUANTUM = frozenset(name for name in NAMES.values() if "MLKEM" in name)

_RECORD, _MESSAGE = 5, 4
"""Sizes of the headers of a record and of a handshake message."""
_HANDSHAKE, _SERVER_HELLO = 22, 2
_SESSION_ID = _RECORD + _MESSAGE + 2 + 32
"""Where the session id's length is: behind the version and the random value."""
_KEY_SHARE = 51


def group_of(flight: bytes) -> str:
    """Return the group in a server's first bytes, or nothing where they are no ServerHello."""
    if len(flight) <= _SESSION_ID or flight[0] != _HANDSHAKE or flight[_RECORD] != _SERVER_HELLO:
        return ""
    at = _SESSION_ID + 1 + flight[_SESSION_ID] + 3  # the id, the cipher suite, the compression
    end = at + 2 + _number(flight, at)
    at += 2
    while at < end:
        kind, size = _number(flight, at), _number(flight, at + 2)
        if kind == _KEY_SHARE:
            number = _number(flight, at + 4)
            return NAMES.get(number, f"0x{number:04x}")
        at += 4 + size
    return ""


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2])
