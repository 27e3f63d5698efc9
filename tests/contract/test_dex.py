"""Single sign-on with dex, if PQKEEP_DEX names its program: see docs/testing.md."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.installation import running
from tests.fixtures.openid_provider import responses
from tests.fixtures.processes import HOST, free_port
from tests.patience import PATIENCE

from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

DEX = os.environ.get("PQKEEP_DEX", "")
SECRET = "dex+s3cret"  # noqa: S105 - the test's own
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not DEX, reason="PQKEEP_DEX does not name dex's program"),
]


def configuration(issuer: str, gateway: str) -> str:
    """Return dex's settings: a connector that signs everyone in as Kilgore Trout."""
    return json.dumps(
        {
            "issuer": issuer,
            "storage": {"type": "memory"},
            "web": {"http": issuer.removeprefix("http://").partition("/")[0]},
            "oauth2": {"skipApprovalScreen": True},
            "connectors": [{"type": "mockCallback", "id": "mock", "name": "Mock"}],
            "staticClients": [
                {
                    "id": "pqkeep",
                    "name": "pqkeep",
                    "secret": SECRET,
                    "redirectURIs": [f"{gateway}/portal/sso/dex/callback"],
                }
            ],
        }
    )


def test_dex_signs_somebody_in(tmp_path: Path) -> None:
    """With dex's groups and secret a person becomes a member and is signed in, once per callback."""
    port = free_port()
    gateway, issuer = f"http://{HOST}:{port}", f"http://{HOST}:{free_port()}/dex"
    config, output = tmp_path / "dex.json", tmp_path / "dex"
    config.write_text(configuration(issuer, gateway))
    with running(tmp_path, port=port, settings={}) as first:
        tenant, data = first.new_tenant().tenant_id, first.data
    file = Layout(data).gateway_settings
    secret = file.parent / "client-secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    provider = {
        "name": "dex",
        "tenant": tenant,
        "issuer": issuer,
        "client_id": "pqkeep",
        "client_secret_file": secret.name,
        "scopes": ["openid", "email", "groups"],
        "roles": {"authors": "developer"},
        "create_members": True,
        "email_domains": ["kilgore.trout"],
    }
    file.write_text(edited(file.read_text(), {"single_sign_on": [provider]}))
    with processes.running([DEX, "serve", config], output) as dex:
        processes.wait_until(lambda: responses(issuer), dex, output)
        with (
            running(tmp_path, port=port, data=data),
            httpx2.Client(base_url=gateway, trust_env=False, timeout=PATIENCE) as client,
        ):
            response = client.get("/portal/sso/dex?next=/portal/keys")
            back = ""
            while response.is_redirect and not back:
                url = str(response.headers["location"])
                if url.startswith(f"{gateway}/portal/sso/dex/callback?"):
                    back = url
                else:
                    response = client.get(str(httpx2.URL(issuer).join(url)))
            assert back, response.text
            assert client.get(back).headers["location"] == "/portal/keys"
            me = client.get("/api/v1/auth/me").json()["data"]
            assert (me["email"], me["role"]) == ("kilgore@kilgore.trout", "developer")
            assert client.get(back).headers["location"] == "/portal/sign-in?error=expired"
