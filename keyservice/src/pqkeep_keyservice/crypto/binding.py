"""Unambiguous encodings of what a derived key or a sealed seed is bound to."""

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId


def length_prefixed(*parts: bytes) -> bytes:
    """Concatenate parts, each after its length as 2 bytes, big-endian."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def key_info(purpose: bytes, tenant: TenantId, algorithm: Algorithm, version: KeyVersion) -> bytes:
    """Return the HKDF info that binds a data key to one purpose of one key version."""
    return length_prefixed(
        b"pqkeep/v1", purpose, algorithm.encode(), tenant.bytes, version.to_bytes(4, "big")
    )
