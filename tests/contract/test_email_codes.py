"""E-mail codes over HTTP: recipients, use, and limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from pyotp import TOTP
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

WRONG = (401, "ERR_MFA_001", "email_code")
OVER = (401, "ERR_AUTH_001", "challenge_token")
RIVALS = 32


@pytest.fixture
def person(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller], password: str
) -> Caller:
    """A person with codes by e-mail."""
    made = new_person(new_tenant().tenant_id)
    assert _choose(made, password, wanted=True)["email_codes"] is True
    return made


@pytest.fixture
def email(person: Caller) -> str:
    """Their address."""
    found: str = person.get("/auth/me")["email"]
    return found


@pytest.fixture
def stranger(installation: Installation) -> Caller:
    """A client without a credential, with its own cookies."""
    return installation.caller(None)


@pytest.fixture
def challenge(stranger: Caller, email: str, password: str) -> str:
    """The challenge after that person's password."""
    token, factor = _challenge(stranger, email, password)
    assert factor == "email"
    return token


def _choose(person: Caller, password: str, *, wanted: bool) -> dict[str, object]:
    step_up = person.post("/auth/step-up", {"password": password})["step_up_token"]
    headers = {"X-Step-Up-Token": step_up}
    response = person.ask("PATCH", "/auth/me", {"email_codes": wanted}, headers=headers)
    assert response.status_code == 200, response.text
    data: dict[str, object] = response.json()["data"]
    return data


def _challenge(stranger: Caller, email: str, password: str) -> tuple[str, str]:
    response = stranger.ask("POST", "/auth/login", {"email": email, "password": password})
    error = response.json()["error"]
    assert (response.status_code, error["error_code"]) == (401, "ERR_AUTH_MFA_001")
    return error["challenge_token"], error["second_factor"]


def _send(stranger: Caller, challenge: str) -> None:
    sent = stranger.post("/auth/mfa/email", {"challenge_token": challenge}, status=202)
    assert sent == {"accepted": True}


def _enroll(person: Caller) -> TOTP:
    totp = TOTP(person.post_proven("/auth/mfa/enroll")["secret"])
    person.confirm_authenticator(totp)
    return totp


def _other(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06}"


def test_a_code_finishes_the_sign_in_once(
    installation: Installation, stranger: Caller, person: Caller, email: str, challenge: str
) -> None:
    """A code finishes one sign-in only."""
    _send(stranger, challenge)
    fields = {"challenge_token": challenge, "email_code": installation.mailbox.code(email)}
    stranger.post("/auth/mfa/verify", fields)
    assert stranger.get("/auth/me") == person.get("/auth/me")
    assert stranger.refusal("/auth/mfa/verify", fields) == OVER


def test_without_a_code_nobody_gets_in(stranger: Caller, challenge: str) -> None:
    """Before a code is sent, and with a code of another kind, the sign-in is 401."""
    fields = {"challenge_token": challenge, "email_code": "000000"}
    assert stranger.refusal("/auth/mfa/verify", fields) == WRONG
    for kind in ("totp_code", "recovery_code"):
        refusal = stranger.refusal(
            "/auth/mfa/verify", {"challenge_token": challenge, kind: "000000"}
        )
        assert refusal == OVER


def test_of_many_at_once_one_gets_in(
    installation: Installation, stranger: Caller, email: str, challenge: str
) -> None:
    """Of 32 concurrent uses of one code exactly one begins a session."""
    _send(stranger, challenge)
    fields = {"challenge_token": challenge, "email_code": installation.mailbox.code(email)}

    def verify(_: int) -> int:
        return installation.caller(None).ask("POST", "/auth/mfa/verify", fields).status_code

    with ThreadPoolExecutor(RIVALS) as threads:
        statuses = list(threads.map(verify, range(RIVALS)))
    assert statuses.count(200) == 1
    assert set(statuses) <= {200, 401, 429}


def test_after_five_wrong_codes_the_right_one_is_wrong(
    installation: Installation, stranger: Caller, email: str, challenge: str
) -> None:
    """Five wrong codes end a code; a new code works."""
    _send(stranger, challenge)
    code = installation.mailbox.code(email)
    fields = {"challenge_token": challenge, "email_code": _other(code)}
    for _ in range(5):
        assert stranger.refusal("/auth/mfa/verify", fields) == WRONG
    assert stranger.refusal("/auth/mfa/verify", {**fields, "email_code": code}) == WRONG
    _send(stranger, challenge)
    stranger.post("/auth/mfa/verify", {**fields, "email_code": installation.mailbox.code(email, 2)})


def test_guesses_are_counted(
    installation: Installation, stranger: Caller, email: str, challenge: str
) -> None:
    """The eleventh try within 15 minutes is 429, with any number of codes."""
    _send(stranger, challenge)
    fields = {"challenge_token": challenge, "email_code": _other(installation.mailbox.code(email))}
    responses = [stranger.ask("POST", "/auth/mfa/verify", fields) for _ in range(11)]
    assert [each.status_code for each in responses] == [401] * 10 + [429]


def test_a_new_code_ends_the_one_before(
    installation: Installation, stranger: Caller, email: str, challenge: str
) -> None:
    """A new code replaces the one before."""
    _send(stranger, challenge)
    first = installation.mailbox.code(email)
    _send(stranger, challenge)
    second = installation.mailbox.code(email, 2)
    fields = {"challenge_token": challenge, "email_code": first}
    if first != second:
        assert stranger.refusal("/auth/mfa/verify", fields) == WRONG
    stranger.post("/auth/mfa/verify", {**fields, "email_code": second})


def test_a_code_is_its_challenge_s(
    installation: Installation, stranger: Caller, email: str, challenge: str, password: str
) -> None:
    """A code of one sign-in is refused at another."""
    _send(stranger, challenge)
    code = installation.mailbox.code(email)
    other, _ = _challenge(stranger, email, password)
    refusal = stranger.refusal("/auth/mfa/verify", {"challenge_token": other, "email_code": code})
    assert refusal == WRONG
    refusal = stranger.refusal(
        "/auth/mfa/verify", {"challenge_token": challenge, "email_code": code}
    )
    assert refusal == OVER


def test_codes_are_counted(stranger: Caller, challenge: str) -> None:
    """The sixth code within 15 minutes is 429."""
    fields = {"challenge_token": challenge}
    responses = [stranger.ask("POST", "/auth/mfa/email", fields) for _ in range(6)]
    assert [each.status_code for each in responses] == [202] * 5 + [429]
    assert int(responses[-1].headers["retry-after"]) > 0


def test_an_app_is_not_left_out(
    *,
    installation: Installation,
    person: Caller,
    stranger: Caller,
    email: str,
    challenge: str,
    password: str,
) -> None:
    """A person with an authenticator app gets no code by e-mail, and an earlier code is refused."""
    _send(stranger, challenge)
    code = installation.mailbox.code(email)
    totp = _enroll(person)
    fields = {"challenge_token": challenge, "email_code": code}
    assert stranger.refusal("/auth/mfa/verify", fields) == WRONG
    conflict = (409, "ERR_CONFLICT_001", None)
    assert stranger.refusal("/auth/mfa/email", {"challenge_token": challenge}) == conflict
    token, factor = _challenge(stranger, email, password)
    assert factor == "app"
    assert stranger.refusal("/auth/mfa/email", {"challenge_token": token}) == conflict
    fields = {"challenge_token": token, "totp_code": totp.at(int(time.time()) + 30)}
    stranger.post("/auth/mfa/verify", fields)


def test_a_code_is_enough_where_a_second_factor_is_required(
    *,
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    stranger: Caller,
    password: str,
) -> None:
    """If the organization requires a second factor, a person without an app signs in by a code."""
    owner = new_person(new_tenant().tenant_id)
    other = new_person(owner.tenant_id)
    email = other.get("/auth/me")["email"]
    owner.ask_proven("PATCH", "/auth/organization", {"require_mfa": True})
    assert other.ask("GET", "/kms/keys").status_code == 401  # signed in without
    token, factor = _challenge(stranger, email, password)
    assert factor == "email"
    _send(stranger, token)
    fields = {"challenge_token": token, "email_code": installation.mailbox.code(email)}
    stranger.post("/auth/mfa/verify", fields)
    stranger.get("/kms/keys")
    stranger.post("/auth/refresh")
    stranger.get("/kms/keys")


def test_codes_can_be_given_up(
    installation: Installation, person: Caller, stranger: Caller, email: str, password: str
) -> None:
    """A person can switch codes off; each change of this choice sends an e-mail."""
    assert _choose(person, password, wanted=False)["email_codes"] is False
    stranger.post("/auth/login", {"email": email, "password": password})
    installation.mailbox.messages(email, "second-factor-added")
    installation.mailbox.messages(email, "second-factor-removed")


def test_the_choice_needs_a_step_up(person: Caller, refused: Refused) -> None:
    """Without a step-up, a session cannot change this choice."""
    response = person.ask("PATCH", "/auth/me", {"email_codes": False})
    assert refused(response) == (401, "ERR_MFA_013", None)
    assert person.get("/auth/me")["email_codes"] is True


@pytest.mark.parametrize("value", [None, "yes", 1])
def test_what_is_no_choice(person: Caller, password: str, refused: Refused, value: object) -> None:
    """A value other than true or false is 422."""
    step_up = person.post("/auth/step-up", {"password": password})["step_up_token"]
    headers = {"X-Step-Up-Token": step_up}
    response = person.ask("PATCH", "/auth/me", {"email_codes": value}, headers=headers)
    assert refused(response) == (422, "ERR_INVALID_001", "email_codes")


def test_challenges_that_are_none(stranger: Caller) -> None:
    """An unknown challenge token gives 401, and a challenge token that is not text gives 422."""
    assert stranger.refusal("/auth/mfa/email", {"challenge_token": "pqc_"}) == OVER
    fields = {"challenge_token": "pqc_", "email_code": "123456"}
    assert stranger.refusal("/auth/mfa/verify", fields) == OVER
    refusal = stranger.refusal("/auth/mfa/email", {"challenge_token": 7})
    assert refusal == (422, "ERR_INVALID_001", "challenge_token")


def test_what_happens_to_an_account_is_told(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """A new app, a used recovery code and a removed app each send an e-mail."""
    person = new_person(new_tenant().tenant_id)
    email = person.get("/auth/me")["email"]
    totp = TOTP(person.post_proven("/auth/mfa/enroll")["secret"])
    codes = person.confirm_authenticator(totp)
    person.post("/auth/mfa/disable", {"recovery_code": codes[0]})
    for kind in ("second-factor-added", "recovery-code-used", "second-factor-removed"):
        installation.mailbox.messages(email, kind)


def test_an_invitation_is_an_e_mail_too(
    installation: Installation,
    operator: Caller,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    stranger: Caller,
    password: str,
) -> None:
    """The invited person gets the token and sees the inviting person."""
    owner = new_person(new_tenant().tenant_id)
    email = f"invited-{owner.tenant_id}@example.com"
    path = f"/tenants/{owner.tenant_id}/invitations"
    owner.post_proven(path, {"email": email, "role": "viewer"}, status=201)
    (mail,) = installation.mailbox.messages(email, "invitation")
    assert mail.get_content().startswith(owner.get("/auth/me")["email"])
    token = installation.mailbox.token(email, "invitation")
    fields = {"token": token, "password": password}
    stranger.post("/auth/accept-invitation", fields, status=201)


def test_invitations_are_counted(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller], operator: Caller
) -> None:
    """A person's sixth invitation to one address within 15 minutes is 429; the operator has no limit."""
    owner = new_person(new_tenant().tenant_id)
    path = f"/tenants/{owner.tenant_id}/invitations"
    body = {"email": f"flooded-{owner.tenant_id}@example.com", "role": "viewer"}
    statuses = [owner.ask_proven("POST", path, body).status_code for _ in range(6)]
    assert statuses == [201] * 5 + [429]
    operator.post(path, body, status=201)
