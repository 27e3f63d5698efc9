"""Runs descriptions of calls, waiting for the answers."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

import httpx2

from pqkeep._call import Call, Course, Pages
from pqkeep._exchange import Exchange
from pqkeep._settings import Settings
from pqkeep.errors import PqkeepError

R = TypeVar("R")


class Transport:
    """A pool of connections to one service, with one credential. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        """Connect to nothing yet. Raises ConfigurationError."""
        self._settings = settings
        proxy = settings.proxy()
        self._http = httpx2.Client(
            base_url=settings.url,
            headers=settings.headers(),
            verify=settings.tls(),
            trust_env=False,
            proxy=None if proxy is None else proxy.url,
        )

    def run(self, describe: Callable[[], Call[R]], *, reads_file: bool = False) -> R:
        """Run one call, again where that may help. Raises PqkeepError."""
        exchange = Exchange(describe(), self._settings)
        while True:
            try:
                return self._attempt(exchange)
            except PqkeepError as error:
                pause = exchange.attempts.pause_after(error)
                if pause is None:
                    raise
            time.sleep(pause)

    def members(
        self, describe: Callable[[], Pages[R]], *, is_collected: bool = False
    ) -> Iterator[R]:
        """Yield a list's members, page by page."""
        pages, course, goes_on = describe(), Course(is_collected=is_collected), True
        while goes_on:
            page = self.run(partial(pages, course.place))
            yield from page.items
            goes_on = course.goes_on(page)

    def collect(self, describe: Callable[[], Pages[R]]) -> tuple[R, ...]:
        """Return all members of a list."""
        return tuple(self.members(describe, is_collected=True))

    def many(self, calls: Iterable[Call[Sequence[R]]]) -> Iterator[R]:
        """Yield the results of calls that have several each, call by call."""
        for call in calls:
            yield from self.run(partial(_itself, call))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"<Transport to {self._settings.url}>"

    def _attempt(self, exchange: Exchange[R]) -> R:
        try:
            request = exchange.request(self._http)
            with (
                closing(self._http.send(request, stream=True)) as response,
                exchange.answer(response) as answer,
            ):
                for piece in response.iter_bytes():
                    answer.take(piece)
                    exchange.require_time()
                return answer.end()
        except httpx2.HTTPError as error:
            failure = exchange.failure(error)
        raise failure


def _itself(call: Call[R]) -> Call[R]:
    return call
