"""A background task that fails ends its process. One that ends or is cancelled does not."""

import asyncio
import logging
from contextlib import suppress

import pytest
from tests.patience import PATIENCE

from pqkeep_protocol.startup import background_tasks
from pqkeep_protocol.startup.background_tasks import BackgroundTasks


async def fail() -> None:
    """Fail."""
    raise LookupError


async def wait() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


async def test_a_failure_is_logged_and_stops_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """The error is in the log, and the process is told to stop."""
    stopped = asyncio.Event()
    tasks = BackgroundTasks(stopped.set)
    tasks.begin(wait())
    tasks.begin(fail())
    await asyncio.wait_for(stopped.wait(), PATIENCE)
    assert tasks.failed
    (line,) = (record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert "a background task failed" in str(line.msg)
    assert "LookupError" in str(line.msg)
    await tasks.end()


async def test_an_end_is_no_failure() -> None:
    """Tasks that end or are cancelled do not stop the process."""
    tasks = BackgroundTasks(lambda: pytest.fail("stopped"))
    await tasks.end()
    tasks.begin(asyncio.sleep(0))
    cancel = tasks.begin(wait())
    tasks.begin(wait())
    await asyncio.sleep(0.01)
    cancel()
    await tasks.end()
    assert not tasks.failed


async def test_a_task_that_ignores_its_end_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end does not wait for a task that ignores its cancellation. The log names the task."""
    monkeypatch.setattr(background_tasks, "END_SECONDS", 0.05)
    may_end = asyncio.Event()

    async def ignore() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    tasks = BackgroundTasks(lambda: pytest.fail("stopped"))
    ended = tasks.begin(ignore()), tasks.begin(wait())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await tasks.end()
    (line,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "a background task does not end" in str(line.msg)
    assert "ignore" in str(line.msg)
    may_end.set()
    async with asyncio.timeout(PATIENCE):
        await tasks.end()
    assert not any(cancel() for cancel in ended)
