"""The connection to one key service, at one address: kept open, and watched where there are others.

A connection is used once the key service has said that it is the shard's.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

from pqkeep_gateway.key_service_address import KeyServiceAddress
from pqkeep_protocol.codec import (
    MAX_IN_FLIGHT,
    TO_GATEWAY,
    Call,
    Ping,
    Pong,
    ProtocolError,
    ToGateway,
)
from pqkeep_protocol.connection import Accepts, FramedConnection
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.link import reason
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

PING_SECONDS = 2.0
WATCH_SECONDS = 0.25
"""Between two questions to a key service that is one of several whether it serves."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
EXPIRY_SECONDS = 0.1
"""Between two looks for calls whose time is over, which is by so much later at the most."""
STEADY_SECONDS = 5.0
"""A connection that lasted this long was a good one: the next is tried quickly again."""


class _Waiting(NamedTuple):
    """What a frame is answered with, and until when, in the event loop's time."""

    answer: "asyncio.Future[ToGateway]"
    deadline: float


class KeyConnection:
    """Exchanges frames with a key service. It connects again, with back-off, whenever it must."""

    def __init__(
        self,
        address: KeyServiceAddress,
        shard: str,
        ids: "itertools.count[int]",
        verify: Callable[[UUID | None], Awaitable[None]],
        on_epoch: Callable[[], None] | None,
    ) -> None:
        """Connect to an address, once ``run`` runs.

        ``verify`` raises OSError for a key service with another database than the shard's.
        With ``on_epoch`` the key service is watched, and that is called whenever it has said in
        which epoch it serves.
        """
        self._address = address
        self._shard = shard
        self._ids = ids
        self._verify = verify
        self._on_epoch = on_epoch
        self._log = _LOG.bind(shard=shard)
        self._connection: FramedConnection[ToGateway] | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._expiry: asyncio.TimerHandle | None = None
        """Of all calls: a timer for each costs more than the frame."""
        self.epoch = 0
        """The epoch in which the key service serves, as far as is known; 0 where it does not."""

    @property
    def waiting(self) -> int:
        """How many calls wait for an answer."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._connection is not None

    async def run(self) -> None:
        """Stay connected until cancelled."""
        now = asyncio.get_running_loop().time
        retry = FIRST_RETRY_SECONDS
        while True:
            began = now()
            try:
                await self._stay_connected()
            except OSError as error:
                self._log.warning(
                    "the key service is unreachable", error=error.strerror or str(error)
                )
            if now() - began > STEADY_SECONDS:
                retry = FIRST_RETRY_SECONDS
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)

    def exchange(self, frame: Call | Ping, seconds: float) -> Awaitable[ToGateway]:
        """Return what a frame is answered with, once awaited. Raises KeyServiceError."""
        if self._connection is None:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        return self._exchange_on(self._connection, frame, seconds)

    def abandon(self) -> None:
        """End the connection now: whatever is under way has no answer any more."""
        if self._connection is not None:
            self._log.warning("left a key service that serves no more", epoch=self.epoch)
            self._connection.abort()

    async def _exchange_on(
        self, connection: FramedConnection[ToGateway], frame: Call | Ping, seconds: float
    ) -> ToGateway:
        if len(self._waiting) >= MAX_IN_FLIGHT:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ToGateway] = loop.create_future()
        self._waiting[frame.id] = _Waiting(answer, loop.time() + seconds)
        if self._expiry is None:
            self._expiry = loop.call_later(EXPIRY_SECONDS, self._expire)
        try:
            connection.send(frame)
            return await answer
        except ProtocolError:
            raise KeyServiceError(ErrorKind.TOO_LARGE) from None
        finally:
            self._waiting.pop(frame.id, None)
            del answer  # its exception has this frame, and those of the request

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[Exception | None] = loop.create_future()

        def end(error: Exception | None) -> None:
            lost.set_result(error)
            self._fail_all(_kind(error))

        def new_connection(accepts: Accepts) -> FramedConnection[ToGateway]:
            return FramedConnection(
                TO_GATEWAY, on_frame=self._receive, on_lost=end, accepts=accepts
            )

        connection = await self._address.connect(new_connection)
        watch: asyncio.Task[None] | None = None
        try:
            if not lost.done():
                await self._greet(connection)
                self._connection = connection
                self._log.info("connected to the key service")
                if self._on_epoch is not None:
                    self._on_epoch()
                    watch = asyncio.create_task(self._watch(connection, self._on_epoch))
            error = await asyncio.shield(lost)
            why = "it was closed" if error is None else reason(error)
            kind = str(_kind(error))
            self._log.warning("lost the connection to the key service", kind=kind, error=why)
        finally:
            if watch is not None:
                watch.cancel()
            connection.close()
            self._connection = None
            self.epoch = 0
            self._fail_all(ErrorKind.UNAVAILABLE)

    async def _greet(self, connection: FramedConnection[ToGateway]) -> None:
        """Raise OSError unless the key service says that it is the shard's, with its database."""
        ping = Ping(next(self._ids), asks_database=True)
        try:
            answer = await self._exchange_on(connection, ping, PING_SECONDS)
        except KeyServiceError as error:
            raise ConnectionError(f"it does not say which shard's it is: {error}") from None
        if not isinstance(answer, Pong) or answer.shard != self._shard:
            found = answer.shard if isinstance(answer, Pong) else "none"
            raise ConnectionError(f"it is that of the shard {found}, not {self._shard}")
        await self._verify(answer.database)
        self.epoch = answer.epoch

    async def _watch(
        self, connection: FramedConnection[ToGateway], on_epoch: Callable[[], None]
    ) -> None:
        """Ask again and again whether the key service serves, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                answer = await self._exchange_on(connection, Ping(next(self._ids)), PING_SECONDS)
            except KeyServiceError:  # it is slow, or paused: another one may take over
                continue
            if isinstance(answer, Pong):
                self.epoch = answer.epoch
                on_epoch()

    def _fail_all(self, kind: ErrorKind) -> None:
        for waiting in self._waiting.values():
            _fail(waiting.answer, kind)

    def _expire(self) -> None:
        """Fail the calls whose time is over, and look again as long as any wait."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in self._waiting.values():
            if waiting.deadline <= now:
                _fail(waiting.answer, ErrorKind.DEADLINE_EXCEEDED)
        self._expiry = loop.call_later(EXPIRY_SECONDS, self._expire) if self._waiting else None

    def _receive(self, frame: ToGateway) -> None:
        waiting = self._waiting.get(frame.id)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(frame)


def _kind(error: Exception | None) -> ErrorKind:
    return ErrorKind.BAD_ANSWER if isinstance(error, ProtocolError) else ErrorKind.UNAVAILABLE


def _fail(answer: asyncio.Future[ToGateway], kind: ErrorKind) -> None:
    if not answer.done():
        answer.set_exception(KeyServiceError(kind))
