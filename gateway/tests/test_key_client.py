"""What is left of a call that the key service does not answer."""

from __future__ import annotations

import asyncio
import gc
import itertools
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from gateway.tests.world import ATTRIBUTION

from pqkeep_gateway.key_client import KeyConnection, UnixSocket
from pqkeep_gateway.shards import settle
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import TO_KEY_SERVICE, Call, FrameDecoder, Ping, Pong, encode
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Encrypt
from pqkeep_protocol.shards import DEFAULT_SHARD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def _answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    decoder = FrameDecoder(TO_KEY_SERVICE)
    while data := await reader.read(4096):
        decoder.space()[: len(data)] = data
        for frame in decoder.filled(len(data)):
            if isinstance(frame, Ping):
                writer.write(encode(Pong(frame.id, DEFAULT_SHARD, 1, UUID(int=1))))
    writer.close()
    await writer.wait_closed()


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[KeyConnection]:
    """A connection to a key service that answers pings only."""

    async def verify(_: UUID | None) -> None:
        pass

    path = str(tmp_path / "socket")
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.ensure_future(_answer_pings(reader, writer)))

    async with await asyncio.start_unix_server(serve, path):
        opened = KeyConnection(UnixSocket(path), DEFAULT_SHARD, itertools.count(1), verify, None)
        running = asyncio.create_task(opened.run())
        while not opened.is_open:  # noqa: ASYNC110 - it connects by itself
            await asyncio.sleep(0.01)
        yield opened
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await asyncio.gather(*served)


async def test_nothing_is_left_of_a_call_whose_time_is_over(connection: KeyConnection) -> None:
    """Its error, and so its frames and the plaintext, waits for no collector of cycles."""
    request = Encrypt(
        tenant=TenantId(uuid4()), algorithm=Algorithm.ML_KEM_768, version=None, plaintext=b"x"
    )
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
        left = sum(type(each) is KeyServiceError for each in gc.get_objects())
    finally:
        gc.enable()
    assert kinds == [ErrorKind.DEADLINE_EXCEEDED] * 3
    assert left == 0
