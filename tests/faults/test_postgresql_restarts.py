"""A PostgreSQL server crashes under load: refusals during the outage, and no loss."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.fixtures.installation import Installation, running
from tests.fixtures.postgresql import PostgresServer
from tests.patience import PATIENCE

from pqkeep_server.initialise import Stores

pytestmark = pytest.mark.campaign

Run = Callable[..., AbstractContextManager[Installation]]

CALLERS, CRASHES, AFTER = 8, 3, 20
ACCOUNTS = ("pqkeep_gateway", "pqkeep_accounts")
KEYS = ("pqkeep_keyservice", "pqkeep_keys")
NAMED = {"algorithm": "Kyber768"}
REQUESTS: Sequence[tuple[str, str, dict[str, Any] | None]] = (
    ("POST", "/api/v1/kem/encrypt", {"plaintext": "dGV4dA=="}),
    ("POST", "/api/v1/kms/keys/rotate", NAMED),
    ("GET", "/api/v1/tenants/{tenant}", None),
)
"""The callers' operations in turn; the last uses the accounts, the others the keys."""


def records(server: PostgresServer) -> Counter[str]:
    """Return the number of recorded successes of each request."""
    with psycopg.connect(server.url(*KEYS)) as connection:
        found = connection.execute(
            "SELECT request_id FROM audit_records WHERE outcome = 'success'"
        ).fetchall()
    return Counter(request for (request,) in found)


@pytest.mark.timeout(180)
def test_a_server_that_crashes_under_load(
    another_postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Only 2xx and 503; it recovers by itself; each acknowledged request has one audit record."""
    server = another_postgres_server
    databases = Stores(accounts=server.url(*ACCOUNTS), keys=server.url(*KEYS))
    with (
        running(tmp_path, databases=databases) as installation,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        tenants = [installation.new_tenant() for _ in range(CALLERS)]
        for tenant in tenants:
            tenant.post("/kms/keys/generate", NAMED, status=201)
        crashed: list[bool] = []

        def call(number: int) -> list[tuple[str, str, int]]:
            heard, good = [], 0
            deadline = time.monotonic() + PATIENCE
            with httpx2.Client(
                base_url=installation.base_url,
                headers={"X-API-Key": tenants[number].api_key},
                timeout=PATIENCE,
                trust_env=False,
            ) as client:
                while not crashed or good < AFTER:
                    assert time.monotonic() < deadline
                    for method, path, body in REQUESTS:
                        request = str(uuid.uuid4())
                        response = client.request(
                            method,
                            path.format(tenant=tenants[number].tenant_id),
                            json=body,
                            headers={"X-Request-ID": request},
                        )
                        heard.append((path, request, response.status_code))
                        good = good + 1 if response.is_success else 0
            return heard

        calls = [pool.submit(call, number) for number in range(CALLERS)]
        for _ in range(CRASHES):
            time.sleep(0.3)
            server.crash()
            server.start()
        time.sleep(0.3)
        crashed.append(True)
        heard = [one for done in calls for one in done.result()]
        statuses = {status for _, _, status in heard}
        recorded = records(server)
    assert statuses <= {200, 201, 503}
    assert {200, 201, 503} & statuses > {200, 201}
    answered = {
        request for path, request, status in heard if status < 300 and "/tenants/" not in path
    }
    assert {recorded[request] for request in answered} == {1}
