"""Workloads exchange their platform's tokens for short-lived API keys, and each misuse is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import hvac
import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa
from hvac.exceptions import VaultError
from jwcrypto.jwk import JWK
from jwcrypto.jws import JWS
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation, running
from tests.fixtures.openid_provider import running_mock
from tests.fixtures.token_platform import AUDIENCE, Platform

from pqkeep import AsyncClient, Client, InvalidRequestError
from pqkeep_protocol.algorithms import MAX_GIVEN_KEY, MAX_GIVEN_SIGNATURE

GITHUB = "https://token.actions.githubusercontent.com"
CLUSTER = "https://kubernetes.default.svc.cluster.local"
GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
USE = [{"operations": ["use"], "keyrings": ["default"]}]
UNTRUSTED = (401, "ERR_AUTH_001", None)
REFUSED = (403, "ERR_FORBIDDEN_001", None)


@dataclass
class Site:
    """A tenant that trusts a platform, with one role."""

    installation: Installation
    tenant: Caller
    owner: Caller
    platform: Platform

    @property
    def paths(self) -> str:
        """The path of its workloads."""
        return f"/tenants/{self.tenant.tenant_id}/workloads"

    def put_issuer(self, name: str = "ci", **changes: Any) -> httpx2.Response:
        """Put the issuer."""
        body = {
            "url": self.platform.issuer,
            "audience": AUDIENCE,
            "algorithms": [self.platform.algorithm],
            "jwks": self.platform.jwks,
            **changes,
        }
        kept = {name: value for name, value in body.items() if value is not None}
        return self.owner.ask_proven("PUT", f"{self.paths}/issuers/{name}", kept)

    def put_role(self, name: str = "deploy", **changes: Any) -> httpx2.Response:
        """Put a role."""
        body = {"issuer": "ci", "claims": {"repository": "acme/shop"}, "scopes": USE, **changes}
        return self.owner.ask_proven("PUT", f"{self.paths}/roles/{name}", body)

    def exchange(self, token: str, role: str = "deploy", **changes: object) -> httpx2.Response:
        """Exchange a token."""
        body = {
            "grant_type": GRANT,
            "subject_token": token,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "role": f"{self.tenant.tenant_id}/{role}",
            **changes,
        }
        return self.installation.caller(None).ask("POST", "/auth/token", body)

    def workload(self, token: str, role: str = "deploy") -> Caller:
        """Return a caller with the key for a token."""
        response = self.exchange(token, role)
        assert response.status_code == 200, response.text
        key = response.json()["data"]["access_token"]
        return self.installation.caller(key, self.tenant.tenant_id)


def _site(installation: Installation) -> Site:
    tenant = installation.new_tenant()
    site = Site(installation, tenant, installation.person(tenant.tenant_id), Platform(GITHUB))
    assert site.put_issuer().status_code == 201
    assert site.put_role().status_code == 201
    return site


@pytest.fixture
def site(installation: Installation) -> Site:
    """A tenant that trusts a platform with ES256."""
    return _site(installation)


def test_a_workload_uses_the_permissions_of_its_role(site: Site) -> None:
    """A workload encrypts, may not manage API keys, and is recorded by its role. Its key is not listed."""
    site.tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    workload = site.workload(site.platform.token())
    plaintext = base64.b64encode(b"card").decode()
    sealed = workload.post("/kem/encrypt", {"algorithm": "X-Wing", "plaintext": plaintext})
    kept = {name: sealed[name] for name in ("algorithm", "key_version", "ciphertext")}
    assert workload.post("/kem/decrypt", kept)["plaintext"] == plaintext
    own = workload.get("/auth/api-key")
    assert (own["version"], own["name"], own["scopes"]) == (0, "deploy", USE)
    api_keys = f"/tenants/{site.tenant.tenant_id}/api-keys"
    for path in (api_keys, f"{api_keys}/rotate"):
        assert workload.refusal(path, {})[:2] == (403, "ERR_FORBIDDEN_001")
    assert workload.ask("PUT", f"{site.paths}/issuers/x", {}).status_code == 403
    assert site.owner.get(api_keys)["total"] == 1
    assert site.owner.get(site.paths)["roles"][0]["valid_keys"] == 1
    records = site.tenant.get("/audit/records")["records"]
    (exchanged,) = [record for record in records if record["operation"] == "exchange-token"]
    assert exchanged["principal"] == "workload:deploy"
    assert exchanged["target"] == "ci/repo:acme/shop:ref:refs/heads/main"
    (used,) = [record for record in records if record["operation"] == "encrypt"]
    assert used["principal"] == "workload:deploy"


@pytest.mark.parametrize("algorithm", ["EdDSA", "RS256", "PS256"])
def test_each_algorithm_of_an_issuer(site: Site, algorithm: str) -> None:
    """Tokens of each listed algorithm are accepted, and the same issuer's others are refused."""
    platform = Platform(CLUSTER, algorithm)
    other = replace(site, platform=platform)
    other.put_issuer("cluster").raise_for_status()
    namespace = {"/kubernetes.io/namespace": ["shop", "shop-*"]}
    other.put_role("pods", issuer="cluster", claims=namespace).raise_for_status()
    claims = {"kubernetes.io": {"namespace": "shop-eu", "serviceaccount": {"name": "api"}}}
    other.workload(platform.token({**claims, "aud": ["x", AUDIENCE]}, typ=None), "pods")
    elsewhere = {"kubernetes.io": {"namespace": "sho"}}
    assert refusal_of(other.exchange(platform.token(elsewhere), "pods")) == REFUSED
    assert refusal_of(other.exchange(site.platform.token(), "pods")) == UNTRUSTED


def test_a_token_signed_with_ml_dsa(site: Site) -> None:
    """An issuer may sign with ML-DSA (RFC 9964's kind of key, AKP)."""
    private = mldsa.MLDSA65PrivateKey.generate()
    raw = private.public_key().public_bytes_raw()
    public = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    jwks = {"keys": [{"kty": "AKP", "alg": "ML-DSA-65", "kid": "pq", "pub": public}]}
    site.put_issuer(algorithms=["ML-DSA-65"], jwks=jwks).raise_for_status()
    head, claims, _ = site.platform.token().split(".")
    header = json.dumps({"alg": "ML-DSA-65", "kid": "pq"}).encode()
    head = base64.urlsafe_b64encode(header).rstrip(b"=").decode()
    signature = private.sign(f"{head}.{claims}".encode())
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    site.workload(f"{head}.{claims}.{text}")


@pytest.mark.threat("forged-workload-token")
def test_forged_tokens_are_refused_alike(site: Site) -> None:
    """No signature, HMAC with the public key, other keys, issuers, roles: one refusal for all."""
    platform, stranger = site.platform, Platform(GITHUB)
    head, claims, signature = platform.token().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    public = platform.key.export_to_pem()
    hmac_key = JWK(kty="oct", k=base64.urlsafe_b64encode(public).rstrip(b"=").decode())
    by_hmac = JWS(base64.urlsafe_b64decode(claims + "=="))
    by_hmac.add_signature(hmac_key, None, '{"alg":"HS256","kid":"one"}')
    embedded = stranger.token(jwk=stranger.key.export_public(as_dict=True), kid="two")
    other_claims = platform.token({"repository": "acme/other"}).split(".")[1]
    for forged in (
        f"{none}.{claims}.",
        f"{none}.{claims}.{signature}",
        by_hmac.serialize(compact=True),
        stranger.token(),
        embedded,
        f"{head}.{other_claims}.{signature}",
        platform.token({"iss": f"{GITHUB}/"}),
        platform.token(kid="unknown"),
    ):
        response = site.exchange(forged)
        assert refusal_of(response) == UNTRUSTED, forged
        assert forged not in response.text
    token = platform.token()
    assert refusal_of(site.exchange(token, "unknown")) == UNTRUSTED
    body = {"grant_type": GRANT, "subject_token": token, "role": f"{uuid.uuid4()}/deploy"}
    assert site.installation.caller(None).refusal("/auth/token", body) == UNTRUSTED
    records = site.tenant.get("/audit/records", operation="exchange-token")["records"]
    assert records == []


@pytest.mark.threat("forged-workload-token")
@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": "https://other.example.com"}, "aud"),
        ({"aud": [AUDIENCE + "/"]}, "aud"),
        ({"exp": 1}, "expired"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"iat": 4_000_000_000}, "not valid yet"),
        ({"repository": "acme/shop-fork"}, "repository"),
        ({"repository": None}, "repository"),
        ({"repository": {"acme/shop": 1}}, "repository"),
    ],
)
def test_valid_tokens_that_do_not_fit(site: Site, claims: dict[str, object], said: str) -> None:
    """Audience, times and conditions are checked; the message names the claim, and it is recorded."""
    response = site.exchange(site.platform.token(claims))
    assert refusal_of(response) == REFUSED
    assert said in response.json()["error"]["message"]
    (record,) = site.tenant.get("/audit/records", operation="exchange-token")["records"]
    assert (record["outcome"], record["principal"]) == ("ERR_FORBIDDEN_001", "workload:deploy")


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "a.b",
        "e30.e30.AA",
        "....",
        "e30=.e30.AA",
        "eyJhbGciOiJFUzI1NiJ9.W10.AA",
    ],
)
def test_a_text_that_is_no_token(site: Site, text: str) -> None:
    """A text without the form of a signed JWT is an invalid field."""
    assert refusal_of(site.exchange(text)) == (400, "ERR_INVALID_001", "subject_token")


def test_critical_headers_and_other_types_are_refused(site: Site) -> None:
    """A token with a critical extension is refused. A token of another type is refused too."""
    wanted = (400, "ERR_INVALID_001", "subject_token")
    head, claims, signature = site.platform.token().split(".")
    del head
    for header in ({"alg": "ES256", "crit": ["x"], "x": 1}, {"alg": "ES256", "typ": "logout+jwt"}):
        text = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
        assert refusal_of(site.exchange(f"{text}.{claims}.{signature}")) == wanted


@pytest.mark.threat("forged-workload-token")
def test_a_key_or_signature_that_no_frame_may_have(site: Site) -> None:
    """A huge signature or key is refused, and does not end the connection to the key service."""
    other = replace(site, platform=Platform(CLUSTER, "EdDSA"))
    other.put_issuer("cluster").raise_for_status()
    other.put_role("pods", issuer="cluster").raise_for_status()
    signed, _, _ = other.platform.token().rpartition(".")
    long = base64.urlsafe_b64encode(bytes(MAX_GIVEN_SIGNATURE + 1)).rstrip(b"=").decode()
    refused = other.exchange(f"{signed}.{long}", "pods")
    assert refusal_of(refused) == (400, "ERR_INVALID_001", "subject_token")
    number = base64.urlsafe_b64encode(b"\x80" + bytes(MAX_GIVEN_KEY)).rstrip(b"=").decode()
    huge = {"kty": "RSA", "kid": "one", "n": number, "e": "AQAB"}
    refused = site.put_issuer("huge", algorithms=["RS256"], jwks={"keys": [huge]})
    assert refusal_of(refused) == (400, "ERR_INVALID_001", "jwks")
    both = {"keys": [huge, *site.platform.jwks["keys"]]}
    site.put_issuer(jwks=both).raise_for_status()
    site.workload(site.platform.token()).get("/auth/api-key")


@pytest.mark.threat("forged-workload-token")
def test_keys_that_are_none(site: Site) -> None:
    """A set with impossible keys of RSA and elliptic curves is kept, and verifies no token."""

    def number(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    rsa = replace(site, platform=Platform(GITHUB, "RS256"))
    modulus, most = b"\xff" * 256, b"\xff" * 2040
    numbers = [(b"", b""), (b"\0", b"\0"), (b"\x03", b"\x03"), (modulus[1:] + b"\xfe", b"\3")]
    numbers += [(modulus, b"\x01"), (modulus, modulus), (most, b"\xff" * 8)]
    keys = [{"kty": "RSA", "kid": "one", "n": number(n), "e": number(e)} for n, e in numbers]
    token = rsa.platform.token()
    for key in keys:
        rsa.put_issuer(algorithms=["RS256", "PS256"], jwks={"keys": [key]}).raise_for_status()
        assert refusal_of(rsa.exchange(token)) == UNTRUSTED
    off_curve = {"kty": "EC", "crv": "P-256", "x": number(b"\xff" * 32), "y": number(b"\1" * 32)}
    site.put_issuer(jwks={"keys": [{"kid": "one", **off_curve}]}).raise_for_status()
    assert refusal_of(site.exchange(site.platform.token())) == UNTRUSTED


@pytest.mark.parametrize(
    "claims",
    [
        '"n": ' + "9" * 5000,
        '"n": 1e400',
        '"n": "\\ud800"',
    ],
)
def test_claims_that_are_no_json(site: Site, claims: str) -> None:
    """Numbers and texts that JSON does not have are an invalid token."""
    assert refusal_of(_exchange_with(site, claims)) == (400, "ERR_INVALID_001", "subject_token")


@pytest.mark.parametrize(
    "claims",
    ['"n": ' + "[" * 4000 + "]" * 4000, '"n": ' + '{"a": ' * 1100 + "1" + "}" * 1100],
)
def test_deep_claims(site: Site, claims: str) -> None:
    """Deep claims are refused: as unreadable by Python 3.11, by their signature from 3.12 on."""
    assert refusal_of(_exchange_with(site, claims)) in {
        (400, "ERR_INVALID_001", "subject_token"),
        UNTRUSTED,
    }


def _exchange_with(site: Site, claims: str) -> httpx2.Response:
    """Exchange a token with further claims, which its signature does not cover."""
    head, stated, signature = site.platform.token().split(".")
    text = base64.urlsafe_b64decode(stated + "==").decode()
    changed = base64.urlsafe_b64encode((text[:-1] + f", {claims}}}").encode()).rstrip(b"=").decode()
    return site.exchange(f"{head}.{changed}.{signature}")


def test_keys_end_with_their_role_issuer_and_tenant(site: Site) -> None:
    """A changed or removed role or issuer ends the keys at once; others' stay."""
    site.put_role("other").raise_for_status()
    token = site.platform.token()
    other = site.workload(token, "other")
    changes: tuple[Callable[[], httpx2.Response], ...] = (
        lambda: site.put_role(lifetime_seconds=60),
        site.put_issuer,
        lambda: site.owner.ask_proven("DELETE", f"{site.paths}/roles/deploy"),
    )
    for change in changes:
        workload = site.workload(token)
        workload.get("/auth/api-key")
        change().raise_for_status()
        assert workload.ask("GET", "/auth/api-key").status_code == 401
        if change == site.put_issuer:
            assert other.ask("GET", "/auth/api-key").status_code == 401
            other = site.workload(token, "other")
    assert refusal_of(site.exchange(token)) == UNTRUSTED
    other.get("/auth/api-key")
    site.owner.ask_proven("DELETE", f"{site.paths}/issuers/ci").raise_for_status()
    assert other.ask("GET", "/auth/api-key").status_code == 401
    assert site.owner.get(site.paths) == {"issuers": [], "roles": []}


@pytest.mark.threat("replayed-workload-token")
def test_a_token_is_exchanged_a_limited_number_of_times(site: Site) -> None:
    """The hundredth exchange of a token is the last, also with another spelling of the signature."""
    token = site.platform.token()
    for _ in range(100):
        assert site.exchange(token).status_code == 200
    assert refusal_of(site.exchange(token)) == REFUSED
    assert site.exchange(site.platform.token({"jti": "another"})).status_code == 200


def test_fields_of_issuers_and_roles(site: Site) -> None:
    """Each wrong field is named, and no role accepts everyone."""
    issuers: dict[str, list[Any]] = {
        "url": ["ftp://x", "https://ada@x.example", "https://127.0.0.1/"],
        "algorithms": [[], ["none"], ["HS256"], "ES256", ["ES256", 1]],
        "jwks": [[], {"keys": []}, {"keys": [{"kty": "oct", "k": "AA"}]}, "x"],
    }
    for field_name, values in issuers.items():
        for value in values:
            changes = {field_name: value} | ({"jwks": None} if field_name == "url" else {})
            wanted = (400, "ERR_INVALID_001", field_name)
            assert refusal_of(site.put_issuer(**changes)) == wanted, value
    roles: dict[str, list[Any]] = {
        "claims": [{}, [], {"sub": "*"}, {"sub": []}, {"sub": 1}, {"": "x"}],
        "scopes": [[], [{"operations": ["everything"]}]],
        "lifetime_seconds": [59, 3601],
        "issuer": ["unknown"],
    }
    for field_name, values in roles.items():
        for value in values:
            refusal = refusal_of(site.put_role(**{field_name: value}))
            assert refusal[2] == field_name, value


@pytest.fixture(scope="module")
def reaching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that may fetch keys from this machine."""
    settings = {"webhook_networks": ["127.0.0.0/8", "::1/128"], "transit": True}
    with running(tmp_path_factory.mktemp("workloads"), settings=settings) as started:
        yield started


def test_a_token_of_a_foreign_provider(reaching: Installation, tmp_path: Path) -> None:
    """An ID token of oidc-provider-mock, an independent program, is exchanged."""
    tenant = reaching.new_tenant()
    owner = reaching.person(tenant.tenant_id)
    with running_mock(tmp_path) as provider:
        provider.add("robot", email="robot@example.com")
        query = {
            "client_id": "ci",
            "redirect_uri": "http://localhost/callback",
            "response_type": "code",
            "scope": "openid",
            "nonce": "n",
        }
        url = str(httpx2.URL(f"{provider.issuer}/oauth2/authorize", params=query))
        code = parse_qs(urlsplit(provider.sign_in(url, "robot")).query)["code"][0]
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": query["redirect_uri"],
        }
        response = httpx2.post(
            f"{provider.issuer}/oauth2/token", data=form, auth=("ci", "secret"), trust_env=False
        )
        token = response.json()["id_token"]
        site = Site(reaching, tenant, owner, Platform(provider.issuer, "RS256"))
        site.put_issuer(jwks=None, audience="ci").raise_for_status()
        site.put_role(claims={"sub": "robot"}).raise_for_status()
        site.workload(token).get("/auth/api-key")
        assert refusal_of(site.exchange(token, "deploy2")) == UNTRUSTED


def test_clients_of_vault_log_in_with_the_token(reaching: Installation) -> None:
    """Hvac's logins for JWT and Kubernetes get a key that works, and a refusal for a wrong role."""
    site = _site(reaching)
    role, token = f"{site.tenant.tenant_id}/deploy", site.platform.token()
    client = hvac.Client(reaching.base_url)
    client.auth.jwt.jwt_login(role, token)
    assert client.is_authenticated()
    client.logout()
    client.auth.kubernetes.login(role, token)
    assert client.lookup_token()["data"]["display_name"] == "deploy"
    with pytest.raises(VaultError):
        client.auth.jwt.jwt_login("deploy", token)
    client.adapter.close()


@pytest.fixture
def environment(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a workload; returns the token's file."""
    file = tmp_path / "token"
    file.write_text(site.platform.token() + "\n")
    monkeypatch.setenv("PQKEEP_URL", site.installation.base_url)
    monkeypatch.setenv("PQKEEP_TOKEN_FILE", str(file))
    monkeypatch.setenv("PQKEEP_ROLE", f"{site.tenant.tenant_id}/deploy")
    return file


def test_the_client_exchanges_and_renews(site: Site, environment: Path) -> None:
    """The client needs no API key. It exchanges once, and again when its role has changed."""
    site.tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    with Client() as client:
        sealed = client.kem.encrypt(b"card", algorithm="X-Wing")
        assert client.kem.decrypt(sealed.ciphertext, key_version=1, algorithm="X-Wing") == b"card"
        site.put_role(lifetime_seconds=60).raise_for_status()
        assert client.kem.decrypt(sealed.ciphertext, key_version=1, algorithm="X-Wing") == b"card"
        environment.write_text("no token")
        site.put_role().raise_for_status()
        with pytest.raises(InvalidRequestError):
            client.kem.decrypt(sealed.ciphertext, key_version=1, algorithm="X-Wing")
    records = site.tenant.get("/audit/records", operation="exchange-token")["records"]
    assert len(records) == 2


async def test_the_asynchronous_client_exchanges_once(site: Site, environment: Path) -> None:
    """Many concurrent calls of one client make one exchange."""
    async with AsyncClient() as client:
        await asyncio.gather(*(client.keyrings.get("default") for _ in range(20)))
        site.put_role(lifetime_seconds=60).raise_for_status()
        await client.keyrings.get("default")
    records = site.tenant.get("/audit/records", operation="exchange-token")["records"]
    assert len(records) == 2
