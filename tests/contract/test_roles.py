"""The permissions of each role at every endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures.caller import TLS
from tests.fixtures.caller import Caller as Client
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import GRANTS, Caller, Credential, Role

ROLES = tuple(Role)
MAY: Mapping[str, frozenset[Caller]] = {
    row.name: GRANTS[row.permission] for row in api_rows(open_signup=False)
}
"""The permitted callers of each operation, from the access table."""
OPEN = frozenset(name for name, callers in MAY.items() if Credential.NONE in callers)
"""Operations without a check of roles."""
CREATE_TENANT = "create_tenant"
"""Public in development, where sessions are ignored: tested on another installation."""
DENIED = "your role does not allow this"
NOBODYS = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def operations(anonymous: Client) -> dict[str, tuple[str, str]]:
    """Method and path of every operation."""
    response = httpx2.get(
        f"{anonymous.client.base_url}/api/v1/openapi.json",
        trust_env=False,
        verify=TLS,
        timeout=PATIENCE,
    )
    return {
        each["operationId"]: (method.upper(), path)
        for path, methods in response.json()["paths"].items()
        for method, each in methods.items()
    }


def test_the_table_has_every_operation(operations: dict[str, tuple[str, str]]) -> None:
    """Each operation has its row, and each row its operation."""
    assert MAY.keys() == operations.keys() - {"check_health"}


@pytest.mark.threat("other-tenant")
@pytest.mark.parametrize("role", ROLES)
def test_every_cell(
    operations: dict[str, tuple[str, str]],
    new_tenant: Callable[..., Client],
    new_person: Callable[..., Client],
    role: Role,
) -> None:
    """A role is refused exactly where the table says so."""
    person = new_person(new_tenant().tenant_id, role)
    me = person.get("/auth/me")["id"]
    last = "logout"
    wrong = []
    for name in sorted(MAY.keys() - OPEN - {CREATE_TENANT}, key=lambda each: each == last):
        removed = me if name == "remove_member" else NOBODYS  # oneself: everybody may leave
        response = _ask(person, *operations[name], removed)
        if _is_denied(response) is (role in MAY[name]):
            wrong.append((name, response.status_code, response.text[:200]))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
def test_the_cells_of_creating_tenants(
    operations: dict[str, tuple[str, str]], closed: Installation, role: Role
) -> None:
    """Without open sign-up, a role may create tenants only if the table says so."""
    person = closed.person(closed.new_tenant().tenant_id, role)
    assert _is_denied(_ask(person, *operations[CREATE_TENANT])) is (role not in MAY[CREATE_TENANT])


def _ask(person: Client, method: str, path: str, id_: str = NOBODYS) -> httpx2.Response:
    """Send a request that passes the role's check if allowed, perhaps outside the envelope."""
    filled = path.removeprefix("/api/v1").format(
        tenant_id=person.tenant_id,
        version=9,
        key_version=9,
        id=id_,
        webhook=id_,
        session=id_,
        delivery=id_,
        kind="key-old",
        name="nothing",
        issuer="nothing",
        role="nothing",
        source="nothing",
    )
    cookies = "; ".join(f"{each.name}={each.value}" for each in person.client.cookies.jar)
    return httpx2.request(
        method,
        f"{person.client.base_url}/api/v1{filled}",
        json={} if method in ("POST", "PATCH") else None,
        headers={"Cookie": cookies},
        trust_env=False,
        verify=TLS,
        timeout=PATIENCE,
    )


def _is_denied(response: httpx2.Response) -> bool:
    return response.status_code == 403 and DENIED in response.text
