"""Values of one request are never shown by the objects that carry them."""

from uuid import uuid4

import pytest

from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.http.endpoint import ApiCall, SignedBody
from pqkeep_gateway.people.single_sign_on import Beginning, CallbackQuery
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, RedactedRepr

MARKER = "do not print me"
VALUES = (
    SignedBody(MARKER.encode(), MARKER),
    ApiCall(
        principal=ApiKeyPrincipal(TenantId(uuid4()), Entitlements(Tier.FREE), 1, suspended=False),
        attribution=Attribution("1", "api-key:1", "127.0.0.1"),
        values={"plaintext": MARKER},
    ),
    Beginning(MARKER, MARKER),
    CallbackQuery(MARKER, MARKER),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_came_is_in_no_repr(value: RedactedRepr) -> None:
    """repr, str and Rich show no content of a body, a query or a cookie."""
    assert MARKER not in repr(value) + str(value)
    assert MARKER not in str(value.__rich_repr__())
