"""Every call of the key service has one outcome, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from gateway.tests.world import ATTRIBUTION

from pqkeep_gateway.key_client import KeyClient, KeyConnection, UnixSocket
from pqkeep_gateway.shards import HERE, Placement, settle
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import (
    MAX_FRAME,
    TO_KEY_SERVICE,
    Answer,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    Refusal,
    Unreadable,
    encode,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD, KeyVersion, TenantId
from pqkeep_protocol.messages import Decrypted, Encrypt, Encrypted

Answering = Callable[[Call], Answer | Refusal | bytes | None]


def _silent(_: Call) -> None:
    return None


async def _serve(
    response: Answering, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    decoder = FrameDecoder(TO_KEY_SERVICE)
    while data := await reader.read(4096):
        decoder.space()[: len(data)] = data
        for frame in decoder.filled(len(data)):
            assert not isinstance(frame, Unreadable)
            if isinstance(frame, Ping):
                writer.write(encode(Pong(frame.id, DEFAULT_SHARD, 1, UUID(int=1))))
            elif (reply := response(frame)) is not None:
                writer.write(reply if isinstance(reply, bytes) else encode(reply))
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def listening(path: str, response: Answering) -> AsyncIterator[None]:
    """Run a key service whose responses come from a function."""
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.ensure_future(_serve(response, reader, writer)))

    async with await asyncio.start_unix_server(serve, path):
        yield
    await asyncio.gather(*served)


@asynccontextmanager
async def client_of(folder: Path, *responses: Answering) -> AsyncIterator[KeyClient]:
    """Return a client that is connected to one key service for each of ``responses``."""
    async with AsyncExitStack() as stack:
        paths = [str(folder / str(number)) for number in range(len(responses))]
        for path, response in zip(paths, responses, strict=True):
            await stack.enter_async_context(listening(path, response))
        client = KeyClient(*map(UnixSocket, paths))
        running = asyncio.create_task(client.run())
        while not all(connection.is_open for connection in client._connections):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield client
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def encrypt(size: int = 1) -> Encrypt:
    """Return a request."""
    return Encrypt(
        tenant=TenantId(uuid4()),
        algorithm=Algorithm.ML_KEM_768,
        version=None,
        plaintext=bytes(size),
    )


def _encrypted(call: Call) -> Answer:
    return Answer(call.id, Encrypted(ciphertext=b"made", version=KeyVersion(1)))


async def outcome_of(
    client: KeyClient, request: Encrypt, placement: Placement | None = HERE
) -> object:
    """Return a call's outcome, which arrives after the call has returned."""
    told: list[object] = []
    done = asyncio.Event()

    def then(outcome: object) -> None:
        told.append(outcome)
        done.set()

    client.call(request, ATTRIBUTION, placement, then)
    assert told == []
    await done.wait()
    (outcome,) = told
    return outcome.kind if isinstance(outcome, KeyServiceError) else outcome


async def test_a_call_is_told_its_outcome_once(tmp_path: Path) -> None:
    """A result, a refusal or an invalid response arrives from the event loop."""
    responses: dict[int, Answering] = {
        1: _encrypted,
        2: lambda call: Refusal(call.id, ErrorKind.KEY_NOT_FOUND),
        3: lambda call: Answer(call.id, Decrypted(plaintext=b"another's")),
        4: lambda call: Refusal(call.id, ErrorKind.STANDBY),
    }

    def respond(call: Call) -> Answer | Refusal | bytes | None:
        assert isinstance(call.request, Encrypt)
        return responses[len(call.request.plaintext)](call)

    async with client_of(tmp_path, respond) as client:
        assert await outcome_of(client, encrypt(1)) == Encrypted(
            ciphertext=b"made", version=KeyVersion(1)
        )
        assert await outcome_of(client, encrypt(2)) is ErrorKind.KEY_NOT_FOUND
        assert await outcome_of(client, encrypt(3)) is ErrorKind.BAD_RESPONSE
        assert await outcome_of(client, encrypt(4)) is ErrorKind.UNAVAILABLE
        assert await outcome_of(client, encrypt(MAX_FRAME)) is ErrorKind.TOO_LARGE
        assert client.waiting == 0
        assert client.refusals == {
            ErrorKind.KEY_NOT_FOUND: 1,
            ErrorKind.BAD_RESPONSE: 1,
            ErrorKind.UNAVAILABLE: 1,
            ErrorKind.TOO_LARGE: 1,
        }


async def test_a_call_without_a_connection_is_told_so() -> None:
    """Without a connection the failure also arrives from the event loop."""
    client = KeyClient(UnixSocket("/nonexistent"))
    assert await outcome_of(client, encrypt()) is ErrorKind.UNAVAILABLE


async def test_a_tenant_that_is_elsewhere_is_refused(tmp_path: Path) -> None:
    """A request is not sent if its tenant is in another shard or is being moved."""
    asked: list[Call] = []
    async with client_of(tmp_path, asked.append) as client:
        moving, elsewhere = Placement(is_moving=True), Placement("b")
        assert await outcome_of(client, encrypt(), moving) is ErrorKind.TENANT_MOVED
        assert await outcome_of(client, encrypt(), elsewhere) is ErrorKind.UNAVAILABLE
    assert asked == []


async def test_the_next_is_asked_where_one_stands_by(tmp_path: Path) -> None:
    """A call that a standby refused is executed by the active key service."""

    def stands_by(call: Call) -> Refusal:
        return Refusal(call.id, ErrorKind.STANDBY)

    for responses in ((stands_by, _encrypted), (_encrypted, stands_by)):
        folder = tmp_path / responses[0].__name__
        folder.mkdir()
        async with client_of(folder, *responses) as client:
            assert isinstance(await outcome_of(client, encrypt()), Encrypted)
            assert client.refusals == {}


async def test_a_fault_where_an_outcome_is_told_ends_no_connection(tmp_path: Path) -> None:
    """An exception in one callback does not affect other responses on the connection."""

    def fail(_: object) -> None:
        raise RuntimeError("a fault")

    async with client_of(tmp_path, _encrypted) as client:
        client.call(encrypt(), ATTRIBUTION, HERE, fail)
        assert isinstance(await outcome_of(client, encrypt()), Encrypted)
        assert all(connection.is_open for connection in client._connections)


async def test_a_response_that_cannot_be_read_fails_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only its call is told BAD_RESPONSE. Calls in flight are answered on the same connection."""
    calls: list[Call] = []

    def respond(call: Call) -> bytes | None:
        calls.append(call)
        if len(calls) < 3:
            return None
        answers = [_encrypted(one) for one in calls]
        damaged = encode(answers[1]).replace(b"encrypted", b"nonsense!")
        return bytes(encode(answers[2]) + damaged + encode(answers[0]))

    async with client_of(tmp_path, respond) as client:
        (connection,) = client._connections
        first = connection._connection
        outcomes = await asyncio.gather(*(outcome_of(client, encrypt()) for _ in range(3)))
        good = Encrypted(ciphertext=b"made", version=KeyVersion(1))
        assert outcomes == [good, ErrorKind.BAD_RESPONSE, good]
        assert connection._connection is first
        assert client.waiting == 0
    assert caplog.text.count("a response of the key service cannot be read") == 1


async def test_whoever_gives_a_call_up_is_told_nothing(tmp_path: Path) -> None:
    """A response after its task was cancelled is ignored."""
    calls: list[Call] = []

    def second(call: Call) -> Answer | None:
        calls.append(call)
        return _encrypted(call) if len(calls) > 1 else None

    async with client_of(tmp_path, second) as client:
        given_up = asyncio.create_task(client.execute(encrypt(), ATTRIBUTION))
        await asyncio.sleep(0)
        given_up.cancel()
        assert isinstance(await client.execute(encrypt(), ATTRIBUTION), Encrypted)
        assert given_up.cancelled()


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[KeyConnection]:
    """A connection to a key service that responds only to pings."""

    async def verify(_: UUID | None) -> None:
        pass

    path = str(tmp_path / "socket")
    async with listening(path, _silent):
        opened = KeyConnection(UnixSocket(path), DEFAULT_SHARD, itertools.count(1), verify, None)
        running = asyncio.create_task(opened.run())
        while not opened.is_open:  # noqa: ASYNC110 - it connects by itself
            await asyncio.sleep(0.01)
        yield opened
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_nothing_is_left_of_a_call_whose_time_is_over(connection: KeyConnection) -> None:
    """After a timeout the call's plaintext is freed at once, without the cycle collector."""
    request = encrypt()
    kinds = []
    gc.collect()
    gc.disable()
    try:
        for number in range(100, 103):
            reply = asyncio.get_running_loop().create_future()
            frame = Call(number, 50, ATTRIBUTION, request)
            connection.send(frame, partial(settle, reply), 0.05)
            try:
                await reply
            except KeyServiceError as error:
                kinds.append(error.kind)
            del reply
        await asyncio.sleep(0)  # this step of the task has the last one
        left = sum(type(thing) is KeyServiceError for thing in gc.get_objects())
    finally:
        gc.enable()
    assert kinds == [ErrorKind.DEADLINE_EXCEEDED] * 3
    assert left == 0
