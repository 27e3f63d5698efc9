"""``pqkeepd start``: supervises both processes of a data directory, each as its own user."""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.data_lock import locked
from pqkeep_server.initialise import Layout
from pqkeep_server.supervise import FatalExitError, Identity, Program, Supervisor
from pqkeep_server.users import User, Users, UsersError

BACKLOG = 2048


class StartError(Exception):
    """It cannot run. The message is for the person who started it."""


def start(layout: Layout) -> None:
    """Run both processes until SIGTERM or SIGINT; SIGHUP reaches both. Raises StartError."""
    if os.geteuid() != 0:
        raise StartError(
            "start must be root, to run each process as its own user. Where a service manager gives"
            " them their users, it runs pqkeepd gateway and pqkeepd keyservice; to try pqkeep"
            " without root, there is pqkeepd dev"
        )
    try:
        with locked(layout.directory), ExitStack() as stack:
            users = users_of(layout)
            settings = gateway_config.read(layout.gateway_settings)
            addresses = {"--fd": (settings.host, settings.port)}
            if settings.management is not None:
                addresses["--management-fd"] = settings.management
            descriptors = {
                option: stack.enter_context(_listen(*address)).fileno()
                for option, address in addresses.items()
            }
            asyncio.run(_run(Supervisor(_programs(layout, users, descriptors))))
    except BlockingIOError:
        raise StartError(f"another pqkeepd uses the data directory {layout.directory}") from None
    except (ConfigError, FatalExitError, UsersError) as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"cannot start: {error}") from None


def users_of(layout: Layout) -> Users:
    """Return the users that a data directory's files belong to. Raises what ``start`` catches."""
    gateway, key_service = layout.gateway.stat(), layout.key_service.stat()
    configured = key_service_config.read(layout.key_service_settings).gateway_uid
    if configured == "same":
        raise UsersError(
            f"{layout.key_service_settings} is for one user, as pqkeepd dev makes it: start runs"
            " what pqkeepd init makes"
        )
    if configured != gateway.st_uid:
        raise UsersError(
            f"{layout.gateway} belongs to user {gateway.st_uid}, and gateway_uid is {configured}"
        )
    return Users(
        User(gateway.st_uid, gateway.st_gid),
        User(key_service.st_uid, key_service.st_gid),
        layout.run.stat().st_gid,
    )


def _programs(layout: Layout, users: Users, descriptors: Mapping[str, int]) -> tuple[Program, ...]:
    options = [word for option, each in descriptors.items() for word in (option, str(each))]
    return (
        Program(
            "key service",
            "pqkeep_keyservice",
            (str(layout.key_service_settings),),
            identity=_identity(users.key_service, users.group, layout.key_service),
        ),
        Program(
            "gateway",
            "pqkeep_gateway",
            (str(layout.gateway_settings), *options),
            pass_fds=tuple(descriptors.values()),
            identity=_identity(users.gateway, users.group, layout.gateway),
        ),
    )


def _identity(user: User, group: int, home: Path) -> Identity:
    environment: Mapping[str, str] = {**os.environ, "HOME": str(home)}
    return Identity(user.uid, user.gid, group, environment)


async def _run(supervisor: Supervisor) -> None:
    with suppress(OSError, ValueError):  # in a container it can be forbidden
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    await supervisor.run(stop)


def _listen(host: str, port: int) -> socket.socket:
    """Listen as root, for a port below 1024, and also while the gateway restarts."""
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
