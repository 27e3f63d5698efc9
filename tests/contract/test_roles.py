"""Which role may ask for what: every role at every endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx2
import pytest
from tests.fixtures.caller import TLS, Caller
from tests.fixtures.installation import Installation

OWNER = ("owner",)
ADMIN = (*OWNER, "admin")
DEVELOPER = (*ADMIN, "developer")
EVERYBODY = (*DEVELOPER, "viewer")
NOBODY: tuple[str, ...] = ()
ROLES = EVERYBODY

MAY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("encrypt", "decrypt", "encapsulate", "decapsulate"), DEVELOPER),
    **dict.fromkeys(("wrap", "wrap_by_short_path", "unwrap", "unwrap_by_short_path"), DEVELOPER),
    **dict.fromkeys(("sign", "verify", "sign_hash", "verify_hash"), DEVELOPER),
    **dict.fromkeys(("generate_key", "rotate_key", "retire_key"), DEVELOPER),
    **dict.fromkeys(("list_keys", "get_key", "get_active_key", "get_key_usage"), EVERYBODY),
    "archive_key": ADMIN,
    **dict.fromkeys(("list_tenants", "get_tenant", "list_api_keys"), EVERYBODY),
    **dict.fromkeys(("create_tenant", "change_tenant"), NOBODY),
    **dict.fromkeys(("create_api_key", "rotate_api_key", "revoke_api_key"), ADMIN),
    "invite": ADMIN,
    **dict.fromkeys(("list_audit_records", "prove_audit_record", "export_audit_log"), EVERYBODY),
    **dict.fromkeys(("list_audit_checkpoints", "list_audit_keys"), EVERYBODY),
    "prove_audit_consistency": EVERYBODY,
    "sign_audit_checkpoint": NOBODY,
    **dict.fromkeys(
        ("me", "change_me", "list_sessions", "end_session", "change_password"), EVERYBODY
    ),
    "logout": EVERYBODY,
    **dict.fromkeys(("enroll_mfa", "confirm_mfa", "disable_mfa", "step_up"), EVERYBODY),
    "change_organization": OWNER,
    **dict.fromkeys(("list_members", "change_role"), ADMIN),
    **dict.fromkeys(("list_invitations", "withdraw_invitation"), ADMIN),
    "remove_member": EVERYBODY,  # oneself: whom else is in test_team.py
    "get_subscription": EVERYBODY,
    **dict.fromkeys(("list_invoices", "check_out", "cancel_subscription"), OWNER),
}
OPEN = frozenset(
    {
        "register",
        "confirm_registration",
        "forgot_password",
        "reset_password",
        "login",
        "accept_invitation",
        "refresh",
        "send_email_code",
        "verify_mfa",
        "check_health",
    }
    | {"list_plans"}
)
"""Where nobody's role is asked for."""
CREATE_TENANT = "create_tenant"
"""In development open to anyone, whose session is not looked at: it is asked where it is not."""
DENIED = "your role does not allow this"
NOBODYS = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def operations(anonymous: Caller) -> dict[str, tuple[str, str]]:
    """Method and path of every operation."""
    answer = httpx2.get(
        f"{anonymous.client.base_url}/api/v1/openapi.json", trust_env=False, verify=TLS
    )
    return {
        each["operationId"]: (method.upper(), path)
        for path, methods in answer.json()["paths"].items()
        for method, each in methods.items()
    }


def test_the_table_has_every_operation(operations: dict[str, tuple[str, str]]) -> None:
    """Each operation has its row, and each row its operation."""
    assert MAY.keys() | OPEN == operations.keys()


@pytest.mark.parametrize("role", ROLES)
def test_every_cell(
    operations: dict[str, tuple[str, str]],
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    role: str,
) -> None:
    """A role is refused where the table says so, and nowhere else."""
    person = new_person(new_tenant().tenant_id, role)
    last = "logout"
    wrong = []
    for name in sorted(MAY.keys() - {CREATE_TENANT}, key=lambda each: each == last):
        answer = _ask(person, *operations[name])
        if _is_denied(answer) is (role in MAY[name]):
            wrong.append((name, answer.status_code, answer.text[:200]))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
def test_the_cells_of_creating_tenants(
    operations: dict[str, tuple[str, str]], closed: Installation, role: str
) -> None:
    """Where sign-up is not open, a role is refused to create tenants if the table says so."""
    person = closed.person(closed.new_tenant().tenant_id, role)
    assert _is_denied(_ask(person, *operations[CREATE_TENANT])) is (role not in MAY[CREATE_TENANT])


def _ask(person: Caller, method: str, path: str) -> httpx2.Response:
    """Send a request that goes as far as the role allows; not in the envelope, perhaps."""
    filled = path.removeprefix("/api/v1").format(
        tenant_id=person.tenant_id, version=9, key_version=9, id=NOBODYS
    )
    cookies = "; ".join(f"{each.name}={each.value}" for each in person.client.cookies.jar)
    return httpx2.request(
        method,
        f"{person.client.base_url}/api/v1{filled}",
        json={} if method in ("POST", "PATCH") else None,
        headers={"Cookie": cookies},
        trust_env=False,
        verify=TLS,
    )


def _is_denied(answer: httpx2.Response) -> bool:
    return answer.status_code == 403 and DENIED in answer.text
