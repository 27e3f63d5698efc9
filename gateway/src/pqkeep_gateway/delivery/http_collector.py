"""The audit log to an HTTP collector: a POST of JSON lines for each page."""

import ssl
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from pqkeep_gateway.audit_stream import SinkError, StreamedRecord
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

SECONDS = 5.0
"""For connecting, and for each step of the request."""
_MAX_ANSWER = 64 * 1024


class HttpCollector:
    """A Sink. Any status from 200 to 299 says that the collector has the page."""

    def __init__(self, url: str, token_file: Path | None, ca_file: Path | None) -> None:
        """Read the token and the certificates. Raises ConfigError."""
        parts = urlsplit(url)
        self._address = parts.hostname or "", parts.port
        self._path = parts.path or "/"
        self._tls = _context(ca_file) if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/x-ndjson", "User-Agent": "pqkeep"}
        if token_file is not None:
            token = read_secret_text(token_file, "audit sink's token")
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Send the records in one request. Raises SinkError, OSError."""
        body = b"".join(record.line + b"\n" for record in records)
        connection = self._connection()
        try:
            connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            answer.read(_MAX_ANSWER)
        except HTTPException as error:
            raise SinkError(type(error).__name__) from None
        finally:
            connection.close()
        if answer.status // 100 != 2:  # noqa: PLR2004 - successful
            raise SinkError(f"the collector answers {answer.status}")

    def _connection(self) -> HTTPConnection:
        host, port = self._address
        if self._tls is None:
            return HTTPConnection(host, port, timeout=SECONDS)
        return HTTPSConnection(host, port, timeout=SECONDS, context=self._tls)


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        problem = error.strerror or "it has no certificate"
        raise ConfigError(f"audit_sink_ca_file: cannot use {ca_file}: {problem}") from None
