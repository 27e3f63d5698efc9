"""A shard's key services in other processes: one of them serves, the others stand by.

Calls go to the one that serves in the newest epoch. One that refuses a call because it stands by has
done nothing, so the next is tried; one that is lost with a call may have carried it out, so that is
not tried again.

Whatever goes wrong is a KeyServiceError: out of reach, standing by or lost on the way UNAVAILABLE,
no answer in time DEADLINE_EXCEEDED, an answer that is none BAD_ANSWER.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.unavailable import UnavailableError
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
from pqkeep_protocol.link import HANDSHAKE_SECONDS, LinkTls, reason
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    Batch,
    GetActiveKey,
    GetKey,
    GetKeyring,
    R_co,
    Request,
)
from pqkeep_protocol.metrics import GetMetrics, Samples
from pqkeep_protocol.shards import DEFAULT_SHARD
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import NetworkAddress

NewConnection = Callable[[Accepts], FramedConnection[ToGateway]]
"""Makes a connection to whomever it accepts."""


class KeyServiceAddress(Protocol):
    """An address at which the key service can be reached."""

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A Unix socket. Who may serve on it is decided by the folder that it is in."""

    path: str

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: new_connection(lambda _: True), self.path
        )
        return connection


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """Another host, whose certificate has the key service's role and this name."""

    address: NetworkAddress
    name: str
    link: LinkTls

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection to a verified key service. Raises OSError."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: new_connection(self.link.accepts),
                    self.address.host,
                    self.address.port,
                    ssl=self.link.context,
                    server_hostname=self.name,
                )
        except TimeoutError:
            raise TimeoutError(f"no answer within {HANDSHAKE_SECONDS:.0f} seconds") from None
        return connection


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


TIMEOUT_SECONDS = 9.0
SLOW_SECONDS = 14.0
"""For SLH-DSA, whose signatures take up to seconds, and whose key pairs are tried with one."""
SLOW = frozenset(name for name, spec in ALGORITHMS.items() if spec.standard == "FIPS 205")
_LOOK_UPS = (GetActiveKey, GetKey, GetKeyring)
"""What a rehearsal asks for."""

ClaimDatabase = Callable[[str, UUID], Awaitable[UUID]]
"""Notes which database a shard has, unless that is noted; returns what is. Raises UnavailableError."""


class KeyClient:
    """A KeyService in another process, or in whichever of several serves."""

    def __init__(
        self,
        *addresses: KeyServiceAddress,
        shard: str = DEFAULT_SHARD,
        claim: ClaimDatabase | None = None,
    ) -> None:
        """Use a shard's key services at these addresses, once ``run`` runs.

        With ``claim`` only those are used that have the database which it returns.
        """
        self._ids = itertools.count(1)
        self._shard = shard
        self._claim = claim
        self._database: UUID | None = None
        on_epoch = self._leave_earlier_epochs if len(addresses) > 1 else None
        self._connections = [
            KeyConnection(address, shard, self._ids, self._verify, on_epoch)
            for address in addresses
        ]
        self.refusals: Counter[ErrorKind] = Counter()
        """How many calls were refused, or not answered."""

    @property
    def waiting(self) -> int:
        """How many calls wait for an answer."""
        return sum(each.waiting for each in self._connections)

    async def run(self) -> None:
        """Stay connected to each until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._connections:
                group.create_task(each.run())

    async def execute(self, request: Request[R_co], attribution: Attribution) -> R_co:
        """Carry out one request, or raise KeyServiceError. A rehearsal makes look-ups only."""
        if not isinstance(request, _LOOK_UPS):
            before_change()
        seconds = SLOW_SECONDS if _is_slow(request) else TIMEOUT_SECONDS
        call = Call(
            next(self._ids),
            int(seconds * 1000),
            attribution,
            cast("AnyRequest | Batch | AnyAuditRequest", request),
        )
        try:
            answer = await self._ask_who_serves(call, seconds)
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
        """Return whether a key service answers that serves: one that stands by is none."""
        asked = (_epoch(each, next(self._ids)) for each in self._by_epoch())
        return any(await asyncio.gather(*asked))

    async def _ask_who_serves(self, call: Call, seconds: float) -> ToGateway:
        """Return the answer of the first key service that does not stand by."""
        for each in self._by_epoch():
            answer = await each.exchange(call, seconds)
            if not (isinstance(answer, Refusal) and answer.kind is ErrorKind.STANDBY):
                return answer
            each.epoch = 0
        raise KeyServiceError(ErrorKind.UNAVAILABLE)

    async def _verify(self, database: UUID | None) -> None:
        """Raise ConnectionError unless it is the database that the shard's key services have.

        Otherwise one that was set up with another, perhaps empty, database could take its place.
        """
        if self._claim is None:
            return
        if database is None:
            raise ConnectionError("it does not say which database it has")
        if self._database is None:
            try:
                self._database = await self._claim(self._shard, database)
            except UnavailableError:
                raise ConnectionError("the accounts database does not say which its is") from None
        if self._database != database:
            raise ConnectionError(f"it has another database than the shard {self._shard} has")

    def _by_epoch(self) -> list[KeyConnection]:
        """Return the open connections, that to the newest epoch's key service first."""
        opened = [each for each in self._connections if each.is_open]
        if len(opened) > 1:
            opened.sort(key=lambda each: -each.epoch)
        return opened

    def _leave_earlier_epochs(self) -> None:
        """End connections to key services that another one has taken over from."""
        newest = max(each.epoch for each in self._connections)
        for each in self._connections:
            if 0 < each.epoch < newest:
                each.abandon()

    def _refused(self, kind: ErrorKind) -> KeyServiceError:
        self.refusals[kind] += 1
        return KeyServiceError(kind)


async def _epoch(connection: KeyConnection, number: int) -> int:
    """Return in which epoch a key service serves; 0 where it does not, or does not answer."""
    try:
        answer = await connection.exchange(Ping(number), PING_SECONDS)
    except KeyServiceError:
        return 0
    return answer.epoch if isinstance(answer, Pong) else 0


def _is_slow(request: Request[Any]) -> bool:
    if isinstance(request, Batch):
        return any(_is_slow(item.request) for item in request.items)
    return getattr(request, "algorithm", None) in SLOW
