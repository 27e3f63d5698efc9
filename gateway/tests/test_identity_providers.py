"""The required responses of a single sign-on provider, and their effects."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.people.identity_providers import (
    InvalidProviderResponseError,
    claims_of,
    metadata_of,
    verified,
    with_userinfo,
)
from pqkeep_gateway.storage.identities import Provider
from pqkeep_protocol.keys import TenantId

NOW = 1_800_000_000.0
ISSUER = "https://login.example.org/realm"
NONCE = "n-1"
PROVIDER = Provider(
    name="example",
    label=None,
    tenant=TenantId(UUID(int=1)),
    issuer=ISSUER,
    client_id="pqkeep",
    scopes=("openid", "email"),
    groups_claim="groups",
    roles={"keys": Role.ADMIN, "staff": Role.VIEWER},
    default_role=None,
    creates_members=True,
    email_domains=frozenset({"example.com"}),
)
CLAIMS: Mapping[str, object] = {
    "iss": ISSUER,
    "sub": "248289761001",
    "aud": "pqkeep",
    "exp": NOW + 300,
    "iat": NOW,
    "nonce": NONCE,
    "email": "ada@example.com",
    "email_verified": True,
    "groups": ["staff", "keys"],
}
ENDPOINTS: Mapping[str, object] = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
}


def test_a_proper_token_is_accepted() -> None:
    """A valid token yields issuer, subject, a verified address and the groups."""
    person = verified(CLAIMS, PROVIDER, NONCE, NOW)
    assert (person.identity.issuer, person.identity.subject) == (ISSUER, CLAIMS["sub"])
    assert person.email == "ada@example.com"
    assert person.groups == {"staff", "keys"}


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"iss": ISSUER + "/"}, "iss"),
        ({"iss": "https://login.example.net"}, "iss"),
        ({"aud": "another"}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": ["pqkeep", "another"]}, "azp"),
        ({"aud": ["pqkeep", "another"], "azp": "another"}, "azp"),
        ({"azp": "another"}, "azp"),
        ({"exp": NOW - 61}, "exp"),
        ({"iat": NOW + 61}, "iat"),
        ({"iat": NOW - 661}, "iat"),
        ({"nonce": "n-2"}, "nonce"),
        ({"nonce": ""}, "nonce"),
        ({"nonce": "\ud800"}, "nonce"),
        ({"sub": "caf\u00e9"}, "sub"),
        ({"sub": "a\0b"}, "sub"),
        ({"sub": ""}, "claims"),
        ({"sub": "x" * 256}, "claims"),
        ({"sub": 7}, "claims"),
        ({"exp": "never"}, "claims"),
        ({"exp": True}, "claims"),
        ({"exp": 10**400}, "claims"),
        ({"aud": {"pqkeep": True}}, "claims"),
    ],
)
def test_another_token_is_refused(changed: Mapping[str, object], part: str) -> None:
    """A token with a wrong issuer, audience, time, nonce or form is refused."""
    with pytest.raises(InvalidProviderResponseError, match=part):
        verified({**CLAIMS, **changed}, PROVIDER, NONCE, NOW)


@pytest.mark.parametrize("missing", ["iss", "sub", "aud", "exp", "iat", "nonce"])
def test_a_claim_that_is_missing_is_no_proof(missing: str) -> None:
    """Every required claim must be present."""
    claims = {name: value for name, value in CLAIMS.items() if name != missing}
    with pytest.raises(InvalidProviderResponseError):
        verified(claims, PROVIDER, NONCE, NOW)


def test_several_audiences_need_ours_as_the_authorized_one() -> None:
    """A token with several audiences is accepted if pqkeep is the authorized party."""
    claims = {**CLAIMS, "aud": ["pqkeep", "another"], "azp": "pqkeep"}
    assert verified(claims, PROVIDER, NONCE, NOW).email


@pytest.mark.parametrize(
    "changed",
    [
        {"email_verified": False},
        {"email_verified": "true"},
        {"email_verified": None},
        {"email": "ada@example.net"},
        {"email": "ada@example.com.example.net"},
        {"email": "<script>alert(1)</script>@example.com"},
        {"email": "ada@example.com\r\nx"},
        {"email": ["ada@example.com"]},
        {"email": None},
    ],
)
def test_an_address_needs_the_providers_word(changed: Mapping[str, object]) -> None:
    """An unverified or malformed address, or one of another domain, is ignored."""
    assert verified({**CLAIMS, **changed}, PROVIDER, NONCE, NOW).email is None


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["staff", "keys"], Role.ADMIN),
        (["staff"], Role.VIEWER),
        ("keys", Role.ADMIN),
        ([["keys"], None, 7, "<b>"], None),
        ({"keys": True}, None),
        (None, None),
    ],
)
def test_the_most_powerful_group_holds(groups: object, role: Role | None) -> None:
    """If groups give several roles, the most powerful one applies."""
    person = verified({**CLAIMS, "groups": groups}, PROVIDER, NONCE, NOW)
    assert PROVIDER.role_of(person.groups) is role
    default = replace(PROVIDER, default_role=Role.VIEWER)
    assert default.role_of(person.groups) is (role or Role.VIEWER)


def token(payload: bytes) -> str:
    """Return an unsigned token."""
    return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}."


def test_a_tokens_header_and_signature_are_not_read() -> None:
    """A token from the token endpoint needs no signature, because TLS authenticates the server."""
    assert claims_of(token(json.dumps(CLAIMS).encode())) == CLAIMS


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.c.d.e", "e30.!.", token(b"[]"), token(b"{"), token(b"\xff"), "e30.a."]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    """A token that is not three parts around a JSON object is refused."""
    with pytest.raises(InvalidProviderResponseError):
        claims_of(text)


@pytest.mark.parametrize("extra", ["!", " ", "\n", "+", "/", "=", "é"])
def test_a_token_has_no_other_characters(extra: str) -> None:
    """Characters that the standard library would ignore in base64url are refused."""
    header, payload, signature = token(json.dumps(CLAIMS).encode()).split(".")
    for changed in (payload + extra, payload[:8] + extra + payload[8:]):
        with pytest.raises(InvalidProviderResponseError):
            claims_of(f"{header}.{changed}.{signature}")


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": ISSUER + "/"},
        {"authorization_endpoint": "http://login.example.org/authorize"},
        {"token_endpoint": "http://127.0.0.1/token"},
        {"token_endpoint": "https://user@login.example.org/token"},
        {"token_endpoint": "https:///token"},
        {"token_endpoint": "https://login.example.org:x/token"},
        {"authorization_endpoint": "https://login.example.org/a\r\nb"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"userinfo_endpoint": "file:///etc/passwd"},
        {"token_endpoint": None},
    ],
)
def test_a_discovery_document_of_another_is_refused(changed: Mapping[str, object]) -> None:
    """A discovery document with another issuer, or an endpoint without https, is refused."""
    assert metadata_of(json.dumps(ENDPOINTS).encode(), ISSUER).issuer == ISSUER
    with pytest.raises(InvalidProviderResponseError):
        metadata_of(json.dumps({**ENDPOINTS, **changed}).encode(), ISSUER)


def test_userinfo_adds_what_the_token_leaves_out() -> None:
    """Address and groups come from UserInfo if the token lacks them. Other claims never do."""
    bare = {name: CLAIMS[name] for name in ("iss", "sub", "aud", "exp", "iat")}
    claims = with_userinfo(bare, json.dumps(CLAIMS).encode(), PROVIDER)
    assert claims == {
        **bare,
        **{name: CLAIMS[name] for name in ("email", "email_verified", "groups")},
    }
    other = json.dumps({**CLAIMS, "email": "eve@example.com", "groups": ["keys"]}).encode()
    unverified = {**bare, "email": "ada@example.com", "groups": []}
    assert with_userinfo(unverified, other, PROVIDER) == unverified


def test_userinfo_of_somebody_else_is_refused() -> None:
    """UserInfo with another subject than the token's is refused."""
    with pytest.raises(InvalidProviderResponseError):
        with_userinfo(CLAIMS, b'{"sub": "another"}', PROVIDER)
