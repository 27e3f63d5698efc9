"""Group commit: the next batch of records is collected while one is written."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from pqkeep_keyservice.keys.changes import Change, CommitOutcome
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore, RecordedChange
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.metrics import Distribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

MAX_BATCH = 1_000
"""The most records in one transaction. One append of several records can exceed it."""


Then = Callable[[CommitOutcome | None], None]
"""Called with a record's outcome, or with None if the record could not be written."""


class _Waiting(NamedTuple):
    entries: Sequence[RecordedChange]
    """One entry with its change, or several without changes."""
    epoch: int
    then: Then


class AuditLog:
    """Makes audit records durable, together with their changes."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self.commits = {"success": 0, "failure": 0}
        """The number of commits."""
        self.durations = Distribution()
        """The durations of commits."""

    @property
    def waiting(self) -> int:
        """The number of records that wait for a commit."""
        return sum(len(waiting.entries) for waiting in self._waiting)

    async def commit(
        self, record: NewRecord, change: Change | None = None, epoch: int | None = None
    ) -> CommitOutcome:
        """Make a record and its change durable. Raises UNAVAILABLE if they cannot be written.

        ``epoch`` is the epoch in which the change was computed; None is the current one. After it
        ends, record and change are STALE.
        """
        return await self._commit([(record, change)], epoch)

    async def commit_all(self, records: Sequence[NewRecord], epoch: int) -> CommitOutcome:
        """Make records durable in one transaction, in order and without other records between them.

        Raises UNAVAILABLE if they cannot be written. After their epoch ends, all are STALE.
        """
        return await self._commit([(record, None) for record in records], epoch)

    def append(self, entries: Sequence[RecordedChange], epoch: int, then: Then) -> None:
        """Make entries durable in one transaction, and pass the outcome to ``then``.

        It takes one entry with its change, or several without changes. After their epoch ends, they
        are STALE.
        """
        self._waiting.append(_Waiting(entries, epoch, then))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())

    async def _commit(self, entries: Sequence[RecordedChange], epoch: int | None) -> CommitOutcome:
        outcome: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()
        epoch = self._store.writer.epoch if epoch is None else epoch
        self.append(entries, epoch, partial(_settle, outcome))
        try:
            return await outcome
        finally:
            del outcome  # its exception refers to this frame and to those of the request

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                epoch = self._store.writer.epoch
                batch: list[_Waiting] = []
                records = taken = 0
                for waiting in self._waiting:
                    if batch and records + len(waiting.entries) > MAX_BATCH:
                        break
                    taken += 1
                    if waiting.epoch == epoch:
                        batch.append(waiting)
                        records += len(waiting.entries)
                    else:
                        waiting.then(CommitOutcome.STALE)
                self._waiting = self._waiting[taken:]
                if batch:
                    await self._write(batch, epoch)
        finally:
            self._writer = None

    async def _write(self, batch: Sequence[_Waiting], epoch: int) -> None:
        began, ended = perf_counter(), "failure"
        try:
            entries = [entry for waiting in batch for entry in waiting.entries]
            outcomes = await self._store.commit(entries, epoch)
        except DatabaseUnavailableError:  # already logged once by the database
            _fail(batch)
        except Exception:  # noqa: BLE001 - after any failure the records are not durable
            _LOG.exception("audit records could not be written")
            _fail(batch)
        else:
            ended = "success"
            end = 0
            for waiting in batch:
                end += len(waiting.entries)
                waiting.then(outcomes[end - 1])  # entries without changes share one outcome
        self.commits[ended] += 1
        self.durations.observe(perf_counter() - began)


def _fail(batch: Sequence[_Waiting]) -> None:
    for waiting in batch:
        waiting.then(None)


def _settle(waiting: asyncio.Future[CommitOutcome], outcome: CommitOutcome | None) -> None:
    if waiting.done():  # cancelled by its caller
        return
    if outcome is None:
        waiting.set_exception(KeyServiceError(ErrorKind.UNAVAILABLE))
    else:
        waiting.set_result(outcome)
