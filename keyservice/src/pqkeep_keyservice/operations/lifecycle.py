"""generate, rotate, retire, archive, and looking keys up."""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import structs

from pqkeep_keyservice.crypto.slhdsa import SETS
from pqkeep_keyservice.keys.changes import IdempotencyRecord, KeyringChange
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.resources import Resources
from pqkeep_keyservice.operations.result import OperationResult
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
    request: GenerateKey, keyring: Keyring, resources: Resources, deadline: float
) -> OperationResult:
    """Make a key where none is active."""
    keyring.require_no_active()
    new = keyring.with_first(await _new_entry(keyring, resources, deadline))
    key = new.require_active().info
    return OperationResult(
        Key(key=key), key.version, KeyringChange(keyring, new, request.quota, request.idempotency)
    )


async def rotate(
    request: RotateKey, keyring: Keyring, resources: Resources, deadline: float
) -> OperationResult:
    """Put a new key in the active one's place."""
    old = keyring.require_active().info
    new = keyring.with_rotated(await _new_entry(keyring, resources, deadline))
    key = new.require_active().info
    change = KeyringChange(keyring, new, idempotency=request.idempotency)
    return OperationResult(Rotated(key=key, old_version=old.version), key.version, change)


def repeat(
    request: GenerateKey | RotateKey,
    keyring: Keyring,
    previous: IdempotencyRecord,
    material: KeyMaterial,
) -> OperationResult:
    """Answer a change that was made before as it was answered then."""
    if request.idempotency is None or request.idempotency.request != previous.request:
        raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)
    entry = keyring.entry(previous.version)
    material.authenticate(keyring.tenant, entry)
    key = structs.replace(entry.info, status=KeyStatus.ACTIVE)
    if isinstance(request, GenerateKey):
        return OperationResult(Key(key=key), key.version)
    return OperationResult(Rotated(key=key, old_version=KeyVersion(key.version - 1)), key.version)


def retire(request: RetireKey, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Allow no new use of a key version."""
    return _changed(keyring, keyring.with_retired(request.version), request, material)


def archive(request: ArchiveKey, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Destroy the private half of a retired key version."""
    return _changed(keyring, keyring.with_archived(request.version), request, material)


def get(request: GetKey | GetActiveKey, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Look one version up, whatever its status, or the active one."""
    if isinstance(request, GetActiveKey):
        entry = keyring.require_active()
    else:
        entry = keyring.entry(request.version)
    material.authenticate(keyring.tenant, entry)
    return OperationResult(Key(key=entry.info), entry.info.version)


def list_(request: ListKeys, keyrings: Iterable[Keyring], material: KeyMaterial) -> OperationResult:
    """List one page of keys, ordered by algorithm, then version."""
    found = [
        (keyring, entry)
        for keyring in sorted(keyrings, key=lambda keyring: keyring.algorithm)
        for entry in keyring.entries
        if request.status is None or entry.info.status is request.status
    ]
    page = found[request.skip : request.skip + PAGE]
    for keyring, entry in page:
        material.authenticate(keyring.tenant, entry)
    return OperationResult(
        Keys(keys=tuple(entry.info for _, entry in page), total=len(found)), None
    )


def _changed(
    keyring: Keyring, new: Keyring, request: RetireKey | ArchiveKey, material: KeyMaterial
) -> OperationResult:
    material.authenticate(keyring.tenant, keyring.entry(request.version))
    change = None if new is keyring else KeyringChange(keyring, new)
    return OperationResult(Key(key=new.entry(request.version).info), request.version, change)


async def _new_entry(keyring: Keyring, resources: Resources, deadline: float) -> KeyEntry:
    name = keyring.tenant, keyring.algorithm, keyring.next_version
    if keyring.algorithm in SETS:
        public_key, sealed = await resources.slh_dsa.generate(*name, deadline)
    else:
        public_key, sealed = resources.material.generate(*name)
    info = KeyInfo(
        algorithm=keyring.algorithm,
        version=keyring.next_version,
        status=KeyStatus.ACTIVE,
        public_key=public_key,
        created_at=datetime.now(UTC),
    )
    return KeyEntry(info, sealed)
