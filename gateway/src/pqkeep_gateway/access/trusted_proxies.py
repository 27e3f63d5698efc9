"""The client's address where requests come through reverse proxies that the operator trusts.

A proxy adds the address that it was asked from to ``X-Forwarded-For`` or to ``Forwarded``
(RFC 7239) at the right; what is further left can be the client's invention. So the client is the
right-most address that is no trusted proxy's. Where that cannot be told, the address is the peer's
own: a proxy's address for many clients limits too much, and an invented one would limit nothing.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from pqkeep_gateway.access.networks import Networks

FORWARDED = b"forwarded"
X_FORWARDED_FOR = b"x-forwarded-for"

_NODE = re.compile(
    r"\[(?P<v6>[0-9A-Fa-f:.]+)\](?::\d{1,5})?|(?P<v4>[0-9.]+)(?::\d{1,5})?|(?P<bare>[0-9A-Fa-f:.]+)"
)
"""An address, with a port or without one. IPv6 is in brackets, but not in every X-Forwarded-For."""
_PAIR = re.compile(r'[ \t]*([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^",; \t]+))[ \t]*([,;]|\Z)')
"""One parameter of Forwarded, and what separates it from the next one."""


class Client(NamedTuple):
    """Whose request it is."""

    address: str
    is_known: bool = True
    """False: a proxy's address, since what it says of the client is unclear. A client can send such
    headers, so that nothing may be allowed to it for the address."""


class TrustedProxies:
    """Networks whose addresses are believed to say who asked them."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Take networks in CIDR notation. Raises ValueError."""
        self._networks = Networks(networks)

    def __contains__(self, address: object) -> bool:
        return address in self._networks

    def client_of(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> Client:
        """Return who sent a request: the peer, unless that is a trusted proxy."""
        if not self._networks.networks or peer not in self:
            return Client(peer)
        nodes = _forwarding_nodes(headers)
        if nodes is None:
            return Client(peer, is_known=False)
        address = peer
        for node in reversed(nodes):
            forwarded_for = _address(node)
            if forwarded_for is None:
                return Client(peer, is_known=False)
            address = forwarded_for
            if address not in self:
                break
        return Client(address)


def _forwarding_nodes(headers: Sequence[tuple[bytes, bytes]]) -> Sequence[str] | None:
    """Return what the headers name, the nearest last; None if they are not unambiguous.

    A header may be there several times. Both headers together are ambiguous: a proxy adds to one
    of them, and lets a client's own through as the other.
    """
    found = {
        name: ",".join(value.decode("latin-1") for header, value in headers if header == name)
        for name in (FORWARDED, X_FORWARDED_FOR)
        if any(header == name for header, _ in headers)
    }
    if not found:
        return ()
    if len(found) > 1:
        return None
    if X_FORWARDED_FOR in found:
        return [address.strip(" \t") for address in found[X_FORWARDED_FOR].split(",")]
    return _nodes_of_forwarded(found[FORWARDED])


def _nodes_of_forwarded(text: str) -> Sequence[str] | None:
    """Return the "for" of each element, "" where an element has none; None if it is malformed."""
    nodes: list[str] = []
    node = ""
    position = 0
    separator = ","
    while separator:
        pair = _PAIR.match(text, position)
        if pair is None:
            return None
        name, quoted, token, separator = pair.groups()
        if name.lower() == "for":
            if node:
                return None
            node = token or quoted
        if separator != ";":
            nodes.append(node)
            node = ""
        position = pair.end()
    return nodes


def _address(node: str) -> str | None:
    """Return a node's address in canonical form; None for a name, or for what is no address."""
    match = _NODE.fullmatch(node)
    if match is None:
        return None
    try:
        address = ip_address(match["v6"] or match["v4"] or match["bare"])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
