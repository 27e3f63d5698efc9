"""Tenants and their API keys: permissions, responses and refusals."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

if TYPE_CHECKING:
    import httpx2

Refused = Callable[["httpx2.Response"], tuple[int, str, str | None]]

TENANT_FIELDS = {"id", "name", "plan", "status", "created_at", "updated_at"}
API_KEY_FIELDS = {"api_key", "key_last4", "version", "status", "created_at"}
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
NOT_FOUND = (404, "ERR_NOT_FOUND_001", "tenant_id")
FORBIDDEN = (403, "ERR_FORBIDDEN_001", None)


@pytest.fixture
def name() -> str:
    """A name that no tenant has."""
    return f"Müller & Söhne {uuid.uuid4()}"


@pytest.mark.parametrize(
    "plan", ["free", "starter", "professional", "enterprise", "enterprise_plus"]
)
def test_the_operator_creates_tenants(operator: Caller, name: str, plan: str) -> None:
    """A tenant is created on the named plan, is active, and can be read."""
    made = operator.post("/tenants", {"name": name, "plan": plan}, status=201)
    assert made.keys() == TENANT_FIELDS
    assert uuid.UUID(made["id"]).version == 4
    assert (made["name"], made["plan"], made["status"]) == (name, plan, "active")
    assert TIMESTAMP.fullmatch(made["created_at"])
    assert made["updated_at"] == made["created_at"]
    assert operator.get(f"/tenants/{made['id']}") == made


def test_the_default_plan_is_free(operator: Caller, name: str) -> None:
    """Without a plan a tenant is on free."""
    assert operator.post("/tenants", {"name": name}, status=201)["plan"] == "free"


def test_development_mode_signs_anyone_up(anonymous: Caller, name: str) -> None:
    """In development mode a tenant can be created without a credential, and gets no API key."""
    made = anonymous.post("/tenants", {"name": name}, status=201)
    assert made.keys() == TENANT_FIELDS


def test_who_signs_up_gets_free(anonymous: Caller, name: str) -> None:
    """Without a credential only the plan free is possible; others are 403."""
    assert anonymous.refusal("/tenants", {"name": name, "plan": "starter"}) == FORBIDDEN
    assert anonymous.post("/tenants", {"name": name, "plan": "free"}, status=201)["plan"] == "free"


def test_the_default_plan_is_a_setting(own_rules: Installation) -> None:
    """The operator's tenants get the plan of the settings; sign-ups always get free."""
    operator, anonymous = own_rules.operator(), own_rules.caller(None)
    assert operator.post("/tenants", {"name": "one"}, status=201)["plan"] == "professional"
    assert anonymous.post("/tenants", {"name": "two"}, status=201)["plan"] == "free"


def test_an_api_key_creates_no_tenants(demo: Caller, name: str) -> None:
    """An API key cannot create tenants: 403, with any body."""
    assert demo.refusal("/tenants", {"name": name}) == FORBIDDEN
    assert demo.refusal("/tenants", {}) == FORBIDDEN


@pytest.mark.parametrize(
    "given",
    ["x", "x" * 255, "名" * 255, "🔑" * 255, "O'Brien; DROP TABLE tenants --", "{}", "null"],
    ids=[
        "1 character",
        "255 characters",
        "255 ideographs",
        "255 emoji",
        "SQL",
        "an object's text",
        "null's text",
    ],
)
def test_names_of_1_to_255_characters(
    operator: Caller, installation: Installation, given: str
) -> None:
    """A name has 1 to 255 characters, and is returned unchanged."""
    made = operator.post("/tenants", {"name": given}, status=201)
    assert operator.get(f"/tenants/{made['id']}")["name"] == given


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="missing"),
        pytest.param({"name": None}, id="null"),
        pytest.param({"name": ""}, id="empty"),
        pytest.param({"name": "x" * 256}, id="256 characters"),
        pytest.param({"name": "x" * 10_000}, id="10,000 characters"),
        pytest.param({"name": 1}, id="number"),
        pytest.param({"name": True}, id="true"),
        pytest.param({"name": ["x"]}, id="array"),
        pytest.param({"name": {"x": 1}}, id="object"),
        pytest.param({"name": "a\0b"}, id="null byte"),
        pytest.param({"name": "a\nb"}, id="line feed"),
    ],
)
def test_what_is_no_name(operator: Caller, body: dict[str, object]) -> None:
    """An invalid name is 400 ERR_INVALID_001, field name."""
    assert operator.refusal("/tenants", body) == (400, "ERR_INVALID_001", "name")


@pytest.mark.parametrize(
    "plan", ["gold", "", "FREE", "Growth", "pro", 1, True, ["free"], {"free": 1}]
)
def test_what_is_no_plan(operator: Caller, name: str, plan: object) -> None:
    """An unknown plan is 400 ERR_INVALID_001, field plan, and no tenant is made."""
    refusal = operator.refusal("/tenants", {"name": name, "plan": plan})
    assert refusal == (400, "ERR_INVALID_001", "plan")
    operator.post("/tenants", {"name": name}, status=201)


def test_a_name_is_taken_once(operator: Caller, anonymous: Caller, name: str) -> None:
    """An existing name is 409 ERR_CONFLICT_001 for every caller."""
    operator.post("/tenants", {"name": name}, status=201)
    conflict = (409, "ERR_CONFLICT_001", "name")
    assert operator.refusal("/tenants", {"name": name, "plan": "starter"}) == conflict
    assert anonymous.refusal("/tenants", {"name": name}) == conflict


def test_of_concurrent_tenants_of_one_name_one_is_made(operator: Caller, name: str) -> None:
    """Of sixteen concurrent tenants with one name one is 201, fifteen are 409."""
    with ThreadPoolExecutor(16) as pool:
        responses = list(
            pool.map(lambda _: operator.ask("POST", "/tenants", {"name": name}), range(16))
        )
    assert sorted(response.status_code for response in responses) == [201] + 15 * [409]


def test_tenants_are_looked_for(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """A tenant is found by a part of its name in any capitals, and by status; % and _ are literal."""
    mark = uuid.uuid4().hex

    def found(**query: str) -> list[str]:
        listed = operator.get("/tenants", **query)
        assert listed["total"] == len(listed["tenants"])
        return [tenant["name"] for tenant in listed["tenants"]]

    names = [f"Stra\N{LATIN SMALL LETTER SHARP S}e 100% {mark}", f"STRASSE 100_ {mark}"]
    ids = [operator.post("/tenants", {"name": name}, status=201)["id"] for name in names]
    for part in (mark, mark.upper(), "strasse 100", "e  100"):
        assert set(names) <= set(found(name=part))
    assert found(name=f"100% {mark}") == names[:1]
    assert found(name=f"100_ {mark}") == names[1:]
    assert operator.get("/tenants", name=mark, limit=1)["next"] == ids[0]
    operator.ask("PATCH", f"/tenants/{ids[1]}", {"status": "suspended"})
    assert found(name=mark, status="suspended") == names[1:]
    assert found(name=mark, status="active") == names[:1]
    assert found(name=mark, status="deleted") == []
    response = operator.ask("GET", "/tenants", params={"status": "asleep"})
    assert refused(response) == (400, "ERR_INVALID_001", "status")
    own = new_tenant()
    assert own.get("/tenants", status="active")["total"] == 1
    assert own.get("/tenants", name=mark) == {"tenants": [], "total": 0}


def test_an_api_key_sees_its_own_tenant(new_tenant: Callable[..., Caller]) -> None:
    """A tenant reads its own fields, without any API key."""
    tenant = new_tenant("starter")
    shown = tenant.get(f"/tenants/{tenant.tenant_id}")
    assert shown.keys() == TENANT_FIELDS
    assert (shown["id"], shown["plan"]) == (tenant.tenant_id, "starter")


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("{another}", id="another's"),
        pytest.param("00000000-0000-4000-8000-000000000000", id="nobody's"),
        pytest.param("x", id="no UUID"),
        pytest.param("1", id="a number"),
        pytest.param("{own}x", id="own id and a letter"),
        pytest.param("%00", id="null byte"),
        pytest.param("%27%20OR%201=1", id="SQL"),
    ],
)
@pytest.mark.parametrize(("method", "end"), [("GET", ""), ("POST", "/api-keys")])
def test_a_tenant_that_is_not_mine_does_not_exist(
    new_tenant: Callable[..., Caller],
    operator: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    which: str,
    method: str,
    end: str,
) -> None:
    """Another tenant, an unknown one and a malformed id get the same 404 and message."""
    own, another = new_tenant(), new_tenant()
    path = which.format(own=own.tenant_id, another=another.tenant_id)
    response = own.ask(method, f"/tenants/{path}{end}")
    assert refused(response) == NOT_FOUND
    unknown = own.ask(method, f"/tenants/{uuid.uuid4()}{end}")
    assert response.json()["error"] == unknown.json()["error"]
    if "another" not in which:
        assert refused(operator.ask(method, f"/tenants/{path}{end}")) == NOT_FOUND


def test_api_keys_are_made_by_the_tenant_and_by_the_operator(
    operator: Caller, installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """A tenant and an operator create API keys.

    Versions count up, each key works at once, and last4 has its last four characters.
    """
    tenant = new_tenant("starter")
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    for version, maker in ((2, tenant), (3, operator)):
        made = maker.post(path, status=201)
        assert made.keys() == API_KEY_FIELDS
        assert (made["version"], made["status"]) == (version, "active")
        assert made["key_last4"] == made["api_key"][-4:]
        assert TIMESTAMP.fullmatch(made["created_at"])
        caller = installation.caller(made["api_key"])
        assert caller.get(f"/tenants/{tenant.tenant_id}")["id"] == tenant.tenant_id


def test_creating_an_api_key_takes_no_body(new_tenant: Callable[..., Caller]) -> None:
    """The body is optional; one with unknown fields is refused."""
    tenant = new_tenant("starter")
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    assert tenant.ask("POST", path).status_code == 201
    assert tenant.ask("POST", path, {}).status_code == 201
    assert tenant.ask("POST", path, content=b"not JSON").status_code == 400
    assert tenant.refusal(path, {"scopes": ["kem"]}) == (400, "ERR_INVALID_001", "scopes")


@pytest.mark.parametrize(
    ("plan", "quota"),
    [("free", 2), ("starter", 5), ("professional", 20), ("enterprise", 100)],
)
def test_the_quota_of_api_keys(
    operator: Caller, new_tenant: Callable[..., Caller], plan: str, quota: int
) -> None:
    """The API key above the plan's number is 400 ERR_INVALID_001, for all callers."""
    tenant = new_tenant(plan)
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    for version in range(2, quota + 1):
        assert operator.post(path, status=201)["version"] == version
    for caller in (tenant, operator):
        assert caller.refusal(path, {}) == (400, "ERR_INVALID_001", None)


def test_the_quota_of_api_keys_holds_against_a_crowd(new_tenant: Callable[..., Caller]) -> None:
    """Of sixteen concurrent requests for the last four API keys, four are 201, versions 2 to 5."""
    tenant = new_tenant("starter")
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda _: tenant.ask("POST", path), range(16)))
    assert sorted(response.status_code for response in responses) == 4 * [201] + 12 * [400]
    made = [response.json()["data"]["version"] for response in responses if response.is_success]
    assert sorted(made) == [2, 3, 4, 5]


def test_a_suspended_tenant_is_allowed_nothing(
    installation: Installation,
    operator: Caller,
    new_tenant: Callable[..., Caller],
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
) -> None:
    """A suspended tenant is 403 after its credential and before any other check."""
    tenant_id = new_tenant().tenant_id
    operator.ask("PATCH", f"/tenants/{tenant_id}", {"status": "suspended"})
    made = operator.post(f"/tenants/{tenant_id}/api-keys", status=201)
    suspended = installation.caller(made["api_key"])
    for method, path in (("GET", "/kms/keys"), ("GET", f"/tenants/{tenant_id}")):
        assert refused(suspended.ask(method, path)) == FORBIDDEN
    for content in (b"{}", b"not JSON"):
        assert refused(suspended.ask("POST", "/kem/decrypt", content=content)) == FORBIDDEN
    assert operator.get(f"/tenants/{tenant_id}")["status"] == "suspended"
