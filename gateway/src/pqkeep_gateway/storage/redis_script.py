"""A script in Redis or Valkey whose calls are pipelined: those of one moment are one message.

A call by itself costs a gateway more than all else that it does for a request: a connection of the
pool, a task's turn to write and another to read. While a message is under way, the calls that are made
meanwhile wait for the next one.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

MAX_CALLS = 256
"""Calls in a message, which the server answers before it hears anybody else."""


class _Call(NamedTuple):
    keys: Sequence[str]
    arguments: Sequence[str | int]
    answer: asyncio.Future[Any]


class RedisScript:
    """A script, each call of which is carried out once, by itself, in the order of the calls."""

    def __init__(self, redis: Redis, text: str) -> None:
        self._redis = redis
        self._text = text
        self._digest: str = redis.register_script(text).sha
        self._waiting: list[_Call] = []
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns. Raises RedisError, OSError and TimeoutError.

        Whether it was carried out is unknown then. A message that fails is the failure of what waits
        behind it, too: a server that hangs would have each message wait as long as the first one.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(keys, arguments, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting[:MAX_CALLS], self._waiting[MAX_CALLS:]
            try:
                answers = await self._answers(calls)
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait raise it
                calls, self._waiting = calls + self._waiting, []
                answers = [error] * len(calls)
            for call, answer in zip(calls, answers, strict=True):
                if call.answer.done():
                    continue  # who asked waits no more
                if isinstance(answer, Exception):
                    call.answer.set_exception(answer)
                else:
                    call.answer.set_result(answer)

    async def _answers(self, calls: Sequence[_Call]) -> list[Any]:
        answers = await self._ask(calls)
        unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:  # the server has been started again, and has done nothing with these
            await self._redis.script_load(self._text)
            again = await self._ask([calls[n] for n in unknown])
            for n, answer in zip(unknown, again, strict=True):
                answers[n] = answer
        return answers

    async def _ask(self, calls: Sequence[_Call]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for call in calls:
            _ = pipeline.evalsha(self._digest, len(call.keys), *call.keys, *call.arguments)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers
