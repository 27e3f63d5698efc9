"""Sets of networks: whether an address is in a set, and whether a set contains another."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import (
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)

Network = IPv4Network | IPv6Network

_REMEMBERED = 1024
_MAPPED = IPv6Network("::ffff:0:0/96")
"""IPv4 addresses in IPv6 notation. They count as IPv4 addresses."""


class Networks:
    """Networks in CIDR notation, IPv4 and IPv6. An empty set contains no address."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Take networks in CIDR notation, or single addresses. Raises ValueError."""
        self.networks = tuple(map(network_in, networks))
        self._has = lru_cache(_REMEMBERED)(self._is_in_a_network)

    def __contains__(self, address: object) -> bool:
        return bool(self.networks) and self._has(str(address))

    def __str__(self) -> str:
        return " ".join(self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The networks in canonical CIDR notation, in their given order."""
        return tuple(map(str, self.networks))

    def covers(self, other: "Networks") -> bool:
        """Return whether this set contains every address of the other."""
        mine = _collapsed(self.networks)
        return all(
            any(_is_within(inner, network) for network in mine)
            for inner in _collapsed(other.networks)
        )

    def _is_in_a_network(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:  # a Unix socket
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


def network_in(text: str) -> Network:
    """Return a network in CIDR notation; a mapped IPv4 network as IPv4. Raises ValueError.

    A zone (RFC 4007) is refused: any text could follow its %.
    """
    if "%" in text:
        raise ValueError("a network has no zone")
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        address = int(network.network_address) & 0xFFFF_FFFF
        return IPv4Network((address, network.prefixlen - _MAPPED.prefixlen))
    return network


def _collapsed(networks: Iterable[Network]) -> list[Network]:
    """Return the fewest networks with the same addresses."""
    given = tuple(networks)
    return [
        *collapse_addresses(network for network in given if isinstance(network, IPv4Network)),
        *collapse_addresses(network for network in given if isinstance(network, IPv6Network)),
    ]


def _is_within(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


def neighbours_of(source_address: str) -> str:
    """Return the /24 of an IPv4 address, or the /64 of an IPv6 address; empty for a socket."""
    network = network_of(source_address)
    if ":" in network or not network:
        return network
    try:
        return str(IPv4Network(f"{network}/24", strict=False))
    except ValueError:
        return ""


_HOST_BITS = 64
"""Bits of an IPv6 address that one customer of a provider can choose."""


def network_of(source_address: str) -> str:
    """Return the unit that limits count: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in source_address:
        return source_address
    address = ip_address(source_address)
    if not isinstance(address, IPv6Address):
        return source_address
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address) >> _HOST_BITS << _HOST_BITS, 128 - _HOST_BITS)))
