"""Passkeys over HTTP: the whole way with an authenticator in software, and its refusals."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.fixtures.authenticator import Authenticator, in_json
from tests.fixtures.caller import Caller, client_of, refusal_of
from tests.fixtures.installation import Installation

NOT_ACCEPTED = (401, "ERR_AUTH_001", None)


def _authenticator(installation: Installation, person: Caller) -> Authenticator:
    port = urlsplit(installation.base_url).port
    handle = b64decode(person.post_proven("/auth/passkeys/begin")["user_id"])
    return Authenticator("localhost", f"http://localhost:{port}", handle, counter=1)


def _add(person: Caller, device: Authenticator, proof: dict[str, Any]) -> dict[str, Any]:
    token = person.post("/auth/step-up", proof)["step_up_token"]
    begun = person.ask("POST", "/auth/passkeys/begin", {}, headers={"X-Step-Up-Token": token})
    made = device.make(b64decode(begun.json()["data"]["challenge"]))
    return person.post("/auth/passkeys", in_json(made), status=201)


def _used(caller: Caller, device: Authenticator, path: str = "begin-sign-in") -> dict[str, Any]:
    begun = caller.post(f"/auth/passkeys/{path}")
    return in_json(device.use(b64decode(begun["challenge"])))


def _proof(caller: Caller, device: Authenticator) -> dict[str, str]:
    used = _used(caller, device, "begin-step-up")
    return {"X-Step-Up-Token": caller.post("/auth/step-up", used)["step_up_token"]}


@pytest.mark.threat("stolen-passkey")
def test_from_the_first_passkey_to_its_removal(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    password: str,
) -> None:
    """A passkey is added, signs in, steps up, is renamed and removed; each false step is refused."""
    tenant = new_tenant()
    person, other = new_person(tenant.tenant_id), new_person(tenant.tenant_id)
    email = person.get("/auth/me")["email"]
    device = _authenticator(installation, person)
    assert refusal_of(person.ask("POST", "/auth/passkeys/begin", {}))[1] == "ERR_MFA_013"
    added = _add(person, device, {"password": password})
    assert len(added["recovery_codes"]) == 10
    assert person.get("/auth/me")["passkeys"] == 1
    assert person.get("/auth/step-up-methods")["methods"] == ["passkey"]

    with client_of(installation.base_url, None) as client:
        browser = Caller(client, tenant.tenant_id)
        login = {"email": email, "password": password}
        error = browser.ask("POST", "/auth/login", login).json()["error"]
        assert (error["error_code"], error["second_factor"]) == ("ERR_AUTH_MFA_001", "passkey")
        used = _used(browser, device)
        browser.post("/auth/passkeys/sign-in", used)
        assert browser.refusal("/auth/passkeys/sign-in", used) == NOT_ACCEPTED
        assert browser.get("/auth/me")["email"] == email
        used = _used(browser, device)
        browser.client.cookies.clear()
        assert browser.refusal("/auth/passkeys/sign-in", used) == NOT_ACCEPTED
        strange = in_json(_authenticator(installation, other).use(bytes(56)))
        assert browser.refusal("/auth/passkeys/sign-in", strange) == NOT_ACCEPTED

    path = f"/auth/passkeys/{added['id']}"
    for method, body in (("PATCH", {"name": "Work laptop"}), ("DELETE", None)):
        assert refusal_of(person.ask(method, path, body))[1] == "ERR_MFA_013"
        assert other.ask_proven(method, path, body).status_code == 404
        answer = person.ask(method, path, body, headers=_proof(person, device))
        assert answer.is_success, answer.text
        assert person.get("/auth/passkeys")["total"] == (0 if method == "DELETE" else 1)
    operations = {
        record["operation"] for record in tenant.get("/audit/records", limit=100)["records"]
    }
    assert {"add-passkey", "sign-in-with-passkey", "remove-passkey"} <= operations


def test_a_step_up_refuses_what_signs_in(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    password: str,
) -> None:
    """The challenge of a sign-in, a cloned counter and the password do not step up."""
    person = new_person(new_tenant().tenant_id)
    device = _authenticator(installation, person)
    _add(person, device, {"password": password})
    wrong = (401, "ERR_MFA_001", None)
    assert person.refusal("/auth/step-up", _used(person, device)) == wrong
    assert _proof(person, device)
    device.counter -= 1
    assert person.refusal("/auth/step-up", _used(person, device, "begin-step-up")) == wrong
    assert person.refusal("/auth/step-up", {"password": password})[2] == "totp_code"
    assert person.refusal("/auth/step-up", {"credential_id": "AAAA"})[2] == "client_data"
