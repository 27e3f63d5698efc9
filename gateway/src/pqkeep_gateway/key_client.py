"""A shard's key service in another process: many calls on one connection, one deadline each.

A connection is used once the key service has said that it is that shard's.

Whatever goes wrong is a KeyServiceError: out of reach or lost on the way UNAVAILABLE, no answer in
time DEADLINE_EXCEEDED, an answer that is none BAD_ANSWER.
"""

import asyncio
import itertools
from collections import Counter
from typing import Any, cast

from pqkeep_gateway.key_service_address import KeyServiceAddress
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.audit import AnyAuditRequest
from pqkeep_protocol.codec import (
    MAX_IN_FLIGHT,
    RESULT_TYPE,
    TO_GATEWAY,
    Answer,
    Call,
    Ping,
    Pong,
    ProtocolError,
    Refusal,
    ToGateway,
)
from pqkeep_protocol.connection import Accepts, FramedConnection
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.link import reason
from pqkeep_protocol.messages import AnyRequest, Attribution, Batch, R_co, Request
from pqkeep_protocol.metrics import GetMetrics, Samples
from pqkeep_protocol.shards import DEFAULT_SHARD
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

TIMEOUT_SECONDS = 9.0
SLOW_SECONDS = 14.0
"""For SLH-DSA, whose signatures take up to seconds, and whose key pairs are tried with one."""
SLOW = frozenset(name for name, spec in ALGORITHMS.items() if spec.standard == "FIPS 205")
PING_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
STEADY_SECONDS = 5.0
"""A connection that lasted this long was a good one: the next is tried quickly again."""


class KeyClient:
    """A KeyService in another process. It connects again, with back-off, whenever it must."""

    def __init__(self, *addresses: KeyServiceAddress, shard: str = DEFAULT_SHARD) -> None:
        """Use a shard's key service at one of these addresses, once ``run`` runs."""
        self._addresses = itertools.cycle(addresses)
        self._shard = shard
        self._log = _LOG.bind(shard=shard)
        self._ids = itertools.count(1)
        self._connection: FramedConnection[ToGateway] | None = None
        self._waiting: dict[int, asyncio.Future[ToGateway]] = {}
        self.refusals: Counter[ErrorKind] = Counter()
        """How many calls were refused, or not answered."""

    @property
    def waiting(self) -> int:
        """How many calls wait for an answer."""
        return len(self._waiting)

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

    async def execute(self, request: Request[R_co], attribution: Attribution) -> R_co:
        """Carry out one request, or raise KeyServiceError."""
        seconds = SLOW_SECONDS if _is_slow(request) else TIMEOUT_SECONDS
        call = Call(
            next(self._ids),
            int(seconds * 1000),
            attribution,
            cast(AnyRequest | Batch | AnyAuditRequest, request),
        )
        try:
            answer = await self._exchange(call, seconds)
        except KeyServiceError as refusal:
            raise self._refused(refusal.kind) from None
        match answer:
            case Answer(result=result) if isinstance(result, RESULT_TYPE[type(request)]):
                return cast(R_co, result)
            case Refusal(kind=kind):
                raise self._refused(kind)
            case _:
                raise self._refused(ErrorKind.BAD_ANSWER)

    async def metrics(self) -> Samples:
        """Return the key service's numbers. Raises KeyServiceError."""
        attribution = Attribution("", "gateway", "", "")
        return (await self.execute(GetMetrics(tenant=INSTALLATION), attribution)).samples

    async def is_reachable(self) -> bool:
        """Return whether the key service answers."""
        try:
            answer = await self._exchange(Ping(next(self._ids)), PING_SECONDS)
        except KeyServiceError:
            return False
        return isinstance(answer, Pong)

    def _refused(self, kind: ErrorKind) -> KeyServiceError:
        self.refusals[kind] += 1
        return KeyServiceError(kind)

    async def _exchange(self, frame: Call | Ping, seconds: float) -> ToGateway:
        if self._connection is None:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        return await self._exchange_on(self._connection, frame, seconds)

    async def _exchange_on(
        self, connection: FramedConnection[ToGateway], frame: Call | Ping, seconds: float
    ) -> ToGateway:
        if len(self._waiting) >= MAX_IN_FLIGHT:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ToGateway] = loop.create_future()
        self._waiting[frame.id] = answer
        timer = loop.call_later(seconds, _fail, answer, ErrorKind.DEADLINE_EXCEEDED)
        try:
            connection.send(frame)
            return await answer
        except ProtocolError:
            raise KeyServiceError(ErrorKind.TOO_LARGE) from None
        finally:
            timer.cancel()
            self._waiting.pop(frame.id, None)

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

        connection = await next(self._addresses).connect(new_connection)
        try:
            if not lost.done():
                await self._require_shard(connection)
                self._connection = connection
                self._log.info("connected to the key service")
            error = await asyncio.shield(lost)
            why = "it was closed" if error is None else reason(error)
            kind = str(_kind(error))
            self._log.warning("lost the connection to the key service", kind=kind, error=why)
        finally:
            connection.close()
            self._connection = None
            self._fail_all(ErrorKind.UNAVAILABLE)

    async def _require_shard(self, connection: FramedConnection[ToGateway]) -> None:
        """Raise OSError unless the key service says that it is the shard's."""
        try:
            answer = await self._exchange_on(connection, Ping(next(self._ids)), PING_SECONDS)
        except KeyServiceError as error:
            raise ConnectionError(f"it does not say which shard's it is: {error}") from None
        if not isinstance(answer, Pong) or answer.shard != self._shard:
            found = answer.shard if isinstance(answer, Pong) else "none"
            raise ConnectionError(f"it is that of the shard {found}, not {self._shard}")

    def _fail_all(self, kind: ErrorKind) -> None:
        for answer in self._waiting.values():
            _fail(answer, kind)

    def _receive(self, frame: ToGateway) -> None:
        answer = self._waiting.get(frame.id)
        if answer is not None and not answer.done():
            answer.set_result(frame)


def _is_slow(request: Request[Any]) -> bool:
    if isinstance(request, Batch):
        return any(_is_slow(item.request) for item in request.items)
    return getattr(request, "algorithm", None) in SLOW


def _kind(error: Exception | None) -> ErrorKind:
    return ErrorKind.BAD_ANSWER if isinstance(error, ProtocolError) else ErrorKind.UNAVAILABLE


def _fail(answer: asyncio.Future[ToGateway], kind: ErrorKind) -> None:
    if not answer.done():
        answer.set_exception(KeyServiceError(kind))
