"""Connects to public addresses only, so that a URL of a tenant reaches no internal service.

A name is resolved once. All of its addresses are checked, and the connection goes to a checked
address. A later change of the name has no effect.
"""

import socket
import time
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.webhooks import host_of

NOT_PUBLIC = Networks(
    (
        # IANA's special-purpose addresses. Python's own lists differ between its versions.
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "168.63.129.16/32",  # Azure's platform services, reachable only from inside
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",  # contains IPv4 addresses
        "3fff::/20",
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_LOOKUP = "the look-up took too long"


class RefusedAddressError(OSError):
    """The host has no address, or one that is not allowed. The message says no more."""

    def __init__(self) -> None:
        super().__init__("the host has no address that webhooks may reach")


class PublicAddresses:
    """The addresses that a connection may go to."""

    def __init__(self, allowed: Networks) -> None:
        """Take networks that are allowed although they are not public, with TLS or without."""
        self._allowed = allowed

    def allows(self, address: str, *, has_tls: bool = True) -> bool:
        """Return whether an IP address may be reached. Without TLS, only an allowed network may."""
        if address in self._allowed:
            return True
        return has_tls and is_public(address) and not _is_own(address)

    def may_be(self, url: str) -> bool:
        """Return whether a valid URL may be a webhook's. A name is checked when it is resolved."""
        has_tls = urlsplit(url).scheme == "https"
        host = host_of(url)
        try:
            ip_address(host)
        except ValueError:
            return has_tls or bool(self._allowed.networks)
        return self.allows(host, has_tls=has_tls)

    def connect(
        self, address: tuple[str, int], seconds: float, *, deadline: float, has_tls: bool
    ) -> socket.socket:
        """Return a connection to a checked address of a host, for steps of these seconds.

        ``deadline``: the end of the look-up and all attempts, by time.monotonic. Raises
        RefusedAddressError, OSError.
        """
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise RefusedAddressError from None
        if not found or not all(self.allows(str(place[0]), has_tls=has_tls) for *_, place in found):
            raise RefusedAddressError
        problem: OSError = TimeoutError(_LOOKUP)
        for family, kind, protocol, _, place in found:
            left = deadline - time.monotonic()
            if left <= 0:  # the attempt was given up
                break
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(min(seconds, left))
                opened.connect(place)
            except OSError as error:
                opened.close()
                problem = error
            else:
                return opened
        raise problem


def is_public(address: str) -> bool:
    """Return whether a text is an IP address that the whole Internet reaches."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return parsed in _GLOBAL_UNICAST and address not in NOT_PUBLIC
    return address not in NOT_PUBLIC


def _is_own(address: str) -> bool:
    """Return whether an address is one of this host. No packet is sent.

    The kernel may use the host's first address to connect to its other addresses. But only the
    host's own addresses can be bound. That says nothing where the kernel lets any address be bound.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((address, 9))
        if str(probe.getsockname()[0]) == address:
            return True
    return _can_bind(family, address) and not _can_bind(family, _NOT_OWN[family])


_NOT_OWN = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation, which no host has."""


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.bind((address, 0))
        return True
    return False
