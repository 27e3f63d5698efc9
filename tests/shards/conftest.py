"""One gateway and two shards: real processes, each key service with its own database and root key."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.faults.conftest import gateway_process, until_healthy
from tests.fixtures import processes
from tests.fixtures.caller import Caller, client_of
from tests.fixtures.installation import CHEAP_PASSWORDS
from tests.fixtures.key_service import running_key_service
from tests.fixtures.postgresql import KEYS_ROLE, new_databases
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_keyservice import config as key_service_config
from pqkeep_server.initialise import IN_FILES, Layout, Stores, initialise
from pqkeep_server.settings_file import edited
from pqkeep_server.shard_folders import add_shard
from pqkeep_server.shards import ShardMoves

SHARDS = ("default", "b")


@dataclass
class TwoShards:
    """An installation with two shards."""

    layout: Layout
    operator_key: str
    settings: dict[str, Path]
    """Each key service's."""
    sink: Path
    """A file that receives both logs."""
    management: str = ""
    url: str = ""
    clients: ExitStack = field(default_factory=ExitStack)
    services: dict[str, Any] = field(default_factory=dict)
    _stacks: dict[str, ExitStack] = field(default_factory=dict)

    @property
    def is_on_server(self) -> bool:
        """True if the databases are on a server."""
        return key_service_config.read(self.settings["default"]).database.is_on_server

    @property
    def operator(self) -> Caller:
        """The operator."""
        return self.caller(self.operator_key)

    @property
    def output(self) -> Path:
        """Return the gateway's output."""
        return self.layout.directory / "gateway.log"

    def caller(self, credential: str | None, tenant_id: str = "") -> Caller:
        """Return a caller with a credential that accepts 503."""
        client = httpx2.Client(
            base_url=self.url,
            headers={} if credential is None else {"X-API-Key": credential},
            timeout=PATIENCE,
            trust_env=False,
        )
        return Caller(self.clients.enter_context(client), tenant_id)

    def checked(self, credential: str) -> Caller:
        """Return a caller that fails on undocumented responses and on 5xx."""
        return Caller(self.clients.enter_context(client_of(self.url, credential)))

    def new_tenant(self, shard: str | None = None) -> Caller:
        """Make a tenant and its first API key, optionally in a shard."""
        operator = self.operator
        body = {"name": f"tenant {uuid4()}", "plan": "enterprise_plus"}
        if shard is not None:
            body["shard"] = shard
        tenant = operator.post("/tenants", body, status=201)
        made = operator.post(f"/tenants/{tenant['id']}/api-keys", status=201)
        return self.caller(made["api_key"], tenant["id"])

    def start(self, shard: str) -> None:
        """Start a shard's key service."""
        stack = self._stacks[shard] = ExitStack()
        output = self.settings[shard].parent / "output"
        self.services[shard] = stack.enter_context(
            running_key_service(self.settings[shard], output)
        )

    def stop(self, shard: str) -> None:
        """End a shard's key service."""
        self._stacks[shard].close()

    @contextmanager
    def without(self, shard: str) -> Iterator[None]:
        """Stop a shard's key service for a block."""
        os.kill(self.services[shard].pid, signal.SIGKILL)
        self.services[shard].wait()
        yield
        self.start(shard)

    def restart(self) -> None:
        """Kill both key services and start them again; return when both serve."""
        for process in self.services.values():
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        for shard in SHARDS:
            self.start(shard)
        self.until_serving()

    def until_serving(self) -> None:
        """Wait until each key service serves the gateway and the operator's commands.

        /readyz is not enough, because its state may be a second old.
        """
        operator, commands = self.operator, ShardMoves(self.layout, lambda _: None)

        def is_serving(shard: str) -> bool:
            response = operator.ask("GET", "/audit/records", params={"shard": shard, "limit": "1"})
            return bool(response.status_code == 200)

        self.until(lambda: all(map(is_serving, SHARDS)))
        self.until(lambda: all(each.unfinished is not None for each in commands.list()))

    def readiness(self) -> tuple[int, list[str]]:
        """Return the status of /readyz, and the degraded parts."""
        response = httpx2.get(f"{self.management}/readyz", trust_env=False, timeout=PATIENCE)
        return response.status_code, response.json()["degraded"]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)


def make(folder: Path, stores: Stores, second: str) -> TwoShards:
    """Make the files of an installation with two shards."""
    layout, operator_key = Layout(folder / "data"), new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator_key, signup="operator", stores=stores)
    added = add_shard(layout, "b", database=second)
    settings = {
        "default": layout.key_service_settings,
        "b": added.layout.key_service_settings,
    }
    sink = folder / "sink.jsonl"
    changes = {
        "audit_sink": f"file://{sink}",
        **CHEAP_PASSWORDS,
    }
    text = layout.gateway_settings.read_text()
    layout.gateway_settings.write_text(edited(text, changes))
    return TwoShards(layout, operator_key, settings, sink)


@contextmanager
def running(made: TwoShards) -> Iterator[TwoShards]:
    """Run both key services and a gateway."""
    with ExitStack() as stack:
        for shard in SHARDS:
            stack.callback(made.stop, shard)
            made.start(shard)
        management = stack.enter_context(socket.create_server((processes.HOST, 0)))
        made.management = f"http://{processes.HOST}:{management.getsockname()[1]}"
        made.url = stack.enter_context(
            gateway_process(made.layout, made.output, management=management)
        )
        management.close()
        stack.callback(made.clients.close)
        until_healthy(made.operator.client)
        made.until(lambda: made.readiness() == (200, []))
        yield made


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.campaign)]
)
def running_shards(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoShards]:
    """An installation with two shards, on each kind of database."""
    with ExitStack() as stack:
        stores, second = IN_FILES, "keys.sqlite3"
        if request.param == "postgresql":
            server = request.getfixturevalue("postgres_server")
            stores = stack.enter_context(new_databases(server))
            name = server.new_database(KEYS_ROLE)
            stack.callback(server.drop, name)
            second = server.url(KEYS_ROLE, name)
        made = make(tmp_path_factory.mktemp("shards"), stores, second)
        yield stack.enter_context(running(made))


@pytest.fixture
def two_shards(running_shards: TwoShards) -> TwoShards:
    """An installation with two running shards, also after a failed test."""
    running_shards.until_serving()
    return running_shards
