"""Source addresses as limits count them."""

from ipaddress import IPv6Address, IPv6Network, ip_address

_HOST_BITS = 64
"""Bits of an IPv6 address that one customer of a provider can choose."""


def network_of(source_address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in source_address:
        return source_address
    address = ip_address(source_address)
    if not isinstance(address, IPv6Address):
        return source_address
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address) >> _HOST_BITS << _HOST_BITS, 128 - _HOST_BITS)))
