"""Forgotten passwords over HTTP: the e-mailed token sets one new password, and nothing else."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from pyotp import TOTP
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

NEW = "the horse is tired of oats"
OVER = (401, "ERR_AUTH_001", "token")
RIVALS = 16


@pytest.fixture
def owner(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Caller:
    """The owner of a new tenant."""
    return new_person(new_tenant().tenant_id)


@pytest.fixture
def email(owner: Caller) -> str:
    """The owner's address."""
    found: str = owner.get("/auth/me")["email"]
    return found


@pytest.fixture
def stranger(installation: Installation) -> Caller:
    """A client without a credential, with its own cookies."""
    return installation.caller(None)


@pytest.fixture
def token(installation: Installation, stranger: Caller, email: str) -> str:
    """The token in an e-mail to an owner with a forgotten password."""
    stranger.post("/auth/forgot-password", {"email": email}, status=202)
    return installation.mailbox.token(email, "password-reset")


def test_an_e_mail_leads_to_a_new_password(
    *,
    installation: Installation,
    owner: Caller,
    stranger: Caller,
    email: str,
    token: str,
    password: str,
    refused: Refused,
) -> None:
    """A reset ends all sessions without a new one. Only the new password works."""
    fields = {"token": token, "new_password": NEW}
    assert stranger.post("/auth/reset-password", fields) == {"signed_out": True}
    assert not stranger.client.cookies
    assert refused(owner.ask("GET", "/auth/me"))[0] == 401
    assert stranger.refusal("/auth/login", {"email": email, "password": password})[0] == 401
    stranger.post("/auth/login", {"email": email, "password": NEW})
    assert stranger.refusal("/auth/reset-password", fields) == OVER
    installation.mailbox.messages(email, "password-changed")


def test_who_is_unknown_hears_the_same(
    *, installation: Installation, owner: Caller, stranger: Caller, email: str
) -> None:
    """An unknown address gets the same response as a known one, and no e-mail.

    E-mail is sent in order, so a later e-mail proves that there was none.
    """
    unknown = f"{uuid.uuid4()}@example.com"
    responses = [
        stranger.ask("POST", "/auth/forgot-password", {"email": each}) for each in (unknown, email)
    ]
    assert [each.status_code for each in responses] == [202, 202]
    assert responses[0].json()["data"] == responses[1].json()["data"] == {"accepted": True}
    installation.mailbox.messages(email, "password-reset")
    later = {"email": f"{uuid.uuid4()}@example.com", "role": "viewer"}
    installation.operator().post(f"/tenants/{owner.tenant_id}/invitations", later, status=201)
    installation.mailbox.messages(later["email"], "invitation")
    assert installation.mailbox.messages_so_far(unknown) == []


def test_an_address_in_capitals_is_the_same(
    installation: Installation, stranger: Caller, email: str
) -> None:
    """Capitals in an address do not matter, and the e-mail goes to the address that the owner wrote."""
    stranger.post("/auth/forgot-password", {"email": email.upper()}, status=202)
    token = installation.mailbox.token(email, "password-reset")
    stranger.post("/auth/reset-password", {"token": token, "new_password": NEW})


def test_no_second_factor_is_left_out(
    owner: Caller, stranger: Caller, email: str, token: str
) -> None:
    """After a reset, a person with an authenticator app still needs its code."""
    totp = TOTP(owner.post_proven("/auth/mfa/enroll")["secret"])
    owner.confirm_authenticator(totp)
    stranger.post("/auth/reset-password", {"token": token, "new_password": NEW})
    response = stranger.ask("POST", "/auth/login", {"email": email, "password": NEW})
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["error_code"], error["second_factor"]) == ("ERR_AUTH_MFA_001", "app")


def test_an_unfit_password_leaves_the_token_good(stranger: Caller, token: str) -> None:
    """After an invalid password, the same token still works."""
    refusal = stranger.refusal("/auth/reset-password", {"token": token, "new_password": "short"})
    assert refusal == (422, "ERR_INVALID_001", "new_password")
    stranger.post("/auth/reset-password", {"token": token, "new_password": NEW})


def test_of_many_at_once_one_is_done(installation: Installation, token: str) -> None:
    """Of 16 concurrent resets with one token exactly one succeeds."""

    def reset(number: int) -> int:
        fields = {"token": token, "new_password": f"{NEW} {number}"}
        return installation.caller(None).ask("POST", "/auth/reset-password", fields).status_code

    with ThreadPoolExecutor(RIVALS) as threads:
        statuses = sorted(threads.map(reset, range(RIVALS)))
    assert statuses == [200] + [401] * (RIVALS - 1)


def test_a_changed_password_ends_the_e_mail(
    owner: Caller, stranger: Caller, token: str, password: str
) -> None:
    """An e-mail from before a password change no longer works."""
    step_up = owner.post("/auth/step-up", {"password": password})["step_up_token"]
    headers = {"X-Step-Up-Token": step_up}
    response = owner.ask("POST", "/auth/change-password", {"new_password": NEW}, headers=headers)
    assert response.status_code == 200
    fields = {"token": token, "new_password": NEW + "!"}
    assert stranger.refusal("/auth/reset-password", fields) == OVER


def test_a_challenge_ends_with_the_password(
    installation: Installation, owner: Caller, stranger: Caller, email: str, password: str
) -> None:
    """A reset ends a sign-in that waits for a code."""
    totp = TOTP(owner.post_proven("/auth/mfa/enroll")["secret"])
    owner.confirm_authenticator(totp)
    response = stranger.ask("POST", "/auth/login", {"email": email, "password": password})
    challenge = response.json()["error"]["challenge_token"]
    stranger.post("/auth/forgot-password", {"email": email}, status=202)
    fields = {"token": installation.mailbox.token(email, "password-reset"), "new_password": NEW}
    stranger.post("/auth/reset-password", fields)
    code = {"challenge_token": challenge, "totp_code": totp.at(int(time.time()) + 30)}
    refusal = stranger.refusal("/auth/mfa/verify", code)
    assert refusal == (401, "ERR_AUTH_001", "challenge_token")


def test_mail_is_limited(stranger: Caller) -> None:
    """The third e-mail to one address within 30 minutes is 429, for known and unknown addresses."""
    fields = {"email": f"{uuid.uuid4()}@example.com"}
    responses = [stranger.ask("POST", "/auth/forgot-password", fields) for _ in range(3)]
    assert [each.status_code for each in responses] == [202] * 2 + [429]
    assert 0 < int(responses[-1].headers["retry-after"]) <= 1800


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/auth/forgot-password", {}, "email"),
        ("/auth/forgot-password", {"email": "a,b@example.com"}, "email"),
        ("/auth/reset-password", {"new_password": NEW}, "token"),
        ("/auth/reset-password", {"token": 7, "new_password": NEW}, "token"),
        ("/auth/reset-password", {"token": "pqp_"}, "new_password"),
    ],
)
def test_bad_values(stranger: Caller, path: str, fields: dict[str, object], field: str) -> None:
    """A missing or malformed field is 422 with its name; a body that is not JSON is 400."""
    assert stranger.refusal(path, fields) == (422, "ERR_INVALID_001", field)
    response = stranger.ask("POST", path, content=b"{")
    assert (response.status_code, response.json()["error"]["error_code"]) == (
        400,
        "ERR_INVALID_001",
    )


def test_it_is_in_the_log(
    owner: Caller, stranger: Caller, operator: Caller, token: str, email: str
) -> None:
    """The request and the new password are recorded in the tenant's log."""
    user = owner.get("/auth/me")["id"]
    stranger.post("/auth/reset-password", {"token": token, "new_password": NEW})
    stranger.post("/auth/login", {"email": email, "password": NEW})
    records = stranger.get("/audit/records", limit=500)["records"]
    done = [(each["operation"], each["principal"]) for each in records]
    assert ("forgot-password", "anonymous") in done
    assert ("reset-password", f"user:{user}") in done
