"""Tasks that repeat while the process runs."""

import asyncio
from collections.abc import Awaitable, Callable

from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.logs import logger

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
