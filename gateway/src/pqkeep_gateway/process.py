"""The gateway's process: wired, run, drained.

Exit status 78 (EX_CONFIG): it cannot start as it is set up. 75 (EX_TEMPFAIL): its database is
unavailable, and a later start may succeed.
"""

import argparse
import asyncio
import gc
import os
import resource
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import uvicorn
import uvloop

from pqkeep_gateway import config
from pqkeep_gateway.config import Config
from pqkeep_gateway.http.protocol import (
    LIMITS,
    BoundedHttpProtocol,
    ConnectionLimits,
    watch_connections,
)
from pqkeep_gateway.http.server import configuration
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.management.listener import open_listener, serving
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_gateway.wiring import assemble
from pqkeep_protocol.startup.hardening import give_up_privileges
from pqkeep_protocol.startup.logs import logger, write_logs
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

DRAIN_SECONDS = 10
OTHER_FILES = 256
"""File descriptors for everything but connections: databases, the key service, mail."""
ON_EVERY_ANSWER = [("X-Content-Type-Options", "nosniff")]


def main(limits: ConnectionLimits = LIMITS) -> int:
    """Run until SIGTERM or SIGINT."""
    write_logs("gateway")
    give_up_privileges()  # requests are in this memory
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are files to read again
    parser = argparse.ArgumentParser(prog="python -m pqkeep_gateway")
    parser.add_argument("settings", type=Path)
    parser.add_argument("--fd", type=int, help="the listening socket, in place of a new one")
    parser.add_argument("--management-fd", type=int, help="likewise; without it there is none then")
    arguments = parser.parse_args()
    try:
        settings = config.read(arguments.settings)
        write_logs("gateway", settings.log_format)
        listener = None if arguments.fd is None else socket.socket(fileno=arguments.fd)
        management = _management(settings, arguments.fd, arguments.management_fd)
        config.check_address(
            settings, settings.host if listener is None else listener.getsockname()[0]
        )
        _allow_files(limits.connections + OTHER_FILES)
        uvloop.run(serve(settings, listener, management, limits))
    except ConfigError as error:
        _LOG.critical("cannot start", error=str(error))
        return os.EX_CONFIG
    except UnavailableError:  # logged where it was raised
        return os.EX_TEMPFAIL
    return os.EX_OK


def _allow_files(count: int) -> None:
    """Raise the limit of open files, if it is lower. Raises ConfigError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        except (OSError, ValueError):
            raise ConfigError(
                f"the process may have {hard} open files, and needs {count}: raise the hard limit"
                " (ulimit -Hn, LimitNOFILE=)"
            ) from None


def _tls(settings: Config) -> TlsServer | None:
    """Return the TLS of the settings, if there is any. Raises ConfigError."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsServer(
        settings.tls_certificate,
        settings.tls_key,
        require_post_quantum=settings.require_post_quantum,
    )


class _Runs(Protocol):
    """What does its work until it is cancelled."""

    async def run(self) -> None: ...


class _Server(uvicorn.Server):
    """uvicorn, which knows nothing of TLS here."""

    def __init__(self, configuration: uvicorn.Config, scheme: str) -> None:
        super().__init__(configuration)
        self._scheme = scheme

    def _log_started_message(self, listeners: Sequence[socket.SocketType]) -> None:
        port = listeners[0].getsockname()[1]
        _LOG.info("running on", address=_address(self._scheme, self.config.host, port))


def _address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _management(
    settings: Config, descriptor: int | None, management: int | None
) -> socket.socket | None:
    """Return the management address's socket, if there is one. Raises ConfigError.

    Who hands a socket over hands this one over, too: several gateways on one host would otherwise
    want the same address.
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
) -> None:
    """Serve until SIGTERM or SIGINT, on the given listening socket or on a new one."""
    host, port = (settings.host, settings.port) if listener is None else listener.getsockname()[:2]
    tls = _tls(settings)
    scheme = "http" if tls is None else "https"
    gateway = await assemble(settings, _address(scheme, host, port), limits, tls)
    protocol = partial(
        BoundedHttpProtocol,
        limits=limits,
        counted=gateway.connections,
        observer=gateway.observer,
        tls=tls,
    )
    server = _Server(
        configuration(
            gateway.app,
            protocol=protocol,
            host=settings.host,
            port=settings.port,
            headers=ON_EVERY_ANSWER,
            drain_seconds=DRAIN_SECONDS,
        ),
        scheme,
    )
    gc.collect()
    gc.freeze()  # what is here now stays: later collections need not examine it
    parts: tuple[_Runs, ...] = (
        *gateway.key_clients.values(),
        gateway.audit_delivery,
        gateway.billing,
        gateway.deletions,
        gateway.mail_delivery,
        gateway.last_uses,
        *gateway.audit_streams.values(),
        gateway.management.collection,
    )
    tasks = [asyncio.create_task(part.run()) for part in parts]
    tasks.append(asyncio.create_task(watch_connections(server.server_state.connections)))
    if gateway.link is not None:
        tasks.append(asyncio.create_task(gateway.link.run()))

    def stop(number: int, frame: object) -> None:
        gateway.management.readiness.stop()
        server.should_exit = True

    def reload() -> None:
        for each in (tls, gateway.link):
            if each is not None:
                each.reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)  # uvicorn raises the signal again when it has drained
    try:
        async with AsyncExitStack() as stack:
            if management is not None:
                await stack.enter_async_context(serving(gateway.management.app, management))
            await server.serve(None if listener is None else [listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)  # their writes end before the database closes
        await gateway.close()
