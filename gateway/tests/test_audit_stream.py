"""The audit log is streamed to a sink: every record, in order, after the sink's last one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from uuid import uuid4

import pytest
from gateway.tests.world import SettableClock
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.audit_stream import LEASE, AuditStream, SinkError, StreamedRecord
from pqkeep_gateway.storage.audit_outbox import SqlCursors
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import MAX_PAGE, ListRecords, Records
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, R_co, Request

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

SINK = "file:///audit.jsonl"


@dataclass
class FakeLog:
    """A key service with a log."""

    size: int = 0
    asked: int = 0
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    is_unavailable: bool = False
    recorded_at: float = 1_800_000_000.0

    async def execute(self, request: Request[R_co], _: Attribution, /) -> R_co:
        """Return a page of records."""
        assert isinstance(request, ListRecords)
        assert (request.tenant, request.limit) == (INSTALLATION, MAX_PAGE)
        if self.is_unavailable:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        self.asked += 1
        self.was_asked.set()
        first = (request.after or 0) + 1
        ids = range(first, min(self.size, first + MAX_PAGE - 1) + 1)
        return cast(R_co, Records(lines=tuple(map(self.line, ids)), next=None))

    def line(self, number: int) -> bytes:
        """Return the text of a record."""
        when = f"{date_of(self.recorded_at):%Y-%m-%dT%H:%M:%S.%fZ}"
        return f'{{"id":{number},"operation":"encrypt","recorded_at":"{when}"}}'.encode()


@dataclass
class FakeSink:
    """A sink that keeps its records. It can fail before or after it stores them."""

    taken: list[StreamedRecord] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    fails: bool = False
    loses_responses: bool = False

    def send(self, records: Sequence[StreamedRecord]) -> None:
        """Take a page."""
        if self.fails:
            raise SinkError("not now")
        self.taken += records
        self.pages.append(len(records))
        if self.loses_responses:
            raise ConnectionResetError

    @property
    def ids(self) -> list[int]:
        """Its records in order."""
        return [item.id for item in self.taken]


@dataclass
class Setting:
    """A log, a sink, and gateways that stream the log to the sink."""

    engine: AsyncEngine
    log: FakeLog = field(default_factory=FakeLog)
    sink: FakeSink = field(default_factory=FakeSink)
    clock: SettableClock = field(default_factory=SettableClock)

    def gateway(self) -> AuditStream:
        """Return a gateway that has just started."""
        return AuditStream(SqlCursors(self.engine), SINK, self.sink, self.log, self.clock)


@pytest.fixture
def setting(engine: AsyncEngine) -> Setting:
    """An empty log."""
    return Setting(engine)


async def test_every_record_is_sent_in_order_and_once(setting: Setting) -> None:
    """Pages have at most the size of a message, later records follow, and texts are unchanged."""
    gateway = setting.gateway()
    await gateway.send()
    assert setting.sink.ids == []
    setting.log.size = 2 * MAX_PAGE + 3
    await gateway.send()
    assert setting.sink.ids == list(range(1, setting.log.size + 1))
    assert setting.sink.pages == [MAX_PAGE, MAX_PAGE, 3]
    setting.log.size += 1
    await gateway.send()
    await gateway.send()
    assert setting.sink.ids == list(range(1, setting.log.size + 1))
    assert setting.sink.taken[-1].line == setting.log.line(setting.log.size)


async def test_a_restart_goes_on_where_the_sink_is(setting: Setting) -> None:
    """A new gateway continues the stream without repetitions or gaps."""
    setting.log.size = 10
    await setting.gateway().send()
    setting.log.size = 20
    setting.clock.now += LEASE.total_seconds()
    await setting.gateway().send()
    assert setting.sink.ids == list(range(1, 21))


async def test_what_is_not_confirmed_is_sent_again(setting: Setting) -> None:
    """After a lost response of the sink, the page is sent again."""
    gateway = setting.gateway()
    setting.log.size = 3
    setting.sink.loses_responses = True
    await gateway.send()
    setting.sink.loses_responses = False
    setting.clock.now += 1
    await gateway.send()
    assert setting.sink.ids == [1, 2, 3, 1, 2, 3]


async def test_a_sink_that_is_gone_is_asked_ever_more_rarely(setting: Setting) -> None:
    """Retries of a failed sink have doubling pauses up to a minute, without reads of the log."""
    gateway = setting.gateway()
    setting.log.size = 3
    setting.sink.fails = True
    start = setting.clock.now
    attempts = []
    for second in range(200):
        setting.clock.now = start + second
        before = setting.log.asked
        await gateway.send()
        if setting.log.asked > before:
            attempts.append(second)
    assert attempts == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert gateway.lag_seconds == 199
    setting.sink.fails = False
    setting.clock.now = start + 243
    await gateway.send()
    assert setting.sink.ids == [1, 2, 3]
    assert gateway.lag_seconds == 0


async def test_one_gateway_streams_at_a_time(setting: Setting) -> None:
    """Only the gateway with the lease streams; after the lease's end another one continues."""
    first, second = setting.gateway(), setting.gateway()
    setting.log.size = 3
    await first.send()
    setting.log.size = 6
    await second.send()
    assert setting.sink.ids == [1, 2, 3]
    setting.clock.now += LEASE.total_seconds()
    await second.send()
    assert setting.sink.ids == [1, 2, 3, 4, 5, 6]
    setting.log.size = 9
    await first.send()
    assert setting.sink.ids == [1, 2, 3, 4, 5, 6]


async def test_a_gateway_that_ends_makes_way(setting: Setting) -> None:
    """A stopped gateway releases its lease, and another one streams immediately."""
    setting.log.size = 3
    gateway = setting.gateway()
    await gateway.send()
    setting.log.was_asked.clear()
    task = asyncio.create_task(gateway.run())
    await setting.log.was_asked.wait()
    task.cancel()
    await asyncio.wait([task])
    setting.log.size = 6
    await setting.gateway().send()
    assert setting.sink.ids == [1, 2, 3, 4, 5, 6]


async def test_a_gateway_that_lost_the_lease_moves_no_cursor(setting: Setting) -> None:
    """If a page takes longer than the lease, the gateway does not move the new holder's cursor."""
    slow, other = uuid4(), uuid4()
    cursors = SqlCursors(setting.engine)
    now = date_of(setting.clock.now)
    assert await cursors.claim(SINK, slow, now, now) == 0
    assert await cursors.claim(SINK, other, now, now + LEASE) == 0
    assert await cursors.save(SINK, other, 6, now + LEASE)
    assert not await cursors.save(SINK, slow, 3, now + LEASE)
    assert await cursors.claim(SINK, slow, now, now + LEASE) is None
    assert await cursors.claim(SINK, other, now, now + LEASE) == 6


async def test_a_gateway_that_was_paused_sends_nothing(setting: Setting) -> None:
    """A gateway that was paused does not repeat records that another gateway has sent meanwhile."""
    paused, other = setting.gateway(), setting.gateway()
    setting.log.size = 3
    read = paused._read

    async def read_and_pause(after: int) -> Sequence[StreamedRecord]:
        records = await read(after)
        setting.clock.now += LEASE.total_seconds()
        await other.send()
        return records

    paused._read = read_and_pause  # type: ignore[method-assign]
    await paused.send()
    assert setting.sink.ids == [1, 2, 3]


async def test_each_sink_has_its_own_cursor(setting: Setting) -> None:
    """A sink with a new address gets the log from the first record."""
    setting.log.size = 3
    await setting.gateway().send()
    stream = AuditStream(
        SqlCursors(setting.engine), "file:///other", setting.sink, setting.log, setting.clock
    )
    await stream.send()
    assert setting.sink.ids == [1, 2, 3, 1, 2, 3]


async def test_without_the_key_service_it_waits(setting: Setting) -> None:
    """Without the key service nothing is sent, and the sink is not reported as failed."""
    gateway = setting.gateway()
    setting.log.size = 3
    setting.log.is_unavailable = True
    with pytest.raises(UnavailableError):
        await gateway.send()
    setting.log.is_unavailable = False
    await gateway.send()
    assert setting.sink.ids == [1, 2, 3]
