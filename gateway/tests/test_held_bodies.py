"""The limits of memory for large bodies, and their fairness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pqkeep_gateway.http import large_bodies
from pqkeep_gateway.http.errors import ApiError, ClientGoneError, Code
from pqkeep_gateway.http.large_bodies import (
    MAX_HANDLED,
    MAX_HANDLED_OF_ONE,
    MAX_HELD,
    LargeBodies,
    LargeBody,
)

MIB = 1024 * 1024


class Connection:
    """A client that reads when a test tells it to."""

    def __init__(self) -> None:
        self.is_evicted = False
        self.is_gone = asyncio.Event()

    def evict(self) -> None:
        """Note the eviction."""
        self.is_evicted = True

    async def receive(self) -> dict[str, Any]:
        """Return the message of a disconnect."""
        await self.is_gone.wait()
        return {"type": "http.disconnect"}


class Bodies:
    """The bodies of a test."""

    def __init__(self, capacity: int) -> None:
        self.all = LargeBodies(capacity)
        self._tasks: list[asyncio.Task[None]] = []

    def begun(self, sender: str, size: int) -> tuple[LargeBody, Connection]:
        """Return an incomplete body with some bytes."""
        connection = Connection()
        body = LargeBody(self.all, connection.evict).sent_by(sender)
        body.add(bytes(size))
        return body, connection

    async def whole(self, sender: str, size: int) -> tuple[LargeBody, asyncio.Task[None]]:
        """Return a complete body, and its wait for handling."""
        body, connection = self.begun(sender, size)
        task = asyncio.create_task(body.wait(connection.receive))
        self._tasks.append(task)
        await turns(3)
        return body, task

    def close(self) -> None:
        """Leave nothing waiting."""
        for task in self._tasks:
            task.cancel()


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    """Bodies with a limit of 16 MiB."""
    sent = Bodies(16 * MIB)
    yield sent
    sent.close()


@pytest.fixture
def roomy() -> Iterator[Bodies]:
    """Bodies with the gateway's limit."""
    sent = Bodies(MAX_HELD)
    yield sent
    sent.close()


async def turns(count: int) -> None:
    """Run the event loop for more turns than the admitted requests need."""
    for _ in range(count):
        await asyncio.sleep(0)


def is_refused(body: LargeBody) -> bool:
    """Return whether a body's next piece gets 503 with Retry-After."""
    try:
        body.add(b"more")
    except ApiError as error:
        return (error.code, error.headers) == (Code.SERVICE_001, {"Retry-After": "1"})
    return False


async def test_who_has_the_most_makes_room(bodies: Bodies) -> None:
    """Beyond the limit, only the newest body of the sender with the most bytes is refused."""
    of_most = [bodies.begun("most", 5 * MIB)[0] for _ in range(3)]
    other, _ = bodies.begun("other", 2 * MIB)
    assert [is_refused(body) for body in (*of_most, other)] == [False, False, True, False]
    assert bodies.all.held == 12 * MIB + 3 * len(b"more")


async def test_a_body_can_be_the_one_that_makes_room(bodies: Bodies) -> None:
    """The sender with the most bytes cannot send a new body, and keeps its earlier bodies."""
    of_most = [bodies.begun("most", 7 * MIB)[0] for _ in range(2)]
    with pytest.raises(ApiError, match="too many large bodies"):
        bodies.begun("most", 3 * MIB)
    assert not any(map(is_refused, of_most))


async def test_what_has_not_come_does_not_count(bodies: Bodies) -> None:
    """Only the received bytes of a body count."""
    body, _ = bodies.begun("slow", 0)
    held = [bodies.all.held]
    for size in (1, 999, MIB):
        body.add(bytes(size))
        held.append(bodies.all.held)
    assert held == [0, 1, 1000, MIB + 1000]


async def test_a_refused_body_is_let_go_at_once(bodies: Bodies) -> None:
    """A refused body is freed before its sender sends more."""
    kept, _ = bodies.begun("most", 9 * MIB)
    refused, _ = bodies.begun("most", 6 * MIB)
    bodies.begun("other", 5 * MIB)
    assert (len(kept.received), len(refused.received)) == (9 * MIB, 0)


async def test_a_request_that_ends_gives_back(bodies: Bodies) -> None:
    """The bytes of an aborted body are freed and no longer count."""
    cut, _ = bodies.begun("one", 5 * MIB)
    cut.end()
    assert (bodies.all.held, len(cut.received)) == (0, 0)


async def test_an_unread_answer_counts(bodies: Bodies) -> None:
    """A body counts until its response was read; an unread one is dropped if others need memory."""
    connections = []
    for _ in range(3):
        body, connection = bodies.begun("most", 5 * MIB)
        await body.wait(connection.receive)
        body.respond()
        connections.append(connection)
    other, _ = bodies.begun("other", 4 * MIB)
    assert [connection.is_evicted for connection in connections] == [False, False, True]
    assert not is_refused(other)


async def test_what_is_handled_is_not_cut_off(bodies: Bodies) -> None:
    """A body in the key service gets its response, even from the sender with the most bytes."""
    handled, connection = bodies.begun("most", 12 * MIB)
    await handled.wait(connection.receive)
    bodies.begun("most", 2 * MIB)
    bodies.begun("other", 4 * MIB)
    assert not connection.is_evicted
    assert bodies.all.held == 16 * MIB


async def test_what_is_handled_at_once_is_bounded(roomy: Bodies) -> None:
    """Of 20 MiB from two senders only as much is admitted as both limits allow."""
    handled = {"a": 0, "b": 0}
    for sender in ("a", "a", "a", "a", "a", "b", "b", "b"):
        _, task = await roomy.whole(sender, 5 * MIB // 2)
        handled[sender] += 5 * MIB // 2 if task.done() else 0
    assert handled == {"a": MAX_HANDLED_OF_ONE - 2 * MIB, "b": 5 * MIB}
    assert sum(handled.values()) <= MAX_HANDLED


async def test_senders_take_turns(roomy: Bodies) -> None:
    """Freed capacity goes to another sender's body before a sender's second one."""
    full = [(await roomy.whole(sender, 4 * MIB))[0] for sender in "abcd"]
    many = [(await roomy.whole("many", 2 * MIB))[1] for _ in range(3)]
    _, few = await roomy.whole("few", 2 * MIB)
    full[0].end()
    await turns(100)
    assert ([item.done() for item in many], few.done()) == ([True, False, False], True)


async def test_room_for_several_is_for_several(roomy: Bodies) -> None:
    """After a large body ends, a sender's smaller bodies are handled, up to the limit."""
    first, _ = await roomy.whole("one", MAX_HANDLED_OF_ONE)
    waiting = [(await roomy.whole("one", 2 * MIB))[1] for _ in range(7)]
    first.end()
    await turns(100)
    assert [item.done() for item in waiting] == [True] * 6 + [False]


async def test_a_large_one_is_not_overtaken_for_ever(roomy: Bodies) -> None:
    """Smaller bodies of other senders wait behind a large body that does not fit yet."""
    full = [(await roomy.whole(sender, 5 * MIB))[0] for sender in "abc"]
    _, large = await roomy.whole("large", 4 * MIB)
    _, small = await roomy.whole("small", MIB)
    assert not small.done()
    full[0].end()
    await turns(100)
    assert (large.done(), small.done()) == (True, True)


async def test_a_client_who_leaves_gives_the_place_up(roomy: Bodies) -> None:
    """A waiting body of a disconnected client is not handled, and delays no other."""
    first, _ = await roomy.whole("one", 12 * MIB)
    body, connection = roomy.begun("one", MIB)
    gone = asyncio.create_task(body.wait(connection.receive))
    await asyncio.sleep(0)
    connection.is_gone.set()
    with pytest.raises(ClientGoneError):
        await gone
    body.end()
    _, last = await roomy.whole("one", MIB)
    first.end()
    await last
    assert roomy.all.held == MIB


async def test_nobody_waits_for_ever(roomy: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that waits longer than the limit is refused with 503 and Retry-After."""
    monkeypatch.setattr(large_bodies, "WAIT_SECONDS", 0.01)
    await roomy.whole("one", 12 * MIB)
    body, connection = roomy.begun("one", MIB)
    with pytest.raises(ApiError) as raised:
        await body.wait(connection.receive)
    assert (raised.value.code, raised.value.headers) == (Code.SERVICE_001, {"Retry-After": "1"})
    body.end()
    assert roomy.all.held == 12 * MIB


async def test_a_slow_one_leaves_its_room(roomy: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow body continues to count, but others are handled beside it."""
    monkeypatch.setattr(large_bodies, "HANDLED_SECONDS", 0.2)
    for sender in "abcd":
        await roomy.whole(sender, 4 * MIB)
    _, other = await roomy.whole("other", 4 * MIB)
    assert not other.done()
    await other
    assert roomy.all.held == 20 * MIB
