"""Usage over HTTP: operations by hour and by day, and the limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import Caller

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]
KYBER = {"algorithm": "Kyber768"}
DONE = {"encrypt": 3, "generate-key": 1, "list-keys": 1}
PERIODS = {"24h": (24, timedelta(hours=1)), "30d": (30, timedelta(days=1))}


@pytest.fixture(scope="module")
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant on free with the operations in DONE, and two refusals."""
    tenant = new_tenant("free")
    tenant.post("/kms/keys/generate", KYBER, status=201)
    for _ in range(3):
        tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    tenant.get("/kms/keys")
    tenant.ask("POST", "/kem/encrypt", {"plaintext": "QUJD", "algorithm": "X-Wing"})
    tenant.ask("POST", "/kem/encrypt", {"plaintext": "QUJD", "key_version": 2})
    return tenant


def summed(usage: dict[str, Any]) -> dict[str, int]:
    """Return the counts of operations and refusals over all buckets."""
    done: dict[str, int] = {"refused": 0}
    for bucket in usage["buckets"]:
        assert bucket["succeeded"] == sum(bucket["operations"].values())
        done["refused"] += bucket["refused"]
        for operation, count in bucket["operations"].items():
            assert count > 0
            done[operation] = done.get(operation, 0) + count
    return done


@pytest.mark.parametrize("period", PERIODS)
def test_usage_by_the_hour_and_by_the_day(tenant: Caller, period: str) -> None:
    """All buckets up to the current one are there, with correct sums of operations and refusals."""
    number, length = PERIODS[period]
    before = datetime.now(UTC)
    usage = tenant.get("/usage", period=period)
    starts = [datetime.fromisoformat(bucket["start"]) for bucket in usage["buckets"]]
    assert len(starts) == number
    assert {later - earlier for earlier, later in pairwise(starts)} == {length}
    assert starts[-1] <= datetime.now(UTC)
    assert before < starts[-1] + 2 * length
    assert starts[-1].timestamp() % length.total_seconds() == 0
    assert summed(usage) == {**DONE, "refused": 2}
    assert (usage["period"], usage["total"]) == (period, sum(DONE.values()))


def test_limits(tenant: Caller, new_tenant: Callable[..., Caller], operator: Caller) -> None:
    """Quota and rate limit come from the plan, or from the operator."""
    names = ("operations_used", "operations_per_month", "requests_per_minute")

    def limits(caller: Caller, **query: str) -> tuple[int | None, ...]:
        usage = caller.get("/usage", **query)
        return tuple(usage[name] for name in names)

    assert limits(tenant) == limits(operator, tenant_id=tenant.tenant_id) == (3, 1000, 100)
    other = new_tenant("enterprise")
    assert limits(other) == (None, None, 20_000)
    operator.ask("PATCH", f"/tenants/{other.tenant_id}", {"requests_per_minute": 777})
    assert limits(other) == (None, None, 777)
    assert limits(operator) == (None, None, None)


def test_whose_usage(tenant: Caller, operator: Caller, refused: Refused) -> None:
    """The operator sees each tenant's usage and the sum; a tenant sees its own, also by id."""
    named = {"tenant_id": tenant.tenant_id}
    own, by_id, theirs = (
        {**usage, "busiest_api_keys": []}  # each question is a request
        for usage in (
            tenant.get("/usage"),
            tenant.get("/usage", **named),
            operator.get("/usage", **named),
        )
    )
    assert own == by_id == theirs
    assert operator.get("/usage", **named)["busiest_api_keys"][0]["version"] == 1
    everybody = summed(operator.get("/usage"))
    assert everybody["encrypt"] >= DONE["encrypt"]
    assert everybody["refused"] >= 2
    stranger = "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11"
    for caller in (tenant, operator):
        response = caller.ask("GET", "/usage", params={"tenant_id": stranger})
        assert refused(response)[:2] == (404, "ERR_NOT_FOUND_001")
    response = tenant.ask("GET", "/usage", params={"period": "1y"})
    assert refused(response) == (422, "ERR_INVALID_001", "period")
