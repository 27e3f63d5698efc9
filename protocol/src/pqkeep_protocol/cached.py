"""A cache for values that are slow to look up: one look-up at a time, and not too often."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")

START_SECONDS = 10.0
"""Seconds for a part's first response before a warning is logged."""


class Cached(Generic[T]):
    """A value that ``get`` looks up again once it is older than ``seconds``.

    A caller waits at most ``wait_seconds`` for a look-up, and then gets ``otherwise``. The look-up
    goes on, and no second one starts beside it. A lost and a regained value are logged once. A value
    that is still missing is logged after START_SECONDS.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[T]],
        otherwise: T,
        *,
        name: str,
        seconds: float,
        wait_seconds: float,
    ) -> None:
        """Take the look-up. If it raises an exception, the value is ``otherwise``.

        ``name`` stands for the value in the log.
        """
        self._name = name
        self._problem = ""
        self._find = find
        self._otherwise = otherwise
        self._seconds = seconds
        self._wait_seconds = wait_seconds
        self._value = otherwise
        self._fresh_until = 0.0
        self._starts_until: float | None = None
        self._deadline = 0.0
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Return the value."""
        now = asyncio.get_running_loop().time()
        if self._task is None and now >= self._fresh_until:
            self._deadline = now + self._wait_seconds
            self._task = asyncio.create_task(self._look_up())
        if self._task is None:
            return self._value
        timeout = max(0.0, self._deadline - now)
        done, _ = await asyncio.wait([self._task], timeout=timeout)
        if not done:
            self._log("no response in time")
            return self._otherwise
        return self._value

    async def _look_up(self) -> None:
        try:
            self._value = await self._find()
            self._log("")
        except Exception as error:  # noqa: BLE001 - any failure means that there is no value
            self._value = self._otherwise
            self._log(type(error).__name__)
        finally:
            self._fresh_until = asyncio.get_running_loop().time() + self._seconds
            self._task = None

    def _is_starting(self) -> bool:
        """Return whether the part has never responded, and its first look-up is recent."""
        now = asyncio.get_running_loop().time()
        if self._starts_until is None:
            self._starts_until = now + START_SECONDS
        return now < self._starts_until

    def _log(self, problem: str) -> None:
        """Log a change of state. An error's text may hold a secret, so only its class is logged."""
        if problem and self._is_starting():
            return
        if not problem:
            self._starts_until = 0.0
        if problem and not self._problem:
            _LOG.warning("a part does not answer what it is asked", part=self._name, error=problem)
        elif self._problem and not problem:
            _LOG.info("a part answers again", part=self._name)
        self._problem = problem
