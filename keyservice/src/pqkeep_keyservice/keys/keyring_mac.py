"""The MAC over a keyring's settings, without which whoever writes its row could widen its purposes.

    mac = 0x01 || root key id (1) || HMAC-SHA-256(key, header || state)

The key is that of key_mac.py; the state begins with a label of its own, and has everything that is
stored of a keyring.
"""

import msgspec

from pqkeep_keyservice.crypto.binding import length_prefixed
from pqkeep_keyservice.keys.key_versions import microseconds
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_protocol.keys import Destruction

_ENCODER = msgspec.json.Encoder(order="deterministic")


def keyring_mac(sealer: Sealer, keyring: Keyring) -> bytes:
    """Return the MAC (34 bytes) of a keyring's settings under the newest root key."""
    return sealer.mac(_state(keyring))


def require_authentic_keyring(sealer: Sealer, keyring: Keyring, mac: bytes) -> None:
    """Raise DamagedKeyError unless the settings are those that were stored with this MAC."""
    if not sealer.is_mac(mac, _state(keyring)):
        raise DamagedKeyError("the keyring is not as it was stored")


def labels_text(keyring: Keyring) -> str:
    """Return the labels as JSON, by name and without spaces."""
    return _ENCODER.encode(keyring.info.labels).decode()


def purposes_text(keyring: Keyring) -> str:
    """Return the purposes, with commas between them."""
    return ",".join(keyring.info.purposes)


def _state(keyring: Keyring) -> bytes:
    info = keyring.info
    created_at_us = 0 if info.created_at is None else microseconds(info.created_at)
    return b"".join(
        (
            b"pqkeep/keyring-settings/v1",
            keyring.tenant.bytes,
            keyring.revision.to_bytes(8, "big"),
            created_at_us.to_bytes(8, "big"),
            info.rotation_days.to_bytes(4, "big"),
            info.archive_after_days.to_bytes(4, "big"),
            length_prefixed(
                info.name.encode(),
                info.description.encode(),
                labels_text(keyring).encode(),
                purposes_text(keyring).encode(),
            ),
            _destruction(keyring.destruction),
        )
    )


def _destruction(destruction: Destruction | None) -> bytes:
    if destruction is None:
        return b""
    return destruction.state.encode() + microseconds(destruction.at).to_bytes(8, "big")
