"""Refusals name the wrong field in the response, and the key in the audit record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation

KEM, HYBRID, SIGNATURE = "Kyber768", "X-Wing", "Dilithium3"
PLAINTEXT = "YSBjYW5hcnkgaW4gYSBtaW5l"


@pytest.fixture(scope="module")
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with keys in the default keyring and in a read-only one."""
    made = new_tenant()
    purposes = {"reading": ["decrypt", "unwrap"], "logs": ["encrypt", "decrypt"]}
    for name, each in purposes.items():
        made.post("/kms/keyrings", {"name": name, "purposes": each}, status=201)
    for algorithm, keyring in ((KEM, "default"), (HYBRID, "reading"), (KEM, "logs")):
        made.post("/kms/keys/generate", {"algorithm": algorithm, "keyring": keyring}, status=201)
    return made


@pytest.fixture(scope="module")
def limited(installation: Installation, tenant: Caller) -> Caller:
    """The same tenant, with an API key for one keyring."""
    body = {"scopes": [{"operations": ["use"], "keyrings": ["default"]}]}
    made = tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", body, status=201)
    return installation.caller(made["api_key"], tenant.tenant_id)


def _newest(tenant: Caller, operation: str) -> Mapping[str, Any]:
    asked = {"operation": operation, "order": "desc", "limit": 1}
    records: list[Mapping[str, Any]] = tenant.get("/audit/records", **asked)["records"]
    return records[0]


def _key_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["keyring"], record["algorithm"], record["key_version"]


def test_an_envelope_that_is_refused(tenant: Caller, limited: Caller) -> None:
    """The record of a refused envelope has the envelope's key version."""
    body = {"plaintext": PLAINTEXT, "format": "envelope", "keyring": "logs"}
    envelope = tenant.post("/kem/encrypt", body)["envelope"]
    for path, asked in (
        ("/kem/decrypt", {"envelope": envelope}),
        ("/kem/decrypt/batch", {"items": [{"envelope": envelope}]}),
        ("/kem/re-encrypt", {"envelope": envelope}),
    ):
        response = limited.ask("POST", path, asked)
        assert "api-key-scope" in response.text
        record = _newest(tenant, "re-encrypt" if "re-" in path else "decrypt")
        assert record["outcome"] == "ERR_POLICY_001"
        assert _key_of(record) == ("logs", KEM, 1)


def test_a_target_that_is_refused(tenant: Caller, limited: Caller) -> None:
    """A refusal about the target is recorded with the target's keyring, by either process."""
    sealed = tenant.post("/kem/encrypt", {"plaintext": PLAINTEXT})
    source = {"ciphertext": sealed["ciphertext"], "key_version": 1}
    body = source | {"to": {"keyring": "logs"}}
    assert "api-key-scope" in limited.ask("POST", "/kem/re-encrypt", body).text
    assert _key_of(_newest(tenant, "re-encrypt")) == ("logs", KEM, None)
    body = source | {"to": {"keyring": "reading", "algorithm": HYBRID}}
    response = tenant.ask("POST", "/kem/re-encrypt", body)
    assert refusal_of(response) == (403, "ERR_POLICY_001", "to")
    record = _newest(tenant, "re-encrypt")
    assert (record["outcome"], *_key_of(record)) == ("target-purpose-denied", "default", KEM, 1)


@pytest.mark.parametrize(
    ("method", "path", "fields", "field"),
    [
        ("POST", "/kem/encrypt", {"plaintext": PLAINTEXT, "keyring": "none"}, "keyring"),
        ("POST", "/kms/keys/generate", {"algorithm": KEM, "keyring": "none"}, "keyring"),
        ("GET", "/kms/keys", {"keyring": "none"}, "keyring"),
        ("GET", "/kms/jwks", {"keyring": "none"}, "keyring"),
        ("GET", "/kms/keyrings/none", {}, "name"),
        ("PATCH", "/kms/keyrings/none", {"description": ""}, "name"),
    ],
)
def test_no_such_keyring(
    tenant: Caller, method: str, path: str, fields: dict[str, object], field: str
) -> None:
    """An unknown keyring is reported with the field that named it."""
    body, query = (None, fields) if method == "GET" else (fields, None)
    response = tenant.ask(method, path, body, params=query)
    assert refusal_of(response) == (404, "ERR_NOT_FOUND_001", field)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("kyber768", "Kyber768"),
        ("Kyber-768", "Kyber768"),
        ("ML-KEM768", "ML-KEM-768"),
        ("Dilithum3", "Dilithium3"),
        ("RSA", None),
        ("x" * 5_000, None),
    ],
)
def test_a_misspelt_algorithm(tenant: Caller, asked: str, meant: str | None) -> None:
    """The error suggests the algorithm that was probably meant, and does not quote the input."""
    response = tenant.ask("POST", "/kms/keys/generate", {"algorithm": asked})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert ("did you mean" in message) is (meant is not None)
    assert meant is None or message.endswith(f"; did you mean {meant}?")
    assert asked not in message


def test_a_key_without_a_use(tenant: Caller) -> None:
    """A key is refused in a keyring if its algorithm serves none of the keyring's purposes."""
    wanted = {"algorithm": SIGNATURE, "keyring": "logs"}
    response = tenant.ask("POST", "/kms/keys/generate", wanted)
    assert refusal_of(response) == (403, "ERR_POLICY_001", "algorithm")
    assert "keyring-purposes" in response.json()["error"]["message"]
    assert _newest(tenant, "generate-key")["outcome"] == "no-purpose"
    tenant.post("/kms/keys/generate", {"algorithm": HYBRID, "keyring": "logs"}, status=201)
    again = tenant.ask(
        "POST", "/kms/keys/generate", {"algorithm": KEM, "keyring": "logs", "if_absent": True}
    )
    assert again.status_code == 200
