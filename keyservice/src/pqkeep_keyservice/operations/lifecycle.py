"""generate, rotate, retire, archive, and looking keys up."""

from collections.abc import Iterable
from datetime import UTC, datetime

from pqkeep_keyservice.keyring import KeyEntry, Keyring
from pqkeep_keyservice.operations.done import Done
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_keyservice.storage.store import Change
from pqkeep_protocol.keys import KeyInfo, KeyStatus
from pqkeep_protocol.messages import (
    ArchiveKey,
    GenerateKey,
    GetActiveKey,
    GetKey,
    Key,
    Keys,
    ListKeys,
    RetireKey,
    Rotated,
    RotateKey,
)


def generate(request: GenerateKey, ring: Keyring, material: KeyMaterial) -> Done:
    """Make a key where none is active."""
    new = ring.with_first(_new_entry(ring, material))
    key = new.require_active().info
    return Done(Key(key=key), key.version, Change(ring, new, request.quota))


def rotate(_request: RotateKey, ring: Keyring, material: KeyMaterial) -> Done:
    """Put a new key in the active one's place."""
    old = ring.require_active().info
    new = ring.with_rotated(_new_entry(ring, material))
    key = new.require_active().info
    return Done(Rotated(key=key, old_version=old.version), key.version, Change(ring, new))


def retire(request: RetireKey, ring: Keyring) -> Done:
    """Allow no new use of a key version."""
    return _changed(ring, ring.with_retired(request.version), request)


def archive(request: ArchiveKey, ring: Keyring) -> Done:
    """Destroy the private half of a retired key version."""
    return _changed(ring, ring.with_archived(request.version), request)


def get(request: GetKey, ring: Keyring) -> Done:
    """Look one version up, whatever its status."""
    return Done(Key(key=ring.entry(request.version).info), request.version)


def get_active(_request: GetActiveKey, ring: Keyring) -> Done:
    """Look the active key up."""
    key = ring.require_active().info
    return Done(Key(key=key), key.version)


def list_(request: ListKeys, rings: Iterable[Keyring]) -> Done:
    """List keys, ordered by algorithm, then version."""
    keys: list[KeyInfo] = [
        entry.info
        for ring in sorted(rings, key=lambda ring: ring.algorithm)
        for entry in ring.entries
        if request.status is None or entry.info.status is request.status
    ]
    return Done(Keys(keys=tuple(keys)), None)


def _changed(ring: Keyring, new: Keyring, request: RetireKey | ArchiveKey) -> Done:
    change = None if new is ring else Change(ring, new)
    return Done(Key(key=new.entry(request.version).info), request.version, change)


def _new_entry(ring: Keyring, material: KeyMaterial) -> KeyEntry:
    version = ring.next_version
    public_key, sealed = material.generate(ring.tenant, ring.algorithm, version)
    info = KeyInfo(
        algorithm=ring.algorithm,
        version=version,
        status=KeyStatus.ACTIVE,
        public_key=public_key,
        created_at=datetime.now(UTC),
    )
    return KeyEntry(info, sealed)
