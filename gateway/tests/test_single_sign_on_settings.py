"""The settings of single sign-on, and the cookie of a browser at a provider."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from gateway.tests.test_gateway_settings import GOOD

from pqkeep_gateway import config
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_protocol.startup.settings import ConfigError

PROVIDER = {
    "name": '"acme"',
    "tenant": '"6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11"',
    "issuer": '"https://login.example.org"',
    "client_id": '"pqkeep"',
    "client_secret_file": '"secret"',
    "roles": '{ staff = "viewer" }',
}
PUBLIC = {"public_url": '"https://keys.example.org"'}


def read(
    folder: Path, *providers: dict[str, str], settings: dict[str, str] | None = None
) -> config.Config:
    """Read a settings file with these providers."""
    lines = [f"{name} = {value}" for name, value in {**GOOD, **(settings or PUBLIC)}.items()]
    for provider in providers:
        lines += ["[[single_sign_on]]", *(f"{name} = {value}" for name, value in provider.items())]
    path = folder / "settings.toml"
    path.write_text("\n".join(lines))
    return config.read(path)


def test_a_provider_is_careful_by_default(tmp_path: Path) -> None:
    """By default there are no new members, no default role and no listed provider."""
    (provider,) = read(tmp_path, PROVIDER).single_sign_on
    assert provider.client_secret_file == tmp_path.resolve() / "secret"
    assert not provider.create_members
    assert (provider.default_role, provider.label) == (None, None)
    assert provider.scopes == ("openid", "email")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"name": '"Acme/.."'}, "name"),
        ({"name": '""'}, "name"),
        ({"tenant": '"acme"'}, "tenant"),
        ({"issuer": '"http://login.example.org"'}, "issuer"),
        ({"issuer": '"http://localhost.example.org"'}, "issuer"),
        ({"issuer": '"https://login.example.org?x"'}, "issuer"),
        ({"issuer": '"https://user@login.example.org"'}, "issuer"),
        ({"issuer": '"http://127.0.0.1:5556"'}, "expected https"),
        ({"label": '"a\\nb"'}, "label"),
        ({"scopes": '["email"]'}, "openid"),
        ({"scopes": '["openid", "a b"]'}, "scopes"),
        ({"roles": '{ staff = "operator" }'}, "roles"),
        ({"roles": "{}"}, "no person would have a role"),
        ({"create_members": "true"}, "email_domains"),
        ({"isuer": '"https://login.example.org"'}, "did you mean issuer"),
    ],
)
def test_what_is_wrong_stops_the_start(
    changed: dict[str, str], problem: str, tmp_path: Path
) -> None:
    """The message names the mistake."""
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path, {**PROVIDER, **changed})


def test_providers_have_different_names(tmp_path: Path) -> None:
    """Two providers with one name are refused; two for one tenant are accepted."""
    assert len(read(tmp_path, PROVIDER, {**PROVIDER, "name": '"b"'}).single_sign_on) == 2
    with pytest.raises(ConfigError, match="same name"):
        read(tmp_path, PROVIDER, PROVIDER)


def test_providers_need_the_public_address(tmp_path: Path) -> None:
    """Outside development the redirect URI comes from the settings, never from a request."""
    with pytest.raises(ConfigError, match="public_url"):
        read(tmp_path, PROVIDER, settings={"host": '"127.0.0.1"'})
    development = {**PROVIDER, "issuer": '"http://127.0.0.1:5556/dex"'}
    assert read(tmp_path, development, settings={"cookies": '"loopback"'}).single_sign_on


def test_the_cookie_is_of_this_host_alone() -> None:
    """Over TLS the cookie cannot come from another host of the domain or a page over HTTP."""
    cookie = Cookies().at_provider("value", timedelta(minutes=10))
    assert cookie == (
        "__Host-pqkeep_sso=value; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"
    )
    assert Cookies(secure=False).back_from_provider() == (
        "pqkeep_sso=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
    )


OPERATORS = {
    **{name: value for name, value in PROVIDER.items() if name not in {"tenant", "roles"}},
    "name": '"operators"',
    "client_id": '"pqkeep-operators"',
    "operator_roles": '{ root = "admin", desk = "tenant-admin", audit = "read-only" }',
}


def test_operators_have_a_provider_of_their_own(tmp_path: Path) -> None:
    """A provider of operators stands beside a tenant's at the same issuer, with another client."""
    tenants, operators = read(tmp_path, PROVIDER, OPERATORS).single_sign_on
    assert (tenants.operator_roles, operators.tenant) == ({}, None)


@pytest.mark.threat("operator-sign-on")
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"tenant": PROVIDER["tenant"]}, "has no tenant"),
        ({"roles": PROVIDER["roles"]}, "remove roles"),
        ({"default_role": '"viewer"'}, "remove default_role"),
        ({"create_members": "true"}, "remove create_members"),
        ({"local_passwords": "false"}, "remove local_passwords"),
        ({"operator_roles": '{ root = "owner" }'}, "operator_roles"),
        ({"operator_roles": '{ root = "operator" }'}, "operator_roles"),
        ({"operator_roles": "{}"}, "set tenant, or operator_roles"),
        ({"client_id": PROVIDER["client_id"]}, "a client of its own"),
        ({"name": PROVIDER["name"]}, "same name"),
    ],
)
def test_a_provider_is_of_a_tenant_or_of_operators(
    tmp_path: Path, changed: dict[str, str], problem: str
) -> None:
    """Settings that would mix both are refused, and so is a client that a tenant's provider has."""
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path, PROVIDER, {**OPERATORS, **changed})
