"""Serves framed requests on Unix sockets and by mutual TLS, with the permitted requests of each.

A request with its keys in memory runs at once, and its response follows the commit of its record.
Any other request becomes a task. Requests over the limit are refused at once. So are requests that
arrive while the server drains, or while another key service is the database's writer. A request
that cannot be read is refused if its id can be read; otherwise its connection ends.

If too many gateway connections are open, a new one replaces an old one: the oldest of the
certificate or address with the most connections, provided that it has more than the new one's.
Otherwise the new one is refused.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from time import perf_counter
from typing import NamedTuple, TypeVar

from msgspec import Struct

from pqkeep_keyservice.activation import Activation
from pqkeep_keyservice.administration import Administration
from pqkeep_keyservice.audit.service import AuditService
from pqkeep_keyservice.batch import Batches
from pqkeep_keyservice.listeners import GATEWAY_REQUESTS, LinkListener, Listener
from pqkeep_keyservice.metrics import ServiceMetrics
from pqkeep_keyservice.operations import keyless
from pqkeep_keyservice.transaction import Transactions
from pqkeep_protocol.administration import AnyAdministrationRequest, AnyAdministrationResult
from pqkeep_protocol.audit import AnyAuditResult
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.codec import (
    MAX_IN_FLIGHT,
    TO_KEY_SERVICE,
    Accepts,
    Answer,
    Call,
    FramedConnection,
    Ping,
    Pong,
    ProtocolError,
    Refusal,
    ToKeyService,
    Unreadable,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD, INSTALLATION
from pqkeep_protocol.link import LinkTls
from pqkeep_protocol.messages import (
    AnyKeylessRequest,
    AnyKeylessResult,
    AnyRequest,
    AnyResult,
    Batch,
    BatchResults,
    Destructions,
    KeyRequest,
    KeyResult,
    ListDestructions,
    ReEncrypt,
    Refused,
)
from pqkeep_protocol.metrics import GetMetrics, Metrics
from pqkeep_protocol.rules import RuleNotice
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import NetworkAddress

_LOG = logger(__name__)
T = TypeVar("T")


class GatewayConnections:
    """The connections of gateways, by host."""

    def __init__(self) -> None:
        self._hosts: dict[FramedConnection[ToKeyService], _Host] = {}
        """The hosts by connection, the oldest connection first."""

    def add(
        self,
        connection: FramedConnection[ToKeyService],
        transport: asyncio.Transport,
        *,
        is_full: bool,
    ) -> bool:
        """Register a connection, and return whether it is accepted."""
        host = _host_of(transport)
        if is_full and not self._close_oldest(host):
            _LOG.warning("refused a gateway: too many connections are open")
            return False
        self._hosts[connection] = host
        return True

    def remove(self, connection: FramedConnection[ToKeyService]) -> None:
        """Remove a connection if it is registered."""
        self._hosts.pop(connection, None)

    def _close_oldest(self, host: "_Host") -> bool:
        """End the oldest connection of the host with the most, unless the new one ties with it.

        Certificates are compared first, then the addresses of one certificate. One gateway can have
        many addresses, and several gateways can share a certificate.
        """
        hosts = self._hosts.values()
        crowded = _more_crowded(Counter(other.certificate for other in hosts), host.certificate)
        certificate = host.certificate if crowded is None else crowded
        addresses = Counter(other.address for other in hosts if other.certificate == certificate)
        address = _more_crowded(addresses, host.address if crowded is None else None)
        if address is None:
            return False
        _LOG.warning("ended a gateway's connection: its host has too many", host=address)
        oldest = next(
            connection
            for connection, other in self._hosts.items()
            if other == (certificate, address)
        )
        del self._hosts[oldest]
        oldest.abort()
        return True


class _Host(NamedTuple):
    """A gateway's host. Both values are empty for this host."""

    certificate: bytes
    address: str


def _host_of(transport: asyncio.Transport) -> _Host:
    address = transport.get_extra_info("peername")
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return _Host(
        b"" if certificate is None else sha256(certificate).digest(),
        str(address[0]) if isinstance(address, tuple) else "",
    )


def _more_crowded(counts: Mapping[T, int], own: T | None) -> T | None:
    """Return the key with the largest count if it exceeds ``own``'s count plus one, else None."""
    most = max(counts, key=counts.__getitem__, default=None)
    if most is None or (own is not None and counts[most] <= counts.get(own, 0) + 1):
        return None
    return most


BACKLOG = 128
MAX_CONNECTIONS = 64
"""Open connections before GatewayConnections decides about a new one."""


class Server:
    """Executes calls until it drains."""

    def __init__(
        self,
        transactions: Transactions,
        batches: Batches,
        audit_service: AuditService,
        administration: Administration,
        metrics: ServiceMetrics,
        activation: Activation,
        shard: str = DEFAULT_SHARD,
    ) -> None:
        """Take the parts, and the name of this key service's shard."""
        self._activation = activation
        self._writer = activation.writer
        self._transactions = transactions
        self._batches = batches
        self._audit_service = audit_service
        self._administration = administration
        self._metrics = metrics
        self._shard = shard
        self._connections: dict[FramedConnection[ToKeyService], None] = {}
        """By age: a simulation then ends them in a repeatable order."""
        self._gateways = GatewayConnections()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        """The number of calls in flight."""
        self._idle = asyncio.Event()
        """Set while the server drains and no call is in flight."""
        self._draining = False
        self._all_closed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._link_listener: LinkListener | None = None

    async def listen(self, listener: Listener) -> None:
        """Start to serve on one more socket. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        connection = partial(self._connection, listener.accepts, listener.requests)
        server = await loop.create_unix_server(connection, sock=listener.bind(), backlog=BACKLOG)
        self._servers.append(server)

    def listen_to_hosts(self, link: LinkTls, address: NetworkAddress) -> int:
        """Start to serve gateways on other hosts. Return the port. Raises ConfigError."""
        connection = partial(self._connection, link.accepts, GATEWAY_REQUESTS)
        self._link_listener = LinkListener(link, address, connection)
        self._link_listener.start()
        return self._link_listener.port

    async def drain(self, seconds: float) -> None:
        """Refuse new calls, wait at most ``seconds`` for running calls, and close connections."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._draining = True
        for server in self._servers:
            server.close()
        if self._link_listener is not None:
            await self._link_listener.close()
        if self._under_way:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._idle.wait()
        for connection in tuple(self._connections):
            connection.close()  # after its queued frames
        if self._connections:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._all_closed.wait()

    def _has_capacity(
        self,
        connection: FramedConnection[ToKeyService],
        transport: asyncio.Transport,
        requests: frozenset[type[Struct]],
    ) -> bool:
        """Return whether to accept a connection. The operator's are always accepted."""
        if requests is not GATEWAY_REQUESTS:
            return True
        is_full = len(self._connections) > MAX_CONNECTIONS
        return self._gateways.add(connection, transport, is_full=is_full)

    def _connection(
        self, accepts: Accepts, requests: frozenset[type[Struct]]
    ) -> FramedConnection[ToKeyService]:
        peer = _Peer()
        loop = asyncio.get_running_loop()

        def receive(frame: ToKeyService | Unreadable) -> None:
            match frame:
                case Unreadable():
                    _LOG.warning("refused a frame that cannot be read", kind=frame.kind)
                    connection.send(Refusal(frame.id, ErrorKind.INTERNAL))
                case Ping():
                    epoch = 0 if self._draining else self._writer.serving
                    database = self._activation.database_id if frame.asks_database else None
                    connection.send(Pong(frame.id, self._shard, epoch, database))
                case Call() if refusal := self._refusal(frame, requests, peer.in_flight):
                    connection.send(Refusal(frame.id, refusal))
                case Call():
                    deadline = loop.time() + frame.timeout_ms / 1000
                    self._begin(_Call(frame, deadline, connection, peer))

        def lost(error: Exception | None) -> None:
            _log_end(error)
            self._connections.pop(connection, None)
            self._gateways.remove(connection)
            if not self._connections:
                self._all_closed.set()

        connection = FramedConnection(
            TO_KEY_SERVICE,
            on_frame=receive,
            on_lost=lost,
            reads_while_blocked=False,
            accepts=lambda transport: (
                accepts(transport) and self._has_capacity(connection, transport, requests)
            ),
        )
        self._connections[connection] = None
        self._all_closed.clear()
        return connection

    def _refusal(
        self, call: Call, requests: frozenset[type[Struct]], in_flight: int
    ) -> ErrorKind | None:
        """7. Return why a call is refused, or None."""
        is_serving = self._writer.serving or isinstance(call.request, GetMetrics)
        if self._draining or not is_serving:
            return ErrorKind.STANDBY
        if in_flight >= MAX_IN_FLIGHT:
            return ErrorKind.OVERLOADED
        if type(call.request) not in requests:
            request = type(call.request).__name__
            _LOG.warning("refused a request that the socket does not take", request=request)
            return ErrorKind.UNSUPPORTED
        return None

    def _begin(self, call: "_Call") -> None:
        """Execute a call from memory, or start a task for it."""
        self._under_way += 1
        call.peer.in_flight += 1
        request, frame = call.frame.request, call.frame
        if isinstance(request, KeyRequest):
            if request.tenant.int == INSTALLATION.int:  # its keys only sign checkpoints
                self._end(call, ErrorKind.KEY_NOT_FOUND)
                return
            then = partial(self._end, call)
            if self._transactions.execute_from_memory(
                request, frame.attribution, call.deadline, then
            ):
                return
        self._start(call)

    def _start(self, call: "_Call") -> None:
        task = asyncio.create_task(self._answer(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: "_Call") -> None:
        try:
            outcome: _Outcome = await self._result(call)
        except KeyServiceError as refusal:
            self._end(call, refusal.kind, refusal.notice)
            return
        except Exception:  # noqa: BLE001 - an unexpected error needs a response too
            _LOG.exception("request failed", request=type(call.frame.request).__name__)
            outcome = ErrorKind.INTERNAL
        self._end(call, outcome)

    def _end(
        self, call: "_Call", outcome: "_Outcome | None", notice: RuleNotice | None = None
    ) -> None:
        """12. Send a call's outcome, and count it. For None, a task executes the call again."""
        if outcome is None:
            self._start(call)
            return
        request = call.frame.request
        counted: str = Outcome.SUCCESS
        if isinstance(outcome, ErrorKind):
            counted = outcome
            call.connection.send(Refusal(call.frame.id, outcome, notice))
        else:
            try:
                call.connection.send(Answer(call.frame.id, outcome))
            except ProtocolError:
                _LOG.error("an answer is too large for a frame", request=type(request).__name__)
                counted = ErrorKind.INTERNAL
            except Exception:  # noqa: BLE001 - whatever fails, only this call fails
                _LOG.exception("an answer cannot be sent", request=type(request).__name__)
                counted = ErrorKind.INTERNAL
            if isinstance(counted, ErrorKind):
                call.connection.send(Refusal(call.frame.id, counted))
        seconds = perf_counter() - call.began
        if isinstance(request, KeyRequest):
            self._metrics.count(request.operation, request.algorithm, counted, seconds)
            if counted == Outcome.SUCCESS:
                self._count_warned(request, outcome)
        elif (
            isinstance(request, Batch)
            and isinstance(outcome, BatchResults)
            and counted == Outcome.SUCCESS
        ):
            self._count_items(request, outcome, seconds)
        call.peer.in_flight -= 1
        self._under_way -= 1
        if self._draining and not self._under_way:
            self._idle.set()

    def _count_warned(self, request: AnyRequest, result: object) -> None:
        """Count a result with a warning, by the algorithm of its new data."""
        if isinstance(result, KeyResult) and result.notice is not None:
            algorithm = (
                request.target.algorithm if isinstance(request, ReEncrypt) else request.algorithm
            )
            self._metrics.count_warned(request.operation, algorithm)

    def _count_items(self, batch: Batch, results: BatchResults, seconds: float) -> None:
        """Count each request of a batch, with its share of the batch's time."""
        counts = Counter(
            (
                item.request.operation,
                item.request.algorithm,
                result.kind if isinstance(result, Refused) else Outcome.SUCCESS,
            )
            for item, result in zip(batch.items, results.results, strict=True)
        )
        for item, result in zip(batch.items, results.results, strict=True):
            self._count_warned(item.request, result)
        for (operation, algorithm, outcome), times in counts.items():
            self._metrics.count(operation, algorithm, outcome, seconds / len(batch.items), times)

    async def _result(self, call: "_Call") -> "_Result":  # noqa: PLR0911 - one for each kind
        request, attribution = call.frame.request, call.frame.attribution
        if isinstance(request, KeyRequest):
            return await self._transactions.execute(request, attribution, call.deadline)
        if isinstance(request, Batch):
            if request.tenant == INSTALLATION:
                raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)
            return await self._batches.execute(request, attribution, call.deadline)
        if isinstance(request, AnyKeylessRequest):
            return keyless.respond(request)
        if isinstance(request, GetMetrics):
            return await self._metrics.collect(self._under_way)
        if isinstance(request, ListDestructions):
            return await self._administration.list_destructions(request)
        if isinstance(request, AnyAdministrationRequest):
            return await self._administration.respond(request)
        return await self._audit_service.respond(request)


_Result = (
    AnyResult
    | AnyKeylessResult
    | BatchResults
    | Destructions
    | AnyAuditResult
    | AnyAdministrationResult
    | Metrics
)
_Outcome = _Result | ErrorKind


class _Peer:
    """The number of a connection's calls in flight."""

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0


class _Call:
    """A call in flight."""

    __slots__ = ("began", "connection", "deadline", "frame", "peer")

    def __init__(
        self,
        frame: Call,
        deadline: float,
        connection: FramedConnection[ToKeyService],
        peer: _Peer,
    ) -> None:
        """Take the deadline in the event loop's time."""
        self.began = perf_counter()
        self.frame = frame
        self.deadline = deadline
        self.connection = connection
        self.peer = peer


def _log_end(error: Exception | None) -> None:
    """Log a peer's error that ended a connection."""
    match error:
        case ProtocolError():
            _LOG.warning("a peer sent an invalid frame", error=str(error))
        case ssl.SSLError():
            _LOG.warning("TLS ended a connection", error=error.reason)
        case _:
            pass
