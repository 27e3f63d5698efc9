"""The MAC over a keyring's state, without which its rows would be whatever somebody wrote there.

    mac = 0x01 || root key id (1) || HMAC-SHA-256(key, header || state)

The key is derived from a root key. The state is everything that is stored of a keyring but for the
sealed seeds, which authenticate themselves; see sealing.py. It stays when a seed is destroyed, so
that status and public key of an archived version are as authentic as any other's.
"""

from hashlib import sha256

from pqkeep_keyservice.crypto.binding import length_prefixed
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_protocol.keys import KeyStatus


def keyring_mac(sealer: Sealer, keyring: Keyring) -> bytes:
    """Return the MAC (34 bytes) of a keyring's state under the newest root key."""
    return sealer.mac(_state(keyring))


def require_authentic(sealer: Sealer, keyring: Keyring, mac: bytes) -> None:
    """Raise DamagedKeyError unless the state is one that was stored with this MAC."""
    if not sealer.is_mac(mac, _state(keyring)):
        raise DamagedKeyError("the keyring is not as it was stored")
    for entry in keyring.entries:
        if (entry.sealed is None) != (entry.info.status is KeyStatus.ARCHIVED):
            raise DamagedKeyError("a private key is missing, or one that was destroyed is there")


def _state(keyring: Keyring) -> bytes:
    return b"".join(
        (
            b"pqkeep/keyring/v1",
            keyring.tenant.bytes,
            length_prefixed(keyring.algorithm.encode()),
            keyring.revision.to_bytes(8, "big"),
            len(keyring.entries).to_bytes(4, "big"),
            *map(_entry_state, keyring.entries),
        )
    )


def _entry_state(entry: KeyEntry) -> bytes:
    idempotency = entry.idempotency
    return b"".join(
        (
            entry.info.version.to_bytes(4, "big"),
            entry.created_at_us.to_bytes(8, "big"),
            sha256(entry.info.public_key).digest(),
            length_prefixed(
                entry.info.status.encode(),
                b"" if idempotency is None else idempotency.key + idempotency.request,
            ),
        )
    )
