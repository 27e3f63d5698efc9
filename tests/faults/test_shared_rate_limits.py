"""Several gateways with one Redis count together, share changes, and fail closed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis
from tests.faults.conftest import SharedGateways

if TYPE_CHECKING:
    import httpx2

UNAUTHORIZED = (401, "ERR_AUTH_001")
UNAVAILABLE = (503, "ERR_SERVICE_001")


def _code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json().get("error", {}).get("error_code", "")


def _path(shared: SharedGateways, end: str = "") -> str:
    return f"/api/v1/tenants/{shared.tenant}{end}"


@pytest.fixture
def server(three_gateways: tuple[object, object, str]) -> Iterator[redis.Redis]:
    """A second connection to the server."""
    with redis.Redis.from_url(f"redis://{three_gateways[2]}") as connection:
        yield connection


@contextmanager
def _frozen(server: redis.Redis) -> Iterator[None]:
    """Freeze the server for a block."""
    pid = server.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_tenant_has_one_limit_on_all_gateways(shared_gateways: SharedGateways) -> None:
    """Of 201 concurrent requests to three gateways 100 are admitted, free's limit."""
    gateways = 67 * [*shared_gateways.all]
    with ThreadPoolExecutor(16) as pool:
        asked = [
            pool.submit(gateway.get, _path(shared_gateways), headers=shared_gateways.api_key)
            for gateway in gateways
        ]
        statuses = Counter(each.result().status_code for each in asked)
    assert statuses == {200: 100, 429: 101}


def test_a_revocation_holds_on_every_gateway_at_once(shared_gateways: SharedGateways) -> None:
    """An API key that one gateway revokes is 401 at all gateways at once."""
    gateways = shared_gateways.all
    for gateway in gateways:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert response.status_code == 200
    path = _path(shared_gateways, "/api-keys/1")
    assert shared_gateways.first.delete(path, headers=shared_gateways.operator).is_success
    for gateway in reversed(gateways):
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert _code(response) == UNAUTHORIZED


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"status": "suspended"}, (403, "ERR_FORBIDDEN_001")),
        ({"requests_per_minute": 3}, (429, "ERR_RATE_LIMIT_001")),
        ({"plan": "starter"}, (200, "")),
    ],
)
def test_a_change_of_a_tenant_holds_on_every_gateway_at_once(
    shared_gateways: SharedGateways, change: dict[str, object], outcome: tuple[int, str]
) -> None:
    """Status, rate limit and plan of a tenant change on the other gateways too."""
    first, *others = shared_gateways.all
    for gateway in shared_gateways.all:
        assert gateway.get(_path(shared_gateways), headers=shared_gateways.api_key).is_success
    response = first.patch(_path(shared_gateways), json=change, headers=shared_gateways.operator)
    assert response.is_success
    for gateway in others:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert _code(response) == outcome
        if response.is_success:
            assert response.json()["data"]["plan"] == "starter"


def test_other_scopes_hold_on_every_gateway_at_once(shared_gateways: SharedGateways) -> None:
    """After a rotation to fewer scopes, the old API key is 401 everywhere, and the new one is limited."""
    first = shared_gateways.first
    for gateway in shared_gateways.all:
        assert gateway.get(_path(shared_gateways), headers=shared_gateways.api_key).is_success
    rotated = first.post(
        _path(shared_gateways, "/api-keys/rotate"),
        json={"scopes": [{"operations": ["verify"]}], "overlap_seconds": 0},
        headers=shared_gateways.api_key,
    )
    new = {"X-API-Key": rotated.json()["data"]["new_key"]["api_key"]}
    for gateway in shared_gateways.all:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert _code(response) == UNAUTHORIZED
        response = gateway.get(_path(shared_gateways), headers=new)
        assert _code(response) == (403, "ERR_POLICY_001")


def test_a_redis_that_forgot_makes_no_revoked_key_valid(
    shared_gateways: SharedGateways, server: redis.Redis
) -> None:
    """A gateway that missed a revocation, as Redis lost its data, still refuses the API key."""
    for gateway in shared_gateways.all:
        gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
    path = _path(shared_gateways, "/api-keys/1")
    assert shared_gateways.first.delete(path, headers=shared_gateways.operator).is_success
    server.flushall()
    for gateway in shared_gateways.all[1:]:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert _code(response) == UNAUTHORIZED


def test_without_redis_nobody_is_admitted_until_it_is_back(
    shared_gateways: SharedGateways, server: redis.Redis
) -> None:
    """While Redis does not respond, requests are 503 with Retry-After; afterwards they are 200."""
    gateways = shared_gateways.all
    with _frozen(server), ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(gateway.get, _path(shared_gateways), headers=shared_gateways.api_key)
            for gateway in gateways
        ]
        for each in asked:
            assert _code(each.result()) == UNAVAILABLE
            assert each.result().headers["retry-after"] == "1"
    for gateway in gateways:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert response.status_code == 200


def test_a_revocation_while_redis_is_away_is_not_lost(
    shared_gateways: SharedGateways, server: redis.Redis
) -> None:
    """A revocation that could not be announced is 503; repeated it applies everywhere."""
    gateways = shared_gateways.all
    for gateway in gateways:
        gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
    path = _path(shared_gateways, "/api-keys/1")
    with _frozen(server):
        response = shared_gateways.first.delete(path, headers=shared_gateways.operator)
        assert _code(response) == UNAVAILABLE
    assert shared_gateways.first.delete(path, headers=shared_gateways.operator).is_success
    for gateway in gateways:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert _code(response) == UNAUTHORIZED


def test_a_revocation_that_nobody_heard_of_holds_before_long(
    shared_gateways: SharedGateways, server: redis.Redis
) -> None:
    """A revocation without an announcement applies everywhere after half a minute."""
    gateways = shared_gateways.all
    for gateway in gateways:
        gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
    with _frozen(server):
        path = _path(shared_gateways, "/api-keys/1")
        response = shared_gateways.first.delete(path, headers=shared_gateways.operator)
        assert _code(response) == UNAVAILABLE
    assert 0 < server.ttl("pqkeep:changes") <= 30
    server.pexpire("pqkeep:changes", 0)  # as if they were over
    for gateway in gateways:
        response = gateway.get(_path(shared_gateways), headers=shared_gateways.api_key)
        assert _code(response) == UNAUTHORIZED
