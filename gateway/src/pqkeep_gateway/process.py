"""The gateway's process: start, service and drain.

Exit status 78 (EX_CONFIG): the settings or the environment prevent a start. 75 (EX_TEMPFAIL): the
database is unavailable, or a background task failed; a later start may succeed.
"""

import argparse
import asyncio
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Protocol

import uvloop

from pqkeep_gateway import config
from pqkeep_gateway.config import Config
from pqkeep_gateway.http.connection import (
    LIMITS,
    ConnectionLimits,
    Listener,
)
from pqkeep_gateway.http.responses import lines_of
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.http.watching import watch_connections
from pqkeep_gateway.management.app import open_listener, serving
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_gateway.wiring import assemble
from pqkeep_protocol.link import LinkTls
from pqkeep_protocol.startup.background_tasks import BackgroundTasks
from pqkeep_protocol.startup.hardening import collect_rarely, give_up_privileges, keep_freed_memory
from pqkeep_protocol.startup.logs import logger, write_logs
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

DRAIN_SECONDS = 10
PATIENCE = 10.0
"""The longest time, in seconds, that a replacement gateway waits for the key service."""
POLL_SECONDS = 0.02
LEAVE = signal.SIGUSR1
"""Accept no more connections, and end with the last open one: a new gateway has replaced this
one."""
OTHER_FILES = 256
"""File descriptors for everything except connections: databases, the key service, mail."""
UNSENT = 32_768
"""Bytes of responses that the kernel buffers beyond the client's window."""
TAKE_SECONDS = 0.1
MOST_TAKEN = 32
"""Connections that are taken from one socket at a time, so that other gateways get some too."""
ON_EVERY_RESPONSE = [(b"x-content-type-options", b"nosniff")]
BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""
FORCED = 2
"""Signals after which the gateway stops waiting."""


def main(limits: ConnectionLimits = LIMITS) -> int:
    """Run until SIGTERM or SIGINT."""
    write_logs("gateway")
    give_up_privileges()  # this memory contains requests
    keep_freed_memory()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are files to reload
    parser = argparse.ArgumentParser(prog="python -m pqkeep_gateway")
    parser.add_argument("settings", type=Path)
    parser.add_argument("--fd", type=int, help="Listening socket. Without it a new one is opened.")
    parser.add_argument(
        "--other-fd",
        type=int,
        action="append",
        default=[],
        help=("Listening socket of another gateway on the same port."),
    )
    parser.add_argument(
        "--management-fd",
        type=int,
        help=(
            "Listening socket of the management "
            "address. Without it, but with --fd, "
            "there is no management listener."
        ),
    )
    parser.add_argument(
        "--ready-fd", type=int, help=("File descriptor that gets a byte when the gateway is ready.")
    )
    parser.add_argument("--number", type=int, help="Number of this gateway, for its log lines.")
    arguments = parser.parse_args()
    which = {} if arguments.number is None else {"gateway": arguments.number}
    try:
        write_logs("gateway", which=which)
        settings = config.read(arguments.settings)
        write_logs("gateway", settings.log_format, which)
        listener = None if arguments.fd is None else socket.socket(fileno=arguments.fd)
        others = [socket.socket(fileno=descriptor) for descriptor in arguments.other_fd]
        management = _management(settings, arguments.fd, arguments.management_fd)
        config.check_address(
            settings, settings.host if listener is None else listener.getsockname()[0]
        )
        _allow_files(limits.connections + OTHER_FILES)
        return uvloop.run(serve(settings, listener, management, limits, arguments.ready_fd, others))
    except ConfigError as error:
        _LOG.critical("cannot start", error=str(error))
        return os.EX_CONFIG
    except UnavailableError:  # logged where it was raised
        return os.EX_TEMPFAIL


def _allow_files(count: int) -> None:
    """Raise the limit of open files if it is lower. Raises ConfigError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        except (OSError, ValueError):
            raise ConfigError(
                f"the process needs {count} open files, but its limit is {hard}: raise it"
                " (ulimit -Hn, LimitNOFILE=)"
            ) from None


def _tls(settings: Config) -> TlsServer | None:
    """Return the TLS of the settings, or None. Raises ConfigError."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsServer(
        settings.tls_certificate,
        settings.tls_key,
        require_post_quantum=settings.require_post_quantum,
    )


class _Runs(Protocol):
    """A task that runs until it is cancelled."""

    async def run(self) -> None: ...


class _Server:
    """Listens, and ends its connections: immediately, or each after its next response."""

    def __init__(
        self,
        listener: Listener,
        started: Callable[[], None],
        others: Sequence[socket.socket],
    ) -> None:
        self.tasks = BackgroundTasks(self.stop)
        self._listener = listener
        self._started = started
        self._others = others
        self._servers: list[asyncio.Server] = []
        self._leave_others: Callable[[], object] = lambda: None
        self._is_leaving = False
        self._wake = asyncio.Event()
        self._stops = 0

    def stop(self) -> None:
        """Accept nothing more, and end after the pending responses; a second call ends now."""
        self._stops += 1
        self._wake.set()

    def leave(self) -> None:
        """Accept no more connections, and end with the last one.

        An idle connection stays open until its time limit, because the client may just be sending a
        request. It serves one more request, and then closes.
        """
        self._is_leaving = True
        self._wake.set()
        self._close()

    async def serve(self, host: str, port: int, given: socket.socket | None, scheme: str) -> None:
        """Serve until ``stop`` is called, on a given socket or a new one.

        Raises ConfigError if it cannot listen.
        """
        accept, loop = self._listener.connection, asyncio.get_running_loop()
        if given is None:
            try:
                server = await loop.create_server(accept, host, port, backlog=BACKLOG)
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {_address(scheme, host, port)}: {error}"
                ) from None
            own = server.sockets[0].getsockname()[1]
            _LOG.info("running on", address=_address(scheme, host, own))
        else:
            server = await loop.create_server(accept, sock=given, backlog=BACKLOG)
        self._servers = [server]
        for listener in (*server.sockets, *self._others):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        self._leave_others = self.tasks.begin(take_waiting(self._others, accept))
        self._started()
        await self._until_stopped()
        self._close()
        await self._drain()

    async def _until_stopped(self) -> None:
        """Return when the gateway must stop or has left.

        Meanwhile keep the Date header of responses current.
        """
        connections = self._listener.connections
        while not self._stops and not (self._is_leaving and not connections):
            now = formatdate(usegmt=True).encode()
            self._listener.lines = lines_of([(b"date", now), *ON_EVERY_RESPONSE])
            if self._is_leaving:
                for connection in connections:
                    connection.leave()
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1 if self._is_leaving else 1):
                    await self._wake.wait()

    async def _drain(self) -> None:
        """Return when all responses are sent, or after DRAIN_SECONDS."""
        listener = self._listener
        for connection in list(listener.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while (listener.connections or listener.tasks) and self._stops < FORCED:  # noqa: ASYNC110 - two sets and a count
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            _LOG.error("requests are not answered any more", requests=len(listener.tasks))
        for task in listener.tasks:
            task.cancel()

    def _close(self) -> None:
        self._leave_others()
        for server in self._servers:
            server.close()


def _address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _management(
    settings: Config, descriptor: int | None, management: int | None
) -> socket.socket | None:
    """Return the management address's socket, or None. Raises ConfigError.

    A parent that passes the listening socket must pass this one too: otherwise several gateways on
    one host would open the same address.
    """
    if settings.management is None:
        return None
    if management is not None:
        return socket.socket(fileno=management)
    return open_listener(*settings.management) if descriptor is None else None


async def serve(
    settings: Config,
    listener: socket.socket | None,
    management: socket.socket | None,
    limits: ConnectionLimits = LIMITS,
    ready: int | None = None,
    others: Sequence[socket.socket] = (),
) -> int:
    """Serve until SIGTERM or SIGINT, on the given listening socket or a new one; return the status.

    LEAVE ends it when other gateways serve its clients. ``ready``: a file descriptor that gets a
    byte when it serves. ``others``: listening sockets of other gateways on its port.
    """
    host, port = (settings.host, settings.port) if listener is None else listener.getsockname()[:2]
    tls = _tls(settings)
    scheme = "http" if tls is None else "https"
    gateway = await assemble(settings, _address(scheme, host, port), limits, tls)
    http = Listener(
        gateway.road.begin,
        gateway.connections,
        gateway.observer,
        limits,
        tls,
        takes_lists=settings.transit,
    )
    server = _Server(http, started=lambda: _tell(ready), others=others)
    collect_rarely()
    tasks = server.tasks
    jobs = _begin(
        tasks,
        gateway.approvals,
        gateway.billing,
        gateway.deletions,
        gateway.mail_delivery,
        gateway.notice_checks,
        gateway.webhook_delivery,
        *gateway.audit_streams.values(),
        *gateway.witness_carriers,
    )
    _begin(
        tasks,
        *gateway.key_clients.values(),
        gateway.audit_delivery,
        gateway.last_uses,
        gateway.management.collection,
        *(() if gateway.link is None else (gateway.link,)),
        *(() if tls is None else (tls,)),
    )
    tasks.begin(watch_connections(http.connections, limits))
    managing = AsyncExitStack()

    def stop() -> None:
        gateway.management.readiness.stop()
        server.stop()

    def leave() -> None:
        server.leave()
        for cancel in jobs:  # the replacement gateway does them
            cancel()
        tasks.begin(managing.aclose())

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload, tls, gateway.link)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        checks = [client.is_reachable for client in gateway.key_clients.values()]
        await _until_reachable(checks, 0 if ready is None else PATIENCE)
        async with managing:
            if management is not None:
                served = serving(gateway.management.app, management, tasks)
                await managing.enter_async_context(served)
            loop.add_signal_handler(LEAVE, leave)
            await server.serve(settings.host, settings.port, listener, scheme)
    finally:
        await tasks.end()  # their writes must end before the database closes
        await gateway.close()
    return os.EX_TEMPFAIL if tasks.failed else os.EX_OK


def _begin(tasks: BackgroundTasks, *parts: _Runs) -> list[Callable[[], object]]:
    return [tasks.begin(part.run()) for part in parts]


def _tell(ready: int | None) -> None:
    if ready is not None:
        with suppress(OSError):  # the parent no longer waits
            os.write(ready, b"1")
        os.close(ready)


def _reload(*files: TlsServer | LinkTls | None) -> None:
    for file in files:
        if file is not None:
            file.reload()


async def _until_reachable(checks: Iterable[Callable[[], Awaitable[bool]]], seconds: float) -> None:
    """Wait for the key services before serving, up to a time limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for is_reachable in checks:
                while not await is_reachable():  # noqa: ASYNC110 - another process
                    await asyncio.sleep(POLL_SECONDS)


async def take_waiting(
    listeners: Sequence[socket.socket], protocol: Callable[[], asyncio.Protocol]
) -> None:
    """Accept waiting connections at other gateways' sockets on the port, until cancelled.

    Connections that the kernel had accepted by then are served. The kernel distributes new
    connections among the sockets, even to a gateway that was killed and restarts, or that hangs. A
    working gateway accepts every connection sooner.
    """
    loop = asyncio.get_running_loop()
    for listener in listeners:
        listener.settimeout(0)
    while listeners:
        await asyncio.sleep(TAKE_SECONDS)
        for listener in listeners:
            with suppress(OSError):  # none is waiting, or the limit of open files is reached
                for _ in range(MOST_TAKEN):
                    connection, _ = listener.accept()
                    connection.settimeout(0)
                    await asyncio.shield(loop.connect_accepted_socket(protocol, connection))
