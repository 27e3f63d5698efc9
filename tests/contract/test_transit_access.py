"""Every row under /v1/ with every credential, role and scope, generated from the rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from tests.contract.rows import transit_rows
from tests.fixtures.caller import TLS, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import GRANTS, WITHOUT_SCOPE, Credential, Permission, Role
from pqkeep_gateway.access.scopes import GROUPS, NAMED_ONLY, Group
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_protocol.algorithms import Operation

ROWS = transit_rows()
PUBLIC = tuple(row for row in ROWS if row.permission is Permission.PUBLIC)
GUARDED = tuple(row for row in ROWS if row.permission is not Permission.PUBLIC)
SCOPED = tuple(
    row
    for row in GUARDED
    if row.permission not in WITHOUT_SCOPE and Credential.API_KEY in GRANTS[row.permission]
)
"""The rows that scopes can limit."""
WITH_KEY = tuple(row for row in SCOPED if "{name}" in row.path)
KEY, ABSENT = "payments.cards", "payments.absent"
DENIED = {"errors": ["permission denied"]}
POLICY = "denied by policy api-key-scope"
CREDENTIALS = ("none", "malformed", "revoked", "operator", "suspended", "overlap", "other", "own")

Ask = Callable[..., httpx2.Response]


@pytest.fixture(scope="module")
def ask(installation: Installation) -> Iterator[Ask]:
    """Send a row's request, with a body that has the fields of all rows."""
    with httpx2.Client(
        base_url=installation.base_url, timeout=PATIENCE, trust_env=False, verify=TLS
    ) as client:

        def request(
            row: Endpoint, token: str | None, name: str = KEY, **options: Any
        ) -> httpx2.Response:
            path = row.path.replace("{name}", name).replace("{path:path}", "any")
            path = path.replace("{version}", "1").replace("{hash_algorithm}", "sha2-256")
            path = path.replace("{bytes}", "32").replace("{key_type}", "encryption-key")
            path = path.replace("{destination}", name)
            headers = {} if token is None else {"X-Vault-Token": token}
            headers |= options.pop("headers", {})
            if row.method == "POST":
                options["json"] = BODY
            return client.request(row.method, f"/v1/{path}", headers=headers, **options)

        yield request


BODY = {
    "plaintext": "QUJD",
    "ciphertext": "vault:v1:" + "QUJD" * 20,
    "input": "QUJD",
    "signature": "vault:v1:" + "QUJD" * 20,
    "hmac": "vault:v1:" + "QUJD" * 20,
}


@pytest.fixture(scope="module")
def tenant(new_tenant: Callable[..., Caller], ask: Ask) -> Caller:
    """A tenant with a key that was created under /v1/."""
    made = new_tenant()
    create = next(row for row in ROWS if row.audit_operation is Operation.CREATE_KEYRING)
    assert ask(create, made.api_key).status_code == 200
    return made


def _case(row: Endpoint) -> Any:
    return pytest.param(row, id=f"{row.method}-{row.path}")


def _token(where: Installation, tenant: Caller, credential: str, other: Caller) -> str | None:
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    fixed = {
        "none": None,
        "malformed": tenant.api_key[:-1] + ("A" if tenant.api_key[-1] != "A" else "B"),
        "operator": where.operator().api_key,
        "other": other.api_key,
        "own": tenant.api_key,
        "suspended": tenant.api_key,
    }
    if credential in fixed:
        return fixed[credential]
    made = tenant.post(path, status=201)
    if credential == "revoked":
        assert tenant.ask("DELETE", f"{path}/{made['version']}").is_success
    else:
        where.caller(made["api_key"], tenant.tenant_id).post(path + "/rotate")
    return str(made["api_key"])


@pytest.mark.threat("stolen-api-key", "other-tenant", "stolen-operator-credential")
@pytest.mark.parametrize("credential", CREDENTIALS)
def test_every_row_with_every_credential(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    tenant: Caller,
    ask: Ask,
    credential: str,
) -> None:
    """The access table also decides under /v1/. Its refusals are 403 and give no reason."""
    token = _token(installation, tenant, credential, new_tenant())
    if credential == "suspended":
        _set_status(installation, tenant, "suspended")
    wrong = []
    caller = Credential.ROTATED_API_KEY if credential == "overlap" else Credential.API_KEY
    for row in GUARDED:
        response = ask(row, token)
        is_denied = (response.status_code, response.json() if response.content else None) == (
            403,
            DENIED,
        )
        match credential:
            case "none" | "malformed" | "revoked":
                is_right = is_denied
            case "operator" | "suspended":
                is_right = response.status_code == 403
            case "other":
                is_right = response.status_code < 500 and tenant.tenant_id not in response.text
            case _:
                is_granted = caller in GRANTS[row.permission]
                is_granted &= row.audit_operation not in NAMED_ONLY
                is_right = (response.status_code == 403) is not is_granted
        if not is_right or response.status_code >= 500:
            wrong.append((row.method, row.path, response.status_code, response.text[:200]))
    if credential == "suspended":
        _set_status(installation, tenant, "active")
    assert wrong == []


def _set_status(where: Installation, tenant: Caller, status: str) -> None:
    response = where.operator().ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": status})
    assert response.is_success


@pytest.mark.threat("other-tenant")
@pytest.mark.parametrize("role", Role)
def test_no_role_has_a_session_there(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller], ask: Ask, role: Role
) -> None:
    """Cookies are no credential under /v1/: a signed-in person of any role is denied."""
    person = new_person(new_tenant().tenant_id, role)
    cookies = {"Cookie": person.session_cookies}
    refused = [row for row in GUARDED if ask(row, None, headers=cookies).json() == DENIED]
    assert refused == list(GUARDED)


def test_the_header_of_the_api_is_no_credential_there(tenant: Caller, ask: Ask) -> None:
    """X-API-Key is not read under /v1/, and X-Vault-Token only there."""
    headers = {"X-API-Key": tenant.api_key}
    assert all(ask(row, None, headers=headers).json() == DENIED for row in GUARDED)
    for name, value in (
        ("X-Vault-Token", tenant.api_key),
        ("Authorization", f"Bearer {tenant.api_key}"),
    ):
        response = httpx2.get(
            f"{tenant.client.base_url}/api/v1/kms/keys",
            headers={name: value},
            trust_env=False,
            verify=TLS,
            timeout=PATIENCE,
        )
        assert response.status_code == 401


def test_a_bearer_token_is_a_credential_there(tenant: Caller, ask: Ask) -> None:
    """Authorization has the token too; X-Vault-Token wins over it."""
    row = next(row for row in GUARDED if row.path == "auth/token/lookup-self")
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} {tenant.api_key}"}
        assert ask(row, None, headers=headers).status_code == 200
        assert ask(row, "none", headers=headers).json() == DENIED
    assert ask(row, None, headers={"Authorization": f"Basic {tenant.api_key}"}).json() == DENIED


@pytest.mark.parametrize("row", [_case(row) for row in PUBLIC])
def test_public_rows_need_no_credential(ask: Ask, row: Endpoint) -> None:
    """State and login need no token, and an unknown one does not matter."""
    for token in (None, "unknown"):
        assert ask(row, token).status_code == (400 if row.method == "POST" else 200)


Limited = Callable[..., str]


@pytest.fixture(scope="module")
def limited(installation: Installation, tenant: Caller) -> Limited:
    """Make API keys with scopes."""

    def make(*operations: str, **lists: list[str]) -> str:
        scopes = [{"operations": list(operations), **lists}]
        body = {"scopes": scopes, "allow_absent_keyrings": True}
        path = f"/tenants/{tenant.tenant_id}/api-keys"
        made = installation.operator().post(path, body, status=201)
        return str(made["api_key"])

    return make


def _is_outside_scopes(response: httpx2.Response) -> bool:
    return response.status_code == 403 and POLICY in response.text


@pytest.mark.parametrize("group", Group)
def test_a_group_may_call_its_operations_only(limited: Limited, ask: Ask, group: Group) -> None:
    """A scope's group allows exactly the rows that are operations of the group."""
    token = limited(group.value)
    name = f"k-{uuid.uuid4()}"
    refused = {row.name for row in SCOPED if _is_outside_scopes(ask(row, token, name))}
    assert refused == {row.name for row in SCOPED if row.audit_operation not in GROUPS[group]}


@pytest.mark.parametrize("row", [_case(row) for row in WITH_KEY])
def test_another_key_is_refused(limited: Limited, ask: Ask, row: Endpoint) -> None:
    """An API key for one key is refused for others, and does not learn whether they exist."""
    token = limited("*", *sorted(NAMED_ONLY), keyrings=["mine"])
    existing, absent = ask(row, token, KEY), ask(row, token, ABSENT)
    assert _is_outside_scopes(existing)
    assert (existing.status_code, existing.json()) == (absent.status_code, absent.json())
    assert not _is_outside_scopes(ask(row, token, "mine"))
    wildcard = limited("*", keyrings=["payments.*"])
    assert _is_outside_scopes(ask(row, wildcard, "payments-archive"))


def test_an_encrypt_only_key_creates_nothing(limited: Limited, ask: Ask) -> None:
    """Encrypting under an unknown name creates a key only for scopes that may create keys."""
    row = next(row for row in GUARDED if row.path == "transit/encrypt/{name}")
    name = f"k-{uuid.uuid4()}"
    response = ask(row, limited("encrypt-only"), name)
    assert (response.status_code, response.json()) == (
        400,
        {"errors": ["encryption key not found"]},
    )
    assert ask(row, limited("encrypt", "create-keyring"), name).status_code == 400
    assert ask(row, limited("encrypt", "create-keyring", "generate-key"), name).status_code == 200


def test_a_key_of_another_algorithm_is_refused(limited: Limited, ask: Ask) -> None:
    """An API key for one algorithm cannot use a key of another one."""
    row = next(row for row in GUARDED if row.path == "transit/encrypt/{name}")
    assert _is_outside_scopes(ask(row, limited("*", algorithms=["X-Wing"])))
    assert ask(row, limited("*", algorithms=["XAES-256-GCM"])).status_code == 200


def test_a_refusal_is_recorded_once(tenant: Caller, limited: Limited, ask: Ask) -> None:
    """A refused row has one audit record, with operation, key and policy."""
    row = next(row for row in GUARDED if row.path == "transit/keys/{name}/rotate")
    name = f"k-{uuid.uuid4()}"
    assert _is_outside_scopes(ask(row, limited("*", keyrings=["mine"]), name))
    records = tenant.get("/audit/records", keyring=name)["records"]
    assert [(each["operation"], each["outcome"], each["policy"]) for each in records] == [
        ("rotate-key", "ERR_POLICY_001", "api-key-scope")
    ]
