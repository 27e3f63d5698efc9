"""A background task that fails ends its process. One that ends or is cancelled does not."""

import asyncio
import logging

import pytest

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
    await asyncio.wait_for(stopped.wait(), 5)
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
