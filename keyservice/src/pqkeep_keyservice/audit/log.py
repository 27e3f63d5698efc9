"""Group commit: while one batch of records is made durable, the next one gathers."""

import asyncio
import logging

from pqkeep_keyservice.storage.once import Earlier
from pqkeep_keyservice.storage.store import AuditRow, Change, Entry, KeyStore, Verdict
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Once

_LOG = logging.getLogger(__name__)

MAX_BATCH = 1_000


class AuditLog:
    """Nothing is answered before its record is durable; if that fails, nothing is answered."""

    def __init__(self, store: KeyStore) -> None:
        """Write through the store."""
        self._store = store
        self._waiting: list[tuple[Entry, asyncio.Future[Verdict]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def commit(self, row: AuditRow, change: Change | None = None) -> Verdict:
        """Make a record and its change durable. Raises UNAVAILABLE if that cannot be done."""
        durable: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(((row, change), durable))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await durable

    async def find_earlier(self, tenant: TenantId, once: Once) -> Earlier | None:
        """Return what an Idempotency-Key was used for, if it was."""
        return await self._store.find_earlier(tenant, once)

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
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            try:
                verdicts = await self._store.commit([entry for entry, _ in batch])
            except Exception:  # noqa: BLE001 - whatever it was, the records are not durable
                _LOG.exception("audit records could not be written")
                for _, durable in batch:
                    if not durable.done():
                        durable.set_exception(KeyServiceError(ErrorKind.UNAVAILABLE))
            else:
                for (_, durable), verdict in zip(batch, verdicts, strict=True):
                    if not durable.done():
                        durable.set_result(verdict)
