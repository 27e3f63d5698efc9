"""Connections to an audit sink: whatever the sink does, one has an end."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Timer

from pqkeep_gateway.audit_stream import SinkError
from pqkeep_protocol.startup.settings import ConfigError

STEP_SECONDS = 5.0
"""For connecting, and for each step of sending."""
PAGE_SECONDS = 20.0
"""For all that is done with a connection: a sink that answers byte by byte has no longer."""


@contextmanager
def connected(
    address: tuple[str, int], tls: ssl.SSLContext | None, seconds: float = PAGE_SECONDS
) -> Iterator[socket.socket]:
    """Yield a connection, an SSLSocket with TLS, that ends after so many seconds.

    Raises SinkError, OSError.
    """
    opened = socket.create_connection(address, STEP_SECONDS)
    with opened:
        if tls is not None:
            opened = tls.wrap_socket(
                opened, server_hostname=address[0], do_handshake_on_connect=False
            )
        is_over = Event()

        def end() -> None:
            is_over.set()
            with suppress(OSError):  # not SSLSocket's, which another thread uses
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

        timer = Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            with opened:
                if isinstance(opened, ssl.SSLSocket):
                    opened.do_handshake()
                yield opened
        except Exception:
            if not is_over.is_set():
                raise
        finally:
            timer.cancel()
        if is_over.is_set():
            raise SinkError(f"the page took longer than {seconds:g} seconds")


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a client's TLS that trusts these authorities, or the system's. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        problem = error.strerror or "it has no certificate"
        raise ConfigError(f"audit_sink_ca_file: cannot use {ca_file}: {problem}") from None
