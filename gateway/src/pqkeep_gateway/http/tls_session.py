"""One connection's TLS 1.3, by the standard library's ssl: bytes in, bytes out.

The event loop has TLS too, and tells a protocol of a connection when its handshake is done. Here
the handshake is a part of the connection's time: it counts, has a deadline and can be evicted from
its first byte on, and closes as other connections do.
"""

import ssl
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from pqkeep_protocol.tls_groups import POST_QUANTUM, group_of

READ_SIZE = 16 * 1024
"""The size of a record's content."""
SLICE = 17 * 1024
"""Bytes that are decrypted before it is asked whether there is enough content in them: a record."""
MAX_SURPLUS = 20 * 1024
"""Bytes more than twice their content that a client may send, one incomplete record included. What
a client is not charged for, records of one byte and updates of keys, would cost it nothing."""
_HANDSHAKE_FAILURE = bytes((21, 3, 3, 0, 2, 2, 40))
"""The alert that OpenSSL sends where client and server have no group in common."""


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

        With ``require_post_quantum`` one that agrees on any other group is refused.
        """
        self.context = context
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshakes = handshakes
        self._requires_post_quantum = require_post_quantum
        self._surplus = 0
        self.group = ""
        """The key exchange group, once it is agreed on."""
        self.is_established = False
        """Whether the handshake is done."""
        self.has_ended = False
        """Whether the client will send nothing more."""

    def receive(self, data: bytes) -> bytes:
        """Return the content of what the client has sent, as far as it is complete.

        Raises TlsError. In either case ``to_send`` may have an answer.
        """
        try:
            if len(data) <= SLICE:
                return self._decrypt(data)
            slices = (data[at : at + SLICE] for at in range(0, len(data), SLICE))
            return b"".join([self._decrypt(part) for part in slices])
        except ssl.SSLError as error:
            raise TlsError(error.reason or "unknown") from None

    def send(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt something for the client. Without a handshake there is nobody to send it to."""
        if self.is_established:
            self._tls.write(b"".join(pieces))

    def end(self) -> None:
        """Tell the client that nothing more will be sent (close_notify)."""
        if self.is_established:
            with suppress(ssl.SSLError):  # the client has not ended its side yet
                self._tls.unwrap()

    def to_send(self) -> bytes:
        """Return what has to be sent to the client now."""
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
