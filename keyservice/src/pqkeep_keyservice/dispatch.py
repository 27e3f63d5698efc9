"""Which operation answers which request."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import assert_never

from msgspec import structs

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import KeyringChange
from pqkeep_keyservice.keys.key_versions import (
    AgeLimits,
    KeyEntry,
    KeyName,
    KeyVersions,
)
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.live.encapsulation_workers import EncapsulationWorkers
from pqkeep_keyservice.live.executors import Executor, Executors
from pqkeep_keyservice.live.import_keys import ImportKeys
from pqkeep_keyservice.live.key_cache import KeyCache, KeyringCache
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import (
    algorithm_mismatch,
    encapsulation,
    encryption,
    importing,
    keyrings,
    lifecycle,
    re_encryption,
    signing,
    supplied_keys,
    wrapping,
)
from pqkeep_keyservice.operations.result import OperationResult, RecordedError
from pqkeep_keyservice.operations.scheduled import (
    DestructionStep,
    DueChange,
    next_destruction,
    next_due,
)
from pqkeep_keyservice.storage.key_versions import find_public_key, list_keys
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import PURPOSE_OF
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    DestructionState,
    KeyringName,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import (
    AnyRequest,
    CancelArchive,
    CancelDestruction,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    DisableKey,
    EnableKey,
    Encapsulate,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetImportKey,
    GetKey,
    GetKeyring,
    ImportPrivateKey,
    ListKeyrings,
    ListKeys,
    ListPublicKeys,
    ReEncrypt,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    ScheduleDestruction,
    Sign,
    SignHash,
    SignJws,
    SignMu,
    Unwrap,
    UpdateKeyring,
    Verify,
    VerifyHash,
    VerifyMu,
    Wrap,
)

OnKeyring = CreateKeyring | UpdateKeyring | GetKeyring | ListKeyrings
"""Requests about keyrings themselves."""
OnDestruction = ScheduleDestruction | CancelDestruction
"""Requests about all keys of a tenant."""
MakesKey = GenerateKey | RotateKey | ImportPrivateKey
OnSeveralKeys = ListKeys | ListPublicKeys
"""Requests about more than one key."""


class Dispatcher:
    """Runs the operation of a request on the current versions of a key."""

    def __init__(
        self,
        store: KeyStore,
        key_cache: KeyCache,
        keyring_cache: KeyringCache,
        material: KeyMaterial,
        executors: Executors,
        encapsulation_workers: EncapsulationWorkers,
        least_delay: timedelta,
    ) -> None:
        """Take how long a private key is kept, at least, once its destruction is asked for."""
        self._least_delay = least_delay
        self._store = store
        self._key_cache = key_cache
        self._keyring_cache = keyring_cache
        self._material = material
        self._executors = executors
        self._encapsulation_workers = encapsulation_workers
        self._import_keys = ImportKeys()

    async def answer(  # noqa: C901, PLR0911, PLR0912 - one flat table, checked by assert_never
        self, request: AnyRequest, deadline: float
    ) -> OperationResult:
        """Return what the operation returns. Raises what it raises, and UNSUPPORTED."""
        material = self._material
        if isinstance(request, OnKeyring):
            return await self._answer_on_keyring(request)
        keyring = await self._keyring_cache.get(KeyringId(request.tenant, request.keyring))
        if isinstance(request, OnDestruction):
            return keyrings.on_destruction(request, keyring, self._least_delay)
        if isinstance(request, OnSeveralKeys):
            found = [await self._key_cache.get(name) for name in await self._names(request)]
            return lifecycle.list_(request, found, material)

        if request.operation not in ALGORITHMS[request.algorithm].operations:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        executor = self._executors[request.algorithm]
        if isinstance(request, supplied_keys.Supplied) and request.public_key is not None:
            return await self._answer_with(request, request.public_key, executor, deadline)
        if isinstance(request, ReEncrypt):
            return await self._re_encrypt(request, keyring)
        if isinstance(request, MakesKey):
            await self._require_no_destruction(request.tenant)
        keyring.require(PURPOSE_OF.get(request.operation))
        name = KeyName(request.tenant, request.algorithm, request.keyring)
        versions = await self._key_cache.get(name)
        match request:
            case Encrypt():
                return encryption.encrypt(request, versions, material)
            case Decrypt() | Unwrap():
                find_key_versions = self._key_cache.get
                return await algorithm_mismatch.decrypt_or_unwrap(
                    request, versions, find_key_versions, material
                )
            case Encapsulate():
                return encapsulation.encapsulate(request, versions, material)
            case Decapsulate():
                return encapsulation.decapsulate(request, versions, material)
            case Wrap():
                return wrapping.wrap(request, versions, material)
            case Sign() | SignHash() | SignMu():
                return await signing.sign(request, versions, executor, deadline)
            case SignJws():
                return await signing.sign_jws(request, versions, executor, deadline)
            case Verify() | VerifyHash() | VerifyMu():
                return await signing.verify(request, versions, executor, deadline)
            case GetImportKey():
                return importing.issue(versions, self._import_keys, _now())
            case GenerateKey() | RotateKey() | ImportPrivateKey() if (
                previous := await self._previous(request, versions)
            ):
                return lifecycle.repeat(request, versions, previous, material)
            case GenerateKey() | ImportPrivateKey() if not _has_use(keyring, versions):
                raise KeyServiceError(ErrorKind.NO_PURPOSE)
            case GenerateKey():
                return await lifecycle.generate(request, versions, material, executor, deadline)
            case ImportPrivateKey():
                return await importing.import_key(
                    request, versions, self._import_keys, executor, _now(), deadline
                )
            case RotateKey():
                return await lifecycle.rotate(request, versions, executor, deadline)
            case RetireKey():
                return lifecycle.retire(request, versions, material)
            case DisableKey():
                return lifecycle.disable(request, versions, material)
            case EnableKey():
                return lifecycle.enable(request, versions, material)
            case ScheduleArchive():
                return lifecycle.schedule_archive(request, versions, material, self._least_delay)
            case CancelArchive():
                return lifecycle.cancel_archive(request, versions, material)
            case GetKey() | GetActiveKey():
                return lifecycle.get(request, versions, material)
            case _:
                assert_never(request)

    async def _answer_with(
        self,
        request: supplied_keys.Supplied,
        public_key: bytes,
        executor: Executor,
        deadline: float,
    ) -> OperationResult:
        """Answer a request that brings its key; where it is the tenant's, the record says which."""
        own = await supplied_keys.find_own(
            request, public_key, self._find_public_key, self._keyring_cache, self._key_cache
        )
        try:
            match request:
                case Encrypt():
                    done = supplied_keys.encrypt(request, public_key)
                case Encapsulate():
                    done = supplied_keys.encapsulate(request, public_key)
                case Verify() | VerifyHash() | VerifyMu():
                    done = await supplied_keys.verify(request, public_key, executor, deadline)
                case _:
                    assert_never(request)
        except KeyServiceError as error:
            if own is None:
                raise
            raise RecordedError(error.kind, keyring=own.keyring, version=own.version) from None
        if own is None:
            return done
        return structs.replace(done, keyring=own.keyring, version=own.version)

    async def _find_public_key(
        self, tenant: TenantId, algorithm: Algorithm, public_key: bytes
    ) -> Sequence[tuple[KeyringName, KeyVersion]]:
        return await self._store.read(find_public_key, tenant, algorithm, public_key)

    async def encapsulate_all(
        self, request: Encapsulate, count: int, deadline: float
    ) -> Sequence[OperationResult]:
        """Return so many results of a request for a key of the tenant's, from a worker process.

        An empty sequence where no worker is ready. Raises what ``answer`` raises.
        """
        keyring = await self._keyring_cache.get(KeyringId(request.tenant, request.keyring))
        if request.operation not in ALGORITHMS[request.algorithm].operations:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        keyring.require(PURPOSE_OF.get(request.operation))
        name = KeyName(request.tenant, request.algorithm, request.keyring)
        versions = await self._key_cache.get(name)
        return await encapsulation.encapsulate_all(
            request, count, versions, self._material, self._encapsulation_workers, deadline
        )

    async def due_change(
        self, name: KeyName, now: datetime, deadline: float, *, destroys: bool
    ) -> DueChange | None:
        """Return the next change of a key that is due by itself, if there is one.

        None where it destroys a key, and that is not to be.
        """
        await self._require_no_destruction(name.tenant)
        versions = await self._key_cache.get(name)
        keyring = await self._keyring_cache.get(KeyringId(name.tenant, name.keyring))
        limits = AgeLimits(keyring.info.rotation_days, keyring.info.archive_after_days)
        executor = self._executors[name.algorithm]
        return await next_due(
            versions, limits, now, executor, deadline, self._least_delay, destroys=destroys
        )

    async def destruction_step(
        self, tenant: TenantId, now: datetime
    ) -> DueChange | DestructionStep | None:
        """Return the next change by which a tenant's private keys are destroyed, if that is due.

        Raises DamagedKeyError once nothing is left but keys that are damaged.
        """
        keyring = await self._keyring_cache.get(KeyringId(tenant, DEFAULT_KEYRING))
        found = keyring.destruction
        if found is None or found.state is DestructionState.COMPLETED or found.at > now:
            return None
        if found.state is DestructionState.SCHEDULED:
            begun = keyring.with_destruction_begun(found)
            return DestructionStep(KeyringChange(begun), Outcome.BEGUN)
        damage: DamagedKeyError | None = None
        for name in await self._store.query(list_keys, tenant):
            try:
                versions = await self._key_cache.get(name)
            except DamagedKeyError as error:
                damage = error
                continue
            if (change := next_destruction(versions, now)) is not None:
                return change
        if damage is not None:
            raise damage
        completed = keyring.with_destruction_completed(found)
        return DestructionStep(KeyringChange(completed), Outcome.COMPLETED)

    async def _require_no_destruction(self, tenant: TenantId) -> None:
        default = await self._keyring_cache.get(KeyringId(tenant, DEFAULT_KEYRING))
        default.require_no_destruction()

    async def _re_encrypt(self, request: ReEncrypt, source: Keyring) -> OperationResult:
        """Re-encrypt, if the one keyring is for reading and the other for writing."""
        wraps = request.is_wrapped_key
        source.require(PURPOSE_OF[Operation.UNWRAP if wraps else Operation.DECRYPT])
        try:
            target = await self._keyring_cache.get(
                KeyringId(request.tenant, request.target.keyring)
            )
        except KeyServiceError:
            raise KeyServiceError(ErrorKind.TARGET_NOT_FOUND) from None
        if PURPOSE_OF[Operation.WRAP if wraps else Operation.ENCRYPT] not in target.info.purposes:
            raise KeyServiceError(ErrorKind.TARGET_PURPOSE_DENIED)
        return await re_encryption.re_encrypt(request, self._key_cache.get, self._material)

    async def _answer_on_keyring(self, request: OnKeyring) -> OperationResult:
        if isinstance(request, ListKeyrings):
            return keyrings.list_(request, await self._store.list_keyrings(request.tenant))
        try:
            current = await self._keyring_cache.get(KeyringId(request.tenant, request.keyring))
        except KeyServiceError:
            if isinstance(request, CreateKeyring):
                return keyrings.create(request, None)
            raise
        match request:
            case CreateKeyring():
                return keyrings.create(request, current)
            case UpdateKeyring():
                return keyrings.update(request, current)
            case GetKeyring():
                return keyrings.get(current)
            case _:
                assert_never(request)

    async def _names(self, request: OnSeveralKeys) -> Iterable[KeyName]:
        if isinstance(request, ListPublicKeys):
            return [
                KeyName(request.tenant, each, request.keyring)
                for each in dict.fromkeys(request.algorithms)
            ]
        algorithms = tuple(Algorithm) if request.algorithm is None else (request.algorithm,)
        if not request.all_keyrings:
            return [KeyName(request.tenant, each, request.keyring) for each in algorithms]
        found = await self._store.query(list_keys, request.tenant)
        return [name for name in found if name.algorithm in algorithms]

    async def _previous(
        self, request: GenerateKey | RotateKey | ImportPrivateKey, versions: KeyVersions
    ) -> KeyEntry | None:
        idempotency = request.idempotency
        if idempotency is None:
            return None
        entry = versions.entry_generated_with(idempotency, clock.now())
        if entry is None and await self._store.is_idempotency_key_used(request.tenant, idempotency):
            raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)  # for another key
        return entry


def _has_use(keyring: Keyring, versions: KeyVersions) -> bool:
    """Return whether a new key could be used in a keyring, or there is one anyway."""
    return versions.active is not None or any(
        PURPOSE_OF.get(each) in keyring.info.purposes
        for each in ALGORITHMS[versions.algorithm].operations
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
