"""Large bodies that come at once do not keep the event loop from others in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pqkeep_gateway.http.body import LARGE, LargeBodies, read_json_object

MANY = 16


async def _read(size: int, large_bodies: LargeBodies) -> Mapping[str, Any]:
    body = b'{"plaintext":"' + b"A" * (size - 16) + b'"}'

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return await read_json_object(receive, {}, large_bodies, at_most=size, required=True)


async def _order(size: int) -> str:
    """Return what the event loop does while bodies come: B for a body, t for a turn of another."""
    order, large_bodies = "", LargeBodies()
    is_over = False

    async def read() -> None:
        nonlocal order
        await _read(size, large_bodies)
        order += "B"

    async def another() -> None:
        nonlocal order
        while not is_over:
            order += "t"
            await asyncio.sleep(0)

    others = asyncio.create_task(another())
    await asyncio.gather(*(read() for _ in range(MANY)))
    is_over = True
    await others
    return order


@pytest.mark.parametrize("size", [LARGE + 1, 4 * 1024 * 1024])
async def test_between_two_large_bodies_others_are_served(size: int) -> None:
    """Of 16 that are there at once, one is parsed in each turn of the event loop."""
    order = await _order(size)
    assert order.count("B") == MANY
    assert "BB" not in order


async def test_small_bodies_do_not_wait() -> None:
    """Up to 64 KiB a body is parsed at once."""
    assert "B" * MANY in await _order(LARGE)


async def test_who_gives_up_holds_nobody_up() -> None:
    """A request that ends while its body waits leaves the others their turn."""
    large_bodies = LargeBodies()
    tasks = [asyncio.create_task(_read(LARGE + 1, large_bodies)) for _ in range(MANY)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, dict) for each in results] == [False, True] * (MANY // 2)
