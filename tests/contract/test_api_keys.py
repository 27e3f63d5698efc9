"""API keys of tenants: listed, rotated with an overlap, and revoked at once."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

SHOWN = {"key_last4", "version", "status", "created_at"}
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UNAUTHORIZED = (401, "ERR_AUTH_001", None)
NO_TENANT = (404, "ERR_NOT_FOUND_001", "tenant_id")
NO_VERSION = (404, "ERR_NOT_FOUND_001", "version")
CONFLICT = (409, "ERR_CONFLICT_001", None)
ENDPOINTS = [
    ("GET", ""),
    ("POST", "/api-keys"),
    ("GET", "/api-keys"),
    ("POST", "/api-keys/rotate"),
    ("DELETE", "/api-keys/1"),
    ("DELETE", "/api-keys/x"),
]


def _path(tenant: Caller, end: str = "") -> str:
    return f"/tenants/{tenant.tenant_id}/api-keys{end}"


def _list(tenant: Caller, by: Caller | None = None) -> list[dict[str, Any]]:
    data = (by or tenant).get(_path(tenant))
    assert data.keys() == {"api_keys", "total"}
    keys: list[dict[str, Any]] = data["api_keys"]
    assert data["total"] == len(keys)
    return keys


def _statuses(tenant: Caller, by: Caller | None = None) -> list[tuple[int, str]]:
    return [(key["version"], key["status"]) for key in _list(tenant, by)]


def _revoke(caller: Caller, tenant: Caller, version: object) -> dict[str, Any]:
    response = caller.ask("DELETE", _path(tenant, f"/{version}"))
    assert response.status_code == 200, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


@pytest.fixture
def rotated(installation: Installation, new_tenant: Callable[..., Caller]) -> tuple[Caller, Caller]:
    """A free tenant with a replaced API key in its overlap, and with the new one."""
    old = new_tenant("free")
    made = old.post(_path(old, "/rotate"))["new_key"]
    return old, installation.caller(made["api_key"], old.tenant_id)


def test_the_list_tells_status_and_times(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """The list has each API key by version with revoked_at, for tenant and operator."""
    tenant = new_tenant("starter")
    made = [tenant.post(_path(tenant), status=201) for _ in range(3)]
    _revoke(tenant, tenant, 3)
    listed = _list(tenant)
    assert [key["version"] for key in listed] == [1, 2, 3, 4]
    assert all(key.keys() == SHOWN | {"revoked_at"} for key in listed)
    assert all(TIMESTAMP.fullmatch(key["created_at"]) for key in listed)
    for key, created in zip(listed[1:], made, strict=True):
        expected = {**created, "status": key["status"], "revoked_at": key["revoked_at"]}
        del expected["api_key"]
        assert key == expected
    assert [key["status"] for key in listed] == ["active", "active", "revoked", "active"]
    assert [key["revoked_at"] is None for key in listed] == [True, True, False, True]
    assert TIMESTAMP.fullmatch(listed[2]["revoked_at"])
    assert listed[2]["revoked_at"] >= listed[2]["created_at"]
    assert _list(tenant, operator) == listed


def test_details_are_shown_to_those_who_ask(
    installation: Installation, rotated: tuple[Caller, Caller]
) -> None:
    """With details each API key has its last use and the end of its overlap."""
    _, new = rotated
    revoked = new.post(_path(new), status=201)
    _revoke(new, new, revoked["version"])
    new.get("/kms/keys")
    for caller in (new, installation.operator()):
        first, second, third = caller.get(_path(new), details="true")["api_keys"]
        more = {"last_used_at", "last_used_from", "overlap_ends_at"}
        more |= {"name", "scopes", "expires_at", "allowed_addresses"}
        assert {key for each in (first, second, third) for key in each} == (
            SHOWN | {"revoked_at"} | more
        )
        assert TIMESTAMP.fullmatch(first["overlap_ends_at"])
        assert first["overlap_ends_at"] > first["revoked_at"]
        assert second["overlap_ends_at"] is third["overlap_ends_at"] is None
        assert third["last_used_at"] is third["last_used_from"] is None
        assert all(each.keys() == SHOWN | {"revoked_at"} for each in _list(new, caller))
    for value in ("1", "yes", "True", ""):
        response = new.ask("GET", _path(new), params={"details": value})
        assert (response.status_code, response.json()["error"]["field"]) == (400, "details")


def test_a_tenant_without_api_keys_has_an_empty_list(operator: Caller) -> None:
    """Before its first API key a tenant's list is empty and total is 0."""
    tenant = operator.post("/tenants", {"name": f"tenant {uuid.uuid4()}"}, status=201)
    assert operator.get(f"/tenants/{tenant['id']}/api-keys") == {"api_keys": [], "total": 0}


def test_the_plaintext_is_shown_once(new_tenant: Callable[..., Caller]) -> None:
    """An API key is only in the responses to create and rotate."""
    tenant = new_tenant("starter")
    made = tenant.post(_path(tenant), status=201)["api_key"]
    rotated = tenant.post(_path(tenant, "/rotate"))["new_key"]["api_key"]
    assert len({made, rotated, tenant.api_key}) == 3
    tenant.client.headers["X-API-Key"] = rotated
    responses = [
        tenant.ask("GET", _path(tenant)),
        tenant.ask("GET", f"/tenants/{tenant.tenant_id}"),
        tenant.ask("GET", "/tenants"),
        tenant.ask("DELETE", _path(tenant, "/2")),
    ]
    for response in responses:
        assert response.status_code == 200
        assert "pqk_" not in response.text
        assert '"api_key"' not in response.text


def test_rotate_replaces_the_calling_key(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """The calling key is revoked in the list at once, and still accepted for a while."""
    first = new_tenant("starter")
    second = installation.caller(first.post(_path(first), status=201)["api_key"], first.tenant_id)
    data = first.post(_path(first, "/rotate"))
    assert data.keys() == {"new_key", "revoked_version"}
    assert data["revoked_version"] == 1
    made = data["new_key"]
    assert made.keys() == SHOWN | {"api_key"}
    assert (made["version"], made["status"]) == (3, "active")
    assert made["key_last4"] == made["api_key"][-4:]
    assert TIMESTAMP.fullmatch(made["created_at"])
    new = installation.caller(made["api_key"], first.tenant_id)
    expected = [(1, "revoked"), (2, "active"), (3, "active")]
    for caller in (new, second):
        assert _statuses(first, caller) == expected
    for caller in (new, first, second, first):
        assert caller.ask("GET", "/kms/keys").status_code == 200
    assert _list(first, new)[0]["revoked_at"] == made["created_at"]


def test_rotate_takes_no_body(new_tenant: Callable[..., Caller]) -> None:
    """Rotation needs no body. An API key that names another API key to replace is refused."""
    for content in (None, b"{}"):
        tenant = new_tenant("free")
        response = tenant.ask("POST", _path(tenant, "/rotate"), content=content)
        assert response.status_code == 200
    refusal = new_tenant("free")
    path = _path(refusal, "/rotate")
    assert refusal.refusal(path, {"key_id": "1"}) == (400, "ERR_INVALID_001", "key_id")
    assert refusal.refusal(path, {"overlap": 1}) == (400, "ERR_INVALID_001", "overlap")


@pytest.mark.parametrize("wanted", [-1, 31, 86_401, "0", 0.5, True])
def test_an_overlap_is_at_most_the_installation_s(
    new_tenant: Callable[..., Caller], wanted: object
) -> None:
    """An overlap above the setting, or an overlap that is not a number, gives 400."""
    tenant = new_tenant("free")
    refusal = tenant.refusal(_path(tenant, "/rotate"), {"overlap_seconds": wanted})
    assert refusal == (400, "ERR_INVALID_001", "overlap_seconds")


@pytest.mark.threat("rotated-api-key")
def test_a_rotation_may_end_the_old_key_at_once(
    installation: Installation, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """With overlap_seconds 0 the old key is 401 in the next request; with 30 it still works."""
    for overlap, status in ((0, 401), (30, 200)):
        old = new_tenant("free")
        made = old.post(_path(old, "/rotate"), {"overlap_seconds": overlap})
        assert old.ask("GET", "/kms/keys").status_code == status
        new = installation.caller(made["new_key"]["api_key"], old.tenant_id)
        assert new.ask("GET", "/kms/keys").status_code == 200


@pytest.mark.threat("rotated-api-key")
def test_a_key_in_its_overlap_rotates_nothing(
    rotated: tuple[Caller, Caller], refused: Refused
) -> None:
    """A rotated key cannot rotate again: 409 ERR_CONFLICT_001, and no key is made."""
    old, new = rotated
    for _ in range(2):
        assert refused(old.ask("POST", _path(old, "/rotate"))) == CONFLICT
    assert _statuses(new) == [(1, "revoked"), (2, "active")]
    assert new.post(_path(new, "/rotate"))["revoked_version"] == 2


@pytest.mark.threat("rotated-api-key")
def test_a_key_in_its_overlap_administers_nothing(
    rotated: tuple[Caller, Caller], refused: Refused
) -> None:
    """A rotated key cannot create, list or revoke API keys, or read the audit log: 403."""
    old, new = rotated
    for method, path in (
        ("POST", _path(old)),
        ("GET", _path(old)),
        ("DELETE", _path(old, "/2")),
        ("GET", f"/tenants/{old.tenant_id}"),
        ("GET", "/audit/records"),
        ("POST", "/kms/keys/generate"),
    ):
        body = {"algorithm": "Kyber768"} if path.endswith("generate") else None
        assert refused(old.ask(method, path, body)) == (403, "ERR_FORBIDDEN_001", None)
    assert _statuses(new) == [(1, "revoked"), (2, "active")]


def test_the_operator_rotates_the_newest_active_key(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """The operator's rotation replaces the newest active key, which is valid until its overlap ends."""
    tenant = new_tenant("starter")
    for _ in range(2):
        tenant.post(_path(tenant), status=201)
    _revoke(tenant, tenant, 3)
    data = operator.post(_path(tenant, "/rotate"))
    assert (data["revoked_version"], data["new_key"]["version"]) == (2, 4)
    assert operator.post(_path(tenant, "/rotate"))["revoked_version"] == 4
    assert operator.post(_path(tenant, "/rotate"))["revoked_version"] == 5
    _revoke(tenant, tenant, 6)
    assert operator.post(_path(tenant, "/rotate"))["revoked_version"] == 1
    assert tenant.ask("GET", "/kms/keys").status_code == 200


def test_the_operator_rotates_where_no_key_is_active(
    installation: Installation, operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """If no key is active, a rotation makes a working one, and revoked_version is null."""
    tenant = new_tenant("free")
    _revoke(operator, tenant, 1)
    data = operator.post(_path(tenant, "/rotate"))
    assert data["revoked_version"] is None
    assert data["new_key"]["version"] == 2
    assert _statuses(tenant, installation.caller(data["new_key"]["api_key"])) == [
        (1, "revoked"),
        (2, "active"),
    ]


def test_of_concurrent_rotations_with_one_key_one_succeeds(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """Sixteen concurrent rotations of one key: one 200, fifteen 409, one active key."""
    tenant = new_tenant("free")
    with ThreadPoolExecutor(16) as pool:
        responses = list(
            pool.map(lambda _: tenant.ask("POST", _path(tenant, "/rotate")), range(16))
        )
    assert [response.status_code for response in responses].count(200) == 1
    losers = [refused(response) for response in responses if not response.is_success]
    assert len(losers) == 15
    assert set(losers) <= {CONFLICT, UNAUTHORIZED}
    assert _statuses(tenant, operator) == [(1, "revoked"), (2, "active")]


def test_of_concurrent_revocations_all_agree(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """Sixteen concurrent revocations of one key are all 200 with the same time."""
    tenant = new_tenant("free")
    with ThreadPoolExecutor(16) as pool:
        revoked = list(pool.map(lambda _: _revoke(operator, tenant, 1), range(16)))
    assert all(each == revoked[0] for each in revoked)


def test_a_key_revoked_while_it_is_used_is_refused_from_then_on(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """After the response to a revocation, every new request with the key is 401."""
    tenant = new_tenant("free")
    for _ in range(2):
        tenant.ask("GET", "/kms/keys")
    ended: list[bool] = []

    def use(_: int) -> list[int]:
        statuses: list[int] = []
        while not ended or len(statuses) < 3:
            began_after = bool(ended)
            status = tenant.ask("GET", "/kms/keys").status_code
            statuses.append(status if began_after else 0)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        users = [pool.submit(use, n) for n in range(8)]
        _revoke(operator, tenant, 1)
        ended.append(True)
        seen = {status for user in users for status in user.result()}
    assert seen <= {0, 401}
    assert refused(tenant.ask("GET", "/kms/keys")) == UNAUTHORIZED


def test_revoke_is_immediate(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """A key that was just accepted is 401 in the next request, and revoked with its times."""
    tenant = new_tenant("free")
    before = _list(tenant)[0]
    revoked = _revoke(tenant, tenant, 1)
    assert refused(tenant.ask("GET", "/kms/keys")) == UNAUTHORIZED
    assert refused(tenant.ask("POST", _path(tenant, "/rotate"))) == UNAUTHORIZED
    assert revoked.keys() == SHOWN | {"revoked_at"}
    assert TIMESTAMP.fullmatch(revoked["revoked_at"])
    assert revoked == {**before, "status": "revoked", "revoked_at": revoked["revoked_at"]}
    assert _revoke(operator, tenant, 1) == revoked
    assert _list(tenant, operator) == [revoked]


@pytest.mark.parametrize("by", ["new", "operator"])
def test_revoke_ends_an_overlap(
    rotated: tuple[Caller, Caller], operator: Caller, refused: Refused, by: str
) -> None:
    """A rotated key that is revoked is 401 at once; its first revocation time stays."""
    old, new = rotated
    assert old.ask("GET", "/kms/keys").status_code == 200
    before = _list(new)[0]
    assert _revoke({"new": new, "operator": operator}[by], old, 1) == before
    assert refused(old.ask("GET", "/kms/keys")) == UNAUTHORIZED
    assert new.ask("GET", "/kms/keys").status_code == 200


@pytest.mark.parametrize(
    "version",
    [
        *(
            "0",
            "2",
            "99",
            "999999999",
            "1000000000",
            "9" * 30,
            pytest.param("9" * 5000, id="5,000 digits"),
        ),
        *("-1", "+1", "1.0", "1e0", "x", "1x", "0x1", "null", "%00", "%20", "1%20"),
        *("%D9%A1", "%C2%B9", "1;2", "%27OR%201=1"),
    ],
)
def test_a_version_that_is_not_there(
    operator: Caller, demo: Caller, refused: Refused, version: str
) -> None:
    """An unknown version and a version that is not a number both give 404 for the field version."""
    for caller in (demo, operator):
        path = _path(demo, f"/{version}")
        assert refused(caller.ask("DELETE", path)) == NO_VERSION
    assert _statuses(demo) == [(1, "active")]


def test_revoked_keys_are_outside_of_the_quota(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """Revoked keys do not count against the quota, and version numbers continue."""
    tenant = new_tenant("free")
    assert tenant.post(_path(tenant), status=201)["version"] == 2
    quota_reached = (400, "ERR_INVALID_001", None)
    assert tenant.refusal(_path(tenant), {}) == quota_reached
    _revoke(tenant, tenant, 2)
    assert tenant.post(_path(tenant), status=201)["version"] == 3
    assert tenant.post(_path(tenant, "/rotate"))["new_key"]["version"] == 4
    assert operator.refusal(_path(tenant), {}) == quota_reached
    for version in (3, 4):
        _revoke(operator, tenant, version)
    assert operator.post(_path(tenant), status=201)["version"] == 5


def test_rotation_never_exceeds_the_quota(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """A tenant with a used-up quota can rotate concurrently, and keeps its number of active keys."""
    tenant = new_tenant("free")
    tenant.post(_path(tenant), status=201)
    tenant.post(_path(tenant, "/rotate"))
    operator.post(_path(tenant, "/rotate"))
    with ThreadPoolExecutor(8) as pool:
        asked = pool.map(lambda n: operator.ask("POST", _path(tenant, n)), 4 * ["/rotate", ""])
        statuses = sorted(response.status_code for response in asked)
    assert statuses == 4 * [200] + 4 * [400]
    assert [status for _, status in _statuses(tenant, operator)].count("active") == 2


@pytest.mark.parametrize(("method", "end"), ENDPOINTS)
def test_a_tenant_that_is_not_mine_does_not_exist(
    operator: Caller,
    demo: Caller,
    new_tenant: Callable[..., Caller],
    refused: Refused,
    method: str,
    end: str,
) -> None:
    """Another tenant, an unknown one and a malformed id get the same 404, and nothing changes."""
    another = new_tenant("free")
    responses = []
    for tenant_id in (another.tenant_id, str(uuid.uuid4()), "x"):
        response = demo.ask(method, f"/tenants/{tenant_id}{end}")
        assert refused(response) == NO_TENANT
        responses.append(response.json()["error"])
        if tenant_id != another.tenant_id:
            response = operator.ask(method, f"/tenants/{tenant_id}{end}")
            assert refused(response) == NO_TENANT
            change = operator.ask("PATCH", f"/tenants/{tenant_id}", {"status": "suspended"})
            assert refused(change) == NO_TENANT
    assert responses == 3 * responses[:1]
    assert _statuses(another) == [(1, "active")]


@pytest.mark.parametrize(("method", "end"), [*ENDPOINTS, ("PATCH", ""), ("GET", None)])
def test_without_a_credential_that_we_know(
    demo: Caller, anonymous: Caller, refused: Refused, method: str, end: str | None
) -> None:
    """Every endpoint is 401 without a credential, and with an unknown one."""
    path = "/tenants" if end is None else f"/tenants/{demo.tenant_id}{end}"
    assert refused(anonymous.ask(method, path)) == UNAUTHORIZED
    stranger = {"X-API-Key": new_credential(CredentialKind.API_KEY)}
    assert refused(anonymous.ask(method, path, headers=stranger)) == UNAUTHORIZED


@pytest.fixture
def short_overlap(
    request: pytest.FixtureRequest,
) -> Iterator[httpx2.Client]:
    """The operator of an installation with a short rotation overlap."""
    installation: Installation = request.getfixturevalue(request.param)
    with httpx2.Client(
        base_url=installation.base_url + "/api/v1",
        headers={"X-API-Key": installation.ready["operator_key"]},
        timeout=PATIENCE,
        trust_env=False,
    ) as client:
        yield client


@pytest.mark.parametrize(
    ("short_overlap", "overlap"), [("own_rules", 0), ("closed", 1)], indirect=["short_overlap"]
)
def test_the_overlap_is_a_setting(short_overlap: httpx2.Client, overlap: int) -> None:
    """A rotated key is accepted for the time in the settings, then 401; the new one stays valid."""
    tenant = short_overlap.post("/tenants", json={"name": "x"}).json()["data"]
    path = f"/tenants/{tenant['id']}/api-keys"
    old = {"X-API-Key": short_overlap.post(path).json()["data"]["api_key"]}
    rotated = short_overlap.post(path + "/rotate", headers=old)
    since = time.monotonic()
    assert rotated.status_code == 200
    new = {"X-API-Key": rotated.json()["data"]["new_key"]["api_key"]}
    keys = "/kms/keys"
    while (response := short_overlap.get(keys, headers=old)).is_success:
        assert time.monotonic() < since + PATIENCE
        time.sleep(0.02)
    assert time.monotonic() > since + overlap - 0.5
    assert response.status_code == 401
    assert response.json()["error"]["error_code"] == "ERR_AUTH_001"
    assert short_overlap.get(path, headers=new).status_code == 200
