"""The gateways of one host: their listening sockets and their programs.

Each gateway has its own socket on the same port (SO_REUSEPORT). The kernel divides new connections
evenly among these sockets. With one shared socket, a few gateways would get most connections. The
supervisor keeps the sockets open, and each gateway also has the other gateways' sockets: it accepts
connections that wait for a gateway that starts or hangs.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pqkeep_gateway.config import MAX_PORT, Config
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.programs import Identity, Program

BACKLOG = 2048


class ListenError(Exception):
    """pqkeepd cannot listen on an address. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets of one gateway."""

    public: socket.socket
    management: socket.socket | None


@contextmanager
def listening(
    public: tuple[str, int], management: tuple[str, int] | None, count: int
) -> Iterator[Sequence[Listeners]]:
    """Open the listening sockets of ``count`` gateways. Port 0 chooses a free one.

    The management addresses have successive ports from the given one. Raises ListenError.
    """
    opened: list[Listeners] = []
    try:
        for number in range(count):
            if opened:
                public = public[0], opened[0].public.getsockname()[1]
            elif count > 1:
                _require_free(*public)
            first = _listen(*public, shared=count > 1)
            opened.append(Listeners(first, None))
            if management is not None:
                other = _listen(management[0], _port(management[1], number))
                opened[-1] = Listeners(first, other)
        yield opened
    finally:
        for gateway in opened:
            gateway.public.close()
            if gateway.management is not None:
                gateway.management.close()


def require_shares(settings: Config, gateways: int) -> None:
    """Raise ConfigError if more gateways start than share the rate limits by the settings."""
    shares = settings.rate_limit_gateways
    if settings.rate_limit_unavailable == "local" and shares is not None and shares < gateways:
        raise ConfigError(
            f"rate_limit_gateways is {shares}, but {gateways} gateways start here: set the number of"
            " all gateways"
        )


def gateway_programs(
    settings: Path,
    listeners: Sequence[Listeners],
    identity: Identity | None,
    environment: Mapping[str, str],
    *,
    are_renewed: bool,
) -> Iterator[Program]:
    """Yield the programs of the gateways."""
    for number, own in enumerate(listeners):
        options = ["--fd", str(own.public.fileno())]
        descriptors = [other.public.fileno() for other in listeners]
        for other in descriptors[:number] + descriptors[number + 1 :]:
            options += ["--other-fd", str(other)]
        if own.management is not None:
            options += ["--management-fd", str(own.management.fileno())]
            descriptors.append(own.management.fileno())
        if len(listeners) > 1:
            options += ["--number", str(number)]
        yield Program(
            "gateway" if len(listeners) == 1 else f"gateway {number}",
            "pqkeep_gateway",
            (str(settings), *options),
            pass_fds=tuple(descriptors),
            identity=identity,
            environment=environment,
            is_renewed=are_renewed,
        )


def _port(first: int, number: int) -> int:
    if first == 0:
        return 0
    if first + number > MAX_PORT:
        raise ListenError(
            f"management_address: the port {first + number} is above 65535: choose a lower one"
        )
    return first + number


def _require_free(host: str, port: int) -> None:
    """Raise for a port in use: sockets that share a port could share another program's."""
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _explained(host, port):
            probe.bind(address)


def _listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family, address = _resolve(host, port)
    with _explained(host, port):
        return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    with _explained(host, port):
        (family, _, _, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    return family, (str(address[0]), int(address[1]))


@contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = str(error.strerror).partition(" (while attempting ")[
            0
        ]  # create_server adds this text
        raise ListenError(f"cannot listen on {host}, port {port}: {reason}") from None
