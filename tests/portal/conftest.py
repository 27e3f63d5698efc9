"""People at the portal, in a real browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from tests.fixtures.browser import Visit, Visitor
from tests.fixtures.caller import Caller
from tests.fixtures.certificate import Certificate
from tests.fixtures.installation import Installation
from tests.fixtures.preloaded import running_forked
from tests.fixtures.processes import HOST
from tests.portal.visitors import cookies_of

from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

SignedIn = Callable[..., Visitor]
"""Takes a signed-in caller, and options of ``visit``."""
HAS_SIGNED_IN = "if (location.protocol === 'http:') localStorage.setItem('pqkeep-signed-in', '1')"


@pytest.fixture
def visit_as(visit: Visit, installation: Installation) -> SignedIn:
    """Begin a visit with a caller's session from the API."""

    def begin(caller: Caller, **options: object) -> Visitor:
        visitor = visit(installation.base_url, init_script=HAS_SIGNED_IN, **options)
        visitor.context.add_cookies(cookies_of(caller))
        return visitor

    return begin


@pytest.fixture(scope="module")
def secured_gateway(installation: Installation, certificate: Certificate) -> Iterator[str]:
    """A second gateway of the installation, with TLS and secure cookies."""
    settings = Layout(installation.data).gateway_settings
    own = settings.with_name("secured.toml")
    changes = {
        "tls_certificate": str(certificate.path),
        "tls_key": str(certificate.key),
        "cookies": "secure",
    }
    own.write_text(edited(settings.read_text(), changes))
    with socket.create_server((HOST, 0)) as listener:
        words = ["pqkeep_gateway", str(own), "--fd", str(listener.fileno())]
        output = installation.output_file.with_name("secured")
        with running_forked(words, output, pass_fds=[listener.fileno()]):
            yield f"https://{HOST}:{listener.getsockname()[1]}"
