"""Which role may ask for what: every role at every endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.conftest import Caller

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
    **dict.fromkeys(("me", "list_sessions", "end_session", "change_password"), EVERYBODY),
    "logout": EVERYBODY,
    **dict.fromkeys(("enroll_mfa", "confirm_mfa", "disable_mfa", "step_up"), EVERYBODY),
    "change_organization": OWNER,
}
OPEN = frozenset(
    {"register", "login", "accept_invitation", "refresh", "verify_mfa", "check_health"}
)
"""Where nobody's role is asked for."""
OPEN_SIGN_UP = "create_tenant"
"""Open to anyone in development: a session is not looked at, and not needed."""
DENIED = "your role does not allow this"


@pytest.fixture(scope="module")
def operations(anonymous: Caller) -> dict[str, tuple[str, str]]:
    """Method and path of every operation."""
    answer = httpx2.get(f"{anonymous.client.base_url}/api/v1/openapi.json", trust_env=False)
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
    for name in sorted(MAY.keys() - {OPEN_SIGN_UP}, key=lambda each: each == last):
        method, path = operations[name]
        filled = path.removeprefix("/api/v1").format(
            tenant_id=person.tenant_id, version=9, key_version=9, id=1
        )
        answer = httpx2.request(
            method,
            f"{person.client.base_url}/api/v1{filled}",
            json={} if method in ("POST", "PATCH") else None,
            cookies=person.client.cookies,
            trust_env=False,
        )
        is_denied = answer.status_code == 403 and DENIED in answer.text
        if is_denied is (role in MAY[name]):
            wrong.append((name, answer.status_code, answer.text[:200]))
    assert wrong == []
