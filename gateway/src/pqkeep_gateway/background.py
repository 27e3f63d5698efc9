"""What is done again and again while the process runs."""

import asyncio
from collections.abc import Awaitable, Callable

from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


async def repeat(action: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do something with pauses of so many seconds, until cancelled.

    Whatever it raises, it is done again.
    """
    while True:
        try:
            await action()
        except UnavailableError:
            pass  # logged where it was raised
        except Exception:  # noqa: BLE001 - an end of the task would be noticed by nobody
            _LOG.exception("a background task failed and will be tried again")
        await asyncio.sleep(seconds)
