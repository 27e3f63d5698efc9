"""Executes a request as one transaction: the operation, its change and its audit record.

Nothing is answered before its record is durable. An operation whose change is stale, because
another change of the keyring was committed first, is run again on the new keyring.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.dispatch import Dispatcher
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyringChange
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.records import NewRecord, operation_record
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.keyring_cache import KeyringCache
from pqkeep_keyservice.live.keyring_locks import KeyringLocks
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import (
    AnyRequest,
    AnyResult,
    ArchiveKey,
    Attribution,
    GenerateKey,
    RetireKey,
    RotateKey,
    Wrap,
)
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


class Transactions:
    """Executes requests."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: KeyStore,
        log: AuditLog,
        keyrings: KeyringCache,
        material: KeyMaterial,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._log = log
        self._keyrings = keyrings
        self._material = material
        self._locks = KeyringLocks()

    async def execute(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        """Return the result, durably recorded, or raise KeyServiceError, durably recorded.

        The deadline is in the event loop's time. Late work is given up before its change is
        committed, never after.
        """
        epoch = self._keyrings.epoch
        try:
            async with self._lock(request, deadline):
                return await self._commit(request, attribution, deadline)
        except KeyServiceError as refusal:
            kind = refusal.kind
        except DamagedKeyError as damage:
            _LOG.error(
                "a key is damaged",
                operation=request.operation,
                tenant=str(request.tenant),
                damage=str(damage),
            )
            kind = ErrorKind.UNAVAILABLE
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None  # nothing can be recorded
        except Exception:  # noqa: BLE001 - an unexpected error is answered and recorded too
            _LOG.exception("operation failed", operation=request.operation)
            kind = ErrorKind.INTERNAL
        finally:
            if isinstance(request, Wrap):  # not sooner: the operation may be run again
                request.symmetric_key[:] = bytes(len(request.symmetric_key))
        version = getattr(request, "version", None)
        record = operation_record(request, attribution, version, kind)
        if await self._log.commit(record, epoch=epoch) is not CommitOutcome.DURABLE:
            kind = ErrorKind.UNAVAILABLE  # the keyring may have changed, and the answer with it
        raise KeyServiceError(kind)

    async def _commit(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        while True:
            _require_time(deadline)
            epoch = self._keyrings.epoch
            done = await self._dispatcher.answer(request, deadline)
            _require_time(deadline)
            record = operation_record(request, attribution, done.version, Outcome.SUCCESS)
            if done.change is None:
                outcome = await self._log.commit(record, epoch=epoch)
            else:
                outcome = await self._commit_change(record, done.change, epoch)
            if outcome is CommitOutcome.DURABLE:
                return done.result
            if outcome is CommitOutcome.QUOTA_REACHED:
                raise KeyServiceError(ErrorKind.KEY_QUOTA_REACHED)

    async def _commit_change(
        self, record: NewRecord, change: KeyringChange, epoch: int
    ) -> CommitOutcome:
        if change.destroys_a_seed and not await self._store.scrub():
            # Another process reads the file, so that a copy would stay: change nothing.
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        self._keyrings.invalidate(change.old)  # also right if the commit's outcome stays unknown
        outcome = await self._log.commit(record, change, epoch)
        if outcome is CommitOutcome.DURABLE:
            self._keyrings.update(change.new, epoch)
            if change.destroys_a_seed:
                await self._destroy_copies(change.new)
        return outcome

    async def _destroy_copies(self, keyring: Keyring) -> None:
        """Remove archived private keys from memory and from the write-ahead log."""
        for entry in keyring.entries:
            if entry.sealed is None:
                self._material.forget_private_key(keyring.tenant, entry)
        if not await self._store.scrub():
            _LOG.error(
                "an archived key is still in the write-ahead log; removal will be tried again"
            )

    def _lock(self, request: AnyRequest, deadline: float) -> AbstractAsyncContextManager[None]:
        if not isinstance(request, GenerateKey | RotateKey | RetireKey | ArchiveKey):
            return nullcontext()
        return self._locks.lock(request.tenant, request.algorithm, deadline)


def _require_time(deadline: float) -> None:
    if asyncio.get_running_loop().time() >= deadline:
        raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED)
