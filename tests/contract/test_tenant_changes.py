"""Tenants are listed, and changed by the operator, at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

if TYPE_CHECKING:
    import httpx2

Refused = Callable[["httpx2.Response"], tuple[int, str, str | None]]

TENANT_FIELDS = {"id", "name", "plan", "status", "created_at", "updated_at"}
OPERATOR_FIELDS = TENANT_FIELDS | {"tier", "subscription", "requests_per_minute"}
FORBIDDEN = (403, "ERR_FORBIDDEN_001", None)
X_WING = {"algorithm": "X-Wing"}


def _change(operator: Caller, tenant: Caller, **changes: object) -> dict[str, Any]:
    response = operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", changes)
    assert response.status_code == 200, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def _shown(tenant: dict[str, Any]) -> dict[str, Any]:
    """Return the public fields of a tenant in the operator's form."""
    assert tenant.keys() == OPERATOR_FIELDS
    return {name: tenant[name] for name in TENANT_FIELDS}


def test_the_operator_lists_all_tenants(
    operator: Caller, demo: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """The operator's list has every tenant, oldest first, with the same fields as alone."""
    made = [demo.tenant_id, *(new_tenant("free").tenant_id for _ in range(3))]
    data = operator.get("/tenants")
    assert data.keys() == {"tenants", "total"}
    assert data["total"] == len(data["tenants"])
    assert [tenant["id"] for tenant in data["tenants"] if tenant["id"] in made] == made
    times = [tenant["created_at"] for tenant in data["tenants"]]
    assert times == sorted(times)
    shown = [_shown(tenant) for tenant in data["tenants"] if tenant["id"] in made]
    assert operator.get(f"/tenants/{made[-1]}") in shown


def test_an_api_key_lists_its_own_tenant(new_tenant: Callable[..., Caller]) -> None:
    """An API key's list of tenants has only its own tenant."""
    tenant = new_tenant("starter")
    own = tenant.get(f"/tenants/{tenant.tenant_id}")
    assert tenant.get("/tenants") == {"tenants": [own], "total": 1}


def test_a_change_of_plan_is_effective_at_once(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """The next request with a known API key is on the new plan, for up- and downgrades."""
    tenant = new_tenant("free")
    policy = (403, "ERR_POLICY_001", None)
    assert tenant.refusal("/kms/keys/generate", X_WING) == policy
    before = tenant.get(f"/tenants/{tenant.tenant_id}")
    changed = _change(operator, tenant, plan="starter")
    assert tenant.post("/kms/keys/generate", X_WING, status=201)["key_version"] == 1
    expected = {**before, "plan": "starter", "updated_at": changed["updated_at"]}
    assert _shown(changed) == expected
    assert changed["updated_at"] > before["updated_at"]
    assert tenant.get(f"/tenants/{tenant.tenant_id}") == expected
    _change(operator, tenant, plan="free")
    assert tenant.refusal("/kem/encrypt", {**X_WING, "plaintext": "QUJD"}) == policy


def test_the_quota_of_api_keys_follows_the_plan(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """A better plan allows more API keys.

    After a downgrade they can be rotated, but not created.
    """
    tenant = new_tenant("free")
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    tenant.post(path, status=201)
    quota_reached = (400, "ERR_INVALID_001", None)
    assert tenant.refusal(path, {}) == quota_reached
    _change(operator, tenant, plan="starter")
    tenant.post(path, status=201)
    _change(operator, tenant, plan="free")
    assert tenant.refusal(path, {}) == quota_reached
    assert tenant.post(path + "/rotate")["revoked_version"] == 1
    statuses = [key["status"] for key in operator.get(path)["api_keys"]]
    assert statuses.count("active") == 3


def test_a_suspended_tenant_is_allowed_nothing_until_it_is_resumed(
    installation: Installation,
    operator: Caller,
    new_tenant: Callable[..., Caller],
    refused: Refused,
) -> None:
    """All API keys of a suspended tenant are 403 at once; after resuming they work at once."""
    first = new_tenant("starter")
    path = f"/tenants/{first.tenant_id}"
    made = first.post(f"{path}/api-keys", status=201)
    second = installation.caller(made["api_key"], first.tenant_id)
    replaced = installation.caller(made["api_key"], first.tenant_id)
    made = second.post(f"{path}/api-keys/rotate")["new_key"]
    third = installation.caller(made["api_key"], first.tenant_id)
    everyone = (first, second, replaced, third)
    for caller in everyone:
        caller.get("/kms/keys")
    assert _change(operator, first, status="suspended")["status"] == "suspended"
    for caller in everyone:
        for method, end in (
            *(("GET", "/kms/keys"), ("POST", "/kem/encrypt"), ("POST", "/signature/verify")),
            *(("GET", path), ("PATCH", path), ("GET", "/tenants"), ("POST", "/tenants")),
            *(("GET", f"{path}/api-keys"), ("POST", f"{path}/api-keys")),
            *(("POST", f"{path}/api-keys/rotate"), ("DELETE", f"{path}/api-keys/1")),
            *(("GET", f"/tenants/{uuid.uuid4()}"), ("DELETE", f"{path}/api-keys/x")),
        ):
            assert refused(caller.ask(method, end)) == FORBIDDEN
    assert operator.get(f"{path}/api-keys")["total"] == 3
    made = operator.post(f"{path}/api-keys", status=201)
    fourth = installation.caller(made["api_key"])
    assert refused(fourth.ask("GET", "/kms/keys")) == FORBIDDEN
    assert _change(operator, first, status="active")["status"] == "active"
    for caller in (*everyone, fourth):
        assert caller.get("/kms/keys")["total"] == 0


def test_a_suspended_tenant_s_key_that_is_revoked_is_nobody(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """A revoked key of a suspended tenant is 401, not 403."""
    tenant = new_tenant("free")
    _change(operator, tenant, status="suspended")
    assert operator.ask("DELETE", f"/tenants/{tenant.tenant_id}/api-keys/1").status_code == 200
    assert refused(tenant.ask("GET", "/kms/keys")) == (401, "ERR_AUTH_001", None)


def test_plan_and_status_change_together(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """One request changes both. Fields that are not named stay unchanged."""
    tenant = new_tenant("free")
    changed = _change(operator, tenant, plan="enterprise", status="suspended")
    assert (changed["plan"], changed["status"]) == ("enterprise", "suspended")
    changed = _change(operator, tenant, status="active")
    assert (changed["plan"], changed["status"]) == ("enterprise", "active")
    assert operator.get(f"/tenants/{tenant.tenant_id}") == _shown(changed)


@pytest.mark.parametrize("round_", range(4))
def test_changes_at_once_undo_nothing(
    operator: Caller, new_tenant: Callable[..., Caller], round_: int
) -> None:
    """A suspension among fifteen concurrent changes of plan is kept."""
    tenant = new_tenant("free")
    changes: list[dict[str, object]] = [{"plan": "starter"} for _ in range(16)]
    changes[4 * round_] = {"status": "suspended"}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda change: _change(operator, tenant, **change), changes))
    kept = operator.get(f"/tenants/{tenant.tenant_id}")
    assert (kept["plan"], kept["status"]) == ("starter", "suspended")


def test_only_the_operator_changes_tenants(
    demo: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """An API key cannot change a tenant, its own or another: 403."""
    another = new_tenant("free")
    before = [caller.get(f"/tenants/{caller.tenant_id}") for caller in (demo, another)]
    for body in ({}, {"plan": "enterprise"}, {"status": "active"}, {"plan": "gold"}):
        response = demo.ask("PATCH", f"/tenants/{demo.tenant_id}", body)
        assert refused(response) == FORBIDDEN
        response = demo.ask("PATCH", f"/tenants/{another.tenant_id}", body)
        assert refused(response) == FORBIDDEN
    assert [caller.get(f"/tenants/{caller.tenant_id}") for caller in (demo, another)] == before


NO_WORD: list[object] = ["gold", "", "FREE", "Active", 1, 0, True, False, ["free"], {}]
NO_RATE: list[object] = [0, -1, 1_000_001, 10**30, 1.5, 1e3, "1", "free", "", True, False, [1], {}]
BAD: list[tuple[str, object]] = [
    *((name, value) for name in ("plan", "tier", "subscription", "status") for value in NO_WORD),
    ("plan", "growth"),
    ("plan", "active"),
    ("tier", "ended"),
    ("subscription", "suspended"),
    ("subscription", "free"),
    ("status", "ended"),
    *(("requests_per_minute", value) for value in NO_RATE),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_values(
    operator: Caller,
    demo: Caller,
    refused: Refused,
    field: str,
    value: object,
) -> None:
    """An unknown value is 422 with its field, and no other field changes."""
    path = f"/tenants/{demo.tenant_id}"
    before = _change(operator, demo)
    good = {"subscription": "ended", "status": "suspended", "requests_per_minute": 1}
    response = operator.ask("PATCH", path, {**good, field: value})
    assert refused(response) == (422, "ERR_INVALID_001", field)
    assert _change(operator, demo) == before


def test_plan_and_tier_are_not_both_given(operator: Caller, demo: Caller, refused: Refused) -> None:
    """A plan and a tier together are 422, even if they agree."""
    before = _change(operator, demo)
    for tier in ("professional", "growth"):
        body = {"plan": "professional", "tier": tier}
        response = operator.ask("PATCH", f"/tenants/{demo.tenant_id}", body)
        assert refused(response) == (422, "ERR_INVALID_001", "tier")
    assert _change(operator, demo) == before


@pytest.mark.parametrize("field", ["plan", "tier", "subscription", "status", "requests_per_minute"])
def test_null_leaves_a_value_as_it_is(operator: Caller, demo: Caller, field: str) -> None:
    """Null in a field means that the field is missing."""
    before = _change(operator, demo)
    assert _change(operator, demo, **{field: None}) == before


@pytest.mark.parametrize(
    "content", [b"", b"not JSON", b"{", b"[]", b"null", b'"x"', b'{"plan":"\xff"}']
)
def test_malformed_json(operator: Caller, demo: Caller, refused: Refused, content: bytes) -> None:
    """A body that is not a JSON object is 400."""
    response = operator.ask("PATCH", f"/tenants/{demo.tenant_id}", content=content)
    assert refused(response) == (400, "ERR_INVALID_001", None)


@pytest.mark.parametrize("name", ["name", "id", "created_at", "more"])
def test_unknown_fields_are_refused(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused, name: str
) -> None:
    """An unknown field is 400 and named, and nothing changes."""
    tenant = new_tenant("free")
    path = f"/tenants/{tenant.tenant_id}"
    before = operator.get(path)
    response = operator.ask("PATCH", path, {"plan": "starter", name: "x"})
    assert refused(response) == (400, "ERR_INVALID_001", name)
    assert operator.get(path) == before


def test_an_empty_change_changes_nothing(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """An empty object is 200 and the tenant is unchanged."""
    tenant = new_tenant("starter")
    before = operator.get(f"/tenants/{tenant.tenant_id}")
    assert _shown(_change(operator, tenant)) == before
    assert operator.get(f"/tenants/{tenant.tenant_id}") == before
