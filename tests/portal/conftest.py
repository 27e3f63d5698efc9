"""People at the portal, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fixtures.browser import Visit, Visitor
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.visitors import cookies_of

SignedIn = Callable[..., Visitor]
"""Takes a caller who has signed in, and options of ``visit``."""
HAS_SIGNED_IN = "if (location.protocol === 'http:') localStorage.setItem('pqkeep-signed-in', '1')"


@pytest.fixture
def visit_as(visit: Visit, installation: Installation) -> SignedIn:
    """Begin a visit with the session that a caller has from the API."""

    def begin(caller: Caller, **options: object) -> Visitor:
        visitor = visit(installation.base_url, init_script=HAS_SIGNED_IN, **options)
        visitor.context.add_cookies(cookies_of(caller))
        return visitor

    return begin
