"""TLS 1.3 of one connection, with the standard library's ssl: bytes in, bytes out.

The event loop's own TLS reports a connection only after its handshake. Here the handshake is part
of the connection: from its first byte on, it counts, has a deadline and can be evicted. It closes
like other connections.
"""

import ssl
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from pqkeep_protocol.tls_groups import POST_QUANTUM, group_of

READ_SIZE = 16 * 1024
"""The size of a record's content."""
SLICE = 17 * 1024
"""Bytes that are decrypted between two checks of their content: one record."""
MAX_SURPLUS = 20 * 1024
"""Bytes that a client may send beyond twice their content, including one incomplete record. Without
the limit, records of one byte and key updates would cost the client nothing."""
_HANDSHAKE_FAILURE = bytes((21, 3, 3, 0, 2, 2, 40))
"""OpenSSL's alert if client and server have no group in common."""


class TlsError(Exception):
    """The connection must be closed. The text is a constant."""


class TlsSession:
    """TLS of one connection."""

    def __init__(
        self,
        context: ssl.SSLContext,
        handshakes: Counter[str],
        *,
        require_post_quantum: bool = False,
    ) -> None:
        """Wait for a client, and count its handshake by group.

        ``require_post_quantum``: refuse a client that negotiates any other group.
        """
        self.context = context
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshakes = handshakes
        self._requires_post_quantum = require_post_quantum
        self._surplus = 0
        self.group = ""
        """The key-exchange group, once it is negotiated."""
        self.is_established = False
        """Whether the handshake is complete."""
        self.has_ended = False
        """Whether the client has closed its side."""

    def receive(self, data: bytes) -> bytes:
        """Return the complete content in the received bytes.

        Raises TlsError. In both cases ``to_send`` may have bytes for the client.
        """
        try:
            if len(data) <= SLICE:
                return self._decrypt(data)
            slices = (data[at : at + SLICE] for at in range(0, len(data), SLICE))
            return b"".join([self._decrypt(part) for part in slices])
        except ssl.SSLError as error:
            raise TlsError(error.reason or "unknown") from None

    def send(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt bytes for the client. Before the handshake they are dropped."""
        if self.is_established:
            self._tls.write(b"".join(pieces))

    def end(self) -> None:
        """Send close_notify to the client."""
        if self.is_established:
            with suppress(ssl.SSLError):  # the client has not closed its side yet
                self._tls.unwrap()

    def to_send(self) -> bytes:
        """Return the bytes to send to the client now."""
        return self._outgoing.read()

    def _decrypt(self, data: bytes) -> bytes:
        self._incoming.write(data)
        if not self.is_established:
            return self._read() if self._has_shaken_hands() else b""
        content = self._read()
        self._surplus = max(0, self._surplus + len(data) - 2 * len(content))
        if self._surplus > MAX_SURPLUS:
            raise TlsError("TOO_LITTLE_CONTENT")
        return content

    def _has_shaken_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if not self.group and self._outgoing.pending:
                self._check_group()
            return False
        self.is_established = True
        self._handshakes[self.group] += 1
        return True

    def _check_group(self) -> None:
        flight = self._outgoing.read()
        self.group = group_of(flight)
        if self._requires_post_quantum and self.group not in POST_QUANTUM:
            self._outgoing.write(_HANDSHAKE_FAILURE)
            raise TlsError("NO_POST_QUANTUM_GROUP")
        self._outgoing.write(flight)

    def _read(self) -> bytes:
        pieces = []
        try:
            while True:
                piece = self._tls.read(READ_SIZE)
                if not piece:
                    self.has_ended = True
                    break
                pieces.append(piece)
                if not self._incoming.pending and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
