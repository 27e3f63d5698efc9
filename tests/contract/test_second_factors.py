"""Second factors and step-up over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from pyotp import TOTP
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

STEP_UP = (401, "ERR_MFA_013", None)
NEW = "the horse is tired of oats"
RIVALS = 16
STEP = 30
ENOUGH_SECONDS = 25


@pytest.fixture
def owner(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Caller:
    """The owner of a new tenant."""
    return new_person(new_tenant().tenant_id)


@pytest.fixture
def stranger(installation: Installation) -> Caller:
    """A client without a credential, with its own cookies."""
    return installation.caller(None)


def _enroll(person: Caller) -> tuple[TOTP, list[str]]:
    """Enrol a second factor, with the code of the previous time step."""
    totp = TOTP(person.post_proven("/auth/mfa/enroll")["secret"])
    return totp, person.confirm_authenticator(totp)


def _challenge(stranger: Caller, email: str, password: str) -> str:
    response = stranger.ask("POST", "/auth/login", {"email": email, "password": password})
    error = response.json()["error"]
    assert (response.status_code, error["error_code"]) == (401, "ERR_AUTH_MFA_001")
    token: str = error["challenge_token"]
    return token


def _stepped_up(person: Caller, password: str) -> dict[str, str]:
    given = person.post("/auth/step-up", {"password": password})
    assert given["expires_in"] == 300
    return {"X-Step-Up-Token": given["step_up_token"]}


def test_a_code_finishes_the_sign_in(owner: Caller, stranger: Caller, password: str) -> None:
    """With a second factor, the password gives a challenge, and a code finishes the sign-in."""
    totp, _ = _enroll(owner)
    user = owner.get("/auth/me")
    assert user["mfa_enabled"] is True
    token = _challenge(stranger, user["email"], password)
    assert not stranger.client.cookies
    stranger.post(
        "/auth/mfa/verify", {"challenge_token": token, "totp_code": totp.at(int(time.time()) + 30)}
    )
    assert stranger.get("/auth/me") == user


def _until_a_step_is_young() -> int:
    """Wait, if necessary, until a new time step has just begun."""
    left = STEP - time.time() % STEP
    if left < ENOUGH_SECONDS:
        time.sleep(left)
    return int(time.time())


def test_a_clock_may_differ_by_a_step(owner: Caller) -> None:
    """Codes of 30 seconds ago, of now and of in 30 seconds are accepted, once and in order."""
    totp = TOTP(owner.post_proven("/auth/mfa/enroll")["secret"])
    now = _until_a_step_is_young()
    codes = [totp.at(now + drift) for drift in (-2 * STEP, -STEP, 0, STEP, 2 * STEP)]
    too_early, *accepted, too_late = codes
    wrong = (401, "ERR_MFA_001", "totp_code")
    for code in (too_early, too_late):
        assert owner.refusal("/auth/mfa/confirm", {"totp_code": code}) == wrong
    owner.post("/auth/mfa/confirm", {"totp_code": accepted[0]})
    assert owner.refusal("/auth/step-up", {"totp_code": accepted[0]}) == wrong
    for code in accepted[1:]:
        owner.post("/auth/step-up", {"totp_code": code})
        assert owner.refusal("/auth/step-up", {"totp_code": code}) == wrong
    assert time.time() < now - now % STEP + STEP, "too slow to tell"


def test_a_recovery_code_does_too_once(owner: Caller, stranger: Caller, password: str) -> None:
    """Each of the ten recovery codes replaces a code once."""
    _, codes = _enroll(owner)
    assert len(set(codes)) == 10
    email = owner.get("/auth/me")["email"]
    fields = {"challenge_token": _challenge(stranger, email, password), "recovery_code": codes[0]}
    stranger.post("/auth/mfa/verify", fields)
    fields["challenge_token"] = _challenge(stranger, email, password)
    assert stranger.refusal("/auth/mfa/verify", fields) == (401, "ERR_MFA_001", "recovery_code")


@pytest.mark.parametrize(
    "typed", ["{} {}", "{}-{}", " {}{}\n", "{}\u00a0{}", "{}\u202f{}", "{}\u2011{}", "\t{}  {} "]
)
def test_a_code_as_it_is_typed(owner: Caller, stranger: Caller, password: str, typed: str) -> None:
    """Spaces, dashes and capitals in a typed code do not matter."""
    totp, codes = _enroll(owner)
    code = totp.at(int(time.time()) + STEP)
    owner.post("/auth/step-up", {"totp_code": typed.format(code[:3], code[3:])})
    recovery = codes[0].upper().replace("-", "")
    fields = {
        "challenge_token": _challenge(stranger, owner.get("/auth/me")["email"], password),
        "recovery_code": typed.format(recovery[:8], recovery[8:]),
    }
    stranger.post("/auth/mfa/verify", fields)


def test_a_wrong_code(owner: Caller, stranger: Caller, password: str) -> None:
    """A wrong code is 401 ERR_MFA_001, at a challenge and at a step-up."""
    _enroll(owner)
    token = _challenge(stranger, owner.get("/auth/me")["email"], password)
    wrong = (401, "ERR_MFA_001", "totp_code")
    fields = {"challenge_token": token, "totp_code": "abcdef"}
    assert stranger.refusal("/auth/mfa/verify", fields) == wrong
    assert owner.refusal("/auth/step-up", {"totp_code": "abcdef"}) == wrong


def test_a_wrong_password_at_a_step_up(owner: Caller) -> None:
    """Without a second factor the password steps up; the error for a wrong one names the password."""
    error = owner.ask("POST", "/auth/step-up", {"password": "another one"}).json()["error"]
    assert (error["error_code"], error["field"]) == ("ERR_MFA_001", "password")
    assert error["message"] == "the password is wrong"


def test_a_challenge_that_is_none(stranger: Caller) -> None:
    """An unknown challenge token is 401."""
    fields = {"challenge_token": "pqc_", "totp_code": "123456"}
    refusal = stranger.refusal("/auth/mfa/verify", fields)
    assert refusal == (401, "ERR_AUTH_001", "challenge_token")


def test_the_picture_is_an_svg(owner: Caller) -> None:
    """Enrolment shows the secret as a URI for apps, and as a QR code."""
    made = owner.post_proven("/auth/mfa/enroll")
    assert f"secret={made['secret']}" in made["otpauth_uri"]
    assert made["qr_svg"].startswith("data:image/svg+xml")


def test_a_second_factor_can_be_given_up(owner: Caller, stranger: Caller, password: str) -> None:
    """A recovery code removes the second factor. Then the password is enough; removal is 409."""
    _, codes = _enroll(owner)
    assert owner.post("/auth/mfa/disable", {"recovery_code": codes[0]}) == {"mfa_enabled": False}
    email = owner.get("/auth/me")["email"]
    stranger.post("/auth/login", {"email": email, "password": password})
    refusal = owner.refusal("/auth/mfa/disable", {"recovery_code": codes[1]})
    assert refusal == (409, "ERR_CONFLICT_001", None)


@pytest.mark.parametrize("role", ["owner", "viewer"])
def test_people_see_their_organization(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller], role: str
) -> None:
    """Every member sees the tenant's id, its name and whether it requires a second factor."""
    tenant = new_tenant()
    person = new_person(tenant.tenant_id, role)
    shown = person.get("/auth/organization")
    name = tenant.get(f"/tenants/{tenant.tenant_id}")["name"]
    assert shown == {
        "require_mfa": False,
        "require_approval": False,
        "tenant_id": tenant.tenant_id,
        "name": name,
    }


def test_an_organization_can_require_it(owner: Caller, new_person: Callable[..., Caller]) -> None:
    """A person without a second factor can then only enroll one. With one, everything works."""
    totp, _ = _enroll(owner)
    other = new_person(owner.tenant_id)
    code = {"totp_code": totp.at(int(time.time()))}
    proof = {"X-Step-Up-Token": owner.post("/auth/step-up", code)["step_up_token"]}
    owner.ask("PATCH", "/auth/organization", {"require_mfa": True}, headers=proof)
    owner.get("/kms/keys")
    assert owner.get("/auth/organization")["require_mfa"] is True
    owed = (401, "ERR_AUTH_MFA_001")
    assert other.refusal("/kms/keys/generate", {"algorithm": "Kyber768"})[:2] == owed
    _enroll(other)
    other.get("/kms/keys")


@pytest.mark.parametrize("plan", ["free", "starter"])
def test_not_every_plan_can_require_it(
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    refused: Refused,
    plan: str,
) -> None:
    """On plans below professional, requiring a second factor is 403 ERR_MFA_011."""
    person = new_person(new_tenant(plan).tenant_id)
    response = person.ask_proven("PATCH", "/auth/organization", {"require_mfa": True})
    assert refused(response) == (403, "ERR_MFA_011", None)


def test_a_program_needs_none(new_tenant: Callable[..., Caller]) -> None:
    """An API key rotates keys and itself without a step-up token, and ignores an invalid one."""
    tenant = new_tenant()
    tenant.client.headers["X-Step-Up-Token"] = "none"
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    tenant.post(f"/tenants/{tenant.tenant_id}/api-keys/rotate")


def test_of_many_at_once_one_rotates(owner: Caller, password: str) -> None:
    """Of concurrent rotations with one token, exactly one succeeds."""
    owner.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    headers = _stepped_up(owner, password)

    def rotate(_: int) -> int:
        body = {"algorithm": "Kyber768"}
        return owner.ask("POST", "/kms/keys/rotate", body, headers=headers).status_code

    with ThreadPoolExecutor(RIVALS) as threads:
        statuses = sorted(threads.map(rotate, range(RIVALS)))
    assert statuses == [201] + [401] * (RIVALS - 1)
    assert owner.get("/kms/keys")["total"] == 2


def test_only_a_success_uses_the_token_up(owner: Caller, password: str, refused: Refused) -> None:
    """A refused rotation does not use the token up; a successful one does."""
    headers = _stepped_up(owner, password)
    body = {"algorithm": "Kyber768"}
    assert refused(owner.ask("POST", "/kms/keys/rotate", body, headers=headers))[0] == 404
    owner.post("/kms/keys/generate", body, status=201)
    assert owner.ask("POST", "/kms/keys/rotate", body, headers=headers).status_code == 201
    assert refused(owner.ask("POST", "/kms/keys/rotate", body, headers=headers)) == STEP_UP


@pytest.mark.parametrize("change", ["api key", "rotation"])
def test_a_lost_answer_can_be_asked_for_again(owner: Caller, refused: Refused, change: str) -> None:
    """With the same Idempotency-Key and step-up token a request gets its first answer again."""
    owner.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    keys = f"/tenants/{owner.tenant_id}/api-keys"
    path, body = {
        "api key": (keys, {}),
        "rotation": ("/kms/keys/rotate", {"algorithm": "Kyber768"}),
    }[change]
    headers = _stepped_up(owner, PASSWORD) | {"Idempotency-Key": "first"}
    first, again = [owner.ask("POST", path, body, headers=headers) for _ in range(2)]
    assert (first.status_code, again.json()["data"]) == (201, first.json()["data"])
    other = owner.ask("POST", f"{keys}/rotate", {}, headers=headers)
    assert refused(other) == (409, "ERR_CONFLICT_001", "Idempotency-Key")
    for key in ({"Idempotency-Key": "second"}, {}):
        token = {"X-Step-Up-Token": headers["X-Step-Up-Token"]}
        assert refused(owner.ask("POST", path, body, headers=token | key)) == STEP_UP


def test_a_token_is_its_owner_s(
    owner: Caller, new_person: Callable[..., Caller], password: str, refused: Refused
) -> None:
    """Another person's token is refused, and stays valid for its owner."""
    owner.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    headers = _stepped_up(owner, password)
    body = {"algorithm": "Kyber768"}
    other = new_person(owner.tenant_id)
    assert refused(other.ask("POST", "/kms/keys/rotate", body, headers=headers)) == STEP_UP
    assert owner.ask("POST", "/kms/keys/rotate", body, headers=headers).status_code == 201


def test_a_code_steps_up(owner: Caller, password: str) -> None:
    """A person with a second factor steps up by a code; the password is refused."""
    totp, _ = _enroll(owner)
    refusal = owner.refusal("/auth/step-up", {"password": password})
    assert refusal == (422, "ERR_INVALID_001", "totp_code")
    owner.post("/auth/step-up", {"totp_code": totp.at(int(time.time()) + 30)})


def test_a_new_password_ends_every_session(
    owner: Caller, stranger: Caller, password: str, refused: Refused
) -> None:
    """After the change every session is over, and only the new password signs in."""
    email = owner.get("/auth/me")["email"]
    stranger.post("/auth/login", {"email": email, "password": password})
    headers = _stepped_up(owner, password)
    response = owner.ask("POST", "/auth/change-password", {"new_password": NEW}, headers=headers)
    assert response.status_code == 200
    assert refused(stranger.ask("GET", "/auth/me"))[0] == 401
    assert stranger.refusal("/auth/login", {"email": email, "password": password})[0] == 401
    stranger.post("/auth/login", {"email": email, "password": NEW})


def test_a_person_names_the_api_key_to_replace(
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    password: str,
    refused: Refused,
) -> None:
    """key_id is the version to replace; an unknown one is 404."""
    tenant = new_tenant()
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    tenant.post(path, status=201)
    person = new_person(tenant.tenant_id)
    headers = _stepped_up(person, password)
    missing = person.ask("POST", f"{path}/rotate", {"key_id": "9"}, headers=headers)
    assert refused(missing) == (404, "ERR_NOT_FOUND_001", "key_id")
    response = person.ask("POST", f"{path}/rotate", {"key_id": "1"}, headers=headers)
    assert response.json()["data"]["revoked_version"] == 1
