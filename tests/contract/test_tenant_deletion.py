"""The operator deletes a suspended tenant with its keys; its records stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

if TYPE_CHECKING:
    import httpx2

Refused = Callable[["httpx2.Response"], tuple[int, str, str | None]]

CONFLICT = (409, "ERR_CONFLICT_001", None)
NOT_FOUND = (404, "ERR_NOT_FOUND_001", "tenant_id")
KYBER = {"algorithm": "Kyber768"}


def _suspend(operator: Caller, path: str) -> None:
    assert operator.ask("PATCH", path, {"status": "suspended"}).is_success


def test_a_deletion_is_scheduled_and_cancelled(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """Only a suspended tenant's deletion can be scheduled; until cancelled it cannot be resumed."""
    path = f"/tenants/{new_tenant().tenant_id}"
    assert refused(operator.ask("DELETE", path)) == CONFLICT
    assert refused(operator.ask("DELETE", f"{path}/deletion")) == CONFLICT
    _suspend(operator, path)
    scheduled = operator.ask("DELETE", path).json()["data"]
    assert scheduled["status"] == "suspended"
    again = operator.ask("DELETE", path, params={"days": 90}).json()["data"]
    assert again["deletion_at"] == scheduled["deletion_at"] > scheduled["updated_at"]
    assert operator.get(path)["deletion_at"] == scheduled["deletion_at"]
    response = operator.ask("PATCH", path, {"status": "active"})
    assert refused(response) == (409, "ERR_CONFLICT_001", "status")
    cancelled = operator.ask("DELETE", f"{path}/deletion").json()["data"]
    assert (cancelled["status"], "deletion_at" in cancelled) == ("suspended", False)
    assert operator.ask("PATCH", path, {"status": "active"}).is_success


@pytest.mark.parametrize("days", ["-1", "91", "1.5", "soon", ""])
def test_its_time_has_bounds(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused, days: str
) -> None:
    """A number of days outside the limits is 422, and nothing is scheduled."""
    path = f"/tenants/{new_tenant().tenant_id}"
    _suspend(operator, path)
    response = operator.ask("DELETE", path, params={"days": days})
    assert refused(response) == (422, "ERR_INVALID_001", "days")
    assert "deletion_at" not in operator.get(path)


def test_there_is_a_day_to_think_about_it(closed: Installation, refused: Refused) -> None:
    """Outside development no tenant can be deleted on the same day."""
    operator, path = closed.operator(), f"/tenants/{closed.new_tenant().tenant_id}"
    _suspend(operator, path)
    response = operator.ask("DELETE", path, params={"days": 0})
    assert refused(response) == (422, "ERR_INVALID_001", "days")


def test_a_deleted_tenant(installation: Installation, operator: Caller, refused: Refused) -> None:
    """Its keys are destroyed with one record each. People and API keys get 401. Records stay."""
    tenant = installation.new_tenant()
    person = installation.person(tenant.tenant_id)
    path = f"/tenants/{tenant.tenant_id}"
    for operation in ("generate", "rotate"):
        tenant.post(f"/kms/keys/{operation}", KYBER, status=201)
    _suspend(operator, path)
    assert operator.ask("DELETE", path, params={"days": 0}).is_success
    deadline = time.monotonic() + PATIENCE
    while (found := operator.get(path))["status"] != "deleted":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert found["deletion_at"] <= found["updated_at"]
    unknown = (401, "ERR_AUTH_001", None)
    assert refused(tenant.ask("GET", "/kms/keys")) == unknown
    assert refused(person.ask("GET", "/auth/me")) == unknown
    for method, end, body in (
        *(("PATCH", "", {}), ("DELETE", "", None), ("DELETE", "/deletion", None)),
        *(("POST", "/api-keys", {}), ("GET", "/api-keys", None), ("POST", "/api-keys/rotate", {})),
    ):
        assert refused(operator.ask(method, path + end, body)) == NOT_FOUND
    response = operator.ask("POST", "/tenants", {"name": found["name"]})
    assert refused(response) == (409, "ERR_CONFLICT_001", "name")
    records = _records(operator, tenant.tenant_id)
    destroyed = [each["key_version"] for each in records if each["operation"] == "archive-key"]
    assert sorted(destroyed) == [1, 2]
    ended = [each["operation"] for each in records][-3:]
    assert ended == ["revoke-api-key", "membership-ended", "tenant-deleted"]
    last = records[-1]
    assert (last["principal"], last["policy"]) == ("gateway", "tenant-deletion")


def _records(operator: Caller, tenant: str) -> list[dict[str, Any]]:
    """Return all records of a tenant, once its deletion is recorded."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found, after = [], 0
        while page := operator.get("/audit/records", after=after, limit=500)["records"]:
            found += [each for each in page if each["tenant_id"] == tenant]
            after = page[-1]["id"]
        if found[-1]["operation"] == "tenant-deleted":
            return found
        assert time.monotonic() < deadline
