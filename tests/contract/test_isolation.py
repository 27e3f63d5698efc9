"""Every operation with every credential: the status, the response, and the unchanged state."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey
from tests.contract.rows import api_rows
from tests.contract.sensitive_requests import ISSUER, ROLE
from tests.contract.test_key_import import body, issue, pkcs8
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.sampling import later

from pqkeep_gateway.access.callers import GRANTS, Credential, Permission
from pqkeep_gateway.access.scopes import NAMED_ONLY
from pqkeep_gateway.http.endpoint import Endpoint

COLUMNS = (
    "own",  # an active API key of the tenant whose things are asked for
    "overlap",  # another of the tenant's API keys, rotated a moment ago
    "operator",  # the operator's credential
    "revoked",  # another of the tenant's API keys, revoked
    "after",  # one that was rotated, and whose overlap is over
    "suspended",  # the tenant's own, while it is suspended
    "none",  # no credential
    "malformed",  # the tenant's own API key with a digit changed
    "other",  # an API key of another tenant, which has no keys
)
OWN_OF_ANOTHER: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "GET /kms/keys",
            "GET /kms/keys/usage",
            "GET /kms/jwks",
            "GET /kms/keys/import-key",
            "GET /kms/keyrings",
            "GET /rules/algorithms",
            "GET /rules/preview",
            "GET /rules/profiles",
            "GET /campaigns",
            "GET /webhooks",
            "GET /inventory",
            "GET /inventory/cbom",
            "GET /inventory/uses",
            "GET /inventory/external",
            "PUT /campaigns/{name}",
            "GET /usage",
            "GET /notices",
            "GET /notices/settings",
            "GET /audit/records",
            "GET /audit/counts",
            "GET /audit/checkpoints",
            "GET /audit/checkpoints/note",
            "GET /audit/consistency",
            "GET /audit/keys",
            "GET /audit/witnesses",
            "GET /audit/export",
            "GET /auth/api-key",
            "GET /tenants",
            "GET /billing/subscription",
            "GET /billing/limits",
            "GET /auth/providers",
            "GET /billing/plans",
            "POST /tools/hash",
            "POST /tools/random",
        ),
        200,
    ),
    "POST /kms/keys/generate": 201,
    "POST /kms/keyrings": 201,
    "POST /inventory/external": 201,
}
"""The responses for another tenant's API key to requests about itself; all others are 404."""
BATCH = "/batch"
"""A batch is always 200, with a result for each item."""
OF_NOBODY = frozenset(
    {
        *("PATCH /team/members/{id}", "DELETE /team/members/{id}", "DELETE /team/invitations/{id}"),
        "DELETE /operators/sessions/{session}",
    }
)
"""Paths without a tenant are 404 for the operator: see test_team.py and test_operator_sign_on.py."""
OF_PEOPLE = frozenset(
    {
        "GET /rules/algorithms/{name}",
        "POST /webhooks/{webhook}/test",
        "GET /webhooks/{webhook}/deliveries",
        "POST /webhooks/{webhook}/deliveries/{delivery}/resend",
    }
)
"""Only people make rules and webhooks, so these tenants have none: see test_rules.py,
test_webhooks.py."""
OF_A_SUSPENDED = frozenset({"DELETE /tenants/{tenant_id}", "DELETE /tenants/{tenant_id}/deletion"})
"""If the tenant is active, the operator gets 409: see test_tenant_deletion.py."""
ALREADY_ROTATED = "POST /tenants/{tenant_id}/api-keys/rotate"
"""An API key in its overlap gets 409 here."""


_OF_OPERATOR = {**dict.fromkeys(OF_NOBODY, 404), **dict.fromkeys(OF_A_SUSPENDED, 409)}
_UNKNOWN = ("malformed", "revoked", "after")
_SHOWN: Mapping[str, Credential] = {
    "none": Credential.NONE,
    "operator": Credential.OPERATOR,
    "overlap": Credential.ROTATED_API_KEY,
}
"""The columns of the access table without API keys."""


def expected(row: Endpoint, credential: str) -> int:
    """Return the status according to the access table. No API key here has scopes."""
    operation = f"{row.method} {row.path}"
    if credential in _UNKNOWN:
        return 401
    is_granted = _SHOWN.get(credential, Credential.API_KEY) in GRANTS[row.permission]
    is_granted &= row.audit_operation not in NAMED_ONLY
    if credential == "suspended" or not is_granted:
        return 401 if credential == "none" else 403
    if operation in OF_PEOPLE:
        return 404
    exceptions = {
        "other": OWN_OF_ANOTHER.get(operation, 200 if row.path.endswith(BATCH) else 404),
        "operator": _OF_OPERATOR.get(operation, row.status),
        "overlap": 409 if operation == ALREADY_ROTATED else row.status,
    }
    return exceptions.get(credential, row.status)


ALWAYS = ("none", "other")
BY_TURNS = [credential for credential in COLUMNS if credential not in ALWAYS]


def _cell(place: int, row: Endpoint, credential: str) -> Any:
    """Return a case. Of rotating cases, ``make test`` runs one for each operation."""
    operation = f"{row.method} {row.path}"
    status = expected(row, credential)
    case = pytest.param(operation, credential, status, id=f"{operation}-{credential}")
    is_tried = credential in (*ALWAYS, BY_TURNS[place % len(BY_TURNS)])
    return case if is_tried else later(case)


CELLS = [
    _cell(place, row, credential)
    for place, row in enumerate(
        row for row in api_rows() if not (row.permission is Permission.PUBLIC and row.takes_body)
    )
    for credential in COLUMNS
]
"""Public operations with their own credential in the body: see test_people.py, test_stripe.py."""
MAY_CHANGE = ("own", "overlap", "operator")
STRANGERS = ("none", "malformed", "other")
"""Credentials of cells that must leave the tenant unchanged. The last cell compares its state."""
CODES = {401: "ERR_AUTH_001", 404: "ERR_NOT_FOUND_001", 409: "ERR_CONFLICT_001"}

DENIALS = {
    **{
        ("POST /kms/keys/archive", credential): "ERR_KMS_020"
        for credential in (*MAY_CHANGE, "other")
    },
    ("DELETE /kms/keyrings/{name}", "own"): "ERR_POLICY_001",
    ("DELETE /kms/keyrings/{name}", "other"): "ERR_POLICY_001",
}
"""The codes of 403 other than ERR_FORBIDDEN_001. Deleting a keyring needs a scope that names it."""

PRIVATE_KEY = pkcs8(MLDSA87PrivateKey.generate())
KYBER = {"algorithm": "Kyber768"}
KEYRING = "cards"
HASH = {"hash": "QUJD" * 10 + "QUI=", "hash_algorithm": "SHA-256"}
EXTERNAL = {
    "source": KEYRING,
    "document": (
        '{"bomFormat":"CycloneDX","specVersion":"1.6","components":[{"type":"cryptographic-asset",'
        '"name":"www","cryptoProperties":{"assetType":"certificate","certificateProperties":{}}}]}'
    ),
}
CAMPAIGN = {"sources": [KYBER], "target": {"algorithm": "X-Wing"}}
MU = base64.b64encode(bytes(64)).decode()


def _made(tenant: Caller, path: str, name: str, **fields: object) -> dict[str, Any]:
    """Return the input for the reading operation, and the version."""
    return {name: tenant.post(path, fields)[name], "key_version": 1}


BODIES: Mapping[str, Callable[[Caller], dict[str, Any]]] = {
    "/kem/encrypt": lambda _: {"plaintext": "QUJD"},
    "/kem/decrypt": lambda t: _made(t, "/kem/encrypt", "ciphertext", plaintext="QUJD"),
    "/signature/jws": lambda _: {"payload": "QUJD"},
    "/kem/re-encrypt": lambda t: _made(t, "/kem/encrypt", "ciphertext", plaintext="QUJD"),
    "/kem/encapsulate": lambda _: {"key_version": 1},
    "/kem/decapsulate": lambda t: _made(t, "/kem/encapsulate", "kem_ciphertext", key_version=1),
    "/kem/wrap": lambda _: {"symmetric_key": "QUJD" * 8, "key_version": 1},
    "/kem/unwrap": lambda t: _made(
        t, "/kem/wrap", "wrapped_key", symmetric_key="QUJD" * 8, key_version=1
    ),
    "/signature/sign": lambda _: {"message": "QUJD"},
    "/signature/verify": lambda t: {
        **_made(t, "/signature/sign", "signature", message="QUJD"),
        "message": "QUJD",
    },
    "/signature/sign-hash": lambda _: HASH,
    "/signature/verify-hash": lambda t: {
        **_made(t, "/signature/sign-hash", "signature", **HASH),
        **HASH,
    },
    "/signature/sign-mu": lambda _: {"mu": MU},
    "/signature/verify-mu": lambda t: {
        **_made(t, "/signature/sign-mu", "signature", mu=MU),
        "mu": MU,
    },
    "/kem/data-key": lambda _: {},
    "/tools/hash": lambda _: {"data": "QUJD"},
    "/tools/random": lambda _: {"size": 16},
    "/mac/compute": lambda _: {"message": "QUJD"},
    "/mac/verify": lambda t: {
        **_made(t, "/mac/compute", "mac", message="QUJD"),
        "message": "QUJD",
    },
    "/tenants/{tenant_id}/workloads/issuers/{issuer}": lambda _: ISSUER,
    "/tenants/{tenant_id}/workloads/roles/{role}": lambda _: {**ROLE, "issuer": "ci"},
    "/kms/keys/generate": lambda _: {"algorithm": "ML-KEM-1024"},
    "/kms/keys/rotate": lambda _: KYBER,
    "/kms/keys/import": lambda t: body(issue(t, "ML-DSA-87"), PRIVATE_KEY),
    "/kms/keys/retire": lambda _: {**KYBER, "key_version": 1},
    "/kms/keys/disable": lambda _: {**KYBER, "key_version": 1},
    "/kms/keys/enable": lambda _: {**KYBER, "key_version": 1},
    "/kms/keys/archive": lambda _: {**KYBER, "key_version": 1},
    "/kms/keys/archive/cancel": lambda _: {**KYBER, "key_version": 1},
    "/kms/keyrings": lambda _: {"name": f"k{uuid.uuid4()}"},
    "/kms/keyrings/{name}": lambda _: {"description": "changed"},
    "/rules/algorithms": lambda _: {"profile": "cnsa-2.0"},
    "/rules/algorithms/{name}": lambda _: {"algorithms": ["Kyber768"]},
    "/campaigns/{name}": lambda _: CAMPAIGN,
    "/inventory/cbom": lambda _: {"signed_by": "default/Dilithium3"},
    "/inventory/external": lambda _: {**EXTERNAL, "source": "new"},
    "/campaigns/{name}/scans": lambda _: {
        "place": "cards",
        "sha256": "ab" * 32,
        "scanned_at": "2026-01-31T12:00:00Z",
        "counts": [],
    },
    "/audit/checkpoints": lambda _: {},
    "/billing/subscriptions/checkout": lambda _: {"tier": "starter"},
    "/tenants/{tenant_id}/invitations": lambda _: {
        "email": f"{uuid.uuid4()}@example.com",
        "role": "viewer",
    },
    "/tenants": lambda _: {"name": f"tenant {uuid.uuid4()}"},
    "/tenants/{tenant_id}": lambda _: {"subscription": "ended"},
    "/team/members/{id}": lambda t: {"role": "viewer", "tenant_id": t.tenant_id},
}
"""A request that succeeds with the tenant's own API key, where allowed."""
QUERIES: Mapping[str, Callable[[Caller], dict[str, Any]]] = {
    "/kms/keys/active": lambda _: KYBER,
    "/kms/keys/import-key": lambda _: KYBER,
    "/kms/keys/{key_version}": lambda _: KYBER,
    "/kms/keys/{key_version}/usage": lambda _: KYBER,
    "/kms/keys/{key_version}/public-key": lambda _: KYBER,
    "/inventory/uses": lambda _: KYBER,
    "/audit/counts": lambda _: {"by": "principal"},
    "/audit/consistency": lambda _: {"first": 1, "second": 2},
    "/search": lambda _: {"text": "a"},
    "/rules/preview": lambda _: {"profile": "cnsa-2.0"},
    **dict.fromkeys(
        ("/team/members", "/team/members/{id}", "/team/invitations", "/team/invitations/{id}"),
        lambda t: {"tenant_id": t.tenant_id},
    ),
}


def test_the_matrix_has_every_operation(installation: Installation) -> None:
    """Every operation of an installation has a row here, with its own permission."""
    with httpx2.Client(base_url=installation.base_url, trust_env=False, timeout=PATIENCE) as client:
        paths = client.get("/api/v1/openapi.json").json()["paths"]
    served = {
        f"{method.upper()} {path.removeprefix('/api/v1')}": each["x-permission"]
        for path, methods in paths.items()
        for method, each in methods.items()
    }
    del served["GET /healthz"]
    assert served == {f"{row.method} {row.path}": row.permission for row in api_rows()}


@pytest.fixture(scope="module")
def other(new_tenant: Callable[..., Caller]) -> Caller:
    """Another tenant, on the best plan."""
    return new_tenant()


def _with_keys(tenant: Caller) -> Caller:
    for algorithm in ("Kyber768", "Dilithium3", "HMAC-SHA-256"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    tenant.post("/kms/keyrings", {"name": KEYRING}, status=201)
    assert tenant.ask("PUT", f"/campaigns/{KEYRING}", CAMPAIGN).is_success
    tenant.post("/inventory/external", EXTERNAL, status=201)
    return tenant


Owner = tuple["Installation", "Caller"]


@pytest.fixture(scope="module")
def untouched(installation: Installation) -> Owner:
    """A tenant with three keys, which stays unchanged in this module."""
    return installation, _with_keys(installation.new_tenant())


@pytest.fixture(scope="module")
def untouched_without_overlap(own_rules: Installation) -> Owner:
    """The same in an installation without an overlap of API keys."""
    return own_rules, _with_keys(own_rules.new_tenant())


@pytest.fixture
def owner(
    credential: str,
    installation: Installation,
    untouched: Owner,
    untouched_without_overlap: Owner,
) -> Owner:
    """The tenant of the requests. A cell that may change it gets its own."""
    if credential in MAY_CHANGE:
        return installation, _with_keys(installation.new_tenant())
    return untouched_without_overlap if credential == "after" else untouched


def _trust(where: Installation, tenant: Caller, path: str) -> None:
    """Put an issuer and a role for a request about a tenant's workloads."""
    if "/workloads/" not in path:
        return
    workloads = f"/tenants/{tenant.tenant_id}/workloads"
    for place, put in (("issuers/ci", ISSUER), ("roles/deploy", ROLE)):
        assert where.operator().ask("PUT", f"{workloads}/{place}", put).is_success


def _changed(api_key: str) -> str:
    return api_key[:-1] + ("A" if api_key[-1] != "A" else "B")


def _shown(where: Installation, owner: Caller, credential: str) -> Caller:
    """Return a caller with the credential of a column."""
    path = f"/tenants/{owner.tenant_id}/api-keys"
    match credential:
        case "none":
            return where.caller(None)
        case "malformed":
            return where.caller(_changed(owner.api_key))
        case "operator":
            return where.operator()
        case "revoked":
            made = owner.post(path, status=201)
            assert owner.ask("DELETE", f"{path}/{made['version']}").is_success
            return where.caller(made["api_key"])
        case "overlap" | "after":
            caller = where.caller(owner.post(path, status=201)["api_key"], owner.tenant_id)
            caller.post(path + "/rotate")
            return caller
        case _:
            return owner


State = list[dict[str, Any]]


@pytest.fixture(scope="module")
def last_states() -> dict[str, State]:
    """The states of tenants after the last cell, by id."""
    return {}


def _state(where: Installation, owner: Caller) -> State:
    path = f"/tenants/{owner.tenant_id}"
    operator = where.operator()
    keyrings = owner.get("/kms/keyrings")
    for keyring in keyrings["keyrings"]:
        keyring.pop("last_used_at")  # counted later than the use
    return [
        owner.get("/kms/keys"),
        operator.get(path),
        operator.get(path + "/api-keys"),
        keyrings,
        owner.get("/campaigns"),
        owner.get("/inventory/external"),
    ]


def _request(
    where: Installation, tenant: Caller, operation: str
) -> tuple[str, str, dict[str, Any] | None, dict[str, Any]]:
    """Return method, path, body and query of a request about the tenant's objects."""
    method, path = operation.split(" ")
    _trust(where, tenant, path)
    made = BODIES.get(path.removesuffix(BATCH).replace("/key/", "/"))
    has_body = made is not None and method in ("POST", "PATCH", "PUT")
    body = made(tenant) if made is not None and has_body else None
    if path.endswith(BATCH):
        body = {"items": [body]}
    query = {"params": QUERIES[path](tenant)} if path in QUERIES and not has_body else {}
    path = path.format(
        key_version=1,
        tenant_id=tenant.tenant_id,
        version=1,
        name="new" if method == "PUT" else KEYRING,
        source=KEYRING,
        kind="key-old",
        issuer="new" if method == "PUT" else "ci",
        role="new" if method == "PUT" else "deploy",
        webhook=uuid.uuid4(),
        session=uuid.uuid4(),
        delivery=uuid.uuid4(),
        id=_signed_record(where, tenant) if "/audit/" in path else uuid.uuid4(),
    )
    return method, path, body, query


@pytest.mark.threat("stolen-api-key", "other-tenant", "stolen-operator-credential")
@pytest.mark.parametrize(("operation", "credential", "status"), CELLS)
def test_the_matrix(
    owner: Owner,
    other: Caller,
    last_states: dict[str, State],
    operation: str,
    credential: str,
    status: int,
) -> None:
    """The status is the access table's; foreign callers change and learn nothing."""
    where, tenant = owner
    is_batch = operation.endswith(BATCH)
    method, path, body, query = _request(where, tenant, operation)
    caller = other if credential == "other" else _shown(where, tenant, credential)
    last = last_states.pop(tenant.tenant_id, None)
    is_change = credential in MAY_CHANGE and status < HTTPStatus.BAD_REQUEST
    is_compared = not is_change and credential not in STRANGERS[:-1]
    before = last if last and credential in STRANGERS else []
    if not before and not is_change:
        before = _state(where, tenant)
    if credential in STRANGERS:
        last_states[tenant.tenant_id] = before
    if credential == "suspended":
        _set_status(where, tenant, "suspended")
    response = caller.ask(method, path, body, **query)
    if credential == "suspended":
        _set_status(where, tenant, "active")
    assert response.status_code == status
    if is_batch and response.is_success:
        (result,) = response.json()["data"]["results"]
        assert ("data" in result) is (credential != "other")
    if not response.is_success:
        code = response.json()["error"]["error_code"]
        denied = DENIALS.get((operation, credential), "ERR_FORBIDDEN_001")
        assert code == CODES.get(status, denied)
    if credential not in MAY_CHANGE:
        assert tenant.tenant_id not in response.text
        shown = [key.get("public_key") or key["fingerprint"] for key in before[0]["keys"]]
        assert all(public_part not in response.text for public_part in shown)
    if is_compared:
        after = _state(where, tenant)
        if credential == "suspended":
            after[1]["updated_at"] = before[1]["updated_at"]
        assert after == before


def _signed_record(where: Installation, tenant: Caller) -> int:
    """Return the id of a record of the tenant that a checkpoint covers."""
    where.operator().post("/audit/checkpoints", status=201)
    found: int = tenant.get("/audit/records", limit=1)["records"][0]["id"]
    return found


def _set_status(where: Installation, tenant: Caller, status: str) -> None:
    response = where.operator().ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": status})
    assert response.is_success
