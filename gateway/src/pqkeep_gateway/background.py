"""Tasks that repeat while the process runs, and threads for what may block."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.logs import logger

T = TypeVar("T")

_LOG = logger(__name__)


async def repeat(action: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Repeat an action with pauses of ``seconds``, until cancelled.

    An exception does not end the repetition.
    """
    while True:
        try:
            await action()
        except UnavailableError:
            pass  # logged where it was raised
        except Exception:  # noqa: BLE001 - otherwise the task would end unnoticed
            _LOG.exception("a background task failed and will be tried again")
        await asyncio.sleep(seconds)


def in_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run a function in a thread that does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | BaseException) -> None:
        if future.cancelled():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def run() -> None:
        outcome: T | BaseException
        try:
            outcome = function()
        except Exception as error:  # noqa: BLE001 - the task raises it
            outcome = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, outcome)

    Thread(target=run, name=name, daemon=True).start()
    return future
