"""Group commit: while one batch of records is made durable, the next one gathers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pqkeep_keyservice.keys.changes import Change, CommitOutcome, IdempotencyRecord
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore, RecordedChange
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Idempotency
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

MAX_BATCH = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    entry: RecordedChange
    epoch: int
    durable: asyncio.Future[CommitOutcome]

    def hears(self, outcome: CommitOutcome) -> None:
        if not self.durable.done():
            self.durable.set_result(outcome)


class AuditLog:
    """Nothing is answered before its record is durable; if that fails, nothing is answered."""

    def __init__(self, store: KeyStore) -> None:
        """Write through the store."""
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    async def commit(
        self, new_record: NewRecord, change: Change | None = None, epoch: int | None = None
    ) -> CommitOutcome:
        """Make a record and its change durable. Raises UNAVAILABLE if that cannot be done.

        STALE: neither is, because another change came first, or because the epoch in which the
        record's work was done is over. Without an epoch it is this one.
        """
        durable: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()
        of_epoch = self._store.epoch if epoch is None else epoch
        self._waiting.append(_Waiting((new_record, change), of_epoch, durable))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await durable

    async def find_idempotency_record(
        self, tenant: TenantId, idempotency: Idempotency
    ) -> IdempotencyRecord | None:
        """Return what an Idempotency-Key was used for, if it was."""
        return await self._store.find_idempotency_record(tenant, idempotency)

    async def scrub(self) -> bool:
        """Leave no copy of what was deleted on disk; return whether that could be done."""
        return await self._store.scrub()

    async def _write_all(self) -> None:
        try:
            await self._write_batches()
        finally:
            self._writer = None

    async def _write_batches(self) -> None:
        while self._waiting:
            epoch = self._store.epoch
            batch = []
            for waiting in self._waiting[:MAX_BATCH]:
                if waiting.epoch == epoch:
                    batch.append(waiting)
                else:
                    waiting.hears(CommitOutcome.STALE)
            self._waiting = self._waiting[MAX_BATCH:]
            if batch:
                await self._write(batch, epoch)

    async def _write(self, batch: Sequence[_Waiting], epoch: int) -> None:
        try:
            outcomes = await self._store.commit([waiting.entry for waiting in batch], epoch)
        except DatabaseUnavailableError:  # which the database itself has logged, once
            _refuse(batch)
        except Exception:  # noqa: BLE001 - whatever it was, the records are not durable
            _LOG.exception("audit records could not be written")
            _refuse(batch)
        else:
            for waiting, outcome in zip(batch, outcomes, strict=True):
                waiting.hears(outcome)


def _refuse(batch: Sequence[_Waiting]) -> None:
    for waiting in batch:
        if not waiting.durable.done():
            waiting.durable.set_exception(KeyServiceError(ErrorKind.UNAVAILABLE))
