"""Sign-up over HTTP: by e-mail, and without revealing known addresses."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

RIVALS = 16


def _email() -> str:
    return f"{uuid.uuid4()}@example.com"


@pytest.fixture
def stranger(installation: Installation) -> Caller:
    """A client without a credential, with its own cookies."""
    return installation.caller(None)


@pytest.fixture
def token(installation: Installation, stranger: Caller) -> str:
    """The token in an e-mail to a new address."""
    email = _email()
    stranger.post("/auth/register", {"email": email}, status=202)
    return installation.mailbox.token(email, "registration")


def test_an_e_mail_leads_to_a_tenant(
    installation: Installation, stranger: Caller, password: str
) -> None:
    """The token makes its user the owner of a free tenant with a chosen name, signed in."""
    email, name = _email(), str(uuid.uuid4())
    assert stranger.post("/auth/register", {"email": email}, status=202) == {"accepted": True}
    assert not stranger.client.cookies
    fields = {"token": installation.mailbox.token(email, "registration"), "name": name}
    user = stranger.post("/auth/confirm-registration", {**fields, "password": password}, status=201)
    me = stranger.get("/auth/me")
    assert me.pop("first_day") == {"dismissed": False, "checkpoint_kept": False}
    assert me == user
    assert (user["email"], user["role"]) == (email, "owner")
    tenant = stranger.get(f"/tenants/{user['tenant_id']}")
    assert (tenant["name"], tenant["plan"]) == (name, "free")


def test_an_api_key_does_not_lift_the_limit(start: Callable[..., Installation]) -> None:
    """Sign-ups from one address are limited, also with a tenant's API key; the operator has no limit."""
    installation = start(settings={})
    callers = (installation.demo(), installation.caller(None), installation.operator())
    statuses = [
        [caller.ask("POST", "/auth/register", {"email": _email()}).status_code for _ in range(20)]
        for caller in callers
    ]
    assert statuses == [20 * [202], 20 * [429], 20 * [202]]


def test_who_has_an_address_is_told_to_them_alone(
    installation: Installation,
    stranger: Caller,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
) -> None:
    """A known address, in any capitals, gets the same response as a new one, and another e-mail."""
    taken = new_person(new_tenant().tenant_id).get("/auth/me")["email"]
    free = _email()
    responses = [
        stranger.ask("POST", "/auth/register", {"email": each}) for each in (taken.upper(), free)
    ]
    assert [each.status_code for each in responses] == [202, 202]
    assert responses[0].json()["data"] == responses[1].json()["data"]
    (mail,) = installation.mailbox.messages(taken.upper(), "already-registered")
    assert "#" not in mail.get_content()
    installation.mailbox.messages(free, "registration")
    assert installation.mailbox.messages_so_far(taken.upper(), "registration") == []


def test_a_refusal_leaves_the_token_good(
    stranger: Caller, token: str, password: str, new_tenant: Callable[..., Caller]
) -> None:
    """After a taken name or an invalid password, the same token still works."""
    taken = new_tenant()
    name = taken.get(f"/tenants/{taken.tenant_id}")["name"]
    path, fields = "/auth/confirm-registration", {"token": token, "password": password}
    refusal = stranger.refusal(path, {**fields, "name": name})
    assert refusal == (409, "ERR_CONFLICT_001", "name")
    other = {**fields, "name": str(uuid.uuid4())}
    refusal = stranger.refusal(path, {**other, "password": "short"})
    assert refusal == (422, "ERR_INVALID_001", "password")
    stranger.post(path, other, status=201)
    assert stranger.refusal(path, other) == (401, "ERR_AUTH_001", "token")


def test_of_many_at_once_one_registers(
    installation: Installation, token: str, password: str
) -> None:
    """Of 16 concurrent confirmations with one token exactly one makes a tenant."""

    def confirm(number: int) -> int:
        fields = {"token": token, "name": f"{token[:20]} {number}", "password": password}
        caller = installation.caller(None)
        return caller.ask("POST", "/auth/confirm-registration", fields).status_code

    with ThreadPoolExecutor(RIVALS) as threads:
        statuses = sorted(threads.map(confirm, range(RIVALS)))
    assert statuses == [201] + [401] * (RIVALS - 1)


def test_a_second_e_mail_ends_the_first(
    installation: Installation, stranger: Caller, password: str
) -> None:
    """A second sign-up makes the first e-mail's token invalid."""
    email = _email()
    tokens = []
    for count in (1, 2):
        stranger.post("/auth/register", {"email": email}, status=202)
        tokens.append(installation.mailbox.token(email, "registration", count))
    fields = {"name": str(uuid.uuid4()), "password": password}
    refusal = stranger.refusal("/auth/confirm-registration", {**fields, "token": tokens[0]})
    assert refusal == (401, "ERR_AUTH_001", "token")
    stranger.post("/auth/confirm-registration", {**fields, "token": tokens[1]}, status=201)


@pytest.mark.parametrize("token", ["pqs_", "x", "pqi_" + "0" * 49, "pqs_\u00e9"])
def test_tokens_that_nobody_was_given(
    stranger: Caller, token: str, password: str, refused: Refused
) -> None:
    """An invalid token, also one outside ASCII, is 401 everywhere."""
    for path, fields in (
        ("/auth/confirm-registration", {"name": "x", "password": password}),
        ("/auth/reset-password", {"new_password": password}),
        ("/auth/accept-invitation", {"password": password}),
    ):
        body = json.dumps({"token": token, **fields})
        response = stranger.ask("POST", path, content=body)
        assert refused(response) == (401, "ERR_AUTH_001", "token")
    for path in ("/auth/mfa/email", "/auth/mfa/verify"):
        code = {"email_code": "123456"} if path.endswith("verify") else {}
        body = json.dumps({"challenge_token": token, **code})
        response = stranger.ask("POST", path, content=body)
        assert refused(response) == (401, "ERR_AUTH_001", "challenge_token")


@pytest.mark.parametrize("name", [None, "", "x" * 256, "a\nb", 7])
def test_what_is_no_name(stranger: Caller, password: str, name: object) -> None:
    """A name that a tenant cannot have is 422."""
    fields = {"token": "pqs_", "name": name, "password": password}
    refusal = stranger.refusal("/auth/confirm-registration", fields)
    assert refusal == (422, "ERR_INVALID_001", "name")


@pytest.mark.parametrize(
    "email",
    [
        None,
        7,
        "",
        "nobody",
        "a,b@example.com",
        "a@b@example.com",
        '"a b"@example.com',
        "a<b@example.com",
        "a\r\nBcc: x@example.com",
        "a@example.com\r\nBcc: x@example.com",
        "a" * 65 + "@example.com",
        "a@" + "b" * 253,
        "ä@example.com",
    ],
)
def test_what_is_no_address(
    new_tenant: Callable[..., Caller], operator: Caller, email: object
) -> None:
    """An invalid e-mail address, several addresses, or other content in one are 422 everywhere."""
    path = f"/tenants/{new_tenant().tenant_id}/invitations"
    refusal = operator.refusal(path, {"email": email, "role": "viewer"})
    assert refusal == (422, "ERR_INVALID_001", "email")
