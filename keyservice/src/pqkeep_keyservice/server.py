"""Serves framed requests: to each peer, on a Unix socket or by mutual TLS, what it may ask.

A request with keys in memory is answered by the commit of its record; any other becomes a task.
Requests over the limit are refused at once, and so is every request
that arrives while the server drains, or while another key service is the database's writer.

Where there are too many connections of gateways, a new one is served only where another certificate,
or another address with its own, has more of them: the oldest of these ends.
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
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD, INSTALLATION
from pqkeep_protocol.link import LinkTls
from pqkeep_protocol.messages import (
    AnyResult,
    Batch,
    BatchResults,
    Destructions,
    KeyRequest,
    ListDestructions,
    Refused,
)
from pqkeep_protocol.metrics import GetMetrics, Metrics
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import NetworkAddress

_LOG = logger(__name__)
T = TypeVar("T")


class GatewayConnections:
    """The connections of gateways, by where these are."""

    def __init__(self) -> None:
        self._hosts: dict[FramedConnection[ToKeyService], _Host] = {}
        """The oldest first."""

    def add(
        self,
        connection: FramedConnection[ToKeyService],
        transport: asyncio.Transport,
        *,
        is_full: bool,
    ) -> bool:
        """Note a connection, and return whether it is served."""
        host = _host_of(transport)
        if is_full and not self._make_space(host):
            _LOG.warning("refused a gateway: too many connections are open")
            return False
        self._hosts[connection] = host
        return True

    def remove(self, connection: FramedConnection[ToKeyService]) -> None:
        """Forget a connection, if it is noted."""
        self._hosts.pop(connection, None)

    def _make_space(self, host: "_Host") -> bool:
        """End the oldest connection of who has the most, unless this one would have as many.

        That is a certificate, and among those of one certificate an address: one gateway can have
        many addresses, and several gateways can have one certificate.
        """
        hosts = self._hosts.values()
        crowded = _more_crowded(Counter(each.certificate for each in hosts), host.certificate)
        certificate = host.certificate if crowded is None else crowded
        addresses = Counter(each.address for each in hosts if each.certificate == certificate)
        address = _more_crowded(addresses, host.address if crowded is None else None)
        if address is None:
            return False
        _LOG.warning("ended a gateway's connection: its host has too many", host=address)
        oldest = next(each for each, of in self._hosts.items() if of == (certificate, address))
        del self._hosts[oldest]
        oldest.abort()
        return True


class _Host(NamedTuple):
    """Where a gateway is; of one on this host both are empty."""

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


def _more_crowded(of_each: Mapping[T, int], own: T | None) -> T | None:
    """Return who has the most, if that is more than ``own`` would have with another one."""
    most = max(of_each, key=of_each.__getitem__, default=None)
    if most is None or (own is not None and of_each[most] <= of_each.get(own, 0) + 1):
        return None
    return most


BACKLOG = 128
MAX_CONNECTIONS = 64
"""Open connections, beyond which GatewayConnections decides whether a gateway's is served."""


class Server:
    """Answers calls until it drains."""

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
        """Take the name of the shard whose key service it is."""
        self._activation = activation
        self._writer = activation.writer
        self._transactions = transactions
        self._batches = batches
        self._audit_service = audit_service
        self._administration = administration
        self._metrics = metrics
        self._shard = shard
        self._connections: dict[FramedConnection[ToKeyService], None] = {}
        """The oldest first: a simulation ends them in the same order again."""
        self._gateways = GatewayConnections()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        """Calls that are not answered yet."""
        self._idle = asyncio.Event()
        """While the server drains: set once there are none."""
        self._draining = False
        self._all_closed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._link_listener: LinkListener | None = None

    async def listen(self, listener: Listener) -> None:
        """Start to serve on a socket too. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        connection = partial(self._connection, listener.accepts, listener.requests)
        server = await loop.create_unix_server(connection, sock=listener.bind(), backlog=BACKLOG)
        self._servers.append(server)

    def listen_to_hosts(self, link: LinkTls, address: NetworkAddress) -> int:
        """Start to serve gateways of other hosts; return the port. Raises ConfigError."""
        connection = partial(self._connection, link.accepts, GATEWAY_REQUESTS)
        self._link_listener = LinkListener(link, address, connection)
        self._link_listener.start()
        return self._link_listener.port

    async def drain(self, seconds: float) -> None:
        """Refuse new calls, wait at most so long for the running ones, and close connections."""
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
            connection.close()  # after what is queued
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
        """Return whether a connection is served: the operator's always is."""
        if requests is not GATEWAY_REQUESTS:
            return True
        is_full = len(self._connections) > MAX_CONNECTIONS
        return self._gateways.add(connection, transport, is_full=is_full)

    def _connection(
        self, accepts: Accepts, requests: frozenset[type[Struct]]
    ) -> FramedConnection[ToKeyService]:
        peer = _Peer()
        loop = asyncio.get_running_loop()

        def receive(frame: ToKeyService) -> None:
            match frame:
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
        """7. Return the kind of the refusal of a call that is not begun."""
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
        """Answer a call from memory, or start a task that does."""
        self._under_way += 1
        call.peer.in_flight += 1
        request, frame = call.frame.request, call.frame
        if isinstance(request, KeyRequest):
            if request.tenant.int == INSTALLATION.int:  # its keys are for checkpoints alone
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
            outcome = refusal.kind
        except Exception:  # noqa: BLE001 - an unexpected error is answered too
            _LOG.exception("request failed", request=type(call.frame.request).__name__)
            outcome = ErrorKind.INTERNAL
        self._end(call, outcome)

    def _end(self, call: "_Call", outcome: "_Outcome | None") -> None:
        """12. Send the outcome of a call, and count it. None: a task executes the call again."""
        if outcome is None:
            self._start(call)
            return
        request = call.frame.request
        said: str = Outcome.SUCCESS
        if isinstance(outcome, ErrorKind):
            said = outcome
            call.connection.send(Refusal(call.frame.id, outcome))
        else:
            try:
                call.connection.send(Answer(call.frame.id, outcome))
            except ProtocolError:
                _LOG.error("an answer is too large for a frame", request=type(request).__name__)
                said = ErrorKind.INTERNAL
            except Exception:  # noqa: BLE001 - whatever it is, this call alone fails
                _LOG.exception("an answer cannot be sent", request=type(request).__name__)
                said = ErrorKind.INTERNAL
            if isinstance(said, ErrorKind):
                call.connection.send(Refusal(call.frame.id, said))
        seconds = perf_counter() - call.began
        if isinstance(request, KeyRequest):
            self._metrics.count(request.operation, request.algorithm, said, seconds)
        elif (
            isinstance(request, Batch)
            and isinstance(outcome, BatchResults)
            and said == Outcome.SUCCESS
        ):
            self._count_items(request, outcome, seconds)
        call.peer.in_flight -= 1
        self._under_way -= 1
        if self._draining and not self._under_way:
            self._idle.set()

    def _count_items(self, batch: Batch, results: BatchResults, seconds: float) -> None:
        """Count each request of a batch, with its share of the time."""
        counts = Counter(
            (
                item.request.operation,
                item.request.algorithm,
                result.kind if isinstance(result, Refused) else Outcome.SUCCESS,
            )
            for item, result in zip(batch.items, results.results, strict=True)
        )
        for (operation, algorithm, outcome), times in counts.items():
            self._metrics.count(operation, algorithm, outcome, seconds / len(batch.items), times)

    async def _result(self, call: "_Call") -> "_Result":
        request, attribution = call.frame.request, call.frame.attribution
        if isinstance(request, KeyRequest):
            return await self._transactions.execute(request, attribution, call.deadline)
        if isinstance(request, Batch):
            if request.tenant == INSTALLATION:
                raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)
            return await self._batches.execute(request, attribution, call.deadline)
        if isinstance(request, GetMetrics):
            return await self._metrics.collect(self._under_way)
        if isinstance(request, ListDestructions):
            return await self._administration.list_destructions(request)
        if isinstance(request, AnyAdministrationRequest):
            return await self._administration.respond(request)
        return await self._audit_service.respond(request)


_Result = (
    AnyResult | BatchResults | Destructions | AnyAuditResult | AnyAdministrationResult | Metrics
)
_Outcome = _Result | ErrorKind


class _Peer:
    """How many calls of a connection are not answered yet."""

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0


class _Call:
    """A call that is not answered yet."""

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
    """Log what a peer has done wrong, if it has."""
    match error:
        case ProtocolError():
            _LOG.warning("a peer sent an invalid frame", error=str(error))
        case ssl.SSLError():
            _LOG.warning("TLS ended a connection", error=error.reason)
        case _:
            pass
