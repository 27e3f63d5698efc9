"""The client's address behind reverse proxies that the operator trusts.

A proxy appends its peer's address at the right of ``X-Forwarded-For`` or ``Forwarded`` (RFC 7239).
Everything further left can be invented by the client. So the client is the right-most address that
does not belong to a trusted proxy. If the headers are ambiguous, the address is the peer's own. A
proxy's address may limit many clients together, but an invented address would evade the limits.
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
"""An address, with or without a port. Some X-Forwarded-For headers have IPv6 without brackets."""
_PAIR = re.compile(r'[ \t]*([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^",; \t]+))[ \t]*([,;]|\Z)')
"""One parameter of Forwarded, and the separator after it."""


class Client(NamedTuple):
    """The client of a request."""

    address: str
    is_known: bool = True
    """False for a proxy's address, when its headers are ambiguous. A client can send such headers,
    so the address must not grant anything."""


class TrustedProxies:
    """Networks of proxies with trusted forwarding headers."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Take networks in CIDR notation. Raises ValueError."""
        self._networks = Networks(networks)

    def __contains__(self, address: object) -> bool:
        return address in self._networks

    def client_of(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> Client:
        """Return the client of a request: the peer, unless that is a trusted proxy."""
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
    """Return the nodes in the headers, the nearest last; None if the headers are ambiguous.

    A header may occur several times. Both headers together are ambiguous: a proxy appends to one of
    them, and may pass on a client's own version of the other.
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
    """Return the "for" of each element, "" for an element without one; None if it is malformed."""
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
    """Return a node's address in canonical form; None for a name or an invalid address."""
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
