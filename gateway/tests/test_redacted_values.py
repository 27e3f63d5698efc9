"""What one request carries is not shown by the values it passes through."""

from uuid import uuid4

import pytest

from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.http.endpoint import ApiCall, SignedBody
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

MARKER = "do not print me"
VALUES = (
    SignedBody(MARKER.encode(), MARKER),
    ApiCall(
        principal=ApiKeyPrincipal(TenantId(uuid4()), Entitlements(Tier.FREE), 1, suspended=False),
        attribution=Attribution("1", "api-key:1", "127.0.0.1"),
        values={"plaintext": MARKER},
    ),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_body_is_in_no_repr(value: ApiCall | SignedBody) -> None:
    """Neither repr, nor str, nor Rich shows what a body or a query holds."""
    assert MARKER not in repr(value) + str(value)
    assert MARKER not in str(value.__rich_repr__())
