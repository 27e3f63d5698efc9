"""The proof that each sensitive operation needs. Forms are checked before the proof."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from pyotp import TOTP
from tests.contract.sensitive_requests import (
    KEY,
    NEW_PASSWORD,
    OF_PASSKEY,
    ROWS,
    Prepared,
    Request,
    prepare,
)
from tests.fixtures.caller import API, PASSWORD, Caller, refusal_of
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.sampling import step

from pqkeep_gateway.access.callers import COVERED_BY_PROOF
from pqkeep_gateway.http.cookies import ACCESS, Cookies

PROOF = Cookies(secure=False).proof
STEP_UP = "ERR_MFA_013"
DESTROYING = {
    "create_keyring",
    "archive_key",
    "delete_keyring",
    "begin_canary",
    "approve_request",
}
"""Operations that destroy private keys."""
CREDENTIALS = {
    "change_password",
    "change_me",
    "enroll_mfa",
    "begin_passkey",
    "remove_passkey",
    "change_organization",
    "create_api_key",
    "rotate_api_key",
    "create_webhook",
    "change_webhook",
    "rotate_webhook_secret",
    "put_workload_issuer",
    "put_workload_role",
}
"""Operations that change credentials and factors, or return a credential that outlasts the session."""

REMOVALS = {
    *("change_password", "delete_keyring", "delete_rule", "remove_member"),
    *("cancel_subscription", "remove_webhook", "revoke_api_key"),
    "remove_workload_issuer",
}
"""Operations that follow other operations on the same object or session."""
RULES = {"put_rule", "put_rules", "delete_rule"}
"""Operations that only an operator can undo."""


def _send(
    caller: Caller, request: Request, *, proof: str | None = None, token: str | None = None
) -> httpx2.Response:
    """Send a request with a session's access cookie and the given headers only."""
    cookies = {ACCESS: caller.client.cookies[ACCESS]}
    if proof is not None:
        cookies[PROOF] = proof
    headers = {} if token is None else {"X-Step-Up-Token": token}
    with httpx2.Client(
        base_url=caller.client.base_url, trust_env=False, timeout=PATIENCE
    ) as client:
        return client.request(
            request.method,
            API + request.path,
            json=request.body,
            headers={**headers, "Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())},
        )


def _is_asked(response: httpx2.Response) -> bool:
    """Return True if a response asks for a step-up."""
    assert response.status_code < 500, response.text
    return not response.is_success and response.json()["error"]["error_code"] == STEP_UP


def _prove(caller: Caller, *, for_session: bool = True) -> tuple[str, str | None]:
    """Step up; return the token, and the cookie's proof if there is one."""
    fields = {"password": PASSWORD, "for_session": for_session}
    response = caller.ask("POST", "/auth/step-up", fields)
    proof = response.cookies.get(PROOF)
    caller.client.cookies.delete(PROOF) if proof else None
    return response.json()["data"]["step_up_token"], proof


def _proof(caller: Caller) -> str:
    proof = _prove(caller)[1]
    assert proof is not None
    return proof


@pytest.fixture
def prepared(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Prepared:
    """An owner with objects to change."""
    return prepare(new_tenant, new_person)


def test_every_sensitive_operation_has_its_place() -> None:
    """Destroying and changing credentials and factors needs a token; a proof covers the rest."""
    placed = COVERED_BY_PROOF | DESTROYING | CREDENTIALS | RULES
    assert ROWS.keys() | OF_PASSKEY == placed
    assert not COVERED_BY_PROOF & (DESTROYING | CREDENTIALS | RULES)


def test_a_keyring_whose_keys_are_archived_takes_a_token(prepared: Prepared) -> None:
    """A proof covers changes of a keyring, except destroying its keys by age."""
    owner = prepared.owner
    proof = _proof(owner)
    plain = Request("PATCH", "/kms/keyrings/payments", {"rotation_days": 30})
    destroying = Request("PATCH", "/kms/keyrings/payments", {"archive_after_days": 30})
    assert _send(owner, plain, proof=proof).status_code == 200
    assert _is_asked(_send(owner, destroying, proof=proof))


@pytest.mark.threat("stolen-access-cookie")
def test_without_a_proof_of_this_session_nothing_is_done(
    prepared: Prepared, new_person: Callable[..., Caller], installation: Installation
) -> None:
    """A proof from another session or person, an expired proof, and a missing proof have no effect.

    Of seven wrong proofs, an operation is tested with two or three.
    """
    owner = prepared.owner
    email = owner.get("/auth/me")["email"]
    second, ended = installation.caller(None), installation.caller(None)
    for session in (second, ended):
        session.post("/auth/login", {"email": email, "password": PASSWORD})
    over = _proof(ended)
    ended.post("/auth/logout")
    colleague = new_person(owner.tenant_id)
    token = _prove(colleague)[0]
    wrong = {
        "none": {},
        "another session's": {"proof": _proof(second)},
        "another person's": {"proof": _proof(colleague)},
        "of a session that ended": {"proof": over},
        "made up": {"proof": "pqd_" + "0" * 49},
        "another person's token": {"token": token},
        "with a wrong token beside it": {"proof": _proof(owner), "token": "pqu_"},
    }
    turns = step(3)
    for place, name in enumerate(ROWS):
        request = prepared.request(name)
        for what, given in list(wrong.items())[place % turns :: turns]:
            assert _is_asked(_send(owner, request, **given)), (name, what)
    assert owner.get("/auth/me")["email"] == email
    assert owner.get("/team/invitations")["total"] == 0


def test_a_proof_covers_what_the_table_says(prepared: Prepared) -> None:
    """A session's proof allows the operations that it covers.

    All other operations ask for a token.
    """
    owner = prepared.owner
    proof = _proof(owner)
    for name in ROWS.keys() - COVERED_BY_PROOF:
        assert _is_asked(_send(owner, prepared.request(name), proof=proof)), name
    covered = COVERED_BY_PROOF & ROWS.keys()
    for name in sorted(covered, key=lambda name: (name in REMOVALS, name)):
        response = _send(owner, prepared.request(name), proof=proof)
        assert response.is_success or name == "import_key", (name, response.text)


@pytest.mark.parametrize("third", [0, 1, 2])
def test_a_token_is_enough_for_what_no_proof_covers(prepared: Prepared, third: int) -> None:
    """Each operation that needs a token succeeds with one."""
    owner = prepared.owner
    names = sorted(ROWS.keys() - COVERED_BY_PROOF, key=lambda name: (name in REMOVALS, name))
    for name in names[third::3]:
        token = _prove(owner, for_session=False)[0]
        response = _send(owner, prepared.request(name), token=token)
        assert response.is_success, (name, response.text)


def test_what_is_there_is_told_before_a_proof(prepared: Prepared) -> None:
    """A taken keyring name, and an import beside an active key, are refused without a proof."""
    owner = prepared.owner
    taken = {"name": "payments", "archive_after_days": 30}
    response = _send(owner, Request("POST", "/kms/keyrings", taken))
    assert refusal_of(response) == (409, "ERR_CONFLICT_001", "name")
    wrapped = {"import_key_id": str(uuid.uuid4()), "wrapped_private_key": "AAAA"}
    response = _send(owner, Request("POST", "/kms/keys/import", KEY | wrapped))
    assert refusal_of(response) == (400, "ERR_INVALID_001", "algorithm")
    free = {"name": "free", "archive_after_days": 30}
    assert _is_asked(_send(owner, Request("POST", "/kms/keyrings", free)))
    other = {**KEY, "algorithm": "X-Wing"} | wrapped
    response = _send(owner, Request("POST", "/kms/keys/import", other))
    assert _is_asked(response), response.text


def test_a_rehearsal_s_look_ups_say_what_they_are(prepared: Prepared) -> None:
    """Look-ups before a proof have the policy "rehearsal" in the audit log."""
    owner, found = prepared.owner, set()
    for name in ROWS:
        assert _is_asked(_send(owner, prepared.request(name)))
    for record in owner.get("/audit/records", limit=100)["records"]:
        if record["operation"] in {"get-active-key", "get-key", "get-keyring"}:
            found.add((record["operation"], record["policy"]))
    assert found == {
        ("get-active-key", "rehearsal"),
        ("get-key", "rehearsal"),
        ("get-keyring", "rehearsal"),
    }


def test_a_token_leaves_no_cookie_unless_it_is_asked_for(prepared: Prepared) -> None:
    """The single-use token works once, as specified. It sets a cookie only on request."""
    owner = prepared.owner
    token, proof = _prove(owner, for_session=False)
    assert proof is None
    rotate = Request("POST", "/kms/keys/rotate", KEY)
    assert _send(owner, rotate, token=token).status_code == 201
    assert _is_asked(_send(owner, rotate, token=token))
    assert _is_asked(_send(owner, rotate))
    token, proof = _prove(owner)
    assert _send(owner, rotate, token=token).status_code == 201
    assert _is_asked(_send(owner, rotate, token=token, proof=proof))


def test_the_cookie_is_this_hosts_and_no_scripts(prepared: Prepared, closed: Installation) -> None:
    """The cookie is HttpOnly, SameSite=Strict, host-only and valid for 300 s; over TLS it is __Host-."""
    secure = closed.person(closed.new_tenant().tenant_id)
    access = {"Cookie": secure.session_cookies}
    body = {"password": PASSWORD, "for_session": True}
    for caller, name, last in (
        (prepared.owner, PROOF, "SameSite=Strict"),
        (secure, f"__Host-{PROOF}", "Secure"),
    ):
        headers = access if caller is secure else {}
        response = caller.ask("POST", "/auth/step-up", body, headers=headers)
        (cookie,) = response.headers.get_list("set-cookie")
        shown, *attributes = cookie.split("; ")
        assert shown.startswith(f"{name}=pqd_")
        assert {"Path=/", "Max-Age=300", "HttpOnly", "SameSite=Strict"} <= set(attributes)
        assert attributes[-1] == last
        assert "domain" not in cookie.lower()


def test_many_at_once_under_one_proof_are_all_done(prepared: Prepared) -> None:
    """Concurrent requests share a session's proof."""
    owner = prepared.owner
    proof = _proof(owner)

    def invite(number: int) -> int:
        body = {"email": f"{number}@example.com", "role": "viewer"}
        path = f"/tenants/{owner.tenant_id}/invitations"
        return _send(owner, Request("POST", path, body), proof=proof).status_code

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(invite, range(8))) == [201] * 8
    assert owner.get("/team/invitations")["total"] == 8


def test_a_change_of_role_ends_a_proof(
    prepared: Prepared, new_person: Callable[..., Caller]
) -> None:
    """A change of role ends the person's proof."""
    owner, other = prepared.owner, new_person(prepared.owner.tenant_id)
    proof = _proof(other)
    me = other.get("/auth/me")["id"]
    rotate = Request("POST", "/kms/keys/rotate", KEY)
    assert _send(other, rotate, proof=proof).status_code == 201
    owner.ask_proven("PATCH", f"/team/members/{me}", {"role": "admin"})
    assert _is_asked(_send(other, rotate, proof=proof))
    owner.ask_proven("DELETE", f"/team/members/{me}")
    assert _send(other, rotate, proof=proof).status_code == 401


def _mistakes(prepared: Prepared) -> Iterator[tuple[Request, tuple[int, str, str | None]]]:
    """Yield requests that cannot succeed, with their errors."""
    owner = prepared.owner
    tenant = f"/tenants/{owner.tenant_id}"
    me = owner.get("/auth/me")["id"]
    nobody = "00000000-0000-4000-8000-000000000000"
    invalid, missing, conflict = "ERR_INVALID_001", "ERR_NOT_FOUND_001", "ERR_CONFLICT_001"
    yield (
        Request("POST", f"{tenant}/invitations", {"email": "nobody", "role": "viewer"}),
        (422, invalid, "email"),
    )
    yield (
        Request("POST", f"{tenant}/invitations", {"email": "a@example.com", "role": "king"}),
        (422, invalid, "role"),
    )
    email = owner.get("/auth/me")["email"]
    yield (
        Request("POST", f"{tenant}/invitations", {"email": email, "role": "viewer"}),
        (409, conflict, "email"),
    )
    yield Request("PATCH", f"/team/members/{nobody}", {"role": "viewer"}), (404, missing, "id")
    yield Request("DELETE", f"/team/members/{nobody}"), (404, missing, "id")
    yield Request("DELETE", f"/team/members/{me}"), (409, conflict, None)
    yield Request("PATCH", f"/team/members/{me}", {"role": "viewer"}), (409, conflict, None)
    yield (
        Request("POST", "/auth/change-password", {"new_password": "short"}),
        (422, invalid, "new_password"),
    )
    yield (
        Request("POST", "/auth/change-password", {"new_password": "password1234"}),
        (422, invalid, "new_password"),
    )
    yield Request("PATCH", "/auth/organization", {"require_mfa": True}), (403, "ERR_MFA_011", None)
    yield (
        Request("POST", "/kms/keys/rotate", {"algorithm": "Dilithium3"}),
        (404, missing, None),
    )
    yield Request("POST", "/kms/keys/rotate", {"algorithm": "RSA"}), (400, invalid, "algorithm")
    yield (
        Request("POST", "/kms/keys/archive", {**KEY, "key_version": 2}),
        (400, invalid, "key_version"),
    )
    yield Request("POST", "/kms/keys/archive", {**KEY, "key_version": 9}), (404, missing, None)
    yield (
        Request("POST", "/kms/keys/archive", {**KEY, "key_version": 1, "delay_days": 99}),
        (400, invalid, "delay_days"),
    )
    yield (
        Request("PATCH", "/kms/keyrings/absent", {"description": "x"}),
        (404, missing, "name"),
    )
    yield (
        Request("POST", f"{tenant}/api-keys", {"expires_at": "2020-01-01T00:00:00Z"}),
        (400, invalid, "expires_at"),
    )
    yield Request("POST", f"{tenant}/api-keys", {"nmae": "x"}), (400, invalid, "nmae")
    yield Request("POST", f"{tenant}/api-keys/rotate", {"key_id": "9"}), (404, missing, "key_id")
    yield Request("DELETE", f"{tenant}/api-keys/9"), (404, missing, "version")
    yield (
        Request("POST", "/billing/subscriptions/checkout", {"tier": "gold"}),
        (422, invalid, "tier"),
    )
    yield Request("POST", "/billing/subscriptions/cancel"), (409, conflict, None)


def test_a_mistake_is_told_before_a_proof_is_asked(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """Fields, plan and conflicts are checked before a proof; with a token the error is the same."""
    prepared = prepare(new_tenant, new_person, "starter", buys=False)
    owner = prepared.owner
    token = _prove(owner, for_session=False)[0]
    for request, refusal in _mistakes(prepared):
        for given in (None, "pqu_", token):
            assert refusal_of(_send(owner, request, token=given)) == refusal, request


def test_checking_changes_and_counts_nothing(prepared: Prepared) -> None:
    """Requests without a proof change nothing, any number of times, and can succeed later."""
    owner = prepared.owner
    invite = prepared.request("invite")
    for _ in range(12):  # more than an address may be invited to
        assert _is_asked(_send(owner, invite))
    for name in ROWS:
        assert _is_asked(_send(owner, prepared.request(name)))
    assert owner.get("/team/invitations")["total"] == 0
    assert owner.get("/kms/keys")["total"] == 2
    assert owner.get(f"/tenants/{owner.tenant_id}/api-keys")["total"] == 1
    assert owner.get("/billing/subscription")["tier"] == "starter"
    assert _send(owner, invite, token=_prove(owner)[0]).status_code == 201
    email = owner.get("/auth/me")["email"]
    owner.post("/auth/login", {"email": email, "password": PASSWORD})
    assert owner.refusal("/auth/login", {"email": email, "password": NEW_PASSWORD})[0] == 401


def test_a_code_that_was_used_says_when_the_next_one_works(prepared: Prepared) -> None:
    """A used code is 401 with the seconds to wait, and is not a wrong guess."""
    owner = prepared.owner
    totp = TOTP(owner.post_proven("/auth/mfa/enroll")["secret"])
    owner.confirm_authenticator(totp)
    code = {"totp_code": totp.now()}
    owner.post("/auth/step-up", code)
    for _ in range(15):
        again = owner.ask("POST", "/auth/step-up", code)
        assert refusal_of(again) == (401, "ERR_MFA_001", "totp_code")
        assert 1 <= int(again.headers["retry-after"]) <= 60
        assert again.headers["retry-after"] in again.json()["error"]["message"]
    wrong = owner.ask("POST", "/auth/step-up", {"totp_code": "000000"})
    assert refusal_of(wrong) == (401, "ERR_MFA_001", "totp_code")
    assert "retry-after" not in wrong.headers
    owner.post("/auth/step-up", {"totp_code": totp.at(int(time.time()) + totp.interval)})
