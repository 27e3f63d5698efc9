"""Each gateway's share of a limit while Valkey is away, on a real Valkey that ends and returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

import pytest
from tests.fixtures import processes
from tests.fixtures.redis import running_valkey
from tests.patience import PATIENCE

from pqkeep_gateway.access.local_shares import NO_CHANGES, LocalShares
from pqkeep_gateway.access.rate_limit import ChangedError, Limit
from pqkeep_gateway.rehearsal import rehearse
from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter
from pqkeep_gateway.unavailable import UnavailableError

LIMIT = Limit(11, 60)


class Valkey:
    """A Valkey on a port, which can end and return."""

    def __init__(self) -> None:
        self._port = processes.free_port()
        self._stack = ExitStack()
        self.url = f"redis://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, empty."""
        self._stack.enter_context(running_valkey(self._port))

    def stop(self) -> None:
        """Stop it."""
        self._stack.close()


Parts = tuple[Valkey, LocalShares, LocalShares]


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    """A Valkey and two gateways with the clock at 1000."""
    valkey = Valkey()
    valkey.start()
    gateways = [
        LocalShares(
            RedisRateLimiter(valkey.url, None, lambda: 1000.0),
            2,
            lambda: 1000.0,
            retry_seconds=0.02,
        )
        for _ in range(2)
    ]
    yield (valkey, gateways[0], gateways[1])
    for gateway in gateways:
        await gateway.close()
    valkey.stop()


async def _admitted(gateway: LocalShares, subject: str = "a") -> int:
    waits = [await gateway.enter(subject, LIMIT) for _ in range(15)]
    assert all(wait is None or 0 < wait <= 60 for wait in waits)
    return waits.count(None)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)


async def _is_back(gateway: LocalShares) -> bool:
    return await gateway.changes() != NO_CHANGES


@pytest.mark.threat("rate-limit-store-away")
async def test_each_gateway_enforces_its_share(parts: Parts) -> None:
    """Without the store two gateways admit half of the limit each, again after an interruption."""
    valkey, first, second = parts
    assert await _admitted(first) == 11
    valkey.stop()
    assert [await _admitted(gateway) for gateway in (first, second)] == [5, 5]
    assert (await first.count("batch", LIMIT, events=6)).is_refused
    assert not (await first.count("batch", LIMIT, events=5)).is_refused
    await first.withdraw("a")
    assert await _admitted(first) == 1
    assert await first.enter("b", Limit(1, 60)) is None  # smaller than the number of gateways
    valkey.start()
    await _until(lambda: _is_back(first))
    assert await _admitted(first) == 11
    valkey.stop()
    assert await _admitted(first) == 0


async def test_no_look_up_is_valid_without_the_store(parts: Parts) -> None:
    """A look-up from before, during or after an absence is not valid in the next state."""
    valkey, first, second = parts
    before = await first.changes()
    assert await first.enter("a", LIMIT, before) is None
    valkey.stop()
    for _ in range(2):
        with pytest.raises(ChangedError):
            await first.enter("a", LIMIT, before)
        assert await first.changes() == NO_CHANGES
        with pytest.raises(ChangedError):
            await first.enter("a", LIMIT, NO_CHANGES)
    assert await _admitted(first) == 5
    assert await first.enter("a", LIMIT, before) is not None  # refused without a look-up
    await first.announce_change()
    with pytest.raises(UnavailableError):
        await first.check()
    valkey.start()
    await _until(lambda: _is_back(first))
    for as_of in (before, NO_CHANGES):
        for gateway in (first, second):
            with pytest.raises(ChangedError):
                await gateway.enter("new", LIMIT, as_of)


async def test_a_gateway_that_returns_makes_the_others_look_up(parts: Parts) -> None:
    """A change during the absence of one gateway is announced, even if a rehearsal noticed it."""
    valkey, first, second = parts
    valkey.stop()

    async def notice() -> None:
        await first.changes()

    await rehearse(notice)
    valkey.start()
    as_of = await second.changes()

    async def has_changed() -> bool:
        return await second.changes() != as_of

    await _until(has_changed)
