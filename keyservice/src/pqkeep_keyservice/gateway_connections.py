"""Which gateways' connections are served where there are too many.

Then a new one is served only where another certificate, or another address with its own, has more of
them: the oldest of these ends.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)
T = TypeVar("T")


class Connection(Protocol):
    """A gateway's connection."""

    def abort(self) -> None:
        """End it at once."""
        ...


class GatewayConnections:
    """The connections of gateways, by where these are."""

    def __init__(self) -> None:
        self._hosts: dict[Connection, _Host] = {}
        """The oldest first."""

    def add(self, connection: Connection, transport: asyncio.Transport, *, is_full: bool) -> bool:
        """Note a connection, and return whether it is served."""
        host = _host_of(transport)
        if is_full and not self._make_room(host):
            _LOG.warning("refused a gateway: too many connections are open")
            return False
        self._hosts[connection] = host
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection, if it is noted."""
        self._hosts.pop(connection, None)

    def _make_room(self, host: "_Host") -> bool:
        """End the oldest connection of who has the most, unless this one would have as many.

        That is a certificate, and among those of one certificate an address: one gateway can have
        many addresses, and several gateways can have one certificate.
        """
        hosts = self._hosts.values()
        crowded = _more_crowded(Counter(each.certificate for each in hosts), host.certificate)
        certificate = host.certificate if crowded is None else crowded
        addresses = Counter(each.address for each in hosts if each.certificate == certificate)
        address = _more_crowded(addresses, host.address if crowded is None else None)
        if address is None:
            return False
        _LOG.warning("ended a gateway's connection: its host has too many", host=address)
        oldest = next(each for each, of in self._hosts.items() if of == (certificate, address))
        del self._hosts[oldest]
        oldest.abort()
        return True


class _Host(NamedTuple):
    """Where a gateway is; of one on this host both are empty."""

    certificate: bytes
    address: str


def _host_of(transport: asyncio.Transport) -> _Host:
    address = transport.get_extra_info("peername")
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return _Host(
        b"" if certificate is None else sha256(certificate).digest(),
        str(address[0]) if isinstance(address, tuple) else "",
    )


def _more_crowded(of_each: Mapping[T, int], own: T | None) -> T | None:
    """Return who has the most, if that is more than ``own`` would have with another one."""
    most = max(of_each, key=of_each.__getitem__, default=None)
    if most is None or (own is not None and of_each[most] <= of_each.get(own, 0) + 1):
        return None
    return most
