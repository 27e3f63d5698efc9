"""Keys under /v1/transit/: their types, settings and refusals, and the state of the server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import TLS, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.credential_lookups import UNKNOWN_CREDENTIALS
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.api.keyrings import TRANSIT_TYPES

TYPES: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "aes256-gcm96": ({"type": "aes256-gcm96"}, {}),
    "chacha20-poly1305": ({"type": "chacha20-poly1305", "derived": False}, {}),
    "xchacha20-poly1305": ({"type": "xchacha20-poly1305"}, {}),
    "x-wing": ({"type": "x-wing"}, {}),
    "ml-kem-768": ({"type": "ml-kem-768"}, {}),
    "ml-kem-1024": ({"type": "ml-kem-1024"}, {}),
    "hmac": ({"type": "hmac"}, {"key_size": 32}),
    "hmac/64": ({"type": "hmac", "key_size": "64"}, {"key_size": 64}),
    "ml-dsa/65": ({"type": "ml-dsa"}, {"parameter_set": "65"}),
    "ml-dsa/87": ({"type": "ml-dsa", "parameter_set": 87}, {"parameter_set": "87"}),
    "mldsa-65": ({"type": "mldsa-65"}, {}),
    "mldsa-87": ({"type": "mldsa-87"}, {}),
    "slh-dsa/slh-dsa-sha2-128f": (
        {"type": "slh-dsa", "parameter_set": "slh-dsa-sha2-128f"},
        {"parameter_set": "slh-dsa-sha2-128f"},
    ),
    "hybrid/65": (
        {"type": "hybrid", "hybrid_key_type_ec": "ecdsa-p256"},
        {"hybrid_key_type_pqc": "ml-dsa", "hybrid_key_type_ec": "ecdsa-p256"},
    ),
}
"""Requests by stored type, and the further fields of the key. Slow key pairs are left out."""
NUMBERS = {
    "auto_rotate_period",
    "latest_version",
    "min_available_version",
    "min_decryption_version",
    "min_encryption_version",
}
_NO_TYPES = {"ecdsa-p256": "ml-dsa", "rsa-2048": "hybrid", "ed25519": "ml-dsa", "p-256": "aes256"}
REFUSED: tuple[tuple[str, Mapping[str, object], str], ...] = (
    *(("keys/{name}", {"type": name}, instead) for name, instead in _NO_TYPES.items()),
    ("keys/{name}", {"type": "aes128-gcm96"}, "aes256-gcm96"),
    ("keys/{name}", {"type": "ml-dsa/65"}, "unknown key type"),
    ("keys/{name}", {"type": "hmac/64"}, "unknown key type"),
    ("keys/{name}", {"type": "aes256-cmac"}, "hmac"),
    ("keys/{name}", {"type": "managed_key"}, "keys of other systems"),
    ("keys/{name}", {"type": "ml-dsa", "parameter_set": "44"}, "one of: 65, 87"),
    ("keys/{name}", {"type": "slh-dsa", "parameter_set": "65"}, "slh-dsa-sha2-128s"),
    ("keys/{name}", {"type": "hybrid", "parameter_set": "87"}, "one of: 65"),
    ("keys/{name}", {"type": "hybrid", "hybrid_key_type_ec": "ed25519"}, "ecdsa-p256"),
    ("keys/{name}", {"type": "hmac", "key_size": 33}, "32 or 64"),
    ("keys/{name}", {"type": ["aes256-gcm96"]}, "type must be a text"),
    ("keys/{name}", {"type": "x-wing", "derived": True}, "derived"),
    ("keys/{name}", {"derived": "perhaps"}, "derived must be true or false"),
    ("keys/{name}", {"exportable": True}, "exportable"),
    ("keys/{name}", {"exportable": "true"}, "exportable"),
    ("keys/{name}", {"allow_plaintext_backup": 1}, "allow_plaintext_backup"),
    ("keys/{name}", {"convergent_encryption": True}, "convergent_encryption"),
    ("keys/{name}", {"auto_rotate_period": "1h"}, "whole days"),
    ("keys/{name}", {"auto_rotate_period": "soon"}, "a duration"),
    ("keys/{name}", {"auto_rotate_period": "9999999d"}, "rotation_days"),
    ("keys/{name}/config", {"exportable": True}, "exportable"),
    ("keys/{name}/config", {"allow_plaintext_backup": True}, "allow_plaintext_backup"),
    ("keys/{name}/config", {"min_decryption_version": 2}, "latest key version is 1"),
    ("keys/{name}/config", {"min_encryption_version": "2"}, "latest key version is 1"),
    ("keys/{name}/config", {"min_decryption_version": -1}, "min_decryption_version"),
    ("keys/{name}/config", {"min_decryption_version": 1.5}, "a whole number"),
    ("keys/{name}/config", {"auto_rotate_period": "36h"}, "whole days"),
)
"""Requests that are refused with 400: path, body and a part of the sentence."""

Ask = Callable[..., httpx2.Response]


@contextmanager
def _asking(installation: Installation, api_key: str, **options: Any) -> Iterator[Ask]:
    with httpx2.Client(
        base_url=installation.base_url, timeout=PATIENCE, trust_env=False, **options
    ) as client:

        def request(
            method: str,
            path: str,
            body: object = None,
            headers: Mapping[str, str] | None = None,
            **more: Any,
        ) -> httpx2.Response:
            if body is not None:
                more["json"] = body
            sent = {"X-Vault-Token": api_key, **(headers or {})}
            return client.request(method, f"/v1/{path}", headers=sent, **more)

        yield request


@pytest.fixture(scope="module")
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant."""
    return new_tenant()


@pytest.fixture(scope="module")
def ask(installation: Installation, tenant: Caller) -> Iterator[Ask]:
    """Send a request with the tenant's API key as the token."""
    with _asking(installation, tenant.api_key, verify=TLS) as asking:
        yield asking


@pytest.fixture
def name(ask: Ask) -> str:
    """The name of a new key."""
    made = f"k-{uuid.uuid4()}"
    assert ask("POST", f"transit/keys/{made}", {}).status_code == 200
    return made


def _data(response: httpx2.Response, status: int = 200) -> dict[str, Any]:
    assert response.status_code == status, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def _refusal(response: httpx2.Response, status: int = 400) -> str:
    """Return the one sentence of a refusal."""
    assert response.status_code == status, response.text
    (sentence,) = response.json()["errors"]
    return str(sentence)


@pytest.mark.parametrize("stored", TYPES)
def test_a_key_has_the_type_that_was_asked_for(tenant: Caller, ask: Ask, stored: str) -> None:
    """Creating is repeatable. The type comes back as it was sent, and decides the algorithm."""
    body, more = TYPES[stored]
    path = f"transit/keys/k-{uuid.uuid4()}"
    first = _data(ask("POST", path, body))
    assert first == _data(ask("PUT", path, body)) == _data(ask("GET", path))
    assert (first["type"], first["latest_version"]) == (body["type"], 1)
    assert first.items() >= more.items()
    assert {field for field, value in first.items() if type(value) is int} >= NUMBERS
    keys = tenant.get("/kms/keys", keyring=first["name"])["keys"]
    assert [key["algorithm"] for key in keys] == [TRANSIT_TYPES[stored].value]


@pytest.mark.parametrize(("path", "body", "sentence"), REFUSED, ids=str)
def test_what_cannot_be_is_refused(
    ask: Ask, name: str, path: str, body: Mapping[str, object], sentence: str
) -> None:
    """A refusal returns 400 and a helpful message. Nothing is created or changed."""
    new = f"k-{uuid.uuid4()}"
    before = _data(ask("GET", f"transit/keys/{name}"))
    target = path.format(name=name if path.endswith("config") else new)
    assert sentence in _refusal(ask("POST", f"transit/{target}", body))
    assert _data(ask("GET", f"transit/keys/{name}")) == before
    absent = ask("GET", f"transit/keys/{new}")
    assert (absent.status_code, absent.json()) == (404, {"errors": []})


def test_a_key_of_another_type_is_not_what_was_asked_for(ask: Ask, name: str) -> None:
    """Creating an existing key with another type is refused; without a type it is the key."""
    path = f"transit/keys/{name}"
    assert "aes256-gcm96" in _refusal(ask("POST", path, {"type": "chacha20-poly1305"}))
    assert "aes256-gcm96" in _refusal(ask("POST", path, {"derived": True}))
    assert _data(ask("POST", path, {"derived": None}))["type"] == "aes256-gcm96"


@pytest.mark.parametrize(
    "body",
    [
        {"min_encryption_versoin": 7, "key_size": 0, "managed_key_id": "", "nested": {"a": [1]}},
        {"type": None, "derived": None, "exportable": None, "auto_rotate_period": None},
        {"exportable": False, "allow_plaintext_backup": "false", "convergent_encryption": 0},
    ],
)
def test_other_fields_are_ignored(ask: Ask, body: Mapping[str, object]) -> None:
    """Misspelt fields, nulls and what is not asked for change nothing."""
    made = _data(ask("POST", f"transit/keys/k-{uuid.uuid4()}?unknown=1", body))
    assert (made["type"], made["min_encryption_version"]) == ("aes256-gcm96", 0)


@pytest.mark.parametrize(
    "content", [b"", b"null", b'{"type": "chacha20-poly1305"}'], ids=["empty", "null", "object"]
)
@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_the_content_type_does_not_matter(
    ask: Ask, content: bytes, content_type: str | None
) -> None:
    """Curl -d sends JSON as a form, and Go's client sends no type."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    path = f"transit/keys/k-{uuid.uuid4()}"
    made = _data(ask("POST", path, headers=headers, content=content))
    assert made["type"] == ("chacha20-poly1305" if content.startswith(b"{") else "aes256-gcm96")


@pytest.mark.parametrize("content", [b"{", b"[]", b"1", b'{"a": 1, "a": 2}', b"\xff"])
def test_a_body_that_is_no_object_is_refused(ask: Ask, content: bytes) -> None:
    """A malformed body is 400 in Vault's form."""
    assert _refusal(ask("POST", f"transit/keys/k-{uuid.uuid4()}", content=content))


@pytest.mark.parametrize(
    "path", ["transit//keys//{name}", "transit/keys/{name}/", "/transit/keys/{name}"]
)
def test_several_slashes_are_one(ask: Ask, name: str, path: str) -> None:
    """A doubled slash is one, and one at the end does not matter."""
    assert _data(ask("GET", path.format(name=name)))["name"] == name


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "transit/unknown", 404),
        ("GET", "transit", 404),
        ("GET", "", 404),
        ("GET", "secret/data/a", 404),
        ("DELETE", "transit/encrypt/{name}", 405),
        ("GET", "transit/keys", 405),
        ("PATCH", "transit/keys/{name}", 405),
        ("LIST", "transit/keys/{name}", 405),
        ("OPTIONS", "transit/keys/{name}", 405),
    ],
)
def test_other_paths_and_methods(ask: Ask, name: str, method: str, path: str, status: int) -> None:
    """An unknown path is 404 and an unknown method 405, in Vault's form."""
    assert _refusal(ask(method, path.format(name=name)), status)


def test_a_name_that_no_key_can_have(ask: Ask) -> None:
    """A name must be a keyring's name, and a refusal lists the permitted characters."""
    for name in ("a%20b", "a@b", ".a", "a" * 129):
        assert "name must be" in _refusal(ask("POST", f"transit/keys/{name}", {}))


def test_the_settings_of_a_key(tenant: Caller, ask: Ask, name: str) -> None:
    """Settings equal the keyring's settings. Numbers and periods have Vault's forms."""
    path = f"transit/keys/{name}"
    assert _data(ask("POST", f"{path}/rotate"))["latest_version"] == 2
    sent = {"min_decryption_version": "1", "min_encryption_version": 2, "auto_rotate_period": "48h"}
    data = _data(ask("POST", f"{path}/config", sent))
    assert (data["min_decryption_version"], data["min_encryption_version"]) == (1, 2)
    assert (data["auto_rotate_period"], data["keys"].keys()) == (172_800, {"1", "2"})
    keyring = tenant.get(f"/kms/keyrings/{name}")
    assert (keyring["rotation_days"], keyring["minimum_encryption_version"]) == (2, 2)
    assert keyring["transit_type"] == "aes256-gcm96"
    data = _data(ask("POST", f"{path}/config", {"min_decryption_version": 2}))
    assert data["keys"].keys() == {"2"}
    contradiction = {"min_encryption_version": 1}
    assert "greater than or equal" in _refusal(ask("POST", f"{path}/config", contradiction))
    data = _data(ask("POST", f"{path}/config", {"auto_rotate_period": 0}))
    assert (data["auto_rotate_period"], data["min_decryption_version"]) == (0, 2)


def test_a_key_that_is_not_there(ask: Ask) -> None:
    """A change of an unknown key returns 400 and a message. A read returns 404 without a message."""
    path = f"transit/keys/k-{uuid.uuid4()}"
    assert ask("GET", path).json() == {"errors": []}
    for method, rest, body in (
        ("POST", "/rotate", {}),
        ("POST", "/config", {"min_decryption_version": 1}),
        ("POST", "/config", {}),
        ("POST", "/soft-delete-restore", {}),
    ):
        assert _refusal(ask(method, path + rest, body))
    decrypting = {"ciphertext": "vault:v1:" + "QUJD" * 20}
    response = ask("POST", path.replace("keys", "decrypt"), decrypting)
    assert _refusal(response) == "encryption key not found"


def test_the_list_has_the_keys_of_this_interface(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """Keyrings without a type are not keys here: they are not listed, and a use says why."""
    tenant = new_tenant()
    with _asking(installation, tenant.api_key, verify=TLS) as ask:
        empty = ask("LIST", "transit/keys")
        assert (empty.status_code, empty.json()) == (404, {"errors": []})
        tenant.post("/kms/keyrings", {"name": "native"}, status=201)
        for name in ("Upper", "c", "a", "b"):
            ask("POST", f"transit/keys/{name}", {})
        listed = ["Upper", "a", "b", "c"]
        assert _data(ask("LIST", "transit/keys"))["keys"] == listed
        assert _data(ask("GET", "transit/keys?list=true"))["keys"] == listed
        assert _data(ask("LIST", "transit/keys?after=a&limit=1"))["keys"] == ["b"]
        for response, status in (
            (ask("GET", "transit/keys/native"), 404),
            (ask("POST", "transit/keys/native", {}), 400),
            (ask("POST", "transit/encrypt/native", {"plaintext": "QUJD"}), 400),
            (ask("POST", "transit/keys/native/rotate"), 400),
        ):
            assert "another interface" in _refusal(response, status)


def test_a_keyring_with_a_type_is_a_key(tenant: Caller, ask: Ask) -> None:
    """A keyring with a type, made through the API, is a key here once its algorithm has a key."""
    name = f"k-{uuid.uuid4()}"
    keyring = {"name": name, "transit_type": "ml-kem-768"}
    tenant.post("/kms/keyrings", keyring, status=201)
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768", "keyring": name}, status=201)
    encrypted = _data(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))["ciphertext"]
    body = {"ciphertext": encrypted.split(":")[2], "key_version": 1, "keyring": name}
    assert tenant.post("/kem/decrypt", body)["plaintext"] == "QUJD"
    for wrong in ("AES", "a/b/c", "", "x" * 40, "ml-dsa", "aes128-gcm96"):
        other = {"name": f"k-{uuid.uuid4()}", "transit_type": wrong}
        status, _, field = tenant.refusal("/kms/keyrings", other)
        assert (status, field) == (400, "transit_type")
    derived = {"name": f"k-{uuid.uuid4()}", "transit_type": "ml-dsa/65", "derived": True}
    assert tenant.refusal("/kms/keyrings", derived)[::2] == (400, "derived")


def test_a_key_is_deleted_and_restored_by_people_too(
    tenant: Caller, ask: Ask, new_person: Callable[..., Caller], name: str
) -> None:
    """A key that a person deletes is unknown here.

    A restore works here until the key is destroyed.
    """
    owner = new_person(tenant.tenant_id)
    ciphertext = _data(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))["ciphertext"]
    deleted = owner.ask_proven("DELETE", f"/kms/keyrings/{name}?delay_days=30")
    assert deleted.status_code == 200
    assert ask("GET", f"transit/keys/{name}").status_code == 404
    decrypting = {"ciphertext": ciphertext}
    response = ask("POST", f"transit/decrypt/{name}", decrypting)
    assert _refusal(response) == "encryption key not found"
    assert "restore it" in _refusal(ask("POST", f"transit/keys/{name}", {}))
    assert "restore it" in _refusal(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))
    restored = _data(ask("POST", f"transit/keys/{name}/soft-delete-restore"))
    assert restored["soft_deleted"] is False
    assert _data(ask("POST", f"transit/decrypt/{name}", decrypting))["plaintext"] == "QUJD"


@pytest.fixture(scope="module")
def deleting(installation: Installation, tenant: Caller) -> Iterator[Ask]:
    """Send a request with an API key that may do everything, and delete keys."""
    body = {"scopes": [{"operations": ["*", "delete-keyring"]}]}
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    made = installation.operator().post(path, body, status=201)
    with _asking(installation, made["api_key"], verify=TLS) as asking:
        yield asking


@pytest.mark.threat("stolen-api-key")
def test_a_key_is_deleted_where_both_allow_it(ask: Ask, deleting: Ask, name: str) -> None:
    """DELETE needs a scope for it, and a key that allows deletion. Allowing needs the scope too."""
    path = f"transit/keys/{name}"
    assert "delete-keyring" in _refusal(ask("DELETE", path), 403)
    assert "delete-keyring" in _refusal(ask("DELETE", f"{path}/soft-delete"), 403)
    assert ask("POST", f"{path}/config", {"deletion_allowed": True}).status_code == 403
    assert _data(ask("POST", f"{path}/config", {"deletion_allowed": False}))
    for method in (path, f"{path}/soft-delete"):
        refused = _refusal(deleting("DELETE", method))
        assert refused.startswith("deletion is not allowed for this key")
    allowed = _data(deleting("POST", f"{path}/config", {"deletion_allowed": "true"}))
    assert allowed["deletion_allowed"] is True
    assert ask("DELETE", path).status_code == 403
    deleted = deleting("DELETE", path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert "content-length" not in deleted.headers
    assert deleting("GET", path).status_code == 404
    assert "not found" in _refusal(deleting("DELETE", path))
    assert deleting("DELETE", f"{path}/soft-delete").status_code == 204


def test_a_key_is_deleted_softly(deleting: Ask, name: str) -> None:
    """The response of a soft deletion is the key as it was."""
    path = f"transit/keys/{name}"
    before = _data(deleting("POST", f"{path}/config", {"deletion_allowed": True}))
    deleted = _data(deleting("DELETE", f"{path}/soft-delete"))
    assert deleted == {**before, "soft_deleted": True}
    assert deleting("GET", path).status_code == 404


def test_a_key_that_was_created_again_with_another_type(
    tenant: Caller, ask: Ask, new_person: Callable[..., Caller], name: str
) -> None:
    """A gateway that remembers the earlier type looks again when the key service refuses."""
    _data(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))  # it remembers the type
    owner = new_person(tenant.tenant_id)
    owner.ask_proven("DELETE", f"/kms/keyrings/{name}?delay_days=0")
    again = {"name": name, "transit_type": "x-wing"}
    while tenant.ask("POST", "/kms/keyrings", again).status_code != 201:
        pass  # until the private keys are destroyed
    tenant.post("/kms/keys/generate", {"algorithm": "X-Wing", "keyring": name}, status=201)
    encrypted = _data(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))
    opened = ask("POST", f"transit/decrypt/{name}", {"ciphertext": encrypted["ciphertext"]})
    assert _data(opened) == {"plaintext": "QUJD"}


def test_the_records_are_those_of_the_api(tenant: Caller, ask: Ask, name: str) -> None:
    """Each row is recorded as its operation of the API, with its key and the caller."""
    _data(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))
    _data(ask("POST", f"transit/encrypt/{name}", {"plaintext": "QUJD"}))
    _data(ask("POST", f"transit/keys/{name}/rotate"))
    records = tenant.get("/audit/records", keyring=name)["records"]
    shown = [(each["operation"], each["outcome"], each["key_version"]) for each in records]
    look_up, read = ("get-keyring", "success", None), ("list-keys", "success", None)
    assert shown == [
        ("create-keyring", "success", None),
        ("generate-key", "success", 1),
        *(look_up, read),
        look_up,  # of the type, once
        ("encrypt", "success", 1),
        ("encrypt", "success", 1),
        ("rotate-key", "success", 2),
        *(look_up, read),
    ]
    assert {each["principal"] for each in records} == {"api-key:1"}
    assert [each["policy"] for each in records].count("transit-key-type") == 1


def test_headers_that_are_refused(ask: Ask, tenant: Caller, name: str) -> None:
    """A wrapped response or another namespace is refused; nothing happens."""
    path = f"transit/keys/{name}/rotate"
    for header, value in (
        ("X-Vault-Wrap-TTL", "60s"),
        ("X-Vault-Wrap-TTL", "60"),
        ("X-Vault-Namespace", "another"),
        ("X-Vault-Namespace", f"{tenant.tenant_id}/child"),
    ):
        assert header in _refusal(ask("POST", path, headers={header: value}))
    named = tenant.get(f"/tenants/{tenant.tenant_id}")["name"]
    for header, value in (
        ("X-Vault-Wrap-TTL", "0"),
        ("X-Vault-Namespace", ""),
        ("X-Vault-Namespace", tenant.tenant_id),
        ("X-Vault-Namespace", f"{named}/"),
    ):
        read = ask("GET", f"transit/keys/{name}", headers={header: value})
        assert _data(read)["latest_version"] == 1


def test_a_token_is_sent_once(ask: Ask, tenant: Caller) -> None:
    """Two tokens in one request are refused, as two API keys are."""
    headers = [("X-Vault-Token", tenant.api_key), ("X-Vault-Token", "other")]
    with httpx2.Client(base_url=tenant.client.base_url, trust_env=False, verify=TLS) as client:
        assert client.get("/v1/auth/token/lookup-self", headers=headers).status_code == 400


def test_a_token_that_expires(installation: Installation, tenant: Caller, name: str) -> None:
    """The remaining seconds of an API key are numbers, and renewing prolongs nothing."""
    expires_at = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"name": "app", "expires_at": expires_at}
    made = tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", fields, status=201)
    with _asking(installation, made["api_key"], verify=TLS) as ask:
        found = _data(ask("GET", "auth/token/lookup-self"))
        assert (found["id"], found["display_name"]) == (made["api_key"], "app")
        assert 7_000 < found["ttl"] <= found["creation_ttl"] <= 7_200
        auth = ask("POST", "auth/token/renew-self", {"increment": "99h"}).json()["auth"]
        assert (auth["client_token"], auth["renewable"]) == (made["api_key"], False)
        assert 7_000 < auth["lease_duration"] <= 7_200
        assert ask("POST", "auth/token/revoke-self").status_code == 204
        assert ask("GET", f"transit/keys/{name}").status_code == 200


def test_logging_in_with_an_api_key(ask: Ask, tenant: Caller) -> None:
    """secret_id is the API key. role_id is the API key's name, or missing if it has no name."""
    fields = {"name": "worker"}
    made = tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", fields, status=201)
    path = "auth/approle/login"
    auth = ask("POST", path, {"role_id": "worker", "secret_id": made["api_key"]}).json()["auth"]
    assert auth["client_token"] == made["api_key"]
    unnamed = ask("POST", path, {"role_id": "any", "secret_id": tenant.api_key})
    assert unnamed.json()["auth"]["client_token"] == tenant.api_key
    for body in (
        {"role_id": "other", "secret_id": made["api_key"]},
        {"secret_id": made["api_key"]},
        {"role_id": "worker", "secret_id": made["api_key"][:-1]},
        {"role_id": "worker"},
        {},
    ):
        assert _refusal(ask("POST", path, body)) == "invalid role or secret ID"
    elsewhere = {"X-Vault-Namespace": "another"}
    given = {"role_id": "worker", "secret_id": made["api_key"]}
    assert "X-Vault-Namespace" in _refusal(ask("POST", path, given, headers=elsewhere))
    own = {"X-Vault-Namespace": str(tenant.tenant_id)}
    assert ask("POST", path, given, headers=own).status_code == 200


@pytest.mark.threat("stranger")
def test_unknown_tokens_are_counted(installation: Installation, tenant: Caller) -> None:
    """Unknown tokens from one address use up the budget of that address only, here and at the API."""
    transport = httpx2.HTTPTransport(local_address="127.0.0.9")
    with _asking(installation, tenant.api_key, transport=transport) as ask:
        path = "auth/token/lookup-self"
        unknown: list[httpx2.Response] = []
        while not unknown or unknown[-1].status_code == 403:
            headers = {"X-Vault-Token": new_credential(CredentialKind.API_KEY)}
            unknown.append(ask("GET", path, headers=headers))
            assert len(unknown) <= 5 * UNKNOWN_CREDENTIALS.events  # the budget refills meanwhile
        assert len(unknown) > UNKNOWN_CREDENTIALS.events
        assert unknown[0].json() == {"errors": ["permission denied"]}
        assert (unknown[-1].status_code, "retry-after" in unknown[-1].headers) == (429, True)
        secret = {"role_id": "x", "secret_id": new_credential(CredentialKind.API_KEY)}
        assert ask("POST", "auth/approle/login", secret).status_code == 429
        assert ask("GET", path).status_code == 200  # a known one


def test_without_the_setting(start: Callable[..., Installation]) -> None:
    """Where the setting is off, the paths are unknown and LIST is not HTTP."""
    installation = start(settings={"transit": False})
    with _asking(installation, installation.ready["api_key"]) as ask:
        for path in ("sys/health", "transit/keys/a"):
            response = ask("GET", path)
            assert response.status_code == 404
            assert response.json()["error"]["error_code"] == "ERR_NOT_FOUND_001"
        assert ask("LIST", "transit/keys").json()["error"]["message"] == "the request is not HTTP"
