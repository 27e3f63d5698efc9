"""The key exchange group of a TLS 1.3 handshake, read from the server's first message.

Python's ssl has it from version 3.15. ServerHello and HelloRetryRequest are in the clear. The
extension key_share of both has the server's group (RFC 8446, 4.1.3 and 4.2.8).
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast

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
"""TLS supported groups that OpenSSL has by default. Other groups are shown as numbers."""
POST_QUANTUM = frozenset(name for name in NAMES.values() if "MLKEM" in name)

_RECORD, _MESSAGE = 5, 4
"""Header sizes of a record and of a handshake message."""
_HANDSHAKE, _SERVER_HELLO = 22, 2
_SESSION_ID = _RECORD + _MESSAGE + 2 + 32
"""The offset of the session id's length, after version and random."""
_KEY_SHARE = 51


def group_of(flight: bytes) -> str:
    """Return the group in a server's first bytes, or "" if they are not a ServerHello."""
    if len(flight) <= _SESSION_ID or flight[0] != _HANDSHAKE or flight[_RECORD] != _SERVER_HELLO:
        return ""
    at = _SESSION_ID + 1 + flight[_SESSION_ID] + 3  # session id, cipher suite, compression
    end = at + 2 + _number(flight, at)
    at += 2
    while at < end:
        kind, size = _number(flight, at), _number(flight, at + 2)
        if kind == _KEY_SHARE:
            number = _number(flight, at + 4)
            return NAMES.get(number, f"0x{number:04x}")
        at += 4 + size
    return ""


class _GroupObject(ssl.SSLObject):
    """One end of a connection. It reports the group once."""

    def watch(self, flight: ssl.MemoryBIO, on_group: Callable[[str], None]) -> None:
        """Look for the server's first message in these bytes, and report its group."""
        self._flight = flight
        self._on_group = on_group
        self._is_known = False
        self._record = b""
        self._left = 0

    def do_handshake(self) -> None:
        """Continue the handshake. Raises the exception of ``on_group``, which refuses the group."""
        if not self.server_side:
            self._look()
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            if self.server_side:
                self._look()
            self._left = self._flight.pending
            raise
        if not self._is_known:
            self._report("")

    def _look(self) -> None:
        """Report the group once the first record is complete. OpenSSL waits for that too.

        In a client, OpenSSL may already have taken a part of the record.
        """
        if self._is_known:
            return
        data = self._flight.read()
        self._flight.write(data)
        record = self._record = self._record + data[self._left :]
        is_whole = len(record) >= _RECORD + _number(record, _RECORD - 2)
        if len(record) >= _RECORD and record[0] == _HANDSHAKE and is_whole:
            self._report(group_of(record))

    def _report(self, group: str) -> None:
        self._is_known, self._record = True, b""
        self._on_group(group)


class GroupContext(ssl.SSLContext):
    """A context that passes the group of each handshake to ``on_group`` before it is used.

    The server has not yet sent the group then, and the client has not yet used it. An unknown group
    is "". An exception from ``on_group`` ends the handshake; the event loop needs an ssl.SSLError.
    """

    sslobject_class = _GroupObject
    on_group: Callable[[str], None] = staticmethod(lambda _: None)

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **options: Any
    ) -> ssl.SSLObject:
        """See ``ssl.SSLContext.wrap_bio``, which the event loop calls."""
        tls = cast(_GroupObject, super().wrap_bio(incoming, outgoing, *arguments, **options))
        tls.watch(outgoing if tls.server_side else incoming, self.on_group)
        return tls


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2])
