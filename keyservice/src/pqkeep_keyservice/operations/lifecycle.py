"""generate, rotate, retire, archive, get and list keys."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import structs

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions, SealedSeed
from pqkeep_keyservice.live.executors import Executor
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus
from pqkeep_protocol.messages import (
    CancelArchive,
    DisableKey,
    EnableKey,
    GenerateKey,
    GetActiveKey,
    GetKey,
    Idempotency,
    ImportPrivateKey,
    Key,
    Keys,
    ListKeys,
    ListPublicKeys,
    RetireKey,
    Rotated,
    RotateKey,
    ScheduleArchive,
)

VersionChange = RetireKey | DisableKey | EnableKey | ScheduleArchive | CancelArchive
"""Requests that change one version that is there."""


async def generate(
    request: GenerateKey,
    versions: KeyVersions,
    material: KeyMaterial,
    executor: Executor,
    deadline: float,
) -> OperationResult:
    """Generate a key where none is active. Raises KEY_EXISTS."""
    if request.if_absent and versions.active is not None:
        material.authenticate(versions.tenant, versions.active)
        active = versions.active.info
        return OperationResult(Key(key=active, existed=True), active.version)
    versions.require_no_active()
    entry = await new_entry(versions, executor, deadline, clock.now(), request.idempotency)
    new = versions.with_first(entry)
    key = new.require_active().info
    change = KeyChange(versions, new, request.quota)
    return OperationResult(Key(key=key), key.version, change)


async def rotate(
    request: RotateKey, versions: KeyVersions, executor: Executor, deadline: float
) -> OperationResult:
    """Retire the active key and generate its successor. Raises KEY_NOT_FOUND."""
    old = versions.require_current().info
    entry = await new_entry(versions, executor, deadline, clock.now(), request.idempotency)
    new = versions.with_rotated(entry)
    key = new.require_active().info
    change = KeyChange(versions, new)
    return OperationResult(Rotated(key=key, old_version=old.version), key.version, change)


def repeat(
    request: GenerateKey | RotateKey | ImportPrivateKey,
    versions: KeyVersions,
    previous: KeyEntry,
    material: KeyMaterial,
) -> OperationResult:
    """Return the result of the first request with the same Idempotency-Key.

    Raises IDEMPOTENCY_KEY_REUSED if that was another request.
    """
    if request.idempotency != previous.idempotency:
        raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)
    material.authenticate(versions.tenant, previous)
    key = structs.replace(previous.info, status=KeyStatus.ACTIVE, archive_at=None)
    if not isinstance(request, RotateKey):
        return OperationResult(Key(key=key), key.version)
    old_version = versions.version_before(key.version)
    return OperationResult(Rotated(key=key, old_version=old_version), key.version)


def retire(request: RetireKey, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Retire a key version. Raises KEY_STATUS."""
    new = versions.with_retired(request.version, clock.now())
    return _changed(versions, new, request, material)


def disable(request: DisableKey, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Refuse every use of a key version until it is enabled. Raises KEY_STATUS."""
    return _changed(versions, versions.with_disabled(request.version), request, material)


def enable(request: EnableKey, versions: KeyVersions, material: KeyMaterial) -> OperationResult:
    """Give a disabled key version its status back. Raises KEY_STATUS."""
    return _changed(versions, versions.with_enabled(request.version), request, material)


def schedule_archive(
    request: ScheduleArchive,
    versions: KeyVersions,
    material: KeyMaterial,
    least_delay: timedelta,
) -> OperationResult:
    """Set when a retired key version is archived, or archive it without a delay. Raises KEY_STATUS."""
    delay = max(timedelta(days=request.days), least_delay)
    new = versions.with_archive_scheduled(request.version, clock.now() + delay)
    if not delay and new is not versions:
        archived = _changed(versions, versions.with_archived(request.version), request, material)
        return structs.replace(archived, operation=Operation.ARCHIVE_KEY)
    changed = _changed(versions, new, request, material)
    key = Key(key=new.entry(request.version).info, existed=new is versions)
    return structs.replace(changed, result=key)


def cancel_archive(
    request: CancelArchive, versions: KeyVersions, material: KeyMaterial
) -> OperationResult:
    """Keep a key version that is to be archived. Raises KEY_STATUS."""
    new = versions.with_archive_cancelled(request.version, clock.now())
    return _changed(versions, new, request, material)


def get(
    request: GetKey | GetActiveKey, versions: KeyVersions, material: KeyMaterial
) -> OperationResult:
    """Return one version, whatever its status, or the active one. Raises KEY_NOT_FOUND."""
    if isinstance(request, GetActiveKey):
        entry = versions.require_active()
    else:
        entry = versions.entry(request.version)
    material.authenticate(versions.tenant, entry)
    return OperationResult(Key(key=entry.info), entry.info.version)


def list_(
    request: ListKeys | ListPublicKeys, keys: Iterable[KeyVersions], material: KeyMaterial
) -> OperationResult:
    """Return one page of keys, ordered by keyring, algorithm and version."""
    found = [
        (versions, entry)
        for versions in sorted(keys, key=lambda versions: (versions.keyring, versions.algorithm))
        for entry in versions.entries
        if request.status is None or entry.info.status is request.status
        if entry.info.archive_at is not None or not getattr(request, "scheduled", False)
    ]
    after = request.after
    rest = [
        (versions, entry)
        for versions, entry in found
        if after is None
        or (versions.keyring, versions.algorithm, entry.info.version)
        > (after.keyring, after.algorithm, after.version)
    ]
    page = rest[: request.limit]
    for versions, entry in page:
        material.authenticate(versions.tenant, entry)
    infos = tuple(entry.info for _, entry in page)
    has_more = len(rest) > len(page)
    return OperationResult(Keys(keys=infos, total=len(found), has_more=has_more), None)


def _changed(
    versions: KeyVersions, new: KeyVersions, request: VersionChange, material: KeyMaterial
) -> OperationResult:
    material.authenticate(versions.tenant, versions.entry(request.version))
    change = None if new is versions else KeyChange(versions, new)
    return OperationResult(Key(key=new.entry(request.version).info), request.version, change)


async def new_entry(
    versions: KeyVersions,
    executor: Executor,
    deadline: float,
    created_at: datetime,
    idempotency: Idempotency | None = None,
) -> KeyEntry:
    """Generate the next version of a key."""
    made = await executor.generate(versions.name, versions.next_version, deadline)
    return entry_of(versions, made, created_at, idempotency)


def entry_of(
    versions: KeyVersions,
    made: tuple[bytes, SealedSeed],
    created_at: datetime,
    idempotency: Idempotency | None,
    *,
    imported: bool = False,
) -> KeyEntry:
    """Return the next version, active: its public key, and its sealed private key."""
    public_key, sealed = made
    info = KeyInfo(
        algorithm=versions.algorithm,
        version=versions.next_version,
        status=KeyStatus.ACTIVE,
        public_key=public_key,
        created_at=created_at,
        keyring=versions.keyring,
        imported=imported,
    )
    return KeyEntry(info, sealed, idempotency)
