"""What one request carries is not shown by the values it passes through."""

from uuid import uuid4

import pytest

from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.api.fields import Fields
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.keys import TenantId

MARKER = "do not print me"
BODY = {"plaintext": MARKER}
VALUES = (
    Fields(Operation.ENCRYPT, BODY),
    ApiCall(
        principal=ApiKeyPrincipal(TenantId(uuid4()), Entitlements(Tier.FREE), 1, suspended=False),
        request_id="1",
        source_address="127.0.0.1",
        path={},
        query={"plaintext": MARKER},
        body=BODY,
    ),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_body_is_in_no_repr(value: ApiCall | Fields) -> None:
    """Neither repr, nor str, nor Rich shows what a body or a query holds."""
    assert MARKER not in repr(value) + str(value)
    assert MARKER not in str(value.__rich_repr__())
