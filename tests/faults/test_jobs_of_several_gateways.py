"""Periodic jobs of gateways are done once, with any number of gateways, even if some are killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.caller import TLS
from tests.fixtures.installation import Installation, running
from tests.fixtures.postgresql import PostgresServer
from tests.patience import PATIENCE

from pqkeep_server.initialise import IN_FILES, Layout, Stores

COUNT = 3
TENANTS = 6
MONTH_US = 31 * 86_400 * 1_000_000
CONTRACT = (
    "INSERT INTO contracts (id, tenant_id, tier, status, started_at_us, period_start_us,"
    " period_end_us, as_of_us, price_cents, cancel_at_period_end, revision)"
    " VALUES ('{id}', '{tenant}', 'starter', 'active', {begin}, {begin}, {now}, {begin}, 4900,"
    " false, 1)"
)


@dataclass
class Several:
    """An installation with three gateways, and a second connection to its accounts database."""

    installation: Installation
    sql: Callable[[str], list[tuple[Any, ...]]]
    stream: Path

    def gateways(self) -> set[int]:
        """Return the gateways' process ids."""
        return processes.children_that_run("pqkeep_gateway", self.installation.process.pid)

    def add_due(self, tenants: Sequence[UUID]) -> None:
        """Give tenants a subscription with an expired period."""
        now = time.time_ns() // 1000
        for tenant in tenants:
            row = {"id": uuid4().hex, "tenant": tenant.hex, "now": now, "begin": now - MONTH_US}
            self.sql(CONTRACT.format(**row))

    def billed(self) -> tuple[int, int]:
        """Return the number of invoice lines, and of billed tenants."""
        ((lines, tenants),) = self.sql("SELECT count(*), count(DISTINCT tenant_id) FROM invoices")
        return lines, tenants

    def records(self) -> list[dict[str, Any]]:
        """Return the streamed records."""
        text = self.stream.read_text() if self.stream.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.installation.output
            time.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def several(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Several]:
    """Run an installation for one test."""
    with ExitStack() as stack:
        databases: Stores = IN_FILES
        stream = tmp_path / "audit.jsonl"
        if request.param == "postgresql":
            own: Callable[[], AbstractContextManager[Stores]]
            own = request.getfixturevalue("own_postgresql")
            databases = stack.enter_context(own())
        started = running(
            tmp_path,
            databases=databases,
            settings={"audit_sink": f"file://{stream}"},
            gateways=COUNT,
        )
        installation = stack.enter_context(started)

        def in_file(statement: str) -> list[tuple[Any, ...]]:
            file = Layout(installation.data).gateway / "accounts.sqlite3"
            with closing(sqlite3.connect(file, timeout=PATIENCE)) as connection, connection:
                return connection.execute(statement).fetchall()

        def on_server(statement: str) -> list[tuple[Any, ...]]:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            name = databases.accounts.rpartition("/")[2]
            return list(server.sql(statement, database=name))

        sql = in_file if databases == IN_FILES else on_server
        yield Several(installation, sql, stream)


def test_jobs_are_done_once_though_each_gateway_is_killed(several: Several) -> None:
    """Due subscriptions are renewed and billed once; every record is streamed, in order."""
    tenants = [UUID(several.installation.new_tenant().tenant_id) for _ in range(TENANTS)]
    several.until(lambda: len(several.gateways()) == COUNT)
    several.add_due(tenants)
    for pid in several.gateways():
        os.kill(pid, signal.SIGKILL)
        several.until(lambda: len(several.gateways()) == COUNT)
        several.sql("UPDATE audit_sinks SET held_until_us = 0")  # as if the lease were over

    def renewals() -> Counter[str]:
        renewed = [each for each in several.records() if each["operation"] == "renew-subscription"]
        return Counter({each["id"]: each["tenant_id"] for each in renewed}.values())

    several.until(lambda: len(renewals()) == TENANTS)
    assert renewals() == Counter(str(tenant) for tenant in tenants)
    assert several.billed() == (TENANTS, TENANTS)
    streamed = list(dict.fromkeys(each["id"] for each in several.records()))
    assert streamed == list(range(1, len(streamed) + 1))


@pytest.mark.campaign  # one that is paused while it writes to a SQLite file keeps that locked
def test_a_paused_gateway_that_wakes_does_nothing_again(several: Several) -> None:
    """Two gateways pause while the third renews; when they continue they bill nothing twice."""
    *tenants, last = [UUID(several.installation.new_tenant().tenant_id) for _ in range(TENANTS)]
    several.until(lambda: len(several.gateways()) == COUNT)
    working, *paused = sorted(several.gateways())
    several.add_due(tenants)
    with stopped(paused):
        several.until(lambda: several.billed() == (len(tenants), len(tenants)))
    with stopped([working]):
        several.add_due([last])
        several.until(lambda: several.billed()[1] == TENANTS)
    assert several.billed() == (TENANTS, TENANTS)


def test_a_limit_and_a_revocation_hold_on_every_gateway(several: Several) -> None:
    """Of 200 requests over twenty connections free's 100 are admitted; a revoked key is 401 on all."""
    operator, tenant = several.installation.operator(), several.installation.new_tenant("free")
    headers = {"X-API-Key": tenant.client.headers["X-API-Key"]}
    url = f"{several.installation.base_url}/api/v1/tenants/{tenant.tenant_id}"
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx2.Client(trust_env=False, verify=TLS, timeout=PATIENCE))
            for _ in range(20)
        ]
        with ThreadPoolExecutor(len(clients)) as pool:
            asked = [
                pool.submit(client.get, url, headers=headers)
                for client in clients
                for _ in range(10)
            ]
            statuses = Counter(each.result().status_code for each in asked)
        assert statuses == {200: 100, 429: 100}
        operator.ask("DELETE", f"/tenants/{tenant.tenant_id}/api-keys/1")
        assert {client.get(url, headers=headers).status_code for client in clients} == {401}


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Pause processes for a block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
