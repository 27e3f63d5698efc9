"""The access table has an entry for every question, and denies everything else."""

from dataclasses import replace
from typing import Any, get_args
from uuid import uuid4

import pytest

from pqkeep_gateway.access.callers import (
    CALLERS,
    GRANTS,
    OPERATOR_CALLERS,
    OPERATORS,
    PERMISSION_OF,
    Caller,
    Credential,
    OperatorRole,
    Permission,
    Role,
    may,
)
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    ApiKeyPrincipal,
    OperatorPrincipal,
    Principal,
    SessionId,
    SessionPrincipal,
    UserId,
)
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Response
from pqkeep_gateway.http.errors import ApiError
from pqkeep_protocol.algorithms import ON_TENANTS, Operation
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

FREE = Entitlements(Tier.FREE)
API_KEY = ApiKeyPrincipal(TenantId(uuid4()), FREE, 1, suspended=False)
PRINCIPALS: dict[Caller, Principal] = {
    Credential.API_KEY: API_KEY,
    Credential.ROTATED_API_KEY: replace(API_KEY, is_rotated=True),
    Credential.WORKLOAD: replace(API_KEY, workload="deploy"),
    **{caller: OperatorPrincipal(role=role) for role, caller in OPERATOR_CALLERS.items()},
    Credential.NONE: AnonymousPrincipal(),
    **{
        role: SessionPrincipal(
            API_KEY.tenant, FREE, UserId(uuid4()), role, SessionId(uuid4()), suspended=False
        )
        for role in Role
    },
}


async def handler(_: ApiCall) -> Response:
    raise AssertionError("a row that is only looked at is called")


def test_every_permission_has_its_row() -> None:
    """Every permission has its own row."""
    assert GRANTS.keys() == set(Permission)


def test_every_permission_has_a_caller() -> None:
    """Every row has at least one caller, and only existing callers."""
    assert all(callers and callers <= frozenset(CALLERS) for callers in GRANTS.values())


def test_every_operation_of_the_key_service_has_its_permission() -> None:
    """Every key operation is listed by name, so a new one has no default permission."""
    assert PERMISSION_OF.keys() == set(Operation) - ON_TENANTS


def test_who_may_schedule_an_archive_may_archive() -> None:
    """Scheduling the destruction of a key needs the same permission as destroying it."""
    assert PERMISSION_OF[Operation.SCHEDULE_ARCHIVE] is PERMISSION_OF[Operation.ARCHIVE_KEY]
    assert PERMISSION_OF[Operation.ARCHIVE_KEY] is Permission.ARCHIVE_KEYS


def test_a_caller_that_is_in_no_row_is_denied_everything() -> None:
    """A caller outside the table is denied everything."""
    assert not any(may(None, permission) for permission in Permission)


def test_a_permission_that_is_in_no_row_is_denied_to_everybody() -> None:
    """A permission outside the table is denied to every caller."""
    unlisted: Any = "unlisted"
    assert not any(may(caller, unlisted) for caller in CALLERS)


@pytest.mark.parametrize("caller", CALLERS)
def test_principals_name_their_column(caller: Caller) -> None:
    """Every column of the table belongs to a principal, and every principal has one column."""
    assert PRINCIPALS[caller].caller == caller
    assert {type(principal) for principal in PRINCIPALS.values()} == set(get_args(Principal))


def test_a_row_without_a_permission_cannot_be_made() -> None:
    """An endpoint must name a permission: there is no default."""
    row: dict[str, Any] = {
        "method": "GET",
        "path": "/path",
        "name": "me",
        "handler": handler,
        "example": None,
        "field_codes": BAD_REQUEST_FIELDS,
    }
    assert Endpoint(**row, permission=Permission.OWN_ACCOUNT).name == "me"
    with pytest.raises(TypeError, match="permission"):
        Endpoint(**row)


def test_no_role_of_an_operator_is_a_role_of_a_person() -> None:
    """The callers are distinct texts: an operator's role admin is not a member's role admin."""
    assert len({str(caller) for caller in CALLERS}) == len(CALLERS)
    assert OPERATOR_CALLERS.keys() == set(OperatorRole)
    assert not OPERATORS & {*Role, Credential.NONE}


@pytest.mark.threat("operator-sign-on")
def test_weaker_operators_have_less_than_an_admin() -> None:
    """A tenant admin and a reader have a part of the admin's permissions; a reader only reads."""
    of_role = {
        role: {permission for permission in Permission if may(caller, permission)}
        for role, caller in OPERATOR_CALLERS.items()
    }
    admin = of_role[OperatorRole.ADMIN]
    assert admin - of_role[OperatorRole.TENANT_ADMIN] == {
        Permission.VIEW_INSTALLATION,
        Permission.MANAGE_OPERATORS,
        Permission.SIGN_CHECKPOINTS,
    }
    assert of_role[OperatorRole.TENANT_ADMIN] < admin
    assert of_role[OperatorRole.READ_ONLY] == {
        Permission.PUBLIC,
        Permission.OWN_OPERATOR,
        Permission.VIEW_TENANT,
        Permission.SEARCH,
        Permission.VIEW_TEAM,
        Permission.VIEW_INSTALLATION,
    }


@pytest.mark.parametrize("caller", CALLERS)
def test_handlers_get_no_principal_of_another_kind(caller: Caller) -> None:
    """A handler that needs a person or a tenant gets one, or the request ends with 403."""
    principal = PRINCIPALS[caller]
    call = ApiCall(
        principal=principal, attribution=Attribution("1", str(principal), "127.0.0.1"), values={}
    )
    is_person = isinstance(caller, Role)
    _expect(call, "person", principal if is_person else None)
    of_a_tenant = is_person or isinstance(principal, ApiKeyPrincipal)
    _expect(call, "tenant", principal if of_a_tenant else None)


def _expect(call: ApiCall, name: str, principal: Principal | None) -> None:
    """Expect the handler's principal; None: the request ends with 403."""
    if principal is not None:
        assert getattr(call, name) is principal
        return
    with pytest.raises(ApiError) as refused:
        getattr(call, name)
    assert refused.value.code.status == 403
