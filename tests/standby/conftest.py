"""A gateway and two key services with one PostgreSQL database: real processes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx2
import psycopg
import pytest
from tests.faults.conftest import gateway_process, until_healthy
from tests.fixtures.caller import Caller
from tests.fixtures.installation import CHEAP_PASSWORDS
from tests.fixtures.key_service import running_key_service
from tests.fixtures.postgresql import new_databases
from tests.fixtures.processes import Process
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_server.initialise import Layout, Stores, initialise
from pqkeep_server.settings_file import edited

if TYPE_CHECKING:
    from tests.fixtures.postgresql import PostgresServer


@dataclass
class Pair:
    """One shard with two key services."""

    layout: Layout
    stores: Stores
    operator_key: str
    settings: list[Path]
    url: str = ""
    processes: list[Process] = field(default_factory=list)
    stacks: list[ExitStack] = field(default_factory=lambda: [ExitStack(), ExitStack()])
    clients: ExitStack = field(default_factory=ExitStack)

    def output(self, number: int) -> str:
        """Return a key service's output."""
        return (self.settings[number].parent / "output").read_text()

    def start(self, number: int) -> None:
        """Start a key service."""
        self.stacks[number].close()
        settings = self.settings[number]
        process = self.stacks[number].enter_context(
            running_key_service(settings, settings.parent / "output")
        )
        self.processes[number:] = [process, *self.processes[number + 1 :]]

    def kill(self, number: int) -> None:
        """Kill a key service with its signing workers."""
        os.kill(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()

    def caller(self, credential: str) -> Caller:
        """Return a caller that accepts 503."""
        client = httpx2.Client(
            base_url=self.url,
            headers={"X-API-Key": credential},
            timeout=PATIENCE,
            trust_env=False,
        )
        return Caller(self.clients.enter_context(client))

    def new_tenant(self) -> Caller:
        """Make a tenant with a key."""
        operator = self.caller(self.operator_key)
        tenant = operator.post(
            "/tenants", {"name": f"tenant {uuid4()}", "plan": "enterprise_plus"}, status=201
        )
        made = operator.post(f"/tenants/{tenant['id']}/api-keys", status=201)
        caller = self.caller(made["api_key"])
        body = {"algorithm": "Kyber768", "if_absent": True}
        self.until(lambda: caller.ask("POST", "/kms/keys/generate", body).is_success)
        return caller

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement on the keys database."""
        with psycopg.connect(self.stores.keys, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def active(self) -> int:
        """Return the key service with the newest fencing token."""
        ((holder,),) = self.sql("SELECT holder FROM service_epoch")
        pid = int(str(holder).rpartition(" ")[2])
        return [process.pid for process in self.processes].index(pid)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, [self.output(0), self.output(1)]
            time.sleep(0.05)


@pytest.fixture(scope="module")
def pair(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """An installation with a standby."""
    with running_pair(postgres_server, tmp_path_factory.mktemp("standby")) as made:
        yield made


@contextmanager
def running_pair(server: PostgresServer, folder: Path) -> Iterator[Pair]:
    """Run an installation with a standby for a block."""
    with ExitStack() as stack:
        stores = stack.enter_context(new_databases(server))
        layout = Layout(folder / "data")
        operator_key = new_credential(CredentialKind.OPERATOR)
        initialise(layout, operator_key, signup="operator", stores=stores)
        second = layout.directory / "standby"
        shutil.copytree(layout.key_service, second)
        changes = {"socket": "../run/standby.sock", "operator_socket": "../run/standby-op.sock"}
        settings = second / "settings.toml"
        settings.write_text(edited(settings.read_text(), changes))
        sockets = ["../run/keyservice.sock", "../run/standby.sock"]
        changed = {"key_service_socket": None, "shards": {"default": {"sockets": sockets}}}
        text = layout.gateway_settings.read_text()
        layout.gateway_settings.write_text(edited(text, {**changed, **CHEAP_PASSWORDS}))
        made = Pair(layout, stores, operator_key, [layout.key_service_settings, settings])
        for number in range(2):
            stack.callback(made.stacks[number].close)
            made.start(number)
        made.url = stack.enter_context(gateway_process(layout, layout.directory / "gateway.log"))
        stack.callback(made.clients.close)
        until_healthy(made.caller(operator_key).client)
        yield made
