"""The management address: a listener of its own, with few connections and short deadlines."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

from starlette.types import ASGIApp

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.connection import ConnectionLimits, Listener, application
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.watching import watch_connections
from pqkeep_protocol.startup.background_tasks import BackgroundTasks
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

BACKLOG = 16
LIMITS = ConnectionLimits(
    connections=32,
    per_address=32,
    new_per_second=50,
    request_seconds=5,
    idle_seconds=65,
    write_seconds=10,
    close_seconds=2,
)


def open_listener(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while attempting ")[0]  # create_server adds it
        raise ConfigError(
            f"management_address: cannot listen on {host} port {port}: {reason}"
        ) from None


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, tasks: BackgroundTasks
) -> AsyncIterator[None]:
    """Serve for as long as a block lasts, and watch the connections among the process's tasks."""
    host, port = listener.getsockname()[:2]
    if not ip_address(host).is_loopback:
        _LOG.warning("the management address can be reached from other machines", address=host)
    arrivals = SourceBudget(Limit(LIMITS.new_per_second, 1), time.monotonic)
    counted = Connections(LIMITS.connections, LIMITS.per_address, arrivals)
    observer = RequestObserver()  # nobody asks for the metrics of metrics
    http = Listener(application(app), counted, observer, LIMITS)
    server = await asyncio.get_running_loop().create_server(http.connection, sock=listener)
    end_watch = tasks.begin(watch_connections(http.connections, LIMITS))
    _LOG.info("serving on the management address", host=host, port=port)
    try:
        yield
    finally:
        end_watch()
        server.close()
        for connection in list(http.connections):
            connection.transport.abort()
