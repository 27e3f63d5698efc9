"""Every operation with every credential: who gets in, who is told what, and what stays as it was."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

import pqkeep_gateway.http

COLUMNS = (
    "own",  # an active API key of the tenant whose things are asked for
    "none",  # no credential
    "malformed",  # that API key with a digit changed
    "revoked",  # another of the tenant's API keys, revoked
    "overlap",  # another of the tenant's API keys, rotated a moment ago
    "after",  # one that was rotated, and whose overlap is over
    "other",  # an API key of another tenant, which has no keys
    "suspended",  # the tenant's own, while it is suspended
    "operator",  # the operator's credential
)
MATRIX: dict[str, tuple[int, ...]] = {
    #                          own  none malf revo over aftr othr susp oper
    "POST /kem/encrypt": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/decrypt": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/encapsulate": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/decapsulate": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/key/wrap": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/key/unwrap": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/wrap": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kem/unwrap": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /signature/sign": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /signature/verify": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /signature/sign-hash": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /signature/verify-hash": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kms/keys/generate": (201, 401, 401, 401, 201, 401, 201, 403, 403),  # other: its own
    "POST /kms/keys/rotate": (201, 401, 401, 401, 201, 401, 404, 403, 403),
    "POST /kms/keys/retire": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "POST /kms/keys/archive": (403, 401, 401, 401, 403, 401, 403, 403, 403),  # never over the API
    "GET /kms/keys": (200, 401, 401, 401, 200, 401, 200, 403, 403),  # other: its own
    "GET /kms/keys/active": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "GET /kms/keys/{key_version}": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "GET /kms/keys/{key_version}/usage": (200, 401, 401, 401, 200, 401, 404, 403, 403),
    "GET /audit/records": (200, 401, 401, 401, 200, 401, 200, 403, 200),  # other: its own
    "GET /audit/records/{id}/proof": (200, 401, 401, 401, 200, 401, 404, 403, 200),
    "GET /audit/checkpoints": (200, 401, 401, 401, 200, 401, 200, 403, 200),
    "POST /audit/checkpoints": (403, 401, 401, 401, 403, 401, 403, 403, 201),
    "GET /audit/consistency": (200, 401, 401, 401, 200, 401, 200, 403, 200),
    "GET /audit/keys": (200, 401, 401, 401, 200, 401, 200, 403, 200),
    "GET /audit/export": (200, 401, 401, 401, 200, 401, 200, 403, 200),  # other: its own
    "POST /tenants": (403, 201, 401, 401, 403, 401, 403, 403, 201),  # none: sign-up is open here
    "GET /tenants": (200, 401, 401, 401, 200, 401, 200, 403, 200),  # other: its own
    "GET /tenants/{tenant_id}": (200, 401, 401, 401, 200, 401, 404, 403, 200),
    "PATCH /tenants/{tenant_id}": (403, 401, 401, 401, 403, 401, 404, 403, 200),
    "POST /tenants/{tenant_id}/invitations": (403, 401, 401, 401, 403, 401, 404, 403, 201),
    "POST /tenants/{tenant_id}/api-keys": (201, 401, 401, 401, 201, 401, 404, 403, 201),
    "GET /tenants/{tenant_id}/api-keys": (200, 401, 401, 401, 200, 401, 404, 403, 200),
    "POST /tenants/{tenant_id}/api-keys/rotate": (200, 401, 401, 401, 409, 401, 404, 403, 200),
    "DELETE /tenants/{tenant_id}/api-keys/{version}": (
        *(200, 401, 401, 401, 200, 401, 404, 403, 200),
    ),
}
MATRIX |= {
    #                          own  none malf revo over aftr othr susp oper
    "GET /team/members": (403, 401, 401, 401, 403, 401, 403, 403, 200),
    "PATCH /team/members/{id}": (403, 401, 401, 401, 403, 401, 403, 403, 404),  # nobody's
    "DELETE /team/members/{id}": (403, 401, 401, 401, 403, 401, 403, 403, 404),
    "GET /team/invitations": (403, 401, 401, 401, 403, 401, 403, 403, 200),
    "DELETE /team/invitations/{id}": (403, 401, 401, 401, 403, 401, 403, 403, 404),
}
"""Of teams, which are people's and the operator's: see test_team.py."""
MATRIX["GET /billing/plans"] = (200, 200, 401, 401, 200, 401, 200, 403, 200)  # open to anyone
MATRIX["GET /billing/subscription"] = (200, 401, 401, 401, 200, 401, 200, 403, 403)  # its own
PEOPLES = (403, 401, 401, 401, 403, 401, 403, 403, 403)
"""Of what only somebody who has signed in may do: see test_roles.py."""
MATRIX |= dict.fromkeys(
    (
        "POST /auth/logout",
        "GET /auth/me",
        "PATCH /auth/me",
        "GET /auth/sessions",
        "DELETE /auth/sessions/{id}",
        "POST /auth/change-password",
        "POST /auth/mfa/enroll",
        "POST /auth/mfa/confirm",
        "POST /auth/mfa/disable",
        "POST /auth/step-up",
        "PATCH /auth/organization",
        "GET /billing/invoices",
        "POST /billing/subscriptions/checkout",
        "POST /billing/subscriptions/cancel",
    ),
    PEOPLES,
)
CELLS = [
    pytest.param(operation, credential, status, id=f"{operation}-{credential}")
    for operation, row in MATRIX.items()
    for credential, status in zip(COLUMNS, row, strict=True)
]
MAY_CHANGE = ("own", "overlap", "operator")
CODES = {401: "ERR_AUTH_001", 404: "ERR_NOT_FOUND_001", 409: "ERR_CONFLICT_001"}
NOBODYS = {
    "GET /healthz",
    "POST /auth/register",
    "POST /auth/confirm-registration",
    "POST /auth/forgot-password",
    "POST /auth/reset-password",
    "POST /auth/mfa/email",
    "POST /auth/login",
    "POST /auth/accept-invitation",
    "POST /auth/refresh",
    "POST /auth/mfa/verify",
    "POST /billing/webhooks/stripe",
}
"""What needs no credential: it is asked for one of its own, or for a signature.

See test_people.py and test_stripe.py.
"""

KYBER = {"algorithm": "Kyber768"}
HASH = {"hash": "QUJD" * 10 + "QUI=", "hash_algorithm": "SHA-256"}


def _made(tenant: Caller, path: str, name: str, **fields: object) -> dict[str, Any]:
    """Return what an operation made for the reading one, and the version."""
    return {name: tenant.post(path, fields)[name], "key_version": 1}


BODIES: Mapping[str, Callable[[Caller], dict[str, Any]]] = {
    "/kem/encrypt": lambda _: {"plaintext": "QUJD"},
    "/kem/decrypt": lambda t: _made(t, "/kem/encrypt", "ciphertext", plaintext="QUJD"),
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
    "/kms/keys/generate": lambda _: {"algorithm": "ML-KEM-1024"},
    "/kms/keys/rotate": lambda _: KYBER,
    "/kms/keys/retire": lambda _: {**KYBER, "key_version": 1},
    "/kms/keys/archive": lambda _: {**KYBER, "key_version": 1},
    "/audit/checkpoints": lambda _: {},
    "/auth/me": lambda _: {},
    "/auth/change-password": lambda _: {},
    "/auth/mfa/confirm": lambda _: {},
    "/auth/mfa/disable": lambda _: {},
    "/auth/step-up": lambda _: {},
    "/auth/organization": lambda _: {},
    "/billing/subscriptions/checkout": lambda _: {"tier": "starter"},
    "/tenants/{tenant_id}/invitations": lambda _: {
        "email": f"{uuid.uuid4()}@example.com",
        "role": "viewer",
    },
    "/tenants": lambda _: {"name": f"tenant {uuid.uuid4()}"},
    "/tenants/{tenant_id}": lambda _: {"subscription": "ended"},
    "/team/members/{id}": lambda t: {"role": "viewer", "tenant_id": t.tenant_id},
}
"""A request that succeeds with the tenant's own API key, wherever that may succeed."""
QUERIES: Mapping[str, Callable[[Caller], dict[str, Any]]] = {
    "/kms/keys/active": lambda _: KYBER,
    "/kms/keys/{key_version}": lambda _: KYBER,
    "/kms/keys/{key_version}/usage": lambda _: KYBER,
    "/audit/consistency": lambda _: {"first": 1, "second": 2},
    **dict.fromkeys(
        ("/team/members", "/team/members/{id}", "/team/invitations", "/team/invitations/{id}"),
        lambda t: {"tenant_id": t.tenant_id},
    ),
}


def test_the_matrix_has_every_operation() -> None:
    """Every endpoint that the gateway's source names is in the matrix, and no other."""
    folder = Path(next(iter(pqkeep_gateway.http.__path__)))
    row = re.compile(r'\b(?:Endpoint|KeyOperation)\(\s*"([A-Z]+)",\s*"(/[^"]*)"')
    other_path = re.compile(r'\breplace\(_\w+, path="(/[^"]*)"')  # of a row that is a POST
    texts = [file.read_text() for file in folder.glob("*.py")]
    found = {f"{method} {path}" for text in texts for method, path in row.findall(text)}
    found |= {f"POST {path}" for text in texts for path in other_path.findall(text)}
    assert found - NOBODYS == MATRIX.keys()


@pytest.fixture(scope="module")
def other(new_tenant: Callable[..., Caller]) -> Caller:
    """Another tenant, on the best plan."""
    return new_tenant()


def _with_keys(tenant: Caller) -> Caller:
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    return tenant


Owner = tuple["Installation", "Caller"]


@pytest.fixture(scope="module")
def untouched(installation: Installation) -> Owner:
    """A tenant with two keys, which nothing in this module changes."""
    return installation, _with_keys(installation.new_tenant())


@pytest.fixture(scope="module")
def untouched_without_overlap(own_rules: Installation) -> Owner:
    """The same in an installation where a rotated API key has no overlap."""
    return own_rules, _with_keys(own_rules.new_tenant())


@pytest.fixture
def owner(
    credential: str,
    installation: Installation,
    untouched: Owner,
    untouched_without_overlap: Owner,
) -> Owner:
    """The tenant whose things are asked for: one of its own for each cell that may change it."""
    if credential in MAY_CHANGE:
        return installation, _with_keys(installation.new_tenant())
    return untouched_without_overlap if credential == "after" else untouched


def _changed(api_key: str) -> str:
    return api_key[:-1] + ("A" if api_key[-1] != "A" else "B")


def _shown(where: Installation, owner: Caller, credential: str) -> Caller:
    """Return a caller with the credential that a column is about."""
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


def _state(where: Installation, owner: Caller) -> list[dict[str, Any]]:
    path = f"/tenants/{owner.tenant_id}"
    operator = where.operator()
    return [owner.get("/kms/keys"), operator.get(path), operator.get(path + "/api-keys")]


@pytest.mark.parametrize(("operation", "credential", "status"), CELLS)
def test_the_matrix(
    owner: Owner, other: Caller, operation: str, credential: str, status: int
) -> None:
    """The status is the matrix's; who is not the tenant or its operator changes and learns nothing."""
    where, tenant = owner
    method, path = operation.split(" ")
    made = BODIES.get(path.replace("/key/", "/"))
    has_body = made is not None and method in ("POST", "PATCH")
    body = made(tenant) if made is not None and has_body else None
    query = {"params": QUERIES[path](tenant)} if path in QUERIES and not has_body else {}
    path = path.format(
        key_version=1,
        tenant_id=tenant.tenant_id,
        version=1,
        id=_signed_record(where, tenant) if "/audit/" in path else uuid.uuid4(),
    )
    caller = other if credential == "other" else _shown(where, tenant, credential)
    before = _state(where, tenant)
    if credential == "suspended":
        _set_status(where, tenant, "suspended")
    answer = caller.ask(method, path, body, **query)
    if credential == "suspended":
        _set_status(where, tenant, "active")
    assert answer.status_code == status
    if not answer.is_success:
        code = answer.json()["error"]["error_code"]
        archive = path.endswith("/archive") and credential in ("own", "overlap", "other")
        assert code == CODES.get(status, "ERR_KMS_020" if archive else "ERR_FORBIDDEN_001")
    if credential not in MAY_CHANGE:
        assert tenant.tenant_id not in answer.text
        assert all(key["public_key"] not in answer.text for key in before[0]["keys"])
    if credential not in MAY_CHANGE or not answer.is_success:
        after = _state(where, tenant)
        if credential == "suspended":
            after[1]["updated_at"] = before[1]["updated_at"]
        assert after == before


def _signed_record(where: Installation, tenant: Caller) -> int:
    """Return the id of a record of the tenant's that a checkpoint covers."""
    where.operator().post("/audit/checkpoints", status=201)
    found: int = tenant.get("/audit/records", limit=1)["records"][0]["id"]
    return found


def _set_status(where: Installation, tenant: Caller, status: str) -> None:
    answer = where.operator().ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": status})
    assert answer.is_success
