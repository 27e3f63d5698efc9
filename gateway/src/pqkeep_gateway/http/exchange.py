"""One request and its answer: uvicorn's, with the answer's head made in one step.

uvicorn looks at each header of an answer by itself, twice with a regular expression and once for
each that means something to it, which takes more than all that is made of a small body.
"""

import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_OTHERS = {b"connection", b"transfer-encoding"}
"""Headers that say more of the connection than this reads."""
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters but for the tab and the line ends, which are counted."""


class Exchange(RequestResponseCycle):
    """One request and its answer."""

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            named = dict(message["headers"])
            if self._is_plain(named):
                self._start(message, named[b"content-length"])
                return
        await super().send(message)

    def _is_plain(self, named: dict[bytes, bytes]) -> bool:
        """Return whether an answer begins as nearly all do: now, with a body of known length."""
        if self.response_started or self.disconnected or self.flow.write_paused:
            return False
        return b"content-length" in named and named.keys().isdisjoint(_OTHERS)

    def _start(self, start: Any, length: bytes) -> None:
        """Send the head. Raises RuntimeError if a header has a control character in it."""
        headers = [*self.default_headers, *start["headers"]]
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % each for each in headers])
        is_whole = len(headers) == lines.count(b"\r") == lines.count(b"\n")
        if not is_whole or _CONTROLS.search(lines):
            raise RuntimeError("a header has a control character in it")
        self.response_started = True
        self.waiting_for_100_continue = False
        self.chunked_encoding = False
        self.expected_content_length = int(length)
        self.transport.write(b"%b%b\r\n" % (STATUS_LINE[start["status"]], lines))
