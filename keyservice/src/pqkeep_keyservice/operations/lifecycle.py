"""generate, import, rotate, retire, archive, get and list keys."""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import structs

from pqkeep_keyservice import clock
from pqkeep_keyservice.crypto.key_wrapping import (
    PrivateKey,
    PrivateKeyError,
    UnwrappingError,
    decode_pkcs8,
    import_info,
)
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions, SealedSeed
from pqkeep_keyservice.keys.sealed_keys import InconsistentKeyPairError
from pqkeep_keyservice.live.executors import Executor
from pqkeep_keyservice.live.import_keys import LIFETIME_SECONDS
from pqkeep_keyservice.operations.context import Context, OperationResult, Parts
from pqkeep_keyservice.storage.key_versions import find_key_page
from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Kind, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import MAX_DISABLED_DAYS, KeyInfo, KeyStatus, KeyVersion
from pqkeep_protocol.messages import (
    CancelArchive,
    DisableKey,
    EnableKey,
    GenerateKey,
    GetActiveKey,
    GetImportKey,
    GetKey,
    Idempotency,
    ImportKey,
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
from pqkeep_protocol.rules import RuleUse

_LONGEST_DISABLED = timedelta(days=MAX_DISABLED_DAYS)
VersionChange = RetireKey | DisableKey | EnableKey | ScheduleArchive | CancelArchive
"""Requests that change one existing version."""


async def generate(request: GenerateKey, context: Context) -> OperationResult:
    """Generate a key if none is active. Raises KEY_EXISTS and the errors of ``_begin``."""
    if (repeated := await _begin(request, context)) is not None:
        return repeated
    versions = context.versions
    _require_use(context)
    if request.if_absent and versions.active is not None:
        context.material.authenticate(versions.tenant, versions.active)
        active = versions.active.info
        return OperationResult(Key(key=active, existed=True), active.version)
    versions.require_no_active()
    await _require_rules(request, context)
    entry = await new_entry(
        versions,
        context.executor,
        context.deadline,
        clock.now(),
        request.idempotency,
        first_version=context.keyring.info.first_version,
    )
    new = versions.with_first(entry)
    key = new.require_active().info
    change = KeyChange(versions, new, request.quota)
    return OperationResult(Key(key=key), key.version, change)


async def rotate(request: RotateKey, context: Context) -> OperationResult:
    """Retire the active key and generate its successor.

    Raises KEY_NOT_FOUND and the errors of ``_begin``.
    """
    if (repeated := await _begin(request, context)) is not None:
        return repeated
    versions = context.versions
    old = versions.require_current().info
    await _require_rules(request, context)
    entry = await new_entry(
        versions, context.executor, context.deadline, clock.now(), request.idempotency
    )
    new = versions.with_rotated(entry)
    key = new.require_active().info
    change = KeyChange(versions, new)
    return OperationResult(Rotated(key=key, old_version=old.version), key.version, change)


def issue_import_key(_: GetImportKey, context: Context) -> OperationResult:
    """Issue an import key for this key."""
    import_keys, now = context.parts.import_keys, asyncio.get_running_loop().time()
    import_key_id, public_key, info = import_keys.issue(context.versions.name, now)
    issued = ImportKey(
        id=import_key_id, public_key=public_key, info=info, seconds=int(LIFETIME_SECONDS)
    )
    return OperationResult(issued, None)


async def import_key(request: ImportPrivateKey, context: Context) -> OperationResult:
    """Make an imported private key active if none is. The import key is used up in any case.

    Raises the errors of ``_begin``, KEY_EXISTS and VERSION_LIMIT_REACHED before the import key is
    used. Then raises IMPORT_KEY_NOT_FOUND, DECRYPTION_FAILED if the key was not wrapped to the
    import key, and PRIVATE_KEY_... if the unwrapped key is unusable.
    """
    if (repeated := await _begin(request, context)) is not None:
        return repeated
    versions = context.versions
    _require_use(context)
    versions.require_no_active()
    await _require_rules(request, context)
    version = versions.next_version(context.keyring.info.first_version)
    now = asyncio.get_running_loop().time()
    wrapping = context.parts.import_keys.claim(request.import_key_id, versions.name, now)
    info = import_info(request.import_key_id, versions.algorithm, versions.keyring)
    try:
        with wrapping.unwrap(request.wrapped_private_key, info) as data:
            private_key = (
                PrivateKey(Secret(bytearray(data.reveal())))
                if ALGORITHMS[versions.algorithm].is_legacy
                else decode_pkcs8(versions.algorithm, data)
            )
        pair = await context.executor.adopt(
            versions.name, version, private_key.seed, context.deadline
        )
        private_key.require(pair[0])
    except UnwrappingError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    except PrivateKeyError as error:
        raise KeyServiceError(error.kind) from None
    except InconsistentKeyPairError:
        raise KeyServiceError(ErrorKind.PRIVATE_KEY_CONTRADICTION) from None
    entry = entry_of(versions, version, pair, clock.now(), request.idempotency, imported=True)
    new = versions.with_first(entry)
    key = new.require_active().info
    return OperationResult(Key(key=key), key.version, KeyChange(versions, new, request.quota))


async def _begin(
    request: GenerateKey | RotateKey | ImportPrivateKey, context: Context
) -> OperationResult | None:
    """Load the key. Return the result of an earlier request with the same Idempotency-Key, if any.

    Raises IDEMPOTENCY_KEY_REUSED, and KEY_NOT_FOUND once the destruction of the tenant's keys
    begins.
    """
    parts, name = context.parts, KeyName(request.tenant, request.algorithm, request.keyring)
    await parts.require_no_destruction(request.tenant)
    context.versions = await parts.keys.get(name)
    previous = await previous_entry(request, context)
    return None if previous is None else _repeat(request, context.versions, previous, parts)


async def previous_entry(
    request: GenerateKey | RotateKey | ImportPrivateKey, context: Context
) -> KeyEntry | None:
    """Return the key that an earlier request with the same Idempotency-Key generated, if any.

    Raises IDEMPOTENCY_KEY_REUSED if that request was for another key.
    """
    idempotency = request.idempotency
    if idempotency is None:
        return None
    entry = context.versions.entry_generated_with(idempotency, clock.now())
    store = context.parts.store
    if entry is None and await store.is_idempotency_key_used(request.tenant, idempotency):
        raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)
    return entry


async def _require_rules(
    request: GenerateKey | RotateKey | ImportPrivateKey, context: Context
) -> None:
    """Ask the tenant's rules about a new key. Raises RULE_DENIED, UNAVAILABLE and DamagedKeyError."""
    await context.assess_stored(
        request.tenant, RuleUse.GENERATE_KEY, request.algorithm, request.keyring
    )


def _require_use(context: Context) -> None:
    """Raise NO_PURPOSE if no key is active, and no purpose of the keyring fits a new one."""
    versions, keyring = context.versions, context.keyring.info
    if versions.active is not None:
        return
    spec = ALGORITHMS[versions.algorithm]
    operations = spec.operations
    if spec.kind is Kind.LEGACY_DECRYPTION:  # re-encrypt has the purposes of its source's reading
        operations = frozenset() if keyring.derived else _READING_BY_RE_ENCRYPTION
    if not keyring.has_use_for(operations):
        raise KeyServiceError(ErrorKind.NO_PURPOSE)


_READING_BY_RE_ENCRYPTION = frozenset({Operation.DECRYPT, Operation.UNWRAP})


def _repeat(
    request: GenerateKey | RotateKey | ImportPrivateKey,
    versions: KeyVersions,
    previous: KeyEntry,
    parts: Parts,
) -> OperationResult:
    """Return the result of an earlier request with the same Idempotency-Key.

    Raises IDEMPOTENCY_KEY_REUSED if the two requests differ.
    """
    if request.idempotency != previous.idempotency:
        raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)
    parts.material.authenticate(versions.tenant, previous)
    key = structs.replace(
        previous.info, status=KeyStatus.ACTIVE, archive_at=None, disabled_until=None
    )
    if not isinstance(request, RotateKey):
        return OperationResult(Key(key=key), key.version)
    old_version = versions.version_before(key.version)
    return OperationResult(Rotated(key=key, old_version=old_version), key.version)


def retire(request: RetireKey, context: Context) -> OperationResult:
    """Retire a key version. Raises KEY_STATUS."""
    return _changed(context.versions.with_retired(request.version, clock.now()), request, context)


def disable(request: DisableKey, context: Context) -> OperationResult:
    """Refuse every use of a key version, until a time or until it is enabled. Raises KEY_STATUS."""
    until = request.until
    if until is not None and until > clock.now() + _LONGEST_DISABLED:
        raise KeyServiceError(ErrorKind.KEY_STATUS)
    return _changed(context.versions.with_disabled(request.version, until), request, context)


def enable(request: EnableKey, context: Context) -> OperationResult:
    """Restore a disabled key version's earlier status. Raises KEY_STATUS."""
    new = context.versions.with_enabled(request.version, request.until)
    return _changed(new, request, context)


def schedule_archive(request: ScheduleArchive, context: Context) -> OperationResult:
    """Schedule the archiving of a retired key version; without a delay, archive it now.

    Raises KEY_STATUS, and KEYRING_PROTECTED.
    """
    context.keyring.require_unprotected()
    versions = context.versions
    delay = max(timedelta(days=request.days), context.parts.least_delay)
    new = versions.with_archive_scheduled(request.version, clock.now() + delay)
    if not delay and new is not versions:
        archived = _changed(versions.with_archived(request.version), request, context)
        return structs.replace(archived, operation=Operation.ARCHIVE_KEY)
    changed = _changed(new, request, context)
    key = Key(key=new.entry(request.version).info, existed=new is versions)
    return structs.replace(changed, result=key)


def cancel_archive(request: CancelArchive, context: Context) -> OperationResult:
    """Cancel the scheduled archiving of a key version. Raises KEY_STATUS."""
    new = context.versions.with_archive_cancelled(request.version, clock.now())
    return _changed(new, request, context)


def get(request: GetKey, context: Context) -> OperationResult:
    """Return one version of any status. Raises KEY_NOT_FOUND."""
    return _key_result(context.versions.entry(request.version), context)


def get_active(_: GetActiveKey, context: Context) -> OperationResult:
    """Return the active version. Raises KEY_NOT_FOUND."""
    return _key_result(context.versions.require_active(), context)


async def list_(request: ListKeys, context: Context) -> OperationResult:
    """Return one page of keys, ordered by keyring, algorithm and version."""
    if request.all_keyrings:
        return await _page_of_all_keyrings(request, context)
    every = tuple(Algorithm) if request.legacy else CURRENT
    algorithms = every if request.algorithm is None else (request.algorithm,)
    names = [KeyName(request.tenant, algorithm, request.keyring) for algorithm in algorithms]
    return await _page(request, names, context)


async def _page_of_all_keyrings(request: ListKeys, context: Context) -> OperationResult:
    """Return one page of the keys of all keyrings. It loads no key of another page."""
    parts = context.parts
    page = await parts.store.database.query(find_key_page, request)
    infos: list[KeyInfo] = []
    for name, version in page.versions:
        entry = (await parts.keys.get(name)).entry(version)
        context.material.authenticate(name.tenant, entry)
        infos.append(entry.info)
    listed = Keys(keys=tuple(infos), total=page.total, has_more=page.has_more)
    return OperationResult(listed, None)


async def list_public(request: ListPublicKeys, context: Context) -> OperationResult:
    """Return one page of the public keys of some algorithms."""
    algorithms = dict.fromkeys(request.algorithms)
    names = [KeyName(request.tenant, algorithm, request.keyring) for algorithm in algorithms]
    return await _page(request, names, context)


async def _page(
    request: ListKeys | ListPublicKeys, names: Iterable[KeyName], context: Context
) -> OperationResult:
    keys = [await context.parts.keys.get(name) for name in names]
    matching = [
        (versions, entry)
        for versions in sorted(keys, key=lambda versions: (versions.keyring, versions.algorithm))
        for entry in versions.entries
        if request.status is None or entry.info.status is request.status
        if entry.info.archive_at is not None or not getattr(request, "scheduled", False)
        if not isinstance(request, ListPublicKeys)
        or context.keyring.info.allows_version(Operation.VERIFY, entry.info.version)
    ]
    after = request.after
    rest = [
        (versions, entry)
        for versions, entry in matching
        if after is None
        or (versions.keyring, versions.algorithm, entry.info.version)
        > (after.keyring, after.algorithm, after.version)
    ]
    page = rest[: request.limit]
    for versions, entry in page:
        context.material.authenticate(versions.tenant, entry)
    infos = tuple(entry.info for _, entry in page)
    has_more = len(rest) > len(page)
    return OperationResult(Keys(keys=infos, total=len(matching), has_more=has_more), None)


def _key_result(entry: KeyEntry, context: Context) -> OperationResult:
    context.material.authenticate(context.versions.tenant, entry)
    return OperationResult(Key(key=entry.info), entry.info.version)


def _changed(new: KeyVersions, request: VersionChange, context: Context) -> OperationResult:
    versions = context.versions
    context.material.authenticate(versions.tenant, versions.entry(request.version))
    change = None if new is versions else KeyChange(versions, new)
    return OperationResult(Key(key=new.entry(request.version).info), request.version, change)


async def new_entry(
    versions: KeyVersions,
    executor: Executor,
    deadline: float,
    created_at: datetime,
    idempotency: Idempotency | None = None,
    *,
    first_version: int = 1,
) -> KeyEntry:
    """Generate the next version of a key, with at least the number ``first_version``."""
    version = versions.next_version(first_version)
    pair = await executor.generate(versions.name, version, deadline)
    return entry_of(versions, version, pair, created_at, idempotency)


def entry_of(
    versions: KeyVersions,
    version: KeyVersion,
    pair: tuple[bytes, SealedSeed],
    created_at: datetime,
    idempotency: Idempotency | None,
    *,
    imported: bool = False,
) -> KeyEntry:
    """Return a new version, active. ``pair`` is its public key and its sealed private key."""
    public_key, sealed = pair
    info = KeyInfo(
        algorithm=versions.algorithm,
        version=version,
        status=KeyStatus.ACTIVE,
        public_key=public_key,
        created_at=created_at,
        keyring=versions.keyring,
        imported=imported,
    )
    return KeyEntry(info, sealed, idempotency)
