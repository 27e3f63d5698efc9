"""Unambiguous encodings of what a derived key or a sealed seed is bound to."""

from hashlib import sha256

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, KeyVersion, TenantId


def length_prefixed(*parts: bytes) -> bytes:
    """Concatenate parts, each after its length as 2 bytes, big-endian."""
    return b"".join([len(part).to_bytes(2, "big") + part for part in parts])


def bound_keyring(keyring: KeyringName) -> tuple[bytes, ...]:
    """Return what a keyring adds to a list of parts: nothing for the default one, else its name."""
    return () if keyring == DEFAULT_KEYRING else (keyring.encode(),)


def key_info(
    purpose: bytes,
    tenant: TenantId,
    algorithm: Algorithm,
    version: KeyVersion,
    keyring: KeyringName,
) -> bytes:
    """Return the HKDF info that binds a data key to one purpose of one key version."""
    return length_prefixed(
        b"pqkeep/v1",
        purpose,
        algorithm.encode(),
        tenant.bytes,
        version.to_bytes(4, "big"),
        *bound_keyring(keyring),
    )


def supplied_key_info(algorithm: Algorithm, public_key: bytes) -> bytes:
    """Return the HKDF info that binds a data key to a public key of whoever it is."""
    fingerprint = sha256(public_key).digest()
    return length_prefixed(b"pqkeep/v1", b"encrypt-to-key", algorithm.encode(), fingerprint)
