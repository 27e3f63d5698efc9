"""The audit log to an HTTP collector: a POST of JSON lines for each page."""

from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from pqkeep_gateway.audit_stream import SinkError, StreamedRecord
from pqkeep_gateway.delivery.sink_connection import PAGE_SECONDS, connected, trusting
from pqkeep_protocol.startup.secret_files import read_secret_text

_MAX_ANSWER = 64 * 1024


class HttpCollector:
    """A Sink. Any status from 200 to 299 says that the collector has the page."""

    def __init__(
        self,
        url: str,
        token_file: Path | None,
        ca_file: Path | None,
        *,
        page_seconds: float = PAGE_SECONDS,
    ) -> None:
        """Read the token and the certificates. Raises ConfigError."""
        parts = urlsplit(url)
        self._tls = trusting(ca_file) if parts.scheme == "https" else None
        self._kind = HTTPSConnection if self._tls else HTTPConnection
        self._address = parts.hostname or "", parts.port or self._kind.default_port
        self._path = parts.path or "/"
        self._page_seconds = page_seconds
        self._headers = {"Content-Type": "application/x-ndjson", "User-Agent": "pqkeep"}
        if token_file is not None:
            token = read_secret_text(token_file, "audit sink's token")
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Send the records in one request. Raises SinkError, OSError."""
        body = b"".join(record.line + b"\n" for record in records)
        connection = self._kind(*self._address)
        try:
            with connected(self._address, self._tls, self._page_seconds) as connection.sock:
                connection.request("POST", self._path, body, self._headers)
                answer = connection.getresponse()
                answer.read(_MAX_ANSWER)
        except HTTPException as error:
            raise SinkError(type(error).__name__) from None
        finally:
            connection.close()
        if answer.status // 100 != 2:  # noqa: PLR2004 - successful
            raise SinkError(f"the collector answers {answer.status}")
