"""After kill -9 during batches, each acknowledged item has its record, and no item is half done."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import API, Caller
from tests.fixtures.installation import Installation
from tests.fixtures.postgresql import new_databases
from tests.patience import PATIENCE

from pqkeep_server.initialise import IN_FILES

ITEMS = 32
THREADS = 3
PAUSE = 0.25
"""Seconds before a retry: each item of a batch counts against the tenant's rate limit."""
KILLS = [1, pytest.param(12, marks=pytest.mark.campaign)]
KEM = "Kyber768"


@dataclass
class Sent:
    """All sent batches by request id, with the number of acknowledged items."""

    answered: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(
    request: pytest.FixtureRequest, start: Callable[..., Installation]
) -> Iterator[Installation]:
    """An installation for this test, on either database."""
    with ExitStack() as stack:
        databases = IN_FILES
        if request.param == "postgresql":
            databases = stack.enter_context(
                new_databases(request.getfixturevalue("postgres_server"))
            )
        yield start(databases=databases)


def _send(installation: Installation, api_key: str, sent: Sent, stop: threading.Event) -> None:
    body = {"algorithm": KEM, "items": [{"key_version": 1}] * ITEMS}
    with httpx2.Client(base_url=installation.base_url, timeout=PATIENCE, trust_env=False) as client:
        while not stop.is_set():
            request_id = str(uuid.uuid4())
            headers = {"X-API-Key": api_key, "X-Request-ID": request_id}
            try:
                response = client.post(f"{API}/kem/encapsulate/batch", json=body, headers=headers)
            except httpx2.TransportError:
                sent.lost.add(request_id)
                continue
            if response.status_code != 200:
                assert response.status_code in {429, 502, 503, 504}, response.text
                sent.lost.add(request_id)
                time.sleep(PAUSE)
                continue
            results = response.json()["data"]["results"]
            assert all("data" in each for each in results)
            sent.answered[request_id] = len(results)


def _until_response(sent: Sent, threads: Iterable[Future[None]], more: int) -> None:
    """Wait for this many more batch responses."""
    enough = len(sent.answered) + more
    deadline = time.monotonic() + PATIENCE
    while len(sent.answered) < enough:
        assert time.monotonic() < deadline
        for each in threads:
            assert not each.done(), each.exception()
        time.sleep(0.05)


def _records(tenant: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: int | None = None
    while True:
        asked: dict[str, Any] = {"operation": "encapsulate", "limit": 500}
        page = tenant.get("/audit/records", **asked, **({} if after is None else {"after": after}))
        found += page["records"]
        after = page["next"]
        if after is None or not page["records"]:
            return found


@pytest.mark.parametrize("kills", KILLS)
def test_kill_in_the_middle_of_batches(installation: Installation, kills: int) -> None:
    """Each item of an acknowledged batch is recorded once. A lost batch has all records or none."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    sent, stop = Sent(), threading.Event()
    with ThreadPoolExecutor(THREADS) as pool:
        threads = [
            pool.submit(_send, installation, tenant.api_key, sent, stop) for _ in range(THREADS)
        ]
        try:
            for _ in range(kills):
                _until_response(sent, threads, THREADS)
                os.kill(installation.children()["pqkeep_keyservice"], signal.SIGKILL)
            _until_response(sent, threads, THREADS)
        finally:
            stop.set()
        for each in threads:
            each.result()
    records = _records(tenant)
    assert {each["outcome"] for each in records} == {"success"}
    assert len({each["id"] for each in records}) == len(records)
    found = Counter(each["request_id"] for each in records)
    for request_id, items in sent.answered.items():
        assert found.pop(request_id) == items == ITEMS
    assert set(found) <= sent.lost
    assert set(found.values()) <= {ITEMS}
