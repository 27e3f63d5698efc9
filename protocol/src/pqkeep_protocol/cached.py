"""What is slow to find out, found out once at a time and not too often, however often it is asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")

START_SECONDS = 10.0
"""How long a part may take to answer for the first time before that is logged."""


class Cached(Generic[T]):
    """A value that is looked up when somebody asks and the last one is older than ``seconds``.

    Nobody waits longer than ``wait_seconds`` for a look-up: they get ``otherwise``, and it goes on,
    as the only one. So something that hangs is asked once. That it has no value, or has one again,
    is logged once; that it has none yet, after ten seconds.
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
        """Take what looks it up; if that raises an exception, the value is ``otherwise``.

        The name says in the log what is looked up.
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
            self._log("no answer in time")
            return self._otherwise
        return self._value

    async def _look_up(self) -> None:
        try:
            self._value = await self._find()
            self._log("")
        except Exception as error:  # noqa: BLE001 - whatever failed, there is no value
            self._value = self._otherwise
            self._log(type(error).__name__)
        finally:
            self._fresh_until = asyncio.get_running_loop().time() + self._seconds
            self._task = None

    def _is_starting(self) -> bool:
        """Return whether the part has never answered, and was first asked a short time ago."""
        now = asyncio.get_running_loop().time()
        if self._starts_until is None:
            self._starts_until = now + START_SECONDS
        return now < self._starts_until

    def _log(self, problem: str) -> None:
        """Log a change of state. Of an error only the class: its text may have what is secret."""
        if problem and self._is_starting():
            return
        if not problem:
            self._starts_until = 0.0
        if problem and not self._problem:
            _LOG.warning("a part does not answer what it is asked", part=self._name, error=problem)
        elif self._problem and not problem:
            _LOG.info("a part answers again", part=self._name)
        self._problem = problem
