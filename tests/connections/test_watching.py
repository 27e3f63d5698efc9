"""The beginning and the end of a connection's phases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.connection import HttpConnection, Listener, application
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.watching import CHECKED_AT_ONCE, ENDED_AT_ONCE, watch_connections

HALF = b"GET / HTTP/1.1\r\n"
REST = b"Host: x\r\n\r\n"


class Transport(asyncio.Transport):
    """A client that receives nothing and records how its connection ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return an address."""
        return ("192.0.2.1", 4711) if name in ("peername", "sockname") else default

    def writelines(self, _: Any) -> None:
        """Take an answer."""

    def write_eof(self) -> None:
        """Close one side."""

    def is_closing(self) -> bool:
        """Return True if it was closed."""
        return bool(self.ended)

    def close(self) -> None:
        """Remember it."""
        self.ended = "closed"

    def abort(self) -> None:
        """Remember it."""
        self.ended = "aborted"

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


async def _answer(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Setting:
    """One connection, checked at chosen times."""

    def __init__(self) -> None:
        self.transport = Transport()
        counted = Connections(8, 8, SourceBudget(Limit(8, 1), lambda: 1000.0))
        self.state = Listener(application(_answer), counted, RequestObserver())
        self.connection = self.state.connection()
        self.connection.connection_made(self.transport)

    def ended_at(self, *times: float) -> str:
        """Check at some times; return how the connection ended."""
        for now in times:
            self.connection.check_deadline(now)
        return self.transport.ended

    async def finish(self) -> None:
        """Send the responses."""
        await asyncio.gather(*self.state.tasks)
        await asyncio.sleep(0)


@pytest.fixture
async def setting() -> Setting:
    """A new connection."""
    return Setting()


async def test_a_phase_lasts_as_long_as_it_may(setting: Setting) -> None:
    """A connection without a request is closed exactly when its timeout ends."""
    assert setting.ended_at(100.0, 109.9) == ""
    assert setting.ended_at(110.0) == "closed"


async def test_each_request_has_its_own_time(setting: Setting) -> None:
    """If a request follows another one between two checks, it still gets its full time."""
    setting.connection.data_received(HALF)
    assert setting.ended_at(100.0, 109.0) == ""
    setting.connection.data_received(REST)
    await setting.finish()
    setting.connection.data_received(HALF)
    assert setting.ended_at(110.0, 119.0) == ""
    assert setting.ended_at(120.0) == ""  # the answer 400, then it waits for the client to close
    assert setting.ended_at(120.5, 125.5) == "aborted"


async def test_each_pause_between_requests_has_its_own_time(setting: Setting) -> None:
    """A connection that was idle at two checks, but in use between them, stays open."""
    setting.connection.data_received(HALF + REST)
    await setting.finish()
    assert setting.ended_at(100.0, 164.0) == ""
    setting.connection.data_received(HALF + REST)
    await setting.finish()
    assert setting.ended_at(165.0, 229.0) == ""
    assert setting.ended_at(230.0) == "closed"


async def test_a_slow_reader_that_reads_has_time(setting: Setting) -> None:
    """A slow client that has read something since the last check has its full time again."""
    for now in (100.0, 119.0, 138.0):
        setting.connection.pause_writing()
        assert setting.ended_at(now) == ""
        setting.connection.resume_writing()
    setting.connection.pause_writing()
    assert setting.ended_at(150.0, 169.9) == ""
    assert setting.ended_at(170.0) == "aborted"


async def test_a_lost_connection_is_not_ended_again(setting: Setting) -> None:
    """A connection that was lost since the last look-up is not ended again."""
    setting.connection.data_received(HALF)
    assert setting.ended_at(100.0) == ""
    setting.connection.connection_lost(ConnectionResetError())
    assert setting.ended_at(110.0) == ""


async def test_what_ends_together_is_ended_in_turns() -> None:
    """If many connections expire at once, other tasks run after a few of them."""
    ended = 0

    class Expired(HttpConnection):
        """An expired connection."""

        def check_deadline(self, now: float) -> bool:
            """Count it."""
            nonlocal ended
            ended += 1
            return True

    connections = [Setting().connection for _ in range(2 * CHECKED_AT_ONCE)]
    for each in connections:
        each.__class__ = Expired
    watching = asyncio.create_task(watch_connections(connections))
    most = 0
    while ended < len(connections):
        before = ended
        await asyncio.sleep(0)
        most = max(most, ended - before)
    watching.cancel()
    assert 0 < most <= ENDED_AT_ONCE


async def test_a_fault_in_one_connection_ends_only_that_one() -> None:
    """A fault in one connection does not stop the checks of the others."""
    checked = asyncio.Event()

    class Last(HttpConnection):
        """The last connection of many."""

        def check_deadline(self, now: float) -> bool:
            """Remember the check."""
            checked.set()
            return False

    class Faulty(HttpConnection):
        """A connection that raises an error."""

        def check_deadline(self, now: float) -> bool:
            """Fail."""
            raise RuntimeError

    settings = [Setting() for _ in range(CHECKED_AT_ONCE)]
    settings[0].connection.__class__ = Faulty
    last = Setting()
    last.connection.__class__ = Last
    connections = [each.connection for each in (*settings, last)]
    watching = asyncio.create_task(watch_connections(connections))
    await checked.wait()
    watching.cancel()
    assert [each.transport.ended for each in (settings[0], last)] == ["aborted", ""]
