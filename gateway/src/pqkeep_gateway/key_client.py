"""Clients of a shard's key services in other processes: one is active, the others are standbys.

Calls go to the active one with the newest fencing token (epoch). A standby refuses a call without
executing it, so the next key service is tried. A call on a lost connection may have been executed,
so it is not repeated.

Every failure is a KeyServiceError: UNAVAILABLE if unreachable, on standby or lost;
DEADLINE_EXCEEDED without a response in time; BAD_RESPONSE for an invalid response.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast
from uuid import UUID

from pqkeep_gateway.shards import Placement, Then, awaited, settle, unnamed
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.codec import (
    MAX_IN_FLIGHT,
    RESULT_TYPE,
    TO_GATEWAY,
    Accepts,
    Answer,
    Call,
    FramedConnection,
    Ping,
    Pong,
    ProtocolError,
    Refusal,
    ToGateway,
    Unreadable,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD, INSTALLATION
from pqkeep_protocol.link import HANDSHAKE_SECONDS, LinkTls, reason
from pqkeep_protocol.messages import Attribution, Batch, Request
from pqkeep_protocol.metrics import GetMetrics, Samples
from pqkeep_protocol.rules import RuleNotice
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import NetworkAddress

R = TypeVar("R")

NewConnection = Callable[[Accepts], FramedConnection[ToGateway]]
"""Creates a connection to a peer that the function accepts."""


class KeyServiceAddress(Protocol):
    """An address of a key service."""

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A Unix socket. The permissions of its folder decide which process can serve on it."""

    path: str

    async def connect(self, new_connection: NewConnection) -> FramedConnection[ToGateway]:
        """Return an open connection. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: new_connection(lambda _: True), self.path
        )
        return connection


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """Another host with the key service's role and this name in its certificate."""

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
            raise TimeoutError(f"no response within {HANDSHAKE_SECONDS:.0f} seconds") from None
        return connection


_LOG = logger(__name__)

TIMEOUT_SECONDS = 9.0
SLOW_SECONDS = 14.0
"""For SLH-DSA: a signature takes up to seconds, and a new key pair is tested with one."""
SLOW = frozenset(name for name, spec in ALGORITHMS.items() if spec.standard == "FIPS 205")
PING_SECONDS = 2.0
WATCH_SECONDS = 0.25
"""The time between two pings to one of several key services."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0
EXPIRY_SECONDS = 0.1
"""The time between two searches for overdue calls. A call may end this much after its deadline."""
STEADY_SECONDS = 5.0
"""A connection of this length resets the back-off."""
STARTING_SECONDS = 2.0
"""The key service may start at the same time as the gateway."""
REPORT_SECONDS = 60.0
"""The time between two reports of the same problem."""

ClaimDatabase = Callable[[str, UUID], Awaitable[UUID]]
"""Stores a shard's database id unless it has one; returns the stored id.

Raises UnavailableError.
"""
Reply = ToGateway | KeyServiceError
"""The response to a frame, or the error."""


class _Waiting(NamedTuple):
    """The callback of a frame, and its deadline in the event loop's time."""

    told: Callable[[Reply], None]
    deadline: float


class KeyConnection:
    """Exchanges frames with a key service. It reconnects, with back-off, after a loss."""

    def __init__(
        self,
        address: KeyServiceAddress,
        shard: str,
        ids: "itertools.count[int]",
        verify: Callable[[UUID | None], Awaitable[None]],
        on_epoch: Callable[[], None] | None,
    ) -> None:
        """Connect to an address, once ``run`` runs.

        ``verify`` raises OSError for a key service with another database than the shard's. With
        ``on_epoch`` the connection stays open, and ``on_epoch`` is called with each fencing token
        that the key service sends.
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
        """One timer for all calls: a timer for each would cost more than the frame."""
        self.epoch = 0
        """The fencing token of the key service, as last reported; 0 while it is a standby."""

    @property
    def waiting(self) -> int:
        """The number of frames that wait for a response."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._connection is not None

    async def run(self) -> None:
        """Stay connected until cancelled.

        A problem that lasts for some seconds is logged. It is logged again when it changes, and at
        intervals while it lasts.
        """
        now = asyncio.get_running_loop().time
        retry = FIRST_RETRY_SECONDS
        report_at, reported = now() + STARTING_SECONDS, ""
        while True:
            began = now()
            problem = ""
            try:
                await self._stay_connected()
            except OSError as error:
                problem = error.strerror or str(error)
            if now() - began > STEADY_SECONDS:
                retry = FIRST_RETRY_SECONDS
                report_at = began
            if problem and (now() >= report_at or (reported and problem != reported)):
                self._log.warning("the key service is unreachable", error=problem)
                report_at, reported = now() + REPORT_SECONDS, problem
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)

    def send(self, frame: Call | Ping, told: Callable[[Reply], None], seconds: float) -> None:
        """Send a frame, and call ``told`` once with the reply, from the event loop.

        Raises KeyServiceError if it cannot be sent; then ``told`` is not called.
        """
        if self._connection is None:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        self._send_on(self._connection, frame, told, seconds)

    async def ping(self) -> int:
        """Return the fencing token of the key service; 0 if it is a standby or does not respond."""
        try:
            if self._connection is not None:
                return (await self._ping(self._connection)).epoch
        except KeyServiceError:
            pass
        return 0

    def abandon(self) -> None:
        """Close the connection now: pending calls get no response."""
        if self._connection is not None:
            self._log.warning("left a key service that serves no more", epoch=self.epoch)
            self._connection.abort()

    def _send_on(
        self,
        connection: FramedConnection[ToGateway],
        frame: Call | Ping,
        told: Callable[[Reply], None],
        seconds: float,
    ) -> None:
        if len(self._waiting) >= MAX_IN_FLIGHT:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        loop = asyncio.get_running_loop()
        try:
            connection.send(frame)
        except ProtocolError:
            raise KeyServiceError(ErrorKind.TOO_LARGE) from None
        self._waiting[frame.id] = _Waiting(told, loop.time() + seconds)
        if self._expiry is None:
            self._expiry = loop.call_later(EXPIRY_SECONDS, self._expire)

    async def _ping(
        self, connection: FramedConnection[ToGateway], *, asks_database: bool = False
    ) -> Pong:
        """Ping a key service. Raises KeyServiceError."""
        reply: asyncio.Future[ToGateway] = asyncio.get_running_loop().create_future()
        ping = Ping(next(self._ids), asks_database)
        self._send_on(connection, ping, partial(settle, reply), PING_SECONDS)
        try:
            pong = await reply
        finally:
            del reply  # its exception has this frame
        if not isinstance(pong, Pong):
            raise KeyServiceError(ErrorKind.BAD_RESPONSE)
        return pong

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
        """Raise OSError unless the key service belongs to the shard, with its database."""
        try:
            pong = await self._ping(connection, asks_database=True)
        except KeyServiceError as error:
            raise ConnectionError(f"it does not tell its shard: {error}") from None
        if pong.shard != self._shard:
            raise ConnectionError(f"it belongs to the shard {pong.shard}, not {self._shard}")
        await self._verify(pong.database)
        self.epoch = pong.epoch

    async def _watch(
        self, connection: FramedConnection[ToGateway], on_epoch: Callable[[], None]
    ) -> None:
        """Check repeatedly whether the key service is active, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                pong = await self._ping(connection)
            except KeyServiceError:  # it is slow or paused
                continue
            self.epoch = pong.epoch
            on_epoch()

    def _receive(self, frame: ToGateway | Unreadable) -> None:
        reply: Reply
        if isinstance(frame, Unreadable):
            self._log.warning("a response of the key service cannot be read", kind=frame.kind)
            reply = KeyServiceError(ErrorKind.BAD_RESPONSE)
        else:
            reply = frame
        waiting = self._waiting.pop(frame.id, None)
        if waiting is not None:
            _tell(waiting, reply)

    def _fail_all(self, kind: ErrorKind) -> None:
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            _tell(call, KeyServiceError(kind))

    def _expire(self) -> None:
        """Fail overdue calls, and check again while calls wait."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [number for number, waiting in self._waiting.items() if waiting.deadline <= now]
        for number in late:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                _tell(waiting, KeyServiceError(ErrorKind.DEADLINE_EXCEEDED))
        self._expiry = loop.call_later(EXPIRY_SECONDS, self._expire) if self._waiting else None


def _tell(waiting: _Waiting, reply: Reply) -> None:
    """Call a frame's callback. An error in it must not end the connection, which others use."""
    try:
        waiting.told(reply)
    except Exception:  # noqa: BLE001 - any error is only logged
        _LOG.exception("a reply of the key service was not taken")


def _kind(error: Exception | None) -> ErrorKind:
    return ErrorKind.BAD_RESPONSE if isinstance(error, ProtocolError) else ErrorKind.UNAVAILABLE


class KeyClient:
    """A TenantKeyService in another process: a single key service, or the active one of several."""

    def __init__(
        self,
        *addresses: KeyServiceAddress,
        shard: str = DEFAULT_SHARD,
        claim: ClaimDatabase | None = None,
    ) -> None:
        """Use a shard's key services at these addresses, once ``run`` runs.

        With ``claim``, only key services with the database that it returns are used.
        """
        self._ids = itertools.count(1)
        self._shard = shard
        self._claim = claim
        self._database: UUID | None = None
        on_epoch = self._leave_earlier_epochs if len(addresses) > 1 else None
        self._connections = tuple(
            KeyConnection(address, shard, self._ids, self._verify, on_epoch)
            for address in addresses
        )
        self.refusals: Counter[ErrorKind] = Counter()
        """The number of calls that were refused, or got no response."""

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a response."""
        return sum(connection.waiting for connection in self._connections)

    async def run(self) -> None:
        """Stay connected to all key services until cancelled."""
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(connection.run())

    def call(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None,
        then: Then[R],
    ) -> None:
        """Send a request now, and call ``then`` once with the outcome, from the event loop."""
        is_slow = getattr(request, "algorithm", None) in SLOW or (
            type(request) is Batch
            and any(getattr(item.request, "algorithm", None) in SLOW for item in request.items)
        )
        seconds = SLOW_SECONDS if is_slow else TIMEOUT_SECONDS
        frame = Call(next(self._ids), int(seconds * 1000), attribution, cast("Any", request))
        connections = self._connections
        if len(connections) > 1:  # the newest fencing token first
            connections = tuple(sorted(connections, key=lambda connection: -connection.epoch))
        call = _Call(self, frame, seconds, connections, then)
        if placement is not None and (placement.is_moving or placement.shard != self._shard):
            call.refuse_soon(self._misplaced(placement))
        else:
            call.send()

    async def execute(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None = None,
        /,
    ) -> R:
        """Execute one request, or raise KeyServiceError. A rehearsal may only look up."""
        return await awaited(self, request, attribution, placement)

    async def metrics(self) -> Samples:
        """Return the key service's metrics. Raises KeyServiceError."""
        attribution = Attribution("", "gateway", "", "")
        return (await self.execute(GetMetrics(tenant=INSTALLATION), attribution)).samples

    async def is_reachable(self) -> bool:
        """Return True if an active (not standby) key service responds."""
        return any(await asyncio.gather(*(connection.ping() for connection in self._connections)))

    async def _verify(self, database: UUID | None) -> None:
        """Raise ConnectionError unless this is the database of the shard's key services.

        Otherwise a key service with another, perhaps empty, database could take over.
        """
        if self._claim is None:
            return
        if database is None:
            raise ConnectionError("it does not tell its database")
        if self._database is None:
            try:
                self._database = await self._claim(self._shard, database)
            except UnavailableError:
                raise ConnectionError(
                    "the accounts database is unavailable, so its database cannot be verified"
                ) from None
        if self._database != database:
            raise ConnectionError(f"it has another database than the shard {self._shard} has")

    def _leave_earlier_epochs(self) -> None:
        """Close connections to key services that were replaced by a newer active one."""
        newest = max(connection.epoch for connection in self._connections)
        for connection in self._connections:
            if 0 < connection.epoch < newest:
                connection.abandon()

    def _misplaced(self, placement: Placement) -> ErrorKind:
        """Return the error for a tenant in another shard."""
        if placement.is_moving:
            return ErrorKind.TENANT_MOVED
        return unnamed(placement.shard)


class _Call(Generic[R]):
    """A pending call, and the key services that can still be tried."""

    __slots__ = ("_asked", "_client", "_connections", "_frame", "_seconds", "_then")

    def __init__(
        self,
        client: KeyClient,
        frame: Call,
        seconds: float,
        connections: tuple[KeyConnection, ...],
        then: Then[R],
    ) -> None:
        self._client = client
        self._frame = frame
        self._seconds = seconds
        self._connections = connections
        self._asked = 0
        """The number of key services that were tried, or skipped because they are not connected."""
        self._then = then

    def send(self) -> None:
        """Send the call to the next connected key service."""
        for connection in self._connections[self._asked :]:
            self._asked += 1
            if connection.is_open:
                try:
                    connection.send(self._frame, self.told, self._seconds)
                except KeyServiceError as refusal:
                    self.refuse_soon(refusal.kind)
                return
        self.refuse_soon(ErrorKind.UNAVAILABLE)

    def told(self, reply: Reply) -> None:
        """Take the reply. A standby has not executed the call, so the next key service is tried."""
        if type(reply) is Answer and type(reply.result) is RESULT_TYPE[type(self._frame.request)]:
            self._then(cast("R", reply.result))
        elif type(reply) is KeyServiceError:
            self._refuse(reply.kind)
        elif type(reply) is not Refusal:
            self._refuse(ErrorKind.BAD_RESPONSE)
        elif reply.kind is ErrorKind.STANDBY:
            self._connections[self._asked - 1].epoch = 0
            self.send()
        else:
            self._refuse(reply.kind, reply.notice)

    def refuse_soon(self, kind: ErrorKind) -> None:
        """Refuse the call from the event loop, after the caller has continued."""
        asyncio.get_running_loop().call_soon(self._refuse, kind)

    def _refuse(self, kind: ErrorKind, notice: RuleNotice | None = None) -> None:
        self._client.refusals[kind] += 1
        self._then(KeyServiceError(kind, notice))
