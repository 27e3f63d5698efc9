"""The server on a real Unix socket in this process: limits, garbage and draining."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import msgspec
import pytest
from msgspec import structs
from tests.patience import PATIENCE

from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.listeners import (
    DESTRUCTION_REQUESTS,
    GATEWAY_REQUESTS,
    OPERATOR_REQUESTS,
    Listener,
)
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.server import MAX_CONNECTIONS, Server
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import (
    AnnounceBackup,
    AnyAdministrationRequest,
    CancelMove,
    ExportTenant,
    FinishMove,
    ImportTenant,
    ListMoves,
    ListScheduledArchives,
    NewestBackup,
    ReadBundle,
    Receipt,
    ReloadRootKeys,
    RenounceTenant,
)
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.audit import (
    MAX_PAGE,
    AnyAuditRequest,
    Event,
    EventRefusal,
    ListRecords,
    ListWitnesses,
    Recorded,
    RecordEvents,
    Records,
    RefusedEvent,
    SignCheckpoint,
)
from pqkeep_protocol.audit_events import AuditEvent, KeyServiceEvent
from pqkeep_protocol.codec import (
    MAX_FRAME,
    MAX_IN_FLIGHT,
    RESULT_TYPE,
    TO_GATEWAY,
    Answer,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    Refusal,
    ToGateway,
    ToKeyService,
    Unreadable,
    encode,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    MAX_KEYS_LISTED,
    AnyRequest,
    Attribution,
    Batch,
    Decrypt,
    Encrypt,
    Encrypted,
    GenerateKey,
    GetKey,
    Item,
    KeyPosition,
    Keys,
    ListKeys,
    ListRules,
    OverrideRule,
    PutRule,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Sign,
)
from pqkeep_protocol.metrics import KEY_SERVICE_METRICS, GetMetrics, Metrics, Sample
from pqkeep_protocol.rules import Rule
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Sql

TENANT = TenantId(UUID(int=1))
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
GENERATE = GenerateKey(tenant=TENANT, algorithm=SIGNATURE, quota=None)
SIGN = Sign(tenant=TENANT, algorithm=SIGNATURE, version=None, message=b"text")


def call(
    number: int,
    request: AnyRequest | Batch | AnyAuditRequest | AnyAdministrationRequest | GetMetrics,
    timeout_ms: int = 20_000,
) -> Call:
    """Return a call."""
    return Call(number, timeout_ms, Attribution("r", "p", "a", "y"), request)


class Client:
    """Sends any frames and bytes, and waits for frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder(TO_GATEWAY)
        self._frames: list[ToGateway | Unreadable] = []

    async def send(self, *frames: ToKeyService | bytes) -> None:
        parts = [bytes(one) if isinstance(one, bytes) else encode(one) for one in frames]
        self._writer.write(b"".join(parts))
        await self._writer.drain()

    async def receive(self, count: int, seconds: float = PATIENCE) -> list[ToGateway | Unreadable]:
        """Return ``count`` frames, or fewer if the connection ends earlier."""
        async with asyncio.timeout(seconds):
            while len(self._frames) < count:
                data = await self._reader.read(len(self._decoder.space()))
                if not data:
                    break
                self._decoder.space()[: len(data)] = data
                self._frames += self._decoder.filled(len(data))
        got, self._frames = self._frames[:count], self._frames[count:]
        return got

    async def is_hung_up(self) -> bool:
        """Return whether the other side ends the connection without another frame."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read() == b"" and not self._frames
            except ConnectionError:
                return True

    async def close(self) -> None:
        self._writer.close()


Connect = Callable[[], Any]


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """Return the path of a new socket."""
    return tmp_path / "key-service"


def gateway_listener(path: Path) -> Listener:
    """Return the gateway's socket, for this process."""
    return Listener(path, frozenset({os.geteuid()}), GATEWAY_REQUESTS, 0o600)


def new_server(service: InProcessService) -> Server:
    """Return a server that does not listen yet."""
    parts = service.parts
    return Server(
        parts.transactions,
        parts.batches,
        parts.audit_service,
        parts.administration,
        parts.metrics,
        parts.activation,
    )


@pytest.fixture
async def server(
    service: InProcessService,
    socket_path: Path,
) -> AsyncIterator[Server]:
    """Serve on the socket."""
    await service.parts.activation.start()
    started = new_server(service)
    await started.listen(gateway_listener(socket_path))
    yield started
    await started.drain(PATIENCE)


@pytest.fixture
async def connect(server: Server, socket_path: Path) -> AsyncIterator[Connect]:
    """Return a function that connects to the server."""
    async with AsyncExitStack() as stack:

        async def new() -> Client:
            client = Client(*await asyncio.open_unix_connection(str(socket_path)))
            stack.push_async_callback(client.close)
            return client

        yield new


@pytest.fixture
async def operator(server: Server, tmp_path: Path) -> AsyncIterator[Client]:
    """Connect to the operator's socket."""
    path = tmp_path / "operator"
    await server.listen(Listener(path, frozenset({os.geteuid()}), OPERATOR_REQUESTS, 0o600))
    client = Client(*await asyncio.open_unix_connection(str(path)))
    yield client
    await client.close()


async def test_the_socket_is_its_owners(server: Server, socket_path: Path) -> None:
    """The socket has mode 0600."""
    assert stat.S_IMODE(await asyncio.to_thread(lambda: socket_path.stat().st_mode)) == 0o600


@pytest.mark.threat("compromised-gateway")
async def test_a_gateway_s_connections_are_bounded(connect: Connect, operator: Client) -> None:
    """Beyond MAX_CONNECTIONS a gateway's are refused. Open ones and the operator are served."""
    open_ones = [await connect() for _ in range(MAX_CONNECTIONS - 1)]
    await open_ones[-1].send(Ping(1))
    assert await open_ones[-1].receive(1) == [Pong(1)]
    assert await (await connect()).is_hung_up()
    for number, client in enumerate((open_ones[0], operator)):
        await client.send(Ping(number))
        assert await client.receive(1) == [Pong(number)]


def event(number: int, operation: str, outcome: str = "success", after_us: int = 0) -> Event:
    """Return an event from the gateway."""
    return Event(
        id=UUID(int=number),
        at_us=time.time_ns() // 1000 + after_us,
        tenant=TENANT,
        principal="operator",
        operation=operation,
        algorithm=None,
        key_version=None,
        outcome=outcome,
        request_id="r",
        source_address="a",
        policy="",
    )


@pytest.mark.threat("compromised-gateway")
@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        ("delete-everything", "success"),
        ("CREATE-TENANT", "success"),
        (KeyServiceEvent.ROTATE_ROOT_KEY, "success"),
        (Operation.ENCRYPT, "success"),
        (Operation.VERIFY, "verification-failed"),
        (Operation.ENCRYPT, "ERR_anything"),
        (AuditEvent.SIGN_IN, "completed"),
    ],
)
async def test_an_event_that_is_not_the_gateways_is_refused(
    connect: Connect, operation: str, outcome: str
) -> None:
    """An invalid event is refused by its id, and the others of the message are recorded."""
    await require_refused_alone(
        await connect(), event(2, operation, outcome), EventRefusal.NOT_AN_EVENT
    )


DAY = 24 * 3600 * 1_000_000


@pytest.mark.threat("compromised-gateway")
@pytest.mark.parametrize(
    "after_us", [-31 * DAY, 6 * 60 * 1_000_000, DAY], ids=["too old", "soon", "tomorrow"]
)
async def test_an_event_of_another_time_is_refused(connect: Connect, after_us: int) -> None:
    """An event from long before the newest record, or from the future, is refused alone."""
    late = event(2, AuditEvent.CREATE_TENANT, after_us=after_us)
    await require_refused_alone(await connect(), late, EventRefusal.OUT_OF_TIME)


@pytest.mark.parametrize("at_us", [0, 253_402_300_800_000_000, 2**63 - 1])
async def test_no_time_poisons_what_is_recorded_with_it(connect: Connect, at_us: int) -> None:
    """An event with an impossible time is refused alone."""
    poison = structs.replace(event(2, AuditEvent.CREATE_TENANT), at_us=at_us)
    await require_refused_alone(await connect(), poison, EventRefusal.OUT_OF_TIME)


async def require_refused_alone(client: Client, bad: Event, reason: EventRefusal) -> None:
    """Check that the log refuses one event of three and records the others."""
    before, after = event(1, AuditEvent.CREATE_TENANT), event(3, AuditEvent.SIGN_UP)
    brought = RecordEvents(tenant=INSTALLATION, events=(before, bad, after))
    await client.send(call(1, brought))
    refused = (RefusedEvent(bad.id, reason),)
    assert await client.receive(1) == [Answer(1, Recorded(refused=refused))]
    await client.send(call(2, ListRecords(tenant=INSTALLATION)))
    (response,) = await client.receive(1)
    assert isinstance(response, Answer)
    assert isinstance(response.result, Records)
    recorded = [json.loads(line)["event_id"] for line in response.result.lines]
    assert recorded == [str(before.id), str(after.id)]


@pytest.mark.threat("compromised-gateway", "stolen-transfer-key")
async def test_each_socket_has_its_list(server: Server, connect: Connect, operator: Client) -> None:
    """The gateway cannot administer or move tenants; the operator cannot use keys or the log."""
    gateway: Client = await connect()
    reload = ReloadRootKeys(tenant=INSTALLATION)
    digest = bytes(32)
    receipt = Receipt(
        tenant=TENANT, source="a", target="b", generation=1, sha256=digest, mac=digest
    )
    refused: tuple[AnyAdministrationRequest | OverrideRule, ...] = (
        reload,
        AnnounceBackup(
            tenant=INSTALLATION, log_id=uuid4(), generation=1, records=1, created_at_us=1
        ),
        ExportTenant(tenant=TENANT, target="b"),
        ReadBundle(tenant=TENANT, sha256=digest, part=0),
        ImportTenant(tenant=TENANT, sha256=digest, size=1, part=0, data=b"x"),
        FinishMove(tenant=TENANT, receipt=receipt),
        RenounceTenant(tenant=TENANT, source="a", generation=1, sha256=digest),
        CancelMove(tenant=TENANT, renunciation=receipt),
        ListMoves(tenant=INSTALLATION),
        ListScheduledArchives(tenant=INSTALLATION),
        OverrideRule(tenant=TENANT, name="legacy", rules=()),
    )
    assert set(map(type, refused)) == OPERATOR_REQUESTS - GATEWAY_REQUESTS
    for number, request in enumerate(refused):
        await gateway.send(call(number, request))
        assert await gateway.receive(1) == [Refusal(number, ErrorKind.UNSUPPORTED)]
    records = ListRecords(tenant=INSTALLATION)
    await operator.send(call(1, GENERATE), call(2, records), call(3, reload))
    responses = {frame.id: frame for frame in await operator.receive(3)}
    assert responses[1] == Refusal(1, ErrorKind.UNSUPPORTED)
    assert responses[2] == Refusal(2, ErrorKind.UNSUPPORTED)
    assert isinstance(responses[3], Answer)


def test_every_request_has_its_socket() -> None:
    """Each request is accepted on one socket only, except lists and cancelled destructions."""
    assert set(RESULT_TYPE) == GATEWAY_REQUESTS | OPERATOR_REQUESTS
    lists = {ListRules, ListWitnesses}
    assert DESTRUCTION_REQUESTS | lists == GATEWAY_REQUESTS & OPERATOR_REQUESTS


async def announced(
    operator: Client, number: int, backup: AnnounceBackup
) -> tuple[int, int] | ErrorKind:
    """Announce a backup. Return the newest backup's records and time, or the refusal."""
    await operator.send(call(number, backup))
    (response,) = await operator.receive(1)
    if isinstance(response, Refusal):
        return response.kind
    assert isinstance(response, Answer)
    assert isinstance(response.result, NewestBackup)
    return response.result.records, response.result.created_at_us


async def test_an_announced_backup_is_the_newest(
    service: InProcessService, connect: Connect, operator: Client
) -> None:
    """A repeated or late announcement does not replace the newest backup, even after a restart."""
    await service.parts.store.check()
    gateway = await connect()
    await gateway.send(call(1, GENERATE))
    await gateway.receive(1)
    assert not (await metrics_of(gateway, 2)).samples["pqkeep_last_backup_number"]
    log_id, _ = await service.parts.store.frontier()
    backup = partial(AnnounceBackup, tenant=INSTALLATION, log_id=log_id, generation=0)
    steps = [((1, 500), (1, 500)), ((1, 400), (1, 500)), ((0, 600), (1, 500)), ((1, 700), (1, 700))]
    for number, ((records, at_us), newest) in enumerate(steps):
        each = backup(records=records, created_at_us=at_us)
        assert await announced(operator, number, each) == newest
    samples = (await metrics_of(gateway, 3)).samples
    assert samples["pqkeep_last_backup_timestamp_seconds"] == (Sample((), 0.0007),)
    number_s_parts = {
        sample.labels: sample.value for sample in samples["pqkeep_last_backup_number"]
    }
    assert number_s_parts == {("generation",): 0, ("records",): 1}
    service.parts.store.newest_backup = None
    await service.parts.store.check()
    assert (await metrics_of(gateway, 4)).samples["pqkeep_last_backup_number"]


async def test_a_backup_of_something_else_is_refused(
    service: InProcessService, connect: Connect, operator: Client
) -> None:
    """A backup with another log, more records, another generation or a future time is refused."""
    log_id, _ = await service.parts.store.frontier()
    backup = AnnounceBackup(
        tenant=INSTALLATION, log_id=log_id, generation=0, records=0, created_at_us=500
    )
    others: list[dict[str, Any]] = [
        {"log_id": UUID(int=1)},
        {"records": 1},
        {"records": 2**63},
        {"generation": 1},
        {"created_at_us": 2**62},
    ]
    for number, other in enumerate(others):
        refused = await announced(operator, number, structs.replace(backup, **other))
        assert refused is ErrorKind.RECORD_NOT_FOUND
    assert not (await metrics_of(await connect(), 1)).samples["pqkeep_last_backup_number"]
    assert await announced(operator, 9, backup) == (0, 500)


async def test_an_unexpected_error_is_answered(operator: Client, sql: Sql) -> None:
    """After an unexpected error during a reload, the call is refused and later calls work."""
    sql("DROP TABLE root_keys")
    reload = ReloadRootKeys(tenant=INSTALLATION)
    await operator.send(call(1, reload), call(2, reload), Ping(3))
    got = await operator.receive(3)
    assert {frame.id: frame for frame in got} == {
        1: Refusal(1, ErrorKind.INTERNAL),
        2: Refusal(2, ErrorKind.INTERNAL),
        3: Pong(3),
    }


async def test_what_the_gateway_can_record_is_recorded(connect: Connect) -> None:
    """Each event of the gateway is accepted, and each key operation as a refusal."""
    done = [(operation, "success") for operation in AuditEvent]
    refused = [(operation, "ERR_POLICY_001") for operation in (*AuditEvent, *Operation)]
    events = tuple(event(n, *kind) for n, kind in enumerate([*done, *refused], 1))
    client = await connect()
    await client.send(call(1, RecordEvents(tenant=INSTALLATION, events=events)))
    assert await client.receive(1) == [Answer(1, Recorded())]
    await client.send(call(2, ListRecords(tenant=TENANT, limit=MAX_PAGE)))
    (response,) = await client.receive(1)
    assert isinstance(response, Answer)
    assert isinstance(response.result, Records)
    assert len(response.result.lines) == len(events)


async def test_pings_and_calls_are_answered_by_their_ids(connect: Connect) -> None:
    """Each frame gets one response with its id, in any order and however the bytes are split."""
    client: Client = await connect()
    await client.send(Ping(7), call(2**64 - 1, GENERATE), Ping(8))
    got = await client.receive(3)
    assert sorted(frame.id for frame in got) == [7, 8, 2**64 - 1]
    assert {type(frame) for frame in got} == {Pong, Answer}
    for byte in bytes(encode(Ping(9))):
        await client.send(bytes([byte]))
    assert await client.receive(1) == [Pong(9)]
    await client.send(call(10, GENERATE))
    assert await client.receive(1) == [Refusal(10, ErrorKind.KEY_EXISTS)]


LONG_MS = 10 * 60_000
"""More than a busy machine needs for MAX_IN_FLIGHT signatures."""

GARBAGE = {
    "an oversized frame": (MAX_FRAME + 1).to_bytes(4, "big"),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a frame that is none": b"\0\0\0\1\xc1",
    "a frame of the other direction": bytes(encode(Pong(1))),
    "nested arrays": (100_000).to_bytes(4, "big") + b"\x91" * 100_000,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_ends_its_connection_and_no_other(
    garbage: bytes, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid frame ends only its own connection, and is logged."""
    bystander: Client = await connect()
    vandal: Client = await connect()
    await vandal.send(Ping(1), garbage)
    got = await vandal.receive(2)
    assert got in ([Pong(1)], [])  # an abort may overtake the answer to what came before
    await bystander.send(Ping(2))
    assert await bystander.receive(1) == [Pong(2)]
    newcomer: Client = await connect()
    await newcomer.send(Ping(3))
    assert await newcomer.receive(1) == [Pong(3)]
    assert caplog.text.count("a peer sent an invalid frame") == 1


async def test_too_many_calls_are_refused_at_once(connect: Connect) -> None:
    """Calls beyond MAX_IN_FLIGHT are OVERLOADED. Once the others end, there is capacity again."""
    client: Client = await connect()
    await client.send(call(1, GENERATE))
    await client.receive(1)
    extra = 40
    await client.send(*(call(number, SIGN, LONG_MS) for number in range(MAX_IN_FLIGHT + extra)))
    got = await client.receive(MAX_IN_FLIGHT + extra, LONG_MS / 1000)
    assert sorted(frame.id for frame in got) == list(range(MAX_IN_FLIGHT + extra))
    refused = [frame for frame in got if isinstance(frame, Refusal)]
    assert {frame.kind for frame in refused} == {ErrorKind.OVERLOADED}
    assert len(refused) < len(got)
    assert all(isinstance(frame, Answer) for frame in got if frame not in refused)
    await client.send(call(1, SIGN))
    assert isinstance((await client.receive(1))[0], Answer)


async def test_repeated_ids_do_not_get_round_the_limit(connect: Connect) -> None:
    """The limit counts calls, so equal ids do not evade it."""
    client: Client = await connect()
    await client.send(call(1, GENERATE))
    await client.receive(1)
    await client.send(*(call(1, SIGN, LONG_MS) for _ in range(MAX_IN_FLIGHT + 40)))
    got = await client.receive(MAX_IN_FLIGHT + 40, LONG_MS / 1000)
    refused = [frame for frame in got if not isinstance(frame, Answer)]
    assert len(got) == MAX_IN_FLIGHT + 40
    assert 0 < len(refused) < len(got)
    assert refused == [Refusal(1, ErrorKind.OVERLOADED)] * len(refused)


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**63)])
async def test_a_call_without_time_is_refused(timeout_ms: int, connect: Connect) -> None:
    """A call without remaining time is DEADLINE_EXCEEDED."""
    client: Client = await connect()
    await client.send(call(1, GENERATE, timeout_ms))
    assert await client.receive(1) == [Refusal(1, ErrorKind.DEADLINE_EXCEEDED)]


async def test_a_client_that_leaves_harms_nobody(connect: Connect) -> None:
    """Calls of a disconnected client are completed, and later callers see their effects."""
    client: Client = await connect()
    rotate = RotateKey(tenant=TENANT, algorithm=SIGNATURE)
    await client.send(call(1, GENERATE))
    await client.receive(1)
    await client.send(*(call(number, rotate) for number in range(20)))
    await client.close()
    other: Client = await connect()
    deadline = time.monotonic() + PATIENCE
    version = 0
    while version < 21 and time.monotonic() < deadline:
        await other.send(call(2, SIGN))
        (response,) = await other.receive(1)
        version = response.result.version  # type: ignore[union-attr,assignment]  # or it fails here
    assert version == 21


async def test_drain_finishes_what_has_begun(
    server: Server, connect: Connect, socket_path: Path
) -> None:
    """While draining, earlier calls get results, later ones STANDBY; then connections end."""
    client: Client = await connect()
    await client.send(call(1, GENERATE))
    await client.receive(1)
    await client.send(*(call(number, SIGN) for number in range(50)), Ping(1000))
    begun = []
    while Pong(1000) not in begun:  # now the server has read them all
        begun += await client.receive(1)
    drained = asyncio.create_task(server.drain(PATIENCE))
    await asyncio.sleep(0)
    await client.send(call(2000, SIGN))
    got = begun + await client.receive(52 - len(begun))
    responses = [frame for frame in got if isinstance(frame, Answer)]
    assert sorted(frame.id for frame in responses) == list(range(50))
    late = [frame for frame in got if isinstance(frame, Refusal)]
    assert late in ([], [Refusal(2000, ErrorKind.STANDBY)])  # or it hung up before
    await drained
    assert await client.is_hung_up()
    with pytest.raises(OSError):  # noqa: PT011 - refused, or not there: both are right
        await asyncio.open_unix_connection(str(socket_path))


async def test_the_fullest_page_fits_into_a_frame(
    connect: Connect, store: KeyStore, material: KeyMaterial
) -> None:
    """A page of 500 of the largest public keys fits into a frame."""
    largest = max(Algorithm, key=lambda algorithm: ALGORITHMS[algorithm].public_key_size)
    await _put_versions(store, material, largest, MAX_KEYS_LISTED + 1)
    client: Client = await connect()
    full = KeyPosition(largest, KeyVersion(MAX_KEYS_LISTED))
    for after, size in ((None, MAX_KEYS_LISTED), (full, 1)):
        request = ListKeys(tenant=TENANT, algorithm=None, status=None, after=after)
        await client.send(call(1, request))
        (response,) = await client.receive(1)
        assert isinstance(response, Answer)
        assert isinstance(response.result, Keys)
        assert (len(response.result.keys), response.result.total) == (size, MAX_KEYS_LISTED + 1)


async def test_a_call_is_answered_even_if_its_result_is_too_large(connect: Connect) -> None:
    """A result larger than a frame is INTERNAL, and the connection stays usable."""
    client: Client = await connect()
    await client.send(call(1, GenerateKey(tenant=TENANT, algorithm=KEM, quota=None)))
    await client.receive(1)
    text = bytes(MAX_FRAME - 300)
    encrypt = Encrypt(tenant=TENANT, algorithm=KEM, version=None, plaintext=text)
    await client.send(call(2, encrypt), Ping(3))
    got = await client.receive(2)
    assert sorted(got, key=lambda frame: frame.id) == [Refusal(2, ErrorKind.INTERNAL), Pong(3)]


async def test_a_request_that_cannot_be_read_fails_alone(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A request with a version that no key can have is refused, and its connection goes on.

    The requests before and behind it are answered, on its connection and on another.
    """
    client: Client = await connect()
    await client.send(call(1, GENERATE))
    await client.receive(1)

    def get(version: int) -> GetKey:
        return GetKey(tenant=TENANT, algorithm=SIGNATURE, version=KeyVersion(version))

    neighbour: Client = await connect()
    await client.send(call(2, SIGN), call(3, get(2**63)), call(4, get(1)), call(5, get(2**31)))
    await neighbour.send(call(6, get(2**31 - 1)))
    got = {frame.id: frame for frame in await client.receive(4)}
    assert isinstance(got[2], Answer)
    assert isinstance(got[4], Answer)
    assert [got[3], got[5]] == [Refusal(3, ErrorKind.INTERNAL), Refusal(5, ErrorKind.INTERNAL)]
    assert await neighbour.receive(1) == [Refusal(6, ErrorKind.KEY_NOT_FOUND)]
    assert caplog.text.count("refused a frame that cannot be read") == 2


@pytest.mark.threat("compromised-gateway")
async def test_frames_that_cannot_be_read_take_no_capacity(connect: Connect) -> None:
    """A gateway can send any number of them: each has its refusal, and others are served."""
    vandal: Client = await connect()
    bystander: Client = await connect()
    count = 3 * MAX_IN_FLIGHT
    bodies = (msgspec.msgpack.encode(("call", number, "nonsense")) for number in range(count))
    flood = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    await asyncio.gather(vandal.send(flood), bystander.send(call(1, GENERATE)))
    assert isinstance((await bystander.receive(1))[0], Answer)
    got = await vandal.receive(count)
    assert got == [Refusal(number, ErrorKind.INTERNAL) for number in range(count)]
    await vandal.send(call(1, SIGN))
    assert isinstance((await vandal.receive(1))[0], Answer)


async def test_who_never_reads_does_not_hold_the_end_up(
    server: Server, connect: Connect, store: KeyStore, material: KeyMaterial
) -> None:
    """Draining waits a limited time for a peer that reads nothing."""
    await _put_versions(store, material, SIGNATURE, MAX_KEYS_LISTED)
    client: Client = await connect()
    request = ListKeys(tenant=TENANT, algorithm=None, status=None)
    await client.send(*(call(number, request) for number in range(4)))
    await asyncio.sleep(0.2)
    started = time.monotonic()
    await server.drain(0.5)
    assert 0.4 < time.monotonic() - started < PATIENCE
    got = await client.receive(4)  # it is still there for whoever reads at last
    assert [frame.id for frame in got if isinstance(frame, Answer)] == list(range(4))
    assert await client.is_hung_up()


async def _put_versions(
    store: KeyStore, material: KeyMaterial, algorithm: Algorithm, count: int
) -> None:
    """Store a key with many versions, as if by rotations."""
    entries = []
    for version in map(KeyVersion, range(1, count + 1)):
        public_key, sealed = material.generate(KeyName(TENANT, algorithm), version)
        status = KeyStatus.RETIRED if version < count else KeyStatus.ACTIVE
        created = datetime(2026, 1, 1, tzinfo=UTC)
        entries.append(KeyEntry(KeyInfo(algorithm, version, status, public_key, created), sealed))
    versions = KeyVersions(TENANT, algorithm, tuple(entries), revision=count)
    row = NewRecord(TENANT, "p", Operation.ROTATE_KEY, algorithm, None, "success", "r", "a", "y")
    await store.commit([(row, KeyChange(KeyVersions(TENANT, algorithm), versions))])


async def test_the_largest_message_crosses_the_socket(connect: Connect) -> None:
    """1 MiB is encrypted and decrypted over the socket."""
    client: Client = await connect()
    text = bytes(range(256)) * 4096
    await client.send(call(1, GenerateKey(tenant=TENANT, algorithm=KEM, quota=None)))
    await client.receive(1)
    await client.send(call(2, Encrypt(tenant=TENANT, algorithm=KEM, version=None, plaintext=text)))
    (encrypted,) = await client.receive(1)
    assert isinstance(encrypted, Answer)
    assert isinstance(encrypted.result, Encrypted)
    blob = encrypted.result.ciphertext
    await client.send(
        call(3, Decrypt(tenant=TENANT, algorithm=KEM, version=KeyVersion(1), ciphertext=blob))
    )
    (decrypted,) = await client.receive(1)
    assert getattr(getattr(decrypted, "result", None), "plaintext", None) == text


async def test_the_log_s_keys_are_for_the_log(
    connect: Connect, service: InProcessService, attribution: Attribution
) -> None:
    """No caller can use, change or list the checkpoint keys."""
    sign = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
    await service.execute(sign, attribution)
    client: Client = await connect()
    signing: dict[str, Any] = {"tenant": INSTALLATION, "algorithm": Algorithm.ML_DSA_65}
    requests: list[AnyRequest] = [
        Sign(**signing, version=None, message=b"pqkeep/v1/audit-checkpoint\n"),
        Sign(**signing, version=KeyVersion(1), message=b""),
        RotateKey(**signing),
        RetireKey(**signing, version=KeyVersion(1)),
        ScheduleArchive(days=0, **signing, version=KeyVersion(1)),
        GenerateKey(tenant=INSTALLATION, algorithm=KEM, quota=None),
        GetKey(**signing, version=KeyVersion(1)),
        ListKeys(tenant=INSTALLATION, algorithm=None, status=None),
    ]
    for number, request in enumerate(requests):
        await client.send(call(number, request))
        assert await client.receive(1) == [Refusal(number, ErrorKind.KEY_NOT_FOUND)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # not closed
@pytest.mark.parametrize("path", ["x" * 200, "missing/socket"])
async def test_a_socket_that_cannot_be_made_is_a_clear_error(
    path: str,
    tmp_path: Path,
    service: InProcessService,
) -> None:
    """A path that is too long, or in a missing folder, is a ConfigError with the path."""
    with pytest.raises(ConfigError, match=path):
        await new_server(service).listen(gateway_listener(tmp_path / path))


def test_only_a_socket_gives_way_to_the_socket(
    socket_path: Path,
    service: InProcessService,
) -> None:
    """An ordinary file at the socket's path is not deleted."""
    socket_path.write_bytes(b"something precious")

    async def listen() -> None:
        server = new_server(service)
        try:
            await server.listen(gateway_listener(socket_path))
        finally:
            await server.drain(PATIENCE)

    with pytest.raises(ConfigError, match=f"cannot serve on {socket_path}"):
        asyncio.run(listen())
    assert socket_path.read_bytes() == b"something precious"


async def metrics_of(client: Client, number: int) -> Metrics:
    """Return the key service's numbers."""
    await client.send(call(number, GetMetrics(tenant=INSTALLATION)))
    (response,) = await client.receive(1)
    assert isinstance(response, Answer)
    assert isinstance(response.result, Metrics)
    return response.result


async def test_its_numbers_are_those_of_what_it_did(connect: Connect) -> None:
    """Two successes and a refusal are counted, also in the log's size and in keys by status."""
    client = await connect()
    await client.send(call(1, GENERATE))
    await client.receive(1)
    await client.send(call(2, SIGN), call(3, GENERATE))
    await client.receive(2)
    samples = (await metrics_of(client, 4)).samples
    operations = {
        sample.labels: sample.value for sample in samples["pqkeep_key_service_operations_total"]
    }
    assert operations == {
        ("generate-key", SIGNATURE, "success"): 1,
        ("sign", SIGNATURE, "success"): 1,
        ("generate-key", SIGNATURE, "key-exists"): 1,
    }
    (size,) = samples["pqkeep_audit_log_records"]
    assert size.value == 3
    (times,) = samples["pqkeep_audit_log_commit_duration_seconds"]
    assert sum(times.counts) == sum(
        sample.value for sample in samples["pqkeep_audit_log_commits_total"]
    )
    assert [(sample.labels, sample.value) for sample in samples["pqkeep_keys"]] == [
        ((SIGNATURE, "active"), 1)
    ]
    assert [sample.value for sample in samples["pqkeep_keys_database_up"]] == [1]


async def test_warned_operations_are_counted(connect: Connect) -> None:
    """Successes that a rule will deny are counted by algorithm, alone and in a batch."""
    client = await connect()
    yesterday = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    rule = Rule("end", (SIGNATURE,), warn_from=yesterday)
    await client.send(
        call(1, GENERATE),
        call(2, GenerateKey(tenant=TENANT, algorithm=KEM, quota=None)),
        call(3, PutRule(tenant=TENANT, name="end", rules=(rule,))),
    )
    await client.receive(3)
    encrypt = Encrypt(tenant=TENANT, algorithm=KEM, version=None, plaintext=b"")
    batch = Batch(tenant=TENANT, items=(Item(SIGN), Item(encrypt)))
    await client.send(call(4, SIGN), call(5, encrypt), call(6, batch))
    await client.receive(3)
    samples = (await metrics_of(client, 7)).samples
    warned = samples["pqkeep_key_service_warned_operations_total"]
    assert [(sample.labels, sample.value) for sample in warned] == [(("sign", SIGNATURE), 2)]


async def test_its_numbers_are_those_of_the_table(
    service: InProcessService, connect: Connect
) -> None:
    """The metrics and their labels' values are exactly those in the table."""
    await service.parts.store.check()
    client = await connect()
    await client.send(call(1, GENERATE), call(2, SIGN))
    await client.receive(2)
    samples = (await metrics_of(client, 3)).samples
    table = {metric.name: metric for metric in KEY_SERVICE_METRICS}
    assert samples.keys() == table.keys()
    for name, values in samples.items():
        for sample in values:
            allowed = table[name].labels.values()
            assert all(
                label in values for label, values in zip(sample.labels, allowed, strict=True)
            )
