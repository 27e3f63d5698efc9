"""A gateway alone, with a fake key service."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from uuid import UUID, uuid4

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.caller import TLS
from tests.fixtures.key_service import running_key_service
from tests.fixtures.postgresql import new_databases
from tests.fixtures.preloaded import running_forked
from tests.fixtures.processes import HOST
from tests.fixtures.redis import running_valkey
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.audit import Recorded, RecordEvents, Submissions, TakeSubmissions
from pqkeep_protocol.codec import (
    TO_KEY_SERVICE,
    Answer,
    Call,
    FrameDecoder,
    Ping,
    Pong,
    ToGateway,
    ToKeyService,
    Unreadable,
    encode,
)
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.metrics import GetMetrics, Metrics, one
from pqkeep_server.initialise import IN_FILES, Layout, Stores, initialise

PORTAL = "https://keep.example.org"

Reply = Callable[[Call], ToGateway | bytes | None]
"""The reply to a call: a frame, other bytes, or nothing. b"" closes the connection."""


class FakeKeyService:
    """A server on a Unix socket, in a thread, with responses chosen by the test."""

    def __init__(self, path: Path) -> None:
        self.reply: Reply = lambda _: None
        self.shard: str = DEFAULT_SHARD
        self.epoch = 1
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._serving = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._serving.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop and remove the socket."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE)
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
                    assert not isinstance(frame, Unreadable)
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
            writer.write(encode(Pong(frame.id, self.shard, self.epoch, UUID(int=1))))
            return
        if isinstance(frame.request, RecordEvents):  # so that there can be tenants to ask for
            writer.write(encode(Answer(frame.id, Recorded())))
            return
        if isinstance(frame.request, TakeSubmissions):  # each second, of every gateway
            writer.write(encode(Answer(frame.id, Submissions(submissions=()))))
            return
        if isinstance(frame.request, GetMetrics):  # so that it is ready
            samples = {"pqkeep_keys_database_up": one(1), "pqkeep_key_service_active": one(1)}
            writer.write(encode(Answer(frame.id, Metrics(samples=samples))))
            return
        match self.reply(frame):
            case None:
                return
            case b"":
                writer.close()
            case bytes() as garbage:
                writer.write(garbage)
            case response:
                writer.write(encode(response))


def until_healthy(client: httpx2.Client) -> None:
    """Wait until a gateway responds, with an active key service behind it."""
    deadline = time.monotonic() + PATIENCE
    while not client.get(client.base_url.join("/healthz")).is_success:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def gateway_process(
    layout: Layout,
    output: Path,
    *,
    is_forked: bool = True,
    management: socket.socket | None = None,
) -> Iterator[str]:
    """Run one gateway on a free port; yield its address. A process that is not forked is a child.

    ``management`` is the socket of its management address.
    """
    with socket.create_server((HOST, 0)) as listener, ExitStack() as stack:
        descriptor, port = listener.fileno(), listener.getsockname()[1]
        words: list[str | Path] = [
            *("pqkeep_gateway", layout.gateway_settings, "--fd", str(descriptor))
        ]
        descriptors = [descriptor]
        if management is not None:
            descriptors.append(management.fileno())
            words += ["--management-fd", str(management.fileno())]
        stack.enter_context(
            running_forked(words, output, pass_fds=descriptors)
            if is_forked
            else processes.running(
                [sys.executable, "-P", "-m", *words], output, pass_fds=descriptors
            )
        )
        listener.close()
        yield f"http://{HOST}:{port}"


@contextmanager
def tenant_of_gateway(
    folder: Path, signup: Literal["operator", "open"], *, is_forked: bool = True
) -> Iterator[tuple[httpx2.Client, str, FakeKeyService]]:
    """Run a gateway with a fake key service.

    Yield a client with a tenant's API key, the operator's credential, and the fake.
    """
    layout = Layout(folder)
    operator_key = new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator_key, signup=signup)
    with (
        FakeKeyService(Layout(folder).socket) as fake,
        gateway_process(layout, folder / "output", is_forked=is_forked) as url,
        httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False, verify=TLS) as client,
    ):
        until_healthy(client)
        operator = {"X-API-Key": operator_key}
        tenant = client.post(
            "/api/v1/tenants", json={"name": "x", "plan": "enterprise_plus"}, headers=operator
        ).json()["data"]
        path = f"/api/v1/tenants/{tenant['id']}/api-keys"
        made = client.post(path, headers=operator).json()["data"]
        client.headers["X-API-Key"] = made["api_key"]
        yield client, operator_key, fake


@pytest.fixture(scope="module")
def gateway_alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx2.Client, str]]:
    """A gateway with a fake key service; the parameter decides about sign-up."""
    folder = tmp_path_factory.mktemp("gateway")
    with tenant_of_gateway(folder, request.param) as (client, operator_key, _):
        yield client, operator_key


@pytest.fixture
def gateway_left_alone(tmp_path: Path) -> Iterator[tuple[httpx2.Client, str]]:
    """A gateway for one test, after the end of its key service."""
    with tenant_of_gateway(tmp_path, "open") as (client, operator_key, fake):
        fake.stop()
        yield client, operator_key


@pytest.fixture
def own_fake(tmp_path: Path) -> Iterator[tuple[httpx2.Client, FakeKeyService]]:
    """A gateway for one test with a fake key service; it is the newest child process."""
    with tenant_of_gateway(tmp_path, "open", is_forked=False) as (client, _, fake):
        yield client, fake


@pytest.fixture(scope="module")
def lying(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[httpx2.Client, FakeKeyService]]:
    """A gateway with a fake key service that is silent until told otherwise."""
    folder = tmp_path_factory.mktemp("lying")
    with tenant_of_gateway(folder, "open") as (client, _, fake):
        yield client, fake


@pytest.fixture
def lie(lying: tuple[httpx2.Client, FakeKeyService]) -> Callable[[Reply], httpx2.Client]:
    """Set the fake key service's reply; return a client of its gateway."""
    client, fake = lying

    def to(reply: Reply) -> httpx2.Client:
        fake.reply = reply
        until_healthy(client)
        return client

    return to


@dataclass(frozen=True)
class SharedGateways:
    """Three gateways with one accounts database, one Redis or Valkey, and one tenant."""

    all: Sequence[httpx2.Client]
    operator: dict[str, str]
    tenant: str
    api_key: dict[str, str]

    @property
    def first(self) -> httpx2.Client:
        """The gateway that makes changes."""
        return self.all[0]


@pytest.fixture(
    scope="module",
    params=["sqlite and redis", pytest.param("postgresql and valkey", marks=pytest.mark.campaign)],
)
def three_gateways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Sequence[httpx2.Client], dict[str, str], str]]:
    """Three gateways with one key service, the operator's header, and the rate limits' address."""
    with ExitStack() as stack:
        stores = IN_FILES
        if request.param == "sqlite and redis":
            address = request.getfixturevalue("redis_server")
        else:
            address = stack.enter_context(running_valkey(processes.free_port()))
            server = request.getfixturevalue("postgres_server")
            stores = stack.enter_context(new_databases(server))
        folder = tmp_path_factory.mktemp("gateways")
        settings = f'redis_url = "redis://{address}"\n'
        gateways, operator = stack.enter_context(gateways_with(folder, settings, stores))
        yield gateways, operator, address


@contextmanager
def gateways_with(
    folder: Path, settings: str, stores: Stores = IN_FILES
) -> Iterator[tuple[Sequence[httpx2.Client], dict[str, str]]]:
    """Run three gateways with more settings, and one key service; yield the operator's header, too."""
    layout = Layout(folder)
    operator_key = new_credential(CredentialKind.OPERATOR)
    with ExitStack() as stack:
        initialise(layout, operator_key, signup="operator", stores=stores)
        with layout.gateway_settings.open("a") as file:
            file.write(settings)
        stack.enter_context(running_key_service(layout.key_service_settings, folder / "keys"))
        gateways = [
            stack.enter_context(
                httpx2.Client(
                    base_url=stack.enter_context(gateway_process(layout, folder / name)),
                    timeout=PATIENCE,
                    trust_env=False,
                    verify=TLS,
                )
            )
            for name in ("first", "second", "third")
        ]
        for gateway in gateways:
            until_healthy(gateway)
        yield gateways, {"X-API-Key": operator_key}


@pytest.fixture
def shared_gateways(
    three_gateways: tuple[Sequence[httpx2.Client], dict[str, str], str],
) -> SharedGateways:
    """The three gateways, and a new tenant on free."""
    gateways, operator, _ = three_gateways
    return new_tenant(gateways, operator)


def new_tenant(gateways: Sequence[httpx2.Client], operator: dict[str, str]) -> SharedGateways:
    """Return gateways with a new tenant on free."""
    name = {"name": str(uuid4())}
    made = gateways[0].post("/api/v1/tenants", json=name, headers=operator)
    tenant = made.json()["data"]["id"]
    made = gateways[0].post(f"/api/v1/tenants/{tenant}/api-keys", headers=operator)
    api_key = {"X-API-Key": made.json()["data"]["api_key"]}
    return SharedGateways(gateways, operator, tenant, api_key)


@dataclass(frozen=True)
class MailingGateway:
    """A gateway with its own mail settings, which can be started several times."""

    layout: Layout
    operator: dict[str, str]
    output: Path

    @contextmanager
    def running(self) -> Iterator[httpx2.Client]:
        """Run it with a fake key service; yield the operator's client."""
        with (
            FakeKeyService(self.layout.socket),
            gateway_process(self.layout, self.output) as url,
            httpx2.Client(
                base_url=f"{url}/api/v1", headers=self.operator, timeout=PATIENCE, trust_env=False
            ) as client,
        ):
            until_healthy(client)
            yield client


@pytest.fixture
def new_mailing_gateway(tmp_path: Path) -> Callable[[str], MailingGateway]:
    """Make a gateway with additional settings, without starting it."""

    def make(settings: str) -> MailingGateway:
        layout = Layout(tmp_path)
        operator_key = new_credential(CredentialKind.OPERATOR)
        initialise(layout, operator_key, signup="operator")
        with layout.gateway_settings.open("a") as file:
            file.write(f'public_url = "{PORTAL}"\n{settings}')
        return MailingGateway(layout, {"X-API-Key": operator_key}, tmp_path / "output")

    return make
