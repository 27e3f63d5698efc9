"""Background tasks continue after any exception."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.patience import PATIENCE

from pqkeep_gateway.background import repeat
from pqkeep_gateway.unavailable import UnavailableError


async def test_a_task_that_fails_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """The task continues after every error, and only unexpected errors are logged."""
    problems = [ZeroDivisionError(), UnavailableError()]
    succeeded = asyncio.Event()

    async def fail_twice() -> None:
        if problems:
            raise problems.pop()
        succeeded.set()

    task = asyncio.create_task(repeat(fail_twice, 0))
    async with asyncio.timeout(PATIENCE):
        await succeeded.wait()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
