"""The one place where a request meets the code that answers it."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import assert_never

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome, IdempotencyRecord, KeyringChange
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.records import NewRecord, operation_record
from pqkeep_keyservice.live.keyring_cache import KeyringCache
from pqkeep_keyservice.live.keyring_locks import KeyringLocks
from pqkeep_keyservice.live.resources import Resources
from pqkeep_keyservice.operations import (
    encapsulation,
    encryption,
    lifecycle,
    mismatch,
    signing,
    wrapping,
)
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import (
    AnyRequest,
    AnyResult,
    ArchiveKey,
    Attribution,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetKey,
    ListKeys,
    RetireKey,
    RotateKey,
    Sign,
    SignHash,
    Unwrap,
    Verify,
    VerifyHash,
    Wrap,
)
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


def _require_time(deadline: float) -> None:
    if asyncio.get_running_loop().time() >= deadline:
        raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED)


class Dispatcher:
    """Answers requests: the work, then its audit record, then the answer."""

    def __init__(self, keyrings: KeyringCache, resources: Resources, log: AuditLog) -> None:
        """Hold what the operations need."""
        self._keyrings = keyrings
        self._resources = resources
        self._log = log
        self._turns = KeyringLocks()

    async def execute(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        """Return the result, durably recorded, or raise KeyServiceError, durably recorded.

        The deadline is in the event loop's time. Work that is late is given up before its change
        is committed, never after.
        """
        epoch = self._keyrings.epoch
        try:
            async with self._turn(request, deadline):
                return await self._until_done(request, attribution, deadline)
        except KeyServiceError as refusal:
            kind = refusal.kind
        except DamagedKeyError:
            _LOG.error("a key is damaged", operation=request.operation, tenant=str(request.tenant))
            kind = ErrorKind.UNAVAILABLE
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None  # nothing can be recorded
        except Exception:  # noqa: BLE001 - a fault of ours is an answer too, and is recorded
            _LOG.exception("operation failed", operation=request.operation)
            kind = ErrorKind.INTERNAL
        version = getattr(request, "version", None)
        row = operation_record(request, attribution, version, kind)
        if await self._log.commit(row, epoch=epoch) is not CommitOutcome.DURABLE:
            kind = ErrorKind.UNAVAILABLE  # the keys may be others by now, and the answer too
        raise KeyServiceError(kind)

    async def _until_done(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        while True:
            _require_time(deadline)
            epoch = self._keyrings.epoch
            done = await self._answer(request, deadline)
            _require_time(deadline)
            new_record = operation_record(request, attribution, done.version, Outcome.SUCCESS)
            if done.change is None:
                is_recorded = (
                    await self._log.commit(new_record, epoch=epoch) is CommitOutcome.DURABLE
                )
            else:
                is_recorded = await self._is_changed(new_record, done.change, epoch)
            if is_recorded:
                return done.result

    async def _is_changed(self, new_record: NewRecord, change: KeyringChange, epoch: int) -> bool:
        """Make a change durable with its record; return False where another change came first."""
        if change.destroys_a_seed and not await self._log.scrub():
            # Somebody reads the file, so a copy would stay: change nothing, and say so.
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        self._keyrings.forget(change.old)  # whatever becomes of the commit, ask the database
        match await self._log.commit(new_record, change, epoch):
            case CommitOutcome.DURABLE:
                self._keyrings.put(change.new, epoch)
                if change.destroys_a_seed:
                    await self._destroy(change.new)
                return True
            case CommitOutcome.QUOTA_REACHED:
                raise KeyServiceError(ErrorKind.KEY_QUOTA_REACHED)
            case CommitOutcome.STALE:
                return False

    async def _find_idempotency_record(
        self, request: GenerateKey | RotateKey
    ) -> IdempotencyRecord | None:
        """Return what the request's Idempotency-Key was used for, if it was."""
        if request.idempotency is None:
            return None
        return await self._log.find_idempotency_record(request.tenant, request.idempotency)

    def _turn(self, request: AnyRequest, deadline: float) -> AbstractAsyncContextManager[None]:
        if not isinstance(request, GenerateKey | RotateKey | RetireKey | ArchiveKey):
            return nullcontext()
        return self._turns.turn(request.tenant, request.algorithm, deadline)

    async def _destroy(self, keyring: Keyring) -> None:
        """Leave no copy of an archived seed, in memory or on disk."""
        for entry in keyring.entries:
            if entry.sealed is None:
                self._resources.material.forget(keyring.tenant, entry)
        if not await self._log.scrub():
            _LOG.error(
                "an archived key is still in the write-ahead log; removal will be tried again"
            )

    async def _answer(  # noqa: C901, PLR0911, PLR0912 - one flat table, checked by assert_never
        self, request: AnyRequest, deadline: float
    ) -> OperationResult:
        if isinstance(request, ListKeys):
            wanted = Algorithm if request.algorithm is None else (request.algorithm,)
            keyrings = [await self._keyrings.get(request.tenant, algorithm) for algorithm in wanted]
            return lifecycle.list_(request, keyrings, self._resources.material)

        if request.operation not in ALGORITHMS[request.algorithm].operations:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        keyring = await self._keyrings.get(request.tenant, request.algorithm)
        material = self._resources.material
        match request:
            case Encrypt():
                return encryption.encrypt(request, keyring, material)
            case Decrypt() | Unwrap():
                return await mismatch.open_(request, keyring, self._keyrings.get, material)
            case Encapsulate():
                return encapsulation.encapsulate(request, keyring, material)
            case Decapsulate():
                return encapsulation.decapsulate(request, keyring, material)
            case Wrap():
                return wrapping.wrap(request, keyring, material)
            case Sign() | SignHash():
                return await signing.sign(request, keyring, self._resources, deadline)
            case Verify() | VerifyHash():
                return await signing.verify(request, keyring, self._resources, deadline)
            case GenerateKey() | RotateKey() if previous := await self._find_idempotency_record(
                request
            ):
                return lifecycle.repeat(request, keyring, previous, material)
            case GenerateKey():
                return await lifecycle.generate(request, keyring, self._resources, deadline)
            case RotateKey():
                return await lifecycle.rotate(request, keyring, self._resources, deadline)
            case RetireKey():
                return lifecycle.retire(request, keyring, material)
            case ArchiveKey():
                return lifecycle.archive(request, keyring, material)
            case GetKey() | GetActiveKey():
                return lifecycle.get(request, keyring, material)
            case _:
                assert_never(request)
