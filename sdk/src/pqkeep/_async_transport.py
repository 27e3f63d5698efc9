"""Sends calls of the asynchronous client, and reads their responses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import httpx2

from pqkeep._call import Call, Course, Pages
from pqkeep._exchange import Exchange
from pqkeep._settings import Settings
from pqkeep._workload import WorkloadKey
from pqkeep.errors import AuthenticationError, PqkeepError

R = TypeVar("R")


class AsyncTransport:
    """A pool of connections to one service with one credential. Tasks of one loop may share it."""

    def __init__(self, settings: Settings) -> None:
        """Make the pool without connecting. Raises ConfigurationError."""
        self._settings = settings
        proxy = settings.proxy()
        workload = settings.workload
        self._workload = None if workload is None else WorkloadKey(workload)
        self._renewing = asyncio.Lock()
        self._http = httpx2.AsyncClient(
            base_url=settings.url,
            headers=settings.headers(),
            verify=settings.tls(),
            trust_env=False,
            proxy=None if proxy is None else proxy.url,
        )

    async def run(self, describe: Callable[[], Call[R]], *, reads_file: bool = False) -> R:
        """Run one call, with retries. Raises PqkeepError."""
        call = await asyncio.to_thread(describe) if reads_file else describe()
        if self._workload is None:
            return await self._run(Exchange(call, self._settings))
        key = await self._workload_key(self._workload)
        try:
            return await self._run(Exchange(call, self._settings, key))
        except AuthenticationError:  # its role has changed
            self._workload.forget(key)
        key = await self._workload_key(self._workload)
        return await self._run(Exchange(call, self._settings, key))

    async def _workload_key(self, workload: WorkloadKey) -> str | None:
        """Return the workload's key. Get or renew it first if it is due. Raises PqkeepError."""
        if workload.is_due and not (workload.is_valid and self._renewing.locked()):
            async with self._renewing:
                try:
                    if workload.is_due:
                        renewal = await asyncio.to_thread(workload.renewal)
                        await self._run(Exchange(renewal, self._settings))
                except PqkeepError:
                    if not workload.is_valid:
                        raise
                    workload.postpone()
        return workload.text

    async def _run(self, exchange: Exchange[R]) -> R:
        while True:
            try:
                return await self._attempt(exchange)
            except PqkeepError as error:
                pause = exchange.attempts.pause_after(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def members(
        self, describe: Callable[[], Pages[R]], *, is_collected: bool = False
    ) -> AsyncIterator[R]:
        """Yield a list's members, page by page."""
        pages, course, goes_on = describe(), Course(is_collected=is_collected), True
        while goes_on:
            page = await self.run(partial(pages, course.place))
            for member in page.items:
                yield member
            goes_on = course.goes_on(page)

    async def collect(self, describe: Callable[[], Pages[R]]) -> tuple[R, ...]:
        """Return all members of a list."""
        return tuple([member async for member in self.members(describe, is_collected=True)])

    async def many(self, calls: Iterable[Call[Sequence[R]]]) -> AsyncIterator[R]:
        """Yield all results of batch calls, in order."""
        for call in calls:
            for result in await self.run(partial(_itself, call)):
                yield result

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def __repr__(self) -> str:
        return f"<AsyncTransport to {self._settings.url}>"

    async def _attempt(self, exchange: Exchange[R]) -> R:
        try:
            request = exchange.request(self._http)
            async with (
                asyncio.timeout(exchange.attempts.left()),
                aclosing(await self._http.send(request, stream=True)) as response,
            ):
                with exchange.reader(response) as reader:
                    async for piece in response.aiter_bytes():
                        reader.take(piece)
                    return reader.end()
        except httpx2.HTTPError as error:
            failure = exchange.failure(error)
        except TimeoutError:
            failure = exchange.too_late()
        raise failure


def _itself(call: Call[R]) -> Call[R]:
    return call
