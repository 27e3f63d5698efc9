"""A script in Redis or Valkey with batched calls.

A single call would cost a gateway more than everything else in a request. So calls made in one
event-loop turn are sent together. Calls made while a batch is in flight wait for the next one.
Identical calls become one script call with a count. The batch uses a permanent connection without
the client's pipelines, which would cost more than the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from hiredis import pack_command
from redis.asyncio import Connection, Redis
from redis.exceptions import NoScriptError, ResponseError

MAX_CALLS = 256
"""Calls in a batch. The server responds to all of them before it serves another client."""


def is_read_only(error: Exception) -> bool:
    """Return whether a server's error says that it is a replica."""
    return "READONLY" in f"{getattr(error, 'status_code', '')} {error}"


class _Call(NamedTuple):
    keys: tuple[str, ...]
    arguments: tuple[str | int, ...]


class _Waiting(NamedTuple):
    call: _Call
    response: asyncio.Future[tuple[Any, int]]


class RedisScript:
    """A script with batched calls.

    It gets two additional arguments: the time of sending, and the number of identical calls.
    """

    def __init__(
        self,
        redis: Redis,
        text: str,
        now: Callable[[], int],
        timeout_seconds: float,
        reconnected: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take the time limit for a batch's response. The client itself has none.

        ``reconnected`` is called for each connection after the first, before its first batch.
        """
        self._redis = redis
        self._text = text
        self._now = now
        self._timeout_seconds = timeout_seconds
        self._reconnected = reconnected
        self._is_first = True
        self._digest: str = redis.register_script(text).sha
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None
        self._connection: Connection | None = None

    async def __call__(
        self, keys: tuple[str, ...], arguments: tuple[str | int, ...]
    ) -> tuple[Any, int]:
        """Return the response to all identical calls of a batch, and this call's index among them.

        Raises RedisError, OSError and TimeoutError; it is then unknown whether the call was
        executed. A failed batch also fails the calls that wait for the next one. Otherwise a
        hanging server would delay each batch as long as the first.
        """
        response: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(_Call(keys, arguments), response))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await response

    async def close(self) -> None:
        """Release the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._redis.connection_pool.release(connection)

    async def _send(self) -> None:
        while self._waiting:
            sent, self._waiting = self._waiting[:MAX_CALLS], self._waiting[MAX_CALLS:]
            equal: dict[_Call, list[asyncio.Future[tuple[Any, int]]]] = {}
            for call, waiter in sent:
                equal.setdefault(call, []).append(waiter)
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    responses = await self._responses(
                        [(call, len(waiters)) for call, waiters in equal.items()]
                    )
            except Exception as error:  # noqa: BLE001 - all waiting calls raise it
                try:
                    await self.close()
                finally:
                    for _, waiter in sent + self._waiting:
                        if not waiter.done():
                            waiter.set_exception(error)
                    self._waiting = []
                return
            for waiters, response in zip(equal.values(), responses, strict=True):
                for place, waiter in enumerate(waiters):
                    if waiter.done():
                        continue  # the caller was cancelled
                    if isinstance(response, ResponseError):
                        waiter.set_exception(response)
                    else:
                        waiter.set_result((response, place))

    async def _responses(self, calls: Sequence[tuple[_Call, int]]) -> list[Any]:
        responses = await self._ask(calls)
        unknown = [n for n, response in enumerate(responses) if isinstance(response, NoScriptError)]
        if unknown:  # the server was restarted, and executed none of these
            await self._redis.script_load(self._text)
            again = await self._ask([calls[n] for n in unknown])
            for n, response in zip(unknown, again, strict=True):
                responses[n] = response
        return responses

    async def _ask(self, calls: Sequence[tuple[_Call, int]]) -> list[Any]:
        connection = await self._open()
        now = self._now()
        packed = [
            pack_command(("EVALSHA", self._digest, len(keys), *keys, *arguments, now, times))  # type: ignore[arg-type]  # declared as a tuple of one
            for (keys, arguments), times in calls
        ]
        await connection.send_packed_command(packed, check_health=False)
        responses: list[Any] = []
        is_replica = False
        for _ in calls:
            try:
                responses.append(await connection.read_response())
            except ResponseError as refusal:
                responses.append(refusal)
                is_replica = is_replica or is_read_only(refusal)
        if is_replica:  # a primary before, which Sentinels know
            await self.close()
        return responses

    async def _open(self) -> Connection:
        """Return the connection, or a new one if the server has closed it."""
        if self._connection is not None and await self._connection.can_read():
            await self.close()
        if self._connection is None:
            self._connection = await self._redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]
            if self._reconnected is not None and not self._is_first:
                await self._reconnected()
            self._is_first = False
        return self._connection
