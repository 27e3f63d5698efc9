"""The MAC over a key's stored state. Without it, anyone who can write the database could change it.

    mac = 0x01 || root key id (1) || HMAC-SHA-256(key, header || state)

The HMAC key is derived from a root key. The state covers everything stored for a key except the
sealed seeds, which authenticate themselves (sealing.py). It still covers a version after the
destruction of its seed. So an archived version's status and public key stay authentic.
"""

from datetime import datetime
from hashlib import sha256

import msgspec

from pqkeep_keyservice.crypto.dem import bound_keyring, length_prefixed
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions, microseconds
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_protocol.keys import Destruction, KeyStatus

_ENCODER = msgspec.json.Encoder(order="deterministic")


def keyring_mac(sealer: Sealer, keyring: Keyring) -> bytes:
    """Return the MAC (34 bytes) of a keyring's settings under the newest root key."""
    return sealer.mac(_keyring_state(keyring))


def require_authentic_keyring(sealer: Sealer, keyring: Keyring, mac: bytes) -> None:
    """Raise DamagedKeyError unless the settings match the stored MAC."""
    if not sealer.is_mac(mac, _keyring_state(keyring)):
        raise DamagedKeyError("the keyring differs from what was stored")


def labels_text(keyring: Keyring) -> str:
    """Return the labels as JSON, sorted by name and without spaces."""
    return _ENCODER.encode(keyring.info.labels).decode()


def purposes_text(keyring: Keyring) -> str:
    """Return the purposes, separated by commas."""
    return ",".join(keyring.info.purposes)


def _keyring_state(keyring: Keyring) -> bytes:
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
            info.minimum_decryption_version.to_bytes(4, "big"),
            info.minimum_encryption_version.to_bytes(4, "big"),
            info.first_version.to_bytes(4, "big"),
            info.deletion_allowed.to_bytes(1, "big"),
            info.retired_public_keys_allowed.to_bytes(1, "big"),
            length_prefixed(
                info.name.encode(),
                info.description.encode(),
                labels_text(keyring).encode(),
                purposes_text(keyring).encode(),
                info.transit_type.encode(),
                b"derived" if info.derived else b"",
            ),
            _destruction(keyring.destruction),
        )
    )


def _destruction(destruction: Destruction | None) -> bytes:
    if destruction is None:
        return b""
    return destruction.state.encode() + microseconds(destruction.at).to_bytes(8, "big")


def rules_mac(sealer: Sealer, rules: RuleSet) -> bytes:
    """Return the MAC (34 bytes) of a tenant's rules under the newest root key."""
    return sealer.mac(_rules_state(rules))


def require_authentic_rules(sealer: Sealer, rules: RuleSet, mac: bytes) -> None:
    """Raise DamagedKeyError unless the rules match the stored MAC."""
    if not sealer.is_mac(mac, _rules_state(rules)):
        raise DamagedKeyError("the rules differ from what was stored")


def _rules_state(rules: RuleSet) -> bytes:
    revision = rules.revision.to_bytes(8, "big")
    return b"".join((b"pqkeep/rules/v1", rules.tenant.bytes, revision, rules.text))


def key_mac(sealer: Sealer, versions: KeyVersions) -> bytes:
    """Return the MAC (34 bytes) of a key's state under the newest root key."""
    return sealer.mac(_state(versions))


def require_authentic(sealer: Sealer, versions: KeyVersions, mac: bytes) -> None:
    """Raise DamagedKeyError unless the state matches the stored MAC."""
    if not sealer.is_mac(mac, _state(versions)):
        raise DamagedKeyError("the key differs from what was stored")
    for entry in versions.entries:
        if (entry.sealed is None) != (entry.info.status is KeyStatus.ARCHIVED):
            raise DamagedKeyError("a private key is missing, or a destroyed one is present")


def _state(versions: KeyVersions) -> bytes:
    return b"".join(
        (
            b"pqkeep/keyring/v1",
            versions.tenant.bytes,
            length_prefixed(versions.algorithm.encode()),
            versions.revision.to_bytes(8, "big"),
            len(versions.entries).to_bytes(4, "big"),
            *map(_cached_state, versions.entries),
            length_prefixed(*bound_keyring(versions.keyring)),
        )
    )


def _cached_state(entry: KeyEntry) -> bytes:
    """Return a version's state. An entry never changes, so its state is computed once."""
    state = entry.mac_state
    if state is None:
        state = _entry_state(entry)
        object.__setattr__(entry, "mac_state", state)
    return state


def _entry_state(entry: KeyEntry) -> bytes:
    idempotency, until = entry.idempotency, entry.info.disabled_until
    return b"".join(
        (
            entry.info.version.to_bytes(4, "big"),
            entry.created_at_us.to_bytes(8, "big"),
            sha256(entry.info.public_key).digest(),
            length_prefixed(
                entry.info.status.encode() + (b"/imported" if entry.info.imported else b""),
                (entry.disabled_from or "").encode(),
                _time(entry.retired_at),
                _time(entry.info.archive_at),
                b"" if idempotency is None else idempotency.key + idempotency.request,
                *(() if until is None else (_time(until),)),
            ),
        )
    )


def _time(when: datetime | None) -> bytes:
    return b"" if when is None else microseconds(when).to_bytes(8, "big")
