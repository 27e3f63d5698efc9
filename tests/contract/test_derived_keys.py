"""Derived keys over HTTP: the keyring decides whether a call has a context."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from tests.fixtures.caller import Caller

XAES, KEM = "XAES-256-GCM", "Kyber768"
DERIVED, PLAIN = "cards", "default"
TEXT = b64encode(b"4111 1111 1111 1").decode()
OURS, THEIRS = (b64encode(each).decode() for each in (b"customers/42", b"customers/43"))


@pytest.fixture(scope="module")
def caller(installation: Any) -> Caller:
    """Return a tenant with keys in the keyring ``default`` and in one of derived keys."""
    made: Caller = installation.new_tenant()
    created = made.post("/kms/keyrings", {"name": DERIVED, "derived": True}, status=201)
    assert (created["derived"], created["purposes"]) == (True, ["encrypt", "decrypt"])
    for algorithm in (XAES, KEM):
        for keyring in (DERIVED, PLAIN):
            key = {"algorithm": algorithm, "keyring": keyring}
            made.post("/kms/keys/generate", key, status=201)
    return made


@pytest.mark.parametrize("algorithm", [XAES, KEM])
def test_a_context_opens_only_its_own(algorithm: str, caller: Caller) -> None:
    """Encrypt, decrypt, envelopes, data keys, re-encryption and batches take the context."""
    key = {"algorithm": algorithm, "keyring": DERIVED}
    ours, theirs = {**key, "context": OURS}, {**key, "context": THEIRS}
    sealed = caller.post("/kem/encrypt", {**ours, "plaintext": TEXT})["ciphertext"]
    blob = {"ciphertext": sealed, "key_version": 1}
    assert caller.post("/kem/decrypt", {**ours, **blob})["plaintext"] == TEXT
    assert caller.refusal("/kem/decrypt", {**theirs, **blob}) == (400, "ERR_KEM_002", "ciphertext")
    envelope = {**ours, "plaintext": TEXT, "format": "envelope"}
    named = {"envelope": caller.post("/kem/encrypt", envelope)["envelope"]}
    assert caller.post("/kem/decrypt", {**named, "context": OURS})["plaintext"] == TEXT
    assert caller.refusal("/kem/decrypt", named) == (400, "ERR_INVALID_001", "context")
    moved = caller.post("/kem/re-encrypt", {**ours, **blob, "to": {"context": THEIRS}})
    opened = {"ciphertext": moved["ciphertext"], "key_version": 1}
    assert caller.post("/kem/decrypt", {**theirs, **opened})["plaintext"] == TEXT
    out = {**ours, **blob, "to": {"keyring": PLAIN, "context": ""}}
    plain = {"ciphertext": caller.post("/kem/re-encrypt", out)["ciphertext"], "key_version": 1}
    assert caller.post("/kem/decrypt", {"algorithm": algorithm, **plain})["plaintext"] == TEXT
    made = caller.post("/kem/data-key", {**ours, "format": "ciphertext"})
    data_key = {"ciphertext": made["ciphertext"], "key_version": 1}
    assert caller.post("/kem/decrypt", {**ours, **data_key})["plaintext"] == made["plaintext"]
    batch = {**key, "items": [{**blob, "context": OURS}, {**blob, "context": THEIRS}, blob]}
    results = caller.post("/kem/decrypt/batch", batch)["results"]
    assert results[0]["data"]["plaintext"] == TEXT
    assert [each["error"]["error_code"] for each in results[1:]] == [
        "ERR_KEM_002",
        "ERR_INVALID_001",
    ]


@pytest.mark.parametrize(("keyring", "context"), [(DERIVED, ""), (PLAIN, OURS)])
def test_a_missing_or_superfluous_context_is_refused(
    keyring: str, context: str, caller: Caller
) -> None:
    """Each operation names the field of a missing context, and the log has the reason."""
    key = {"algorithm": XAES, "keyring": keyring, "context": context}
    blob = {"ciphertext": b64encode(bytes(60)).decode(), "key_version": 1}
    for path, body in (
        ("/kem/encrypt", {"plaintext": TEXT}),
        ("/kem/decrypt", blob),
        ("/kem/data-key", {"format": "ciphertext"}),
        ("/kem/re-encrypt", blob),
    ):
        refused = caller.refusal(path, {**key, **body})
        assert refused[:2] == (400, "ERR_INVALID_001"), path
        assert refused[2] == ("context" if context else None) or not context, path
    newest = caller.get(
        "/audit/records", outcome="context-refused" if context else "context-required"
    )
    assert {each["operation"] for each in newest["records"]} >= {"encrypt", "decrypt"}


def test_derived_is_a_choice_for_good(caller: Caller) -> None:
    """Other purposes are refused at creation and later, and so is a context elsewhere."""
    signing = {"name": "signing", "derived": True, "purposes": ["sign"]}
    assert caller.refusal("/kms/keyrings", signing) == (400, "ERR_INVALID_001", "purposes")
    change = caller.ask("PATCH", f"/kms/keyrings/{DERIVED}", {"purposes": ["sign", "verify"]})
    assert change.status_code == 403
    change = caller.ask("PATCH", f"/kms/keyrings/{DERIVED}", {"derived": False})
    assert change.status_code == 400
    listed = {each["name"]: each["derived"] for each in caller.get("/kms/keyrings")["keyrings"]}
    assert (listed[DERIVED], listed[PLAIN]) == (True, False)
    wrapped = {"algorithm": XAES, "keyring": DERIVED, "context": OURS, "format": "wrapped_key"}
    assert caller.refusal("/kem/data-key", wrapped) == (400, "ERR_KEM_010", "format")
    public_key = caller.get("/kms/keys/active", algorithm=KEM)["public_key"]
    supplied = {"algorithm": KEM, "plaintext": TEXT, "public_key": public_key, "context": OURS}
    assert caller.refusal("/kem/encrypt", supplied) == (400, "ERR_KEM_001", "context")
    long = {"algorithm": XAES, "plaintext": TEXT, "context": b64encode(bytes(4097)).decode()}
    assert caller.refusal("/kem/encrypt", {**long, "keyring": DERIVED}) == (
        400,
        "ERR_KEM_001",
        "context",
    )
