"""A gateway alone, before a key service of the test's own making."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

import httpx2
import pytest

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.codec import (
    TO_KEY_SERVICE,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    ToGateway,
    ToKeyService,
    encode,
)
from pqkeep_server.initialise import Layout, initialise

SECONDS = 30.0

Reply = Callable[[Call], ToGateway | bytes | None]
"""What to say to a call: a frame, bytes that are none, nothing; b"" hangs up."""


class FakeKeyService:
    """A real server on a real Unix socket, in a thread of its own, that answers as it is told."""

    def __init__(self, path: Path) -> None:
        self.reply: Reply = lambda _: None
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._serving = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._serving.wait(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        writers: set[asyncio.StreamWriter] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            decoder = FrameDecoder(TO_KEY_SERVICE)
            while data := await reader.read(decoder.space().nbytes):
                decoder.space()[: len(data)] = data
                for frame in decoder.filled(len(data)):
                    self._answer(frame, writer)
            writer.close()

        server = await asyncio.start_unix_server(connected, self._path)
        self._serving.set()
        await self._stop.wait()
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.05)

    def _answer(self, frame: ToKeyService, writer: asyncio.StreamWriter) -> None:
        if isinstance(frame, Ping):
            writer.write(encode(Pong(frame.id)))
            return
        match self.reply(frame):
            case None:
                return
            case b"":
                writer.close()
            case bytes() as garbage:
                writer.write(garbage)
            case answer:
                writer.write(encode(answer))


@contextmanager
def gateway_process(layout: Layout, output: Path) -> Iterator[str]:
    """Run one gateway on a free port; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener, output.open("ab") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "pqkeep_gateway"),
                *(str(layout.gateway_settings), "--fd", str(listener.fileno())),
            ],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath},
        )
        port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextmanager
def tenant_of_gateway(
    folder: Path, signup: Literal["operator", "open"]
) -> Iterator[tuple[httpx2.Client, str]]:
    """Run a gateway; yield a client with a tenant's API key, and the operator's credential."""
    layout = Layout(folder)
    operator_key = new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator_key, signup=signup)
    with (
        gateway_process(layout, folder / "output") as url,
        httpx2.Client(base_url=url, timeout=SECONDS, trust_env=False) as client,
    ):
        operator = {"X-API-Key": operator_key}
        tenant = client.post(
            "/api/v1/tenants", json={"name": "x", "plan": "enterprise_plus"}, headers=operator
        ).json()["data"]
        path = f"/api/v1/tenants/{tenant['id']}/api-keys"
        made = client.post(path, headers=operator).json()["data"]
        client.headers["X-API-Key"] = made["api_key"]
        yield client, operator_key


@pytest.fixture(params=["open"])
def gateway_alone(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[httpx2.Client, str]]:
    """A gateway of this test only, before no key service; the parameter says who signs up."""
    with tenant_of_gateway(tmp_path, request.param) as alone:
        yield alone


@pytest.fixture(scope="session")
def lying(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[httpx2.Client, FakeKeyService]]:
    """A gateway before a fake key service, which says nothing until it is told to."""
    folder = tmp_path_factory.mktemp("lying")
    with (
        tenant_of_gateway(folder, "open") as (client, _),
        FakeKeyService(folder / "keyservice" / "keyservice.sock") as fake,
    ):
        yield client, fake


@pytest.fixture
def lie(lying: tuple[httpx2.Client, FakeKeyService]) -> Callable[[Reply], httpx2.Client]:
    """Tell the fake key service what to say; return a client of the gateway before it."""
    client, fake = lying

    def to(reply: Reply) -> httpx2.Client:
        fake.reply = reply
        deadline = time.monotonic() + SECONDS
        while not client.get("/healthz").is_success:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return client

    return to
