"""Every row of the API has a name in the audit log."""

import pytest

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Response
from pqkeep_gateway.http.errors import Code
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation, gateway_operation


async def _handler(_: ApiCall) -> Response:
    raise AssertionError("a row that is only looked at is called")


def _endpoint(name: str, recorded_as: GatewayOperation | None = None) -> Endpoint:
    return Endpoint(
        method="GET",
        path="/path",
        name=name,
        handler=_handler,
        permission=Permission.VIEW_TENANT,
        example=None,
        field_codes=BAD_REQUEST_FIELDS,
        recorded_as=recorded_as,
    )


def test_a_refusal_is_recorded_under_the_name_of_its_row() -> None:
    """A row's name is its event's name, unless it is a key operation."""
    assert _endpoint("create_tenant").audit_operation is AuditEvent.CREATE_TENANT
    assert _endpoint("anything", Operation.WRAP).audit_operation is Operation.WRAP


def test_a_row_that_is_not_listed_is_refused() -> None:
    """A row with an unlisted event name cannot be created."""
    with pytest.raises(ValueError, match="delete-everything"):
        _endpoint("delete_everything")


@pytest.mark.parametrize("code", Code)
def test_every_code_can_be_an_outcome(code: Code) -> None:
    """The key service accepts refusals with every code of the gateway."""
    assert gateway_operation("encrypt", code.code) is Operation.ENCRYPT
