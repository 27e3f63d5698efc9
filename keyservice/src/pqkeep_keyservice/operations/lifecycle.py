"""generate, rotate, retire, archive, get and list keys."""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import structs

from pqkeep_keyservice.keys.changes import KeyringChange
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.live.executors import Executor
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
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


async def generate(
    request: GenerateKey, keyring: Keyring, executor: Executor, deadline: float
) -> OperationResult:
    """Generate a key where none is active. Raises KEY_EXISTS."""
    keyring.require_no_active()
    new = keyring.with_first(await _new_entry(request, keyring, executor, deadline))
    key = new.require_active().info
    change = KeyringChange(keyring, new, request.quota)
    return OperationResult(Key(key=key), key.version, change)


async def rotate(
    request: RotateKey, keyring: Keyring, executor: Executor, deadline: float
) -> OperationResult:
    """Retire the active key and generate its successor. Raises KEY_NOT_FOUND."""
    old = keyring.require_active().info
    new = keyring.with_rotated(await _new_entry(request, keyring, executor, deadline))
    key = new.require_active().info
    change = KeyringChange(keyring, new)
    return OperationResult(Rotated(key=key, old_version=old.version), key.version, change)


def repeat(
    request: GenerateKey | RotateKey,
    keyring: Keyring,
    previous: KeyEntry,
    material: KeyMaterial,
) -> OperationResult:
    """Return the result of the first request with the same Idempotency-Key.

    Raises IDEMPOTENCY_KEY_REUSED if that was another request.
    """
    if request.idempotency != previous.idempotency:
        raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)
    material.authenticate(keyring.tenant, previous)
    key = structs.replace(previous.info, status=KeyStatus.ACTIVE)
    if isinstance(request, GenerateKey):
        return OperationResult(Key(key=key), key.version)
    old_version = keyring.version_before(key.version)
    return OperationResult(Rotated(key=key, old_version=old_version), key.version)


def retire(request: RetireKey, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Retire a key version. Raises KEY_STATUS."""
    return _changed(keyring, keyring.with_retired(request.version), request, material)


def archive(request: ArchiveKey, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Destroy the private half of a retired key version. Raises KEY_STATUS."""
    return _changed(keyring, keyring.with_archived(request.version), request, material)


def get(request: GetKey | GetActiveKey, keyring: Keyring, material: KeyMaterial) -> OperationResult:
    """Return one version, whatever its status, or the active one. Raises KEY_NOT_FOUND."""
    if isinstance(request, GetActiveKey):
        entry = keyring.require_active()
    else:
        entry = keyring.entry(request.version)
    material.authenticate(keyring.tenant, entry)
    return OperationResult(Key(key=entry.info), entry.info.version)


def list_(request: ListKeys, keyrings: Iterable[Keyring], material: KeyMaterial) -> OperationResult:
    """Return one page of keys, ordered by algorithm, then version."""
    found = [
        (keyring, entry)
        for keyring in sorted(keyrings, key=lambda keyring: keyring.algorithm)
        for entry in keyring.entries
        if request.status is None or entry.info.status is request.status
    ]
    after = request.after
    rest = [
        (keyring, entry)
        for keyring, entry in found
        if after is None
        or (keyring.algorithm, entry.info.version) > (after.algorithm, after.version)
    ]
    page = rest[: request.limit]
    for keyring, entry in page:
        material.authenticate(keyring.tenant, entry)
    keys = tuple(entry.info for _, entry in page)
    has_more = len(rest) > len(page)
    return OperationResult(Keys(keys=keys, total=len(found), has_more=has_more), None)


def _changed(
    keyring: Keyring, new: Keyring, request: RetireKey | ArchiveKey, material: KeyMaterial
) -> OperationResult:
    material.authenticate(keyring.tenant, keyring.entry(request.version))
    change = None if new is keyring else KeyringChange(keyring, new)
    return OperationResult(Key(key=new.entry(request.version).info), request.version, change)


async def _new_entry(
    request: GenerateKey | RotateKey, keyring: Keyring, executor: Executor, deadline: float
) -> KeyEntry:
    public_key, sealed = await executor.generate(
        keyring.tenant, keyring.algorithm, keyring.next_version, deadline
    )
    info = KeyInfo(
        algorithm=keyring.algorithm,
        version=keyring.next_version,
        status=KeyStatus.ACTIVE,
        public_key=public_key,
        created_at=datetime.now(UTC),
    )
    return KeyEntry(info, sealed, request.idempotency)
