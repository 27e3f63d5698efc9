"""What is slow to find out, found out once at a time and not too often, however often it is asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """A value that is looked up when somebody asks and the last one is older than ``seconds``.

    Nobody waits longer than ``wait_seconds`` for a look-up: they get ``otherwise``, and it goes on,
    as the only one. So something that hangs is asked once.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[T]],
        otherwise: T,
        *,
        seconds: float,
        wait_seconds: float,
    ) -> None:
        """Take what looks it up; if that raises an exception, the value is ``otherwise``."""
        self._find = find
        self._otherwise = otherwise
        self._seconds = seconds
        self._wait_seconds = wait_seconds
        self._value = otherwise
        self._fresh_until = 0.0
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
        return self._value if done else self._otherwise

    async def _look_up(self) -> None:
        try:
            self._value = await self._find()
        except Exception:  # noqa: BLE001 - whatever failed, there is no value
            self._value = self._otherwise
        finally:
            self._fresh_until = asyncio.get_running_loop().time() + self._seconds
            self._task = None
