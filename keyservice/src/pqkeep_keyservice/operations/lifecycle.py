"""generate, rotate, retire, archive, and looking keys up."""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import structs

from pqkeep_keyservice.crypto.slhdsa import SETS
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.resources import Resources
from pqkeep_keyservice.operations.done import Done
from pqkeep_keyservice.storage.idempotency import Earlier
from pqkeep_keyservice.storage.store import Change
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion
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

PAGE = 500
"""Keys on one page of a list: the largest public keys fit into a frame."""


async def generate(
    request: GenerateKey, ring: Keyring, resources: Resources, deadline: float
) -> Done:
    """Make a key where none is active."""
    ring.require_no_active()
    new = ring.with_first(await _new_entry(ring, resources, deadline))
    key = new.require_active().info
    return Done(Key(key=key), key.version, Change(ring, new, request.quota, request.idempotency))


async def rotate(request: RotateKey, ring: Keyring, resources: Resources, deadline: float) -> Done:
    """Put a new key in the active one's place."""
    old = ring.require_active().info
    new = ring.with_rotated(await _new_entry(ring, resources, deadline))
    key = new.require_active().info
    change = Change(ring, new, idempotency=request.idempotency)
    return Done(Rotated(key=key, old_version=old.version), key.version, change)


def repeat(
    request: GenerateKey | RotateKey, ring: Keyring, earlier: Earlier, material: KeyMaterial
) -> Done:
    """Answer a change that was made before as it was answered then."""
    if request.idempotency is None or request.idempotency.request != earlier.request:
        raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)
    entry = ring.entry(earlier.version)
    material.authenticate(ring.tenant, entry)
    key = structs.replace(entry.info, status=KeyStatus.ACTIVE)
    if isinstance(request, GenerateKey):
        return Done(Key(key=key), key.version)
    return Done(Rotated(key=key, old_version=KeyVersion(key.version - 1)), key.version)


def retire(request: RetireKey, ring: Keyring, material: KeyMaterial) -> Done:
    """Allow no new use of a key version."""
    return _changed(ring, ring.with_retired(request.version), request, material)


def archive(request: ArchiveKey, ring: Keyring, material: KeyMaterial) -> Done:
    """Destroy the private half of a retired key version."""
    return _changed(ring, ring.with_archived(request.version), request, material)


def get(request: GetKey | GetActiveKey, ring: Keyring, material: KeyMaterial) -> Done:
    """Look one version up, whatever its status, or the active one."""
    if isinstance(request, GetActiveKey):
        entry = ring.require_active()
    else:
        entry = ring.entry(request.version)
    material.authenticate(ring.tenant, entry)
    return Done(Key(key=entry.info), entry.info.version)


def list_(request: ListKeys, rings: Iterable[Keyring], material: KeyMaterial) -> Done:
    """List one page of keys, ordered by algorithm, then version."""
    found = [
        (ring, entry)
        for ring in sorted(rings, key=lambda ring: ring.algorithm)
        for entry in ring.entries
        if request.status is None or entry.info.status is request.status
    ]
    page = found[request.skip : request.skip + PAGE]
    for ring, entry in page:
        material.authenticate(ring.tenant, entry)
    return Done(Keys(keys=tuple(entry.info for _, entry in page), total=len(found)), None)


def _changed(
    ring: Keyring, new: Keyring, request: RetireKey | ArchiveKey, material: KeyMaterial
) -> Done:
    material.authenticate(ring.tenant, ring.entry(request.version))
    change = None if new is ring else Change(ring, new)
    return Done(Key(key=new.entry(request.version).info), request.version, change)


async def _new_entry(ring: Keyring, resources: Resources, deadline: float) -> KeyEntry:
    name = ring.tenant, ring.algorithm, ring.next_version
    if ring.algorithm in SETS:
        public_key, sealed = await resources.slh_dsa.generate(*name, deadline)
    else:
        public_key, sealed = resources.material.generate(*name)
    info = KeyInfo(
        algorithm=ring.algorithm,
        version=ring.next_version,
        status=KeyStatus.ACTIVE,
        public_key=public_key,
        created_at=datetime.now(UTC),
    )
    return KeyEntry(info, sealed)
