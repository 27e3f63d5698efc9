"""Streams the audit log to an external sink: every record at least once, in order.

Records are read from the key service in pages, after a cursor in the accounts database. The cursor
moves when the sink has accepted a page. So memory use is limited, and an unavailable sink delays
nothing: the records wait in the log. Of several gateways one streams, with a lease.

Each shard's log is streamed separately. With several shards, each line names its log, because each
log has its own ids from 1.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID, uuid4

import msgspec
from msgspec import Raw, Struct

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.background import repeat
from pqkeep_gateway.storage.audit_outbox import SqlCursors
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import MAX_PAGE, ListAuditKeys, ListRecords
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, KeyService
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

POLL_SECONDS = 1.0
"""The period of the search for new records."""
LEASE = timedelta(seconds=60)
"""The time for which one gateway streams alone: longer than a sink may take for a page."""
LONGEST_PAUSE_SECONDS = 60.0
"""The longest pause between attempts to reach a sink: 1, 2, 4 seconds and so on."""
_ATTRIBUTION = Attribution("", "gateway", "")


class StreamedRecord(Struct, frozen=True):
    """The parts of a record that sinks need, and its text."""

    id: int
    operation: str
    recorded_at: datetime
    line: bytes = b""
    """The JSON text that is hashed into the record's leaf: one line, without the line feed."""


class SinkError(Exception):
    """The sink did not accept the records. The message is for the log and contains no records."""


class Sink(Protocol):
    """The destination of the stream."""

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Return when the sink has these records. Runs in a thread. Raises SinkError, OSError."""
        ...


class AuditStream:
    """Streams the log to one sink."""

    def __init__(
        self,
        cursors: SqlCursors,
        name: str,
        sink: Sink,
        keys: KeyService,
        clock: Clock,
        *,
        shard: str | None = None,
    ) -> None:
        """Take the sink's name, under which its cursor is stored.

        ``shard``: the shard of the log, if there are several.
        """
        self._shard = shard
        self._cursors = cursors
        self._name = name
        self._sink = sink
        self._keys = keys
        self._clock = clock
        self._holder = uuid4()
        self._cursor: int | None = None
        self._renew_at = date_of(0)
        self._waits_since: datetime | None = None
        self._pause = 0.0
        self._resume_at = 0.0

    @property
    def lag_seconds(self) -> float:
        """The age of the oldest record that the sink lacks; 0 if another gateway streams."""
        if self._waits_since is None:
            return 0.0
        return max(0.0, self._clock() - self._waits_since.timestamp())

    async def run(self) -> None:
        """Stream until cancelled; then release the lease for another gateway."""
        try:
            await repeat(self.send, POLL_SECONDS)
        finally:
            if self._cursor is not None:
                with suppress(UnavailableError):
                    await self._cursors.release(self._name, self._holder)

    async def send(self) -> None:
        """Send new records to the sink, unless it has just failed. Raises UnavailableError."""
        if self._clock() < self._resume_at:
            return
        try:
            while await self._send_page():
                self._succeeded()
        except (SinkError, OSError) as error:
            self._failed(error)

    async def _send_page(self) -> bool:
        """Send the next page; return False if there was none."""
        now = date_of(self._clock())
        if self._cursor is None or now >= self._renew_at:
            self._cursor = await self._cursors.claim(self._name, self._holder, now, now + LEASE)
            self._renew_at = now + LEASE / 2
        records = [] if self._cursor is None else await self._read(self._cursor)
        self._waits_since = records[0].recorded_at if records else None
        if not records:
            return False
        if (
            date_of(self._clock()) >= self._renew_at
        ):  # after a pause another gateway may have the lease
            self._cursor = None
            return False
        self._cursor = None  # unknown until the sink has accepted the page
        await asyncio.to_thread(self._sink.send, records)
        last, until = records[-1].id, date_of(self._clock()) + LEASE
        is_ours = await self._cursors.save(self._name, self._holder, last, until)
        self._cursor = last if is_ours else None
        self._waits_since = None
        return True

    async def _read(self, after: int) -> Sequence[StreamedRecord]:
        request = ListRecords(tenant=INSTALLATION, after=after, limit=MAX_PAGE)
        try:
            page = await self._keys.execute(request, _ATTRIBUTION)
            records = [_record(line) for line in page.lines]
            if self._shard is None or not records:
                return records
            about = ListAuditKeys(tenant=INSTALLATION)
            log_id = (await self._keys.execute(about, _ATTRIBUTION)).log_id
        except KeyServiceError:
            raise UnavailableError from None
        return [_of_log(record, self._shard, log_id) for record in records]

    def _succeeded(self) -> None:
        if self._pause:
            _LOG.info("the audit log is streamed to its sink again")
        self._pause = 0.0

    def _failed(self, error: Exception) -> None:
        if not self._pause:
            _LOG.warning("the audit sink takes no records, which wait", error=_problem(error))
        self._pause = min(max(1.0, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._resume_at = self._clock() + self._pause


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(StreamedRecord)


def _record(line: bytes) -> StreamedRecord:
    return msgspec.structs.replace(_DECODER.decode(line), line=line)


def _of_log(record: StreamedRecord, shard: str, log_id: UUID) -> StreamedRecord:
    """Return a record with its log's id and shard in the line, around the original text."""
    line = _ENCODER.encode({"log_id": log_id, "shard": shard, "record": Raw(record.line)})
    return msgspec.structs.replace(record, line=line)


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)
