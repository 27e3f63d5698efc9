"""API keys with scopes, an expiry and addresses: the effect of each, generated from the rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation
from tests.sampling import sampled

from pqkeep_gateway.access.callers import GRANTS, WITHOUT_SCOPE, Credential
from pqkeep_gateway.access.scopes import GROUPS, NAMED_ONLY, ON_KEYS, OPERATIONS, Group
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.reference.openapi import codes, document
from pqkeep_protocol.algorithms import Operation

ROWS = tuple(
    row
    for row in api_rows()
    if Credential.API_KEY in GRANTS[row.permission] and row.permission not in WITHOUT_SCOPE
)
"""The operations that scopes can limit."""
ON_KEYS_ROWS = tuple(row for row in ROWS if row.audit_operation in ON_KEYS)
POLICY = "denied by policy api-key-scope"
OF_NOBODY = str(uuid.uuid4())
SPECIFIED = {"api_key", "key_last4", "version", "status", "created_at"}
DAY = timedelta(days=1)


def _ask(caller: Caller, row: Endpoint, values: Mapping[str, object]) -> httpx2.Response:
    """Send a request that names an unknown tenant, so that no API key changes."""
    path = row.path.replace("{tenant_id}", OF_NOBODY).replace("{version}", "1")
    path = path.replace("{id}", "1").replace("{key_version}", "1")
    if "{name}" in path:
        path = path.replace("{name}", str(values.get("name", "default")))
        values = {name: each for name, each in values.items() if name != "name"}
    if row.takes_body:
        return caller.ask(row.method, path, values)
    return caller.ask(row.method, path, params=values)


def _fields_of(row: Endpoint) -> set[str]:
    """Return the fields of a request; the filters of a list of keyrings choose no key."""
    if row.audit_operation is Operation.LIST_KEYRINGS:
        return set()
    return {each.name for each in row.fields}


def _about(row: Endpoint, keyring: str) -> dict[str, object]:
    """Return the fields that name a keyring in a request, if the operation has such fields."""
    return dict.fromkeys(_fields_of(row) & {"keyring", "name"}, keyring)


def _is_outside_scopes(response: httpx2.Response) -> bool:
    return response.status_code == 403 and POLICY in response.text


def _ended(response: httpx2.Response) -> tuple[int, str | None, str | None]:
    status, code, field = refusal_of(response)
    return status, code, field


def _algorithms_for(row: Endpoint) -> tuple[str, str]:
    """Return two algorithms that a row takes."""
    if "/kem/" in row.path:
        return "X-Wing", "Kyber768"
    if "/mac/" in row.path:
        return "HMAC-SHA-512", "HMAC-SHA-256"
    return "Dilithium3", "ML-DSA-87"


Limited = Callable[..., Caller]


@pytest.fixture(scope="module")
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with an API key without scopes, and keys of two algorithms."""
    made = new_tenant()
    for algorithm in ("Kyber768", "X-Wing", "Dilithium3"):
        made.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    return made


@pytest.fixture(scope="module")
def limited(installation: Installation, tenant: Caller) -> Iterator[Limited]:
    """Make API keys of the tenant, which are revoked at the end."""
    versions: list[int] = []

    def make(by: Caller | None = None, **fields: object) -> Caller:
        by = installation.operator() if by is None else by
        body = {"allow_absent_keyrings": True, **fields}
        made = by.post(f"/tenants/{tenant.tenant_id}/api-keys", body, status=201)
        versions.append(made["version"])
        return installation.caller(made["api_key"], tenant.tenant_id)

    yield make
    for version in versions:
        tenant.ask("DELETE", f"/tenants/{tenant.tenant_id}/api-keys/{version}")


def _scope(*operations: str, **lists: list[str]) -> dict[str, Any]:
    return {"scopes": [{"operations": list(operations), **lists}]}


def test_every_row_that_an_api_key_may_call_has_its_name_in_scopes() -> None:
    """Scopes use the names in the audit log: each row has its own."""
    assert {row.audit_operation for row in ROWS} == set(OPERATIONS.values())
    assert {row.audit_operation.value for row in ROWS} == set(OPERATIONS)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_the_reference_lists_the_refusal(row: Endpoint) -> None:
    """Each operation for API keys lists the refusal by scopes in the reference."""
    assert Code.POLICY_001 in codes(row)


def test_the_reference_names_the_operations_of_scopes() -> None:
    """The reference gives exactly the name in scopes for each operation that checks them."""
    paths = document(api_rows(), (), "")["paths"]
    named = {
        operation["operationId"]: operation["x-scope-operation"]
        for path in paths.values()
        for operation in path.values()
        if "x-scope-operation" in operation
    }
    assert named == {row.name: row.audit_operation for row in ROWS}


@pytest.mark.parametrize("group", sampled(Group, 2))
def test_a_group_may_call_its_operations_only(limited: Limited, group: Group) -> None:
    """An API key with a group may call exactly that group's operations."""
    caller = limited(**_scope(group.value))
    refused = {row.name for row in ROWS if _is_outside_scopes(_ask(caller, row, {}))}
    in_group = {row.name for row in ROWS if row.audit_operation in GROUPS[group]}
    listing_all = {"list_keys", "list_key_usage"} & in_group
    assert refused == {row.name for row in ROWS} - in_group
    assert all(
        caller.ask("GET", next(row.path for row in ROWS if row.name == name)).status_code == 200
        for name in listing_all
    )


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ON_KEYS_ROWS])
def test_another_algorithm_is_refused(limited: Limited, row: Endpoint) -> None:
    """An API key for one algorithm is refused for another, in every operation."""
    mine, other = _algorithms_for(row)
    caller = _for_one(limited, "algorithms", mine)
    if row.items is not None:
        _expect_of_items(caller, row, "algorithm", mine, other)
        return
    if row.audit_operation is Operation.LIST_PUBLIC_KEYS:  # it leaves out what it may not show
        assert not _is_outside_scopes(_ask(caller, row, {}))
        return
    if "algorithm" not in _fields_of(row):  # it is about all of them
        assert _is_outside_scopes(_ask(caller, row, _about(row, "payments.cards")))
        return
    assert _is_outside_scopes(_ask(caller, row, {"algorithm": other}))
    assert not _is_outside_scopes(_ask(caller, row, {"algorithm": mine}))
    if row.default_algorithm not in (None, mine) or row.audit_operation is Operation.LIST_KEYS:
        assert _is_outside_scopes(_ask(caller, row, {}))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ON_KEYS_ROWS])
def test_another_keyring_is_refused(limited: Limited, row: Endpoint) -> None:
    """An API key for one keyring is refused for any other, and for requests without a keyring."""
    caller = _for_one(limited, "keyrings", "payments.cards")
    algorithm, _ = _algorithms_for(row)
    values = dict.fromkeys(_fields_of(row) & {"algorithm"}, algorithm)
    if row.items is not None:
        _expect_of_items(caller, row, "keyring", "payments.cards", "payments.logs")
        return
    for other in ("payments.logs", "payments.cards2", "default"):
        assert _is_outside_scopes(_ask(caller, row, {**values, **_about(row, other)}))
    if "keyring" in _fields_of(row):
        assert _is_outside_scopes(_ask(caller, row, values))
    response = _ask(caller, row, {**values, **_about(row, "payments.cards")})
    assert _is_outside_scopes(response) is not bool(_about(row, ""))


def _expect_of_items(caller: Caller, row: Endpoint, name: str, mine: str, other: str) -> None:
    """Expect that each batch item is refused, or not, and recorded alone."""
    mixed = [{name: mine}, {name: other}, {name: mine}]
    for body, expected in (
        ({"items": mixed}, [False, True, False]),
        ({"items": [{}, {}], name: other}, [True, True]),
    ):
        results = caller.post(row.path, body)["results"]
        codes_given = [each.get("error", {}).get("error_code") for each in results]
        assert [each == "ERR_POLICY_001" for each in codes_given] == expected


_FOR_ONE: dict[tuple[Limited, str, str], Caller] = {}


def _for_one(limited: Limited, of: str, name: str) -> Caller:
    """Return an API key for everything with one algorithm or keyring, made once."""
    key = limited, of, name
    if key not in _FOR_ONE:
        _FOR_ONE[key] = limited(**_scope("*", *sorted(NAMED_ONLY), **{of: [name]}))
    return _FOR_ONE[key]


def test_an_envelope_is_of_the_keyring_that_it_names(limited: Limited, tenant: Caller) -> None:
    """Scopes apply to an envelope's own keyring and algorithm, with any fields beside it."""
    envelope = tenant.post("/kem/encrypt", {"plaintext": "QUJD", "format": "envelope"})["envelope"]
    for of, name in (("keyrings", "payments.cards"), ("algorithms", "X-Wing")):
        caller = _for_one(limited, of, name)
        for beside in ({}, {"keyring": "payments.cards"}, {"algorithm": "X-Wing"}):
            response = caller.ask("POST", "/kem/decrypt", {"envelope": envelope, **beside})
            assert response.status_code in (400, 403), response.text
        assert _is_outside_scopes(caller.ask("POST", "/kem/decrypt", {"envelope": envelope}))
    for of, name in (("keyrings", "default"), ("algorithms", "Kyber768")):
        caller = _for_one(limited, of, name)
        assert caller.post("/kem/decrypt", {"envelope": envelope})["plaintext"] == "QUJD"


def test_a_refusal_is_recorded_with_the_keyring_that_was_asked_for(
    limited: Limited, tenant: Caller
) -> None:
    """A refusal's record has the keyring in the body, the envelope or the path."""
    vault = "payments.vault"
    tenant.post("/kms/keyrings", {"name": vault}, status=201)
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768", "keyring": vault}, status=201)
    sealed = {"plaintext": "QUJD", "format": "envelope", "keyring": vault}
    opening = {"envelope": tenant.post("/kem/encrypt", sealed)["envelope"]}
    caller = limited(name="asker", **_scope("use", "update-keyring", keyrings=["payments.cards"]))
    asked = (
        ("POST", "/kem/decrypt", opening),
        ("POST", "/kem/decrypt/batch", {"items": [opening]}),
        ("POST", "/kem/re-encrypt", opening),
        ("GET", f"/kms/keyrings/{vault}", None),
        ("PATCH", f"/kms/keyrings/{vault}", {"description": "mine"}),
        ("POST", "/kms/keys/generate", {"algorithm": "Kyber768", "keyring": vault}),
    )
    for method, path, body in asked:
        assert POLICY in caller.ask(method, path, body).text
    newest = {"outcome": "ERR_POLICY_001", "order": "desc", "limit": len(asked)}
    records = tenant.get("/audit/records", **newest)["records"]
    assert {each["principal"].rpartition("/")[2] for each in records} == {"asker"}
    assert [each["keyring"] for each in reversed(records)] == [*[vault] * 5, None]


def test_re_encryption_needs_both_keys(limited: Limited, tenant: Caller) -> None:
    """Scopes apply to the source's key and to the target's key."""
    made = tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    source = {"ciphertext": made["ciphertext"], "key_version": made["key_version"]}
    of_source, of_target = (
        _for_one(limited, "algorithms", each) for each in ("Kyber768", "X-Wing")
    )
    to = {"to": {"algorithm": "X-Wing"}}
    for caller in (of_source, of_target, _for_one(limited, "keyrings", "payments.cards")):
        assert _is_outside_scopes(caller.ask("POST", "/kem/re-encrypt", {**source, **to}))
    of_default = _for_one(limited, "keyrings", "default")
    elsewhere = {"to": {"keyring": "payments.logs"}}
    assert _is_outside_scopes(of_default.ask("POST", "/kem/re-encrypt", {**source, **elsewhere}))
    assert of_default.post("/kem/re-encrypt", {**source, **to})["algorithm"] == "X-Wing"


@pytest.mark.threat("stolen-api-key")
def test_what_must_be_named_is_in_no_wildcard(
    limited: Limited, tenant: Caller, installation: Installation
) -> None:
    """Without a scope that names the deletion, an API key cannot delete keyrings or grant it."""
    name, keys = "to-delete", f"/tenants/{tenant.tenant_id}/api-keys"
    made = {"name": name, "deletion_allowed": True}
    others = [group.value for group in Group if group is not Group.DELETE_KEYRINGS]
    for caller in (
        tenant,
        limited(**_scope("*")),
        limited(scopes=[{}]),
        limited(**_scope(*others)),
    ):
        asked = (
            ("POST", "/kms/keyrings", made),
            ("PATCH", "/kms/keyrings/default", {"deletion_allowed": True}),
            ("DELETE", f"/kms/keyrings/{name}", None),
            ("POST", keys, _scope("delete-keyring")),
            ("POST", keys, _scope("*", "delete-keyrings")),
            ("POST", f"{keys}/rotate", _scope("delete-keyrings")),
        )
        for method, path, body in asked:
            assert _is_outside_scopes(caller.ask(method, path, body)), (method, path, body)
    deleter = limited(**_scope("*", "delete-keyring"))
    deleter.post("/kms/keyrings", made, status=201)
    heir = installation.caller(
        deleter.post(keys, _scope("delete-keyrings", keyrings=[name]), status=201)["api_key"]
    )
    assert _is_outside_scopes(heir.ask("DELETE", "/kms/keyrings/payments.cards"))
    assert heir.ask("DELETE", f"/kms/keyrings/{name}").json()["data"]["archive_at"]


def test_an_encrypt_only_key_encrypts_only(limited: Limited, tenant: Caller) -> None:
    """An encrypt-only API key cannot decrypt, sign, list, rotate or create API keys."""
    caller = limited(name="writer", **_scope("encrypt-only"))
    ciphertext = caller.post("/kem/encrypt", {"plaintext": "QUJD"})["ciphertext"]
    assert caller.get("/kms/keys/active", algorithm="Kyber768")["key_version"] == 1
    opened = {"ciphertext": ciphertext, "key_version": 1}
    keys = f"/tenants/{tenant.tenant_id}/api-keys"
    for method, path, body in (
        ("POST", "/kem/decrypt", opened),
        ("POST", "/signature/sign", {"message": "QUJD"}),
        ("GET", "/kms/keys", None),
        ("GET", "/kms/keys/usage", None),
        ("POST", "/kms/keys/rotate", {"algorithm": "Kyber768"}),
        ("POST", "/kms/keys/generate", {"algorithm": "ML-KEM-1024"}),
        ("POST", keys, {}),
        ("POST", keys, _scope("encrypt-only")),
        ("POST", f"{keys}/rotate", {}),
        ("GET", keys, None),
        ("DELETE", f"{keys}/1", None),
        ("GET", "/audit/records", None),
        ("GET", "/usage", None),
    ):
        response = caller.ask(method, path, body)
        assert _is_outside_scopes(response), path
    assert tenant.post("/kem/decrypt", opened)["plaintext"] == "QUJD"


def test_a_refusal_is_recorded_by_version_and_name(limited: Limited, tenant: Caller) -> None:
    """The record has policy and API key, and is found by version, with or without its name."""
    caller = limited(name="Records.1", **_scope("decrypt-only", algorithms=["X-Wing"]))
    refused = [
        caller.ask("POST", "/kem/encrypt", {"plaintext": "QUJD"}),
        caller.ask("POST", "/kem/decrypt", {"ciphertext": "QUJD", "key_version": 1}),
    ]
    assert all(map(_is_outside_scopes, refused))
    listed = tenant.get(f"/tenants/{tenant.tenant_id}/api-keys", details="true")["api_keys"]
    version = next(each["version"] for each in listed if each["name"] == "Records.1")
    expected = [
        ("encrypt", None, "ERR_POLICY_001", "api-key-scope", f"api-key:{version}/Records.1"),
        ("decrypt", "Kyber768", "ERR_POLICY_001", "api-key-scope", f"api-key:{version}/Records.1"),
    ]
    for principal in (f"api-key:{version}", f"api-key:{version}/Records.1"):
        records = tenant.get("/audit/records", principal=principal)["records"]
        assert [
            tuple(
                each[name] for name in ("operation", "algorithm", "outcome", "policy", "principal")
            )
            for each in records
        ] == expected
    assert not tenant.get("/audit/records", principal=f"api-key:{version}/Rec")["records"]
    assert not tenant.get("/audit/records", principal=f"api-key:{version}0")["records"]


def test_what_anyone_may_do_needs_no_scope(limited: Limited) -> None:
    """Scopes never restrict public operations."""
    caller = limited(**_scope("decrypt-only"))
    assert caller.get("/billing/plans")["plans"]


# --- Creating and rotating ------------------------------------------------------------------------

LIMITS: Mapping[str, Any] = {
    "name": "payments-worker",
    "scopes": [{"operations": ["use", "rotate-api-key"]}],
    "expires_at": "2096-01-31T12:00:00.000Z",
    "allowed_addresses": ["127.0.0.0/8", "2001:db8::/32"],
}


def _detail(tenant: Caller, version: int) -> dict[str, Any]:
    listed = tenant.get(f"/tenants/{tenant.tenant_id}/api-keys", details="true")["api_keys"]
    found: dict[str, Any] = next(each for each in listed if each["version"] == version)
    return {name: found[name] for name in LIMITS}


def test_limits_come_back_to_who_names_them(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """A response has only limits of the request; the list has limits only with details."""
    tenant = new_tenant()
    keys = f"/tenants/{tenant.tenant_id}/api-keys"
    made = tenant.post(keys, dict(LIMITS), status=201)
    assert made.keys() == SPECIFIED | LIMITS.keys()
    assert {name: made[name] for name in LIMITS} == LIMITS == _detail(tenant, 2)
    assert tenant.post(keys, {"name": "x"}, status=201).keys() == SPECIFIED | {"name"}
    assert tenant.post(keys, status=201).keys() == SPECIFIED
    assert all(
        each.keys() == SPECIFIED - {"api_key"} | {"revoked_at"}
        for each in tenant.get(keys)["api_keys"]
    )
    worker = installation.caller(made["api_key"], tenant.tenant_id)
    rotated = worker.post(f"{keys}/rotate")
    assert rotated["new_key"].keys() == SPECIFIED
    assert _detail(tenant, rotated["new_key"]["version"]) == LIMITS
    assert _detail(tenant, 1) == dict.fromkeys(LIMITS)


def test_an_api_key_narrows_itself_and_never_widens(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """A rotating API key can narrow each limit; a wider one is refused and nothing changes."""
    tenant = new_tenant()
    keys = f"/tenants/{tenant.tenant_id}/api-keys"
    made = tenant.post(keys, dict(LIMITS), status=201)
    worker = installation.caller(made["api_key"], tenant.tenant_id)
    for name, wider in (
        ("scopes", [{"operations": ["use", "rotate-api-key", "generate-key"]}]),
        ("scopes", [{}]),
        ("expires_at", "2096-01-31T12:00:00.001Z"),
        ("allowed_addresses", ["126.0.0.0/7"]),
    ):
        response = worker.ask("POST", f"{keys}/rotate", {name: wider})
        assert _ended(response) == (403, "ERR_POLICY_001", name)
    narrower: dict[str, Any] = {
        "name": "narrower",
        "scopes": [{"operations": ["encrypt"], "algorithms": ["Kyber768"]}],
        "expires_at": "2095-01-31T12:00:00.000Z",
        "allowed_addresses": ["127.0.0.1/32"],
    }
    version = worker.post(f"{keys}/rotate", narrower)["new_key"]["version"]
    assert _detail(tenant, version) == narrower
    widest: dict[str, Any] = {**LIMITS, "name": "again"}
    operator = installation.operator()
    rotated = operator.post(f"{keys}/rotate", {"key_id": str(version), **widest})
    assert _detail(tenant, rotated["new_key"]["version"]) == widest


def test_an_api_key_mints_only_what_it_covers(limited: Limited, tenant: Caller) -> None:
    """An API key with limits can create only API keys with narrower limits."""
    own: dict[str, Any] = {
        "scopes": [
            {"operations": ["create-api-key"]},
            {"operations": ["use"], "algorithms": ["Kyber768"]},
        ],
        "expires_at": "2096-01-31T12:00:00Z",
        "allowed_addresses": ["127.0.0.0/8"],
    }
    minter = limited(**own)
    keys = f"/tenants/{tenant.tenant_id}/api-keys"
    use = [{"operations": ["encrypt", "decrypt"], "algorithms": ["Kyber768"]}]
    for name, wider in (
        ("scopes", None),
        ("scopes", [{"operations": ["use"]}]),
        ("scopes", [{"operations": ["*"]}]),
        ("scopes", [{"operations": ["use"], "algorithms": ["Kyber768", "X-Wing"]}]),
        ("scopes", [*use, {"operations": ["rotate-key"], "algorithms": ["Kyber768"]}]),
        ("expires_at", None),
        ("expires_at", "2096-01-31T12:00:01Z"),
        ("allowed_addresses", None),
        ("allowed_addresses", ["0.0.0.0/0"]),
        ("allowed_addresses", ["127.0.0.1/32", "::1/128"]),
    ):
        response = minter.ask("POST", keys, {**own, "scopes": use, name: wider})
        assert _ended(response) == (403, "ERR_POLICY_001", name), wider
    assert _ended(minter.ask("POST", keys)) == (403, "ERR_POLICY_001", "scopes")
    made = limited(minter, **{**own, "scopes": use})
    assert made.post("/kem/encrypt", {"plaintext": "QUJD"})["ciphertext"]
    assert _is_outside_scopes(made.ask("POST", keys, {**own, "scopes": use}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "a b"),
        ("name", "a/b"),
        ("scopes", []),
        ("scopes", [{"operations": ["archive-key"]}]),
        ("scopes", [{"tenants": ["*"]}]),
        ("expires_at", "2001-01-01T00:00:00Z"),
        ("expires_at", "tomorrow"),
        ("allowed_addresses", ["10.0.0.1/8"]),
        ("allowed_addresses", ["2001:db8::1%a 127.0.0.1 ::"]),
    ],
)
@pytest.mark.parametrize("end", ["", "/rotate"])
def test_bad_limits_are_refused(tenant: Caller, name: str, value: object, end: str) -> None:
    """An invalid limit is 400 with its field, and no API key is made or replaced."""
    response = tenant.ask("POST", f"/tenants/{tenant.tenant_id}/api-keys{end}", {name: value})
    assert _ended(response) == (400, "ERR_INVALID_001", name)


# --- Expiry and addresses -------------------------------------------------------------------------


def test_an_expired_api_key_is_unknown(limited: Limited, tenant: Caller) -> None:
    """From its expiry on an API key is 401, even just after a successful request."""
    expires_at = datetime.now(UTC) + timedelta(seconds=1)
    caller = limited(expires_at=expires_at.isoformat())
    statuses = set()
    while datetime.now(UTC) < expires_at + timedelta(milliseconds=50):
        statuses.add(caller.ask("GET", "/kms/keys").status_code)
    assert statuses <= {200, 401}
    assert _ended(caller.ask("GET", "/kms/keys")) == (401, "ERR_AUTH_001", None)
    assert tenant.get("/kms/keys")


def test_an_api_key_from_elsewhere_is_unknown_and_recorded(
    limited: Limited, tenant: Caller
) -> None:
    """From outside its networks, an API key gets 401 like an unknown one.

    The owner gets a record.
    """
    caller = limited(name="elsewhere", allowed_addresses=["192.0.2.0/24"])
    responses = [caller.ask("GET", path) for path in ("/kms/keys", "/usage", "/billing/plans")]
    assert {_ended(each) for each in responses} == {(401, "ERR_AUTH_001", None)}
    unknown = tenant.client.get(
        "/api/v1/kms/keys", headers={"X-API-Key": "pqk_" + "A" * 43 + "000000"}
    )
    assert unknown.json()["error"] == responses[0].json()["error"]
    records = tenant.get("/audit/records", outcome="ERR_AUTH_001")["records"]
    assert [
        (each["operation"], each["policy"], each["principal"].partition("/")[2]) for each in records
    ] == [("list-keys", "api-key-address", "elsewhere")]


def test_a_change_of_limits_holds_at_once(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """In its overlap an API key keeps its own limits; a revoked one has none."""
    tenant = new_tenant()
    keys = f"/tenants/{tenant.tenant_id}/api-keys"
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    made = tenant.post(keys, _scope("encrypt-only", "rotate-api-key"), status=201)
    old = installation.caller(made["api_key"], tenant.tenant_id)
    new = installation.caller(
        old.post(f"{keys}/rotate", _scope("get-key"))["new_key"]["api_key"], tenant.tenant_id
    )
    assert old.post("/kem/encrypt", {"plaintext": "QUJD"})
    assert _is_outside_scopes(old.ask("GET", "/kms/keys"))
    assert _is_outside_scopes(new.ask("POST", "/kem/encrypt", {"plaintext": "QUJD"}))
    assert new.get("/kms/keys/1", algorithm="Kyber768")
    assert tenant.ask("DELETE", f"{keys}/3").status_code == 200
    assert _ended(new.ask("GET", "/kms/keys/1?algorithm=Kyber768")) == (401, "ERR_AUTH_001", None)


def test_a_keyring_in_a_scope_has_to_exist(new_tenant: Callable[..., Caller]) -> None:
    """An unknown keyring in a scope is refused unless allowed; a prefix is always accepted."""
    tenant = new_tenant()
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    for keyrings in (["paymets"], ["payments", "paymets"], ["default", "paymetsx"]):
        scoped = _scope("use", keyrings=keyrings)
        for end in ("", "/rotate"):
            response = tenant.ask("POST", path + end, scoped)
            assert refusal_of(response) == (400, "ERR_INVALID_001", "scopes")
            assert "allow_absent_keyrings" in response.text
            missing = [name for name in keyrings if name.startswith("paymets")]
            assert f"({', '.join(missing)})" in response.text
    assert tenant.get(path)["total"] == 1
    for keyrings in (["payments", "default"], ["paymets.*"], ["*"]):
        tenant.post(path, _scope("use", keyrings=keyrings), status=201)
    scoped = {**_scope("use", keyrings=["paymets"]), "allow_absent_keyrings": True}
    tenant.post(path, scoped, status=201)
    response = tenant.ask("POST", path, {"allow_absent_keyrings": "yes"})
    assert refusal_of(response) == (400, "ERR_INVALID_001", "allow_absent_keyrings")


def test_a_scope_does_not_tell_of_keyrings_beyond_it(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """An API key gets the same response for keyrings outside its scopes, known or unknown."""
    tenant = new_tenant()
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    tenant.post("/kms/keyrings", {"name": "secret"}, status=201)
    own = {"scopes": [{"operations": ["administer"]}, {"operations": ["use"], "keyrings": ["a*"]}]}
    made = tenant.post(path, own, status=201)
    program = installation.caller(made["api_key"], tenant.tenant_id)
    responses = [
        refusal_of(program.ask("POST", path, _scope("use", keyrings=[name])))
        for name in ("secret", "no-such-ring")
    ]
    assert responses == [(403, "ERR_POLICY_001", "scopes")] * 2


def test_a_verifier_loads_the_keys_of_its_scope(tenant: Caller, limited: Limited) -> None:
    """An API key for verifying reads the public keys and the JWK Set of its keyrings and algorithms."""
    tenant.ask("POST", "/kms/keyrings", {"name": "payments.cards"})
    for keyring in ("default", "payments.cards"):
        for algorithm in ("Dilithium3", "ML-DSA-87"):
            wanted = {"algorithm": algorithm, "keyring": keyring, "if_absent": True}
            assert tenant.ask("POST", "/kms/keys/generate", wanted).is_success
    every = limited(**_scope("verify-only"))
    keys = every.ask("GET", "/kms/jwks").json()["keys"]
    assert {key["alg"] for key in keys} == {"ML-DSA-65", "ML-DSA-87"}
    own = {"keyrings": ["payments.*"], "algorithms": ["Dilithium3", "Kyber768"]}
    cards = limited(**_scope("verify-only", **own))
    (key,) = cards.ask("GET", "/kms/jwks?keyring=payments.cards").json()["keys"]
    assert key["alg"] == "ML-DSA-65"
    for path in (
        "/kms/jwks",
        "/kms/keys?algorithm=Dilithium3&keyring=payments.cards",
        "/kms/keys/1/public-key?algorithm=ML-DSA-87&keyring=payments.cards",
    ):
        assert _is_outside_scopes(cards.ask("GET", path))
    path = "/kms/keys/1/public-key?algorithm=Dilithium3&keyring=payments.cards&format=pem"
    assert cards.ask("GET", path).status_code == 200
    kems = limited(**_scope("encrypt-only", algorithms=["Kyber768"]))
    assert _is_outside_scopes(kems.ask("GET", "/kms/jwks"))


@pytest.mark.threat("scoped-api-key")
def test_a_public_key_is_no_way_into_another_keyring(tenant: Caller, limited: Limited) -> None:
    """A key outside the scopes cannot be used by its public key either."""
    keyring = f"hidden-{uuid.uuid4()}"
    tenant.post("/kms/keyrings", {"name": keyring}, status=201)
    named = {"algorithm": "Kyber768", "keyring": keyring}
    public_key = tenant.post("/kms/keys/generate", named, status=201)["public_key"]
    operations = ["encrypt", "encapsulate"]
    program = limited(scopes=[{"operations": operations, "keyrings": ["default"]}])
    for operation, values in (("encrypt", {"plaintext": "QUJD"}), ("encapsulate", {})):
        response = program.ask("POST", f"/kem/{operation}", {**values, "public_key": public_key})
        assert _is_outside_scopes(response)
        assert _ended(response) == (403, "ERR_POLICY_001", "public_key")
        recorded = tenant.get("/audit/records", order="desc", limit=1)["records"][0]
        assert (recorded["operation"], recorded["keyring"]) == (operation, keyring)
        assert (recorded["key_version"], recorded["outcome"]) == (1, "scope-denied")
        tenant.post(f"/kem/{operation}", {**values, "public_key": public_key})


def test_a_retired_public_key_of_one_s_own_is_refused(tenant: Caller) -> None:
    """Encrypting to a retired version's public key is 404, as with its version."""
    keyring = f"old-{uuid.uuid4()}"
    tenant.post("/kms/keyrings", {"name": keyring}, status=201)
    named = {"algorithm": "Kyber768", "keyring": keyring}
    public_key = tenant.post("/kms/keys/generate", named, status=201)["public_key"]
    sent = {"plaintext": "QUJD", "public_key": public_key}
    assert "key_version" not in tenant.post("/kem/encrypt", sent)
    tenant.post("/kms/keys/retire", {**named, "key_version": 1})
    refused = tenant.ask("POST", "/kem/encrypt", sent)
    assert _ended(refused)[:2] == (404, "ERR_NOT_FOUND_001")


@pytest.mark.threat("scoped-api-key")
def test_a_scope_of_one_algorithm_tells_nothing_of_another(
    tenant: Caller, limited: Limited
) -> None:
    """To an API key for one algorithm, ciphertexts of another algorithm are only damaged."""
    sealed = tenant.post("/kem/encrypt", {"plaintext": "QUJD", "algorithm": "X-Wing"})
    asked = {"ciphertext": sealed["ciphertext"], "key_version": 1, "algorithm": "Kyber768"}
    one, both = (
        limited(scopes=[{"operations": ["decrypt"], "algorithms": algorithms}])
        for algorithms in (["Kyber768"], ["Kyber768", "X-Wing"])
    )
    assert _ended(one.ask("POST", "/kem/decrypt", asked))[:2] == (400, "ERR_KEM_002")
    assert _ended(both.ask("POST", "/kem/decrypt", asked)) == (
        400,
        "ERR_INVALID_001",
        "algorithm",
    )
    mismatch, failure = tenant.get("/audit/records", order="desc", limit=2)["records"]
    assert mismatch["target"] == "default/X-Wing/1"
    assert failure["target"] is None


@pytest.mark.parametrize("group", Group)
def test_an_api_key_of_any_scope_asks_about_itself(
    tenant: Caller, limited: Limited, group: Group
) -> None:
    """The response has the API key's tenant, name, version, scopes, expiry and networks."""
    expires = (datetime.now(UTC) + DAY).replace(microsecond=0)
    scopes = [{"operations": [group.value], "keyrings": ["cards*"], "algorithms": ["Kyber768"]}]
    program = limited(
        name=f"worker-{group.value}",
        scopes=scopes,
        expires_at=expires.isoformat(),
        allowed_addresses=["127.0.0.0/8"],
    )
    own = program.get("/auth/api-key")
    assert own.pop("version") > 1
    assert datetime.fromisoformat(own.pop("expires_at")) == expires
    assert own == {
        "tenant_id": tenant.tenant_id,
        "name": f"worker-{group.value}",
        "scopes": scopes,
        "allowed_addresses": ["127.0.0.0/8"],
        "rotated": False,
    }


def test_an_api_key_without_limits_asks_about_itself(
    new_tenant: Callable[..., Caller], installation: Installation
) -> None:
    """Missing limits are null, and a rotated API key is told so."""
    tenant = new_tenant()
    plain = {
        "tenant_id": tenant.tenant_id,
        "version": 1,
        "name": None,
        "scopes": None,
        "expires_at": None,
        "allowed_addresses": None,
        "rotated": False,
    }
    assert tenant.get("/auth/api-key") == plain
    rotated = tenant.post(f"/tenants/{tenant.tenant_id}/api-keys/rotate")["new_key"]
    new = installation.caller(rotated["api_key"], tenant.tenant_id)
    assert tenant.get("/auth/api-key") == plain | {"rotated": True}
    assert new.get("/auth/api-key") == plain | {"version": 2}


def test_no_scope_can_name_the_question_about_itself(tenant: Caller) -> None:
    """The operation that every API key may call is not a name in scopes."""
    asked = {"scopes": [{"operations": ["get-own-api-key"]}]}
    response = tenant.ask("POST", f"/tenants/{tenant.tenant_id}/api-keys", asked)
    assert _ended(response) == (400, "ERR_INVALID_001", "scopes")


@pytest.mark.threat("stolen-api-key")
def test_the_response_about_itself_has_no_secret_and_ends_with_the_key(
    tenant: Caller, limited: Limited
) -> None:
    """The response shows no part of the API key; a revoked API key is refused."""
    program = limited(name="asking")
    response = program.ask("GET", "/auth/api-key")
    assert response.status_code == 200
    assert program.api_key is not None
    assert program.api_key not in response.text
    assert program.api_key[4:12] not in response.text
    version = response.json()["data"]["version"]
    path = f"/tenants/{tenant.tenant_id}/api-keys/{version}"
    assert tenant.ask("DELETE", path).is_success
    assert _ended(program.ask("GET", "/auth/api-key")) == (401, "ERR_AUTH_001", None)
