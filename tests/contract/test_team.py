"""Teams over HTTP: members, permitted changes, and the end of a removed person's access."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie

import httpx2
import pytest
from tests.fixtures.caller import PASSWORD, Caller, refusal_of
from tests.fixtures.installation import Installation

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

FORBIDDEN = (403, "ERR_FORBIDDEN_001", None)
UNAUTHORIZED = (401, "ERR_AUTH_001", None)
LAST_OWNER = (409, "ERR_CONFLICT_001", None)
NO_MEMBER = (404, "ERR_NOT_FOUND_001", "id")
ROLES = ("owner", "admin", "developer", "viewer")
ROUNDS = 2


@pytest.fixture
def owner(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Caller:
    """The owner of a new tenant."""
    return new_person(new_tenant().tenant_id)


def _id(person: Caller) -> str:
    identifier: str = person.get("/auth/me")["id"]
    return identifier


def _change(by: Caller, member: str, role: object, **more: str) -> httpx2.Response:
    return by.ask_proven("PATCH", f"/team/members/{member}", {"role": role, **more})


def _stepped_up(person: Caller, password: str) -> dict[str, str]:
    return {
        "X-Step-Up-Token": person.post("/auth/step-up", {"password": password})["step_up_token"]
    }


def _remove(by: Caller, member: str, password: str) -> httpx2.Response:
    headers = _stepped_up(by, password)
    return by.ask("DELETE", f"/team/members/{member}", headers=headers)


def _roles(owner: Caller) -> dict[str, str]:
    return {each["id"]: each["role"] for each in owner.get("/team/members")["members"]}


def test_everybody_is_listed(
    owner: Caller, new_person: Callable[..., Caller], new_tenant: Callable[..., Caller]
) -> None:
    """Owners and admins see only their own team, in order of joining."""
    new_person(new_tenant().tenant_id)
    admin = new_person(owner.tenant_id, "admin")
    listed = owner.get("/team/members")
    assert listed == admin.get("/team/members")
    assert listed["total"] == 2
    for shown, person in zip(listed["members"], (owner, admin), strict=True):
        me = person.get("/auth/me")
        del me["tenant_id"], me["email_codes"], me["first_day"], me["passkeys"]
        assert shown == {**me, "status": "active", "last_sign_in_at": shown["last_sign_in_at"]}


def test_lists_of_people_have_pages(owner: Caller, new_person: Callable[..., Caller]) -> None:
    """Lists of members, invitations and sessions have pages; a foreign position is refused."""
    new_person(owner.tenant_id, "viewer")
    for name in ("one@example.com", "two@example.com"):
        path = f"/tenants/{owner.tenant_id}/invitations"
        owner.post_proven(path, {"email": name, "role": "viewer"}, status=201)
    email = owner.get("/auth/me")["email"]
    owner.client.post("/api/v1/auth/login", json={"email": email, "password": PASSWORD})
    lists = {"/team/members": "members", "/team/invitations": "invitations"}
    for path, name in {**lists, "/auth/sessions": "sessions"}.items():
        whole = owner.get(path)
        assert "next" not in whole
        first = owner.get(path, limit=1)
        rest = owner.get(path, limit=1, after=first["next"])
        assert first[name] + rest[name] == whole[name]
        assert (first["total"], rest["total"], "next" in rest) == (2, 2, False)
        lost = owner.ask("GET", path, params={"after": str(uuid.uuid4())})
        assert refusal_of(lost) == (404, "ERR_NOT_FOUND_001", "after")
        for bad in ({"limit": 0}, {"limit": 10_001}, {"after": "x"}):
            assert owner.ask("GET", path, params=bad).status_code == 422
    found = owner.get("/team/members", email=email.upper())
    assert [each["email"] for each in found["members"]] == [email]
    last = owner.get("/team/invitations", sort="-email", limit=1, offset=0)
    assert [each["email"] for each in last["invitations"]] == ["two@example.com"]
    assert "next" not in last
    found = owner.get("/team/invitations", email="ONE", role="viewer,admin")
    assert [each["email"] for each in found["invitations"]] == ["one@example.com"]
    late = {"sort": "email", "after": found["invitations"][0]["id"]}
    for path in lists:
        refused = refusal_of(owner.ask("GET", path, params=late))
        assert refused == (422, "ERR_INVALID_001", "after")


def test_the_last_sign_in_is_shown(
    owner: Caller, installation: Installation, password: str
) -> None:
    """A new sign-in updates last_sign_in_at."""
    (before,) = owner.get("/team/members")["members"]
    fields = {"email": before["email"], "password": password}
    installation.caller(None).post("/auth/login", fields)
    (after,) = owner.get("/team/members")["members"]
    assert before["created_at"] <= before["last_sign_in_at"] < after["last_sign_in_at"]


def test_who_owes_a_second_factor_is_shown(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller], operator: Caller
) -> None:
    """If a second factor is required, a member without one has the status must_enroll."""
    owner = new_person(new_tenant().tenant_id)
    assert owner.ask_proven("PATCH", "/auth/organization", {"require_mfa": True}).is_success
    (shown,) = operator.get("/team/members", tenant_id=owner.tenant_id)["members"]
    assert (shown["status"], shown["mfa_enabled"]) == ("must_enroll", False)
    assert owner.ask("GET", "/team/members").json()["error"]["error_code"] == "ERR_AUTH_MFA_001"


def test_a_role_holds_from_the_next_request_on(
    owner: Caller, new_person: Callable[..., Caller], refused: Refused
) -> None:
    """A new role applies from the next request on."""
    person = new_person(owner.tenant_id, "developer")
    body = {"algorithm": "Kyber768"}
    assert _change(owner, _id(person), "viewer").json()["data"]["role"] == "viewer"
    assert refused(person.ask("POST", "/kms/keys/generate", body)) == FORBIDDEN
    assert _change(owner, _id(person), "developer").is_success
    person.post("/kms/keys/generate", body, status=201)


@pytest.mark.parametrize("role", ["king", "", 7, None, ["owner"], {"owner": 1}])
def test_a_role_that_is_none(owner: Caller, refused: Refused, role: object) -> None:
    """An unknown role is 422, and nothing changes."""
    assert refused(_change(owner, _id(owner), role)) == (422, "ERR_INVALID_001", "role")
    assert _roles(owner) == {_id(owner): "owner"}


def test_a_body_that_is_no_json(owner: Caller, refused: Refused) -> None:
    """A body that is not JSON is 400."""
    response = owner.ask(
        "PATCH",
        f"/team/members/{_id(owner)}",
        content=b"{",
        headers={"Content-Type": "application/json"},
    )
    assert refused(response) == (400, "ERR_INVALID_001", None)


@pytest.mark.parametrize("member", ["1", "me", "%00", "00000000-0000-4000-8000-000000000000"])
def test_nobody(owner: Caller, password: str, refused: Refused, member: str) -> None:
    """An unknown or malformed identifier is 404."""
    assert refused(_change(owner, member, "viewer")) == NO_MEMBER
    assert refused(_remove(owner, member, password)) == NO_MEMBER


def test_another_tenant_s_member_is_not_found(
    owner: Caller,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    password: str,
    refused: Refused,
) -> None:
    """A member of another tenant is 404, with and without that tenant's name, and is unchanged."""
    other = new_person(new_tenant().tenant_id)
    new_person(other.tenant_id)
    theirs = _id(other)
    assert refused(_change(owner, theirs, "viewer")) == NO_MEMBER
    assert refused(_change(owner, theirs, "viewer", tenant_id=other.tenant_id)) == NO_MEMBER
    assert refused(_remove(owner, theirs, password)) == NO_MEMBER
    listed = owner.get("/team/members", tenant_id=other.tenant_id)
    assert [each["id"] for each in listed["members"]] == [_id(owner)]
    assert _roles(other)[theirs] == "owner"


@pytest.mark.parametrize("by", ROLES)
def test_who_changes_whom(
    owner: Caller, new_person: Callable[..., Caller], password: str, by: str
) -> None:
    """Owners change and remove all members.

    Admins do so for all except owners. Other roles cannot.
    """
    acting = new_person(owner.tenant_id, by)
    for whom in ROLES:
        theirs = _id(new_person(owner.tenant_id, whom))
        may = by == "owner" or (by == "admin" and whom != "owner")
        changed, removed = _change(acting, theirs, whom), _remove(acting, theirs, password)
        assert changed.status_code == removed.status_code == (200 if may else 403)
        assert _roles(owner).get(theirs) == (None if may else whom)


def test_admins_make_no_owners(
    owner: Caller, new_person: Callable[..., Caller], refused: Refused
) -> None:
    """An admin cannot make anyone an owner, including themselves."""
    admin, viewer = (new_person(owner.tenant_id, role) for role in ("admin", "viewer"))
    for each in (admin, viewer):
        assert refused(_change(admin, _id(each), "owner")) == FORBIDDEN


def test_removal_needs_a_step_up(
    owner: Caller, new_person: Callable[..., Caller], refused: Refused
) -> None:
    """Removing a member without a step-up token is 401 ERR_MFA_013."""
    viewer = _id(new_person(owner.tenant_id, "viewer"))
    response = owner.ask("DELETE", f"/team/members/{viewer}")
    assert refused(response) == (401, "ERR_MFA_013", None)
    assert viewer in _roles(owner)


def test_nothing_of_a_removed_person_works(
    owner: Caller,
    new_person: Callable[..., Caller],
    installation: Installation,
    password: str,
    refused: Refused,
) -> None:
    """From the next request on, a removed person's sessions, tokens and password are refused.

    Their unused step-up token is refused too, from anyone.
    """
    person, elsewhere = new_person(owner.tenant_id, "admin"), installation.caller(None)
    me = person.get("/auth/me")
    fields = {"email": me["email"], "password": password}
    elsewhere.post("/auth/login", fields)
    unused = _stepped_up(person, password)
    assert _remove(owner, me["id"], password).json()["data"] == {"removed": True}
    for each in (person, elsewhere):
        assert refused(each.ask("GET", "/auth/me")) == UNAUTHORIZED
        assert refused(each.ask("POST", "/auth/refresh")) == UNAUTHORIZED
    assert refused(elsewhere.ask("POST", "/auth/login", fields)) == UNAUTHORIZED
    invite = {"email": "grace@example.com", "role": "viewer"}
    last = owner.ask("POST", f"/tenants/{owner.tenant_id}/invitations", invite, headers=unused)
    assert refused(last) == (401, "ERR_MFA_013", None)
    assert list(_roles(owner)) == [_id(owner)]


def test_a_removed_person_can_be_invited_again(
    owner: Caller, new_person: Callable[..., Caller], password: str
) -> None:
    """A removed person's address is free. A returning person gets a new account."""
    email = f"{uuid.uuid4()}@example.com"
    first = _id(new_person(owner.tenant_id, "viewer", email))
    assert _remove(owner, first, password).is_success
    assert _id(new_person(owner.tenant_id, "viewer", email)) != first


@pytest.mark.parametrize("role", ROLES)
def test_everybody_may_leave(
    owner: Caller, new_person: Callable[..., Caller], password: str, refused: Refused, role: str
) -> None:
    """A person of any role can remove themselves, and is then signed out without cookies."""
    person = new_person(owner.tenant_id, role)
    response = _remove(person, _id(person), password)
    assert response.is_success
    cookies: SimpleCookie = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        cookies.load(header)
    assert {each["max-age"] for each in cookies.values()} == {"0"}
    assert refused(person.ask("GET", "/auth/me")) == UNAUTHORIZED
    assert list(_roles(owner)) == [_id(owner)]


def test_the_last_owner_stays(
    owner: Caller,
    new_person: Callable[..., Caller],
    operator: Caller,
    password: str,
    refused: Refused,
) -> None:
    """The last owner cannot be removed or demoted: 409."""
    new_person(owner.tenant_id, "admin")
    member, named = _id(owner), {"tenant_id": owner.tenant_id}
    assert refused(_change(owner, member, "admin")) == LAST_OWNER
    assert refused(_remove(owner, member, password)) == LAST_OWNER
    assert refused(_change(operator, member, "viewer", **named)) == LAST_OWNER
    response = operator.ask("DELETE", f"/team/members/{member}", params=named)
    assert refused(response) == LAST_OWNER
    assert _change(owner, member, "owner").is_success


@pytest.mark.parametrize("action", ["remove", "demote"])
def test_two_owners_at_once(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller], password: str, action: str
) -> None:
    """If two owners remove or demote each other at once, exactly one stays owner."""
    for _ in range(ROUNDS):
        tenant = new_tenant()
        pair = [new_person(tenant.tenant_id) for _ in range(2)]
        ids = [_id(each) for each in pair]
        headers = [_stepped_up(each, password) for each in pair]

        def act(
            number: int,
            pair: list[Caller] = pair,
            ids: list[str] = ids,
            headers: list[dict[str, str]] = headers,
        ) -> int:
            other = ids[1 - number]
            if action == "demote":
                return _change(pair[number], other, "admin").status_code
            path = f"/team/members/{other}"
            return pair[number].ask("DELETE", path, headers=headers[number]).status_code

        with ThreadPoolExecutor(2) as threads:
            statuses = sorted(threads.map(act, range(2)))
        assert statuses[0] == 200
        assert statuses[1] in (401, 403, 409)
        (left,) = [each for each in pair if each.ask("GET", "/team/members").is_success][:1]
        assert list(_roles(left).values()).count("owner") == 1


def test_the_operator_names_the_tenant(
    owner: Caller, new_person: Callable[..., Caller], operator: Caller, refused: Refused
) -> None:
    """The operator can manage any named team; without a valid name it is 422."""
    viewer, named = _id(new_person(owner.tenant_id, "viewer")), {"tenant_id": owner.tenant_id}
    assert operator.get("/team/members", **named) == owner.get("/team/members")
    assert _change(operator, viewer, "owner", **named).is_success
    assert operator.ask("DELETE", f"/team/members/{viewer}", params=named).is_success
    assert list(_roles(owner)) == [_id(owner)]
    for bad in ({}, {"tenant_id": "1"}):
        response = operator.ask("GET", "/team/members", params=bad)
        assert refused(response) == (422, "ERR_INVALID_001", "tenant_id")
    nobodys = operator.ask("GET", "/team/members", params={"tenant_id": str(uuid.uuid4())})
    assert refused(nobodys) == (404, "ERR_NOT_FOUND_001", "tenant_id")


def test_the_operator_finds_members_in_their_own_team_only(
    owner: Caller, new_tenant: Callable[..., Caller], operator: Caller, refused: Refused
) -> None:
    """A member of one tenant is 404 under another tenant's path."""
    named = {"tenant_id": new_tenant().tenant_id}
    assert refused(_change(operator, _id(owner), "viewer", **named)) == NO_MEMBER


def test_invitations_wait_and_are_withdrawn(
    owner: Caller, installation: Installation, password: str, refused: Refused
) -> None:
    """The list of invitations has no token. A withdrawn invitation's token is refused."""
    path = f"/tenants/{owner.tenant_id}/invitations"
    fields = {"email": f"{uuid.uuid4()}@example.com", "role": "viewer"}
    made = owner.post_proven(path, fields, status=201)
    listed = owner.ask("GET", "/team/invitations")
    token = installation.mailbox.token(made["email"], "invitation")
    assert token not in listed.text
    assert listed.json()["data"] == {"invitations": [made], "total": 1}
    response = owner.ask("DELETE", f"/team/invitations/{made['id']}")
    assert response.json()["data"] == {"removed": True}
    assert owner.get("/team/invitations")["total"] == 0
    again = owner.ask("DELETE", f"/team/invitations/{made['id']}")
    assert refused(again) == (404, "ERR_NOT_FOUND_001", "id")
    accepted = {"token": token, "password": password}
    refusal = installation.caller(None).refusal("/auth/accept-invitation", accepted)
    assert refusal == (401, "ERR_AUTH_001", "token")


def test_the_token_of_an_invitation_is_in_the_mail_only(
    owner: Caller, operator: Caller, installation: Installation
) -> None:
    """With mail, only the operator's response has the token; a person's has none."""
    path = f"/tenants/{owner.tenant_id}/invitations"
    fields = {"email": f"{uuid.uuid4()}@example.com", "role": "viewer"}
    response = owner.ask_proven("POST", path, fields)
    token = installation.mailbox.token(fields["email"], "invitation")
    assert response.json()["data"].keys() == {"id", "email", "role", "expires_at"}
    assert token not in response.text
    made = operator.post(path, fields, status=201)
    again = installation.mailbox.token(fields["email"], "invitation", count=2)
    assert made["invitation_token"] == again


def test_an_invitation_does_not_tell_who_has_an_account(
    owner: Caller,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    installation: Installation,
    password: str,
) -> None:
    """Inviting a member of another tenant looks like any invitation. Its acceptance gives 409."""
    known = new_person(new_tenant().tenant_id).get("/auth/me")["email"]
    path = f"/tenants/{owner.tenant_id}/invitations"
    fields = {"email": known, "role": "viewer"}
    stranger = {**fields, "email": f"{uuid.uuid4()}@example.com"}
    responses = [owner.ask_proven("POST", path, each) for each in (fields, stranger)]
    assert [each.status_code for each in responses] == [201, 201]
    assert responses[0].json()["data"].keys() == responses[1].json()["data"].keys()
    token = installation.mailbox.token(known, "invitation", count=2)
    accepted = {"token": token, "password": password}
    refusal = installation.caller(None).refusal("/auth/accept-invitation", accepted)
    assert refusal == (409, "ERR_CONFLICT_001", "token")
    own = owner.ask_proven("POST", path, {**fields, "email": owner.get("/auth/me")["email"]})
    assert own.status_code == 409


def test_admins_withdraw_no_owner_s_invitation(
    owner: Caller, new_person: Callable[..., Caller], refused: Refused
) -> None:
    """An admin can withdraw all invitations except an owner's."""
    admin = new_person(owner.tenant_id, "admin")
    for role, status in (("owner", 403), ("admin", 200)):
        fields = {"email": f"{uuid.uuid4()}@example.com", "role": role}
        made = owner.post_proven(f"/tenants/{owner.tenant_id}/invitations", fields, status=201)
        response = admin.ask("DELETE", f"/team/invitations/{made['id']}")
        assert response.status_code == status
    (waiting,) = admin.get("/team/invitations")["invitations"]
    assert waiting["role"] == "owner"


def test_admins_replace_no_owner_s_invitation(
    owner: Caller, new_person: Callable[..., Caller], installation: Installation, password: str
) -> None:
    """An admin cannot replace an owner's invitation by another role; an owner can."""
    admin = new_person(owner.tenant_id, "admin")
    path, email = f"/tenants/{owner.tenant_id}/invitations", f"{uuid.uuid4()}@example.com"
    made = owner.post_proven(path, {"email": email, "role": "owner"}, status=201)
    response = admin.ask_proven("POST", path, {"email": email, "role": "viewer"})
    assert (response.status_code, response.json()["error"]["error_code"]) == FORBIDDEN[:2]
    (waiting,) = owner.get("/team/invitations")["invitations"]
    assert (waiting["id"], waiting["role"]) == (made["id"], "owner")
    owner.post_proven(path, {"email": email, "role": "viewer"}, status=201)
    admin.post_proven(path, {"email": email, "role": "developer"}, status=201)
    token = installation.mailbox.token(email, "invitation", count=3)
    accepted = {"token": token, "password": password}
    joined = installation.caller(None).post("/auth/accept-invitation", accepted, status=201)
    assert joined["role"] == "developer"


def test_an_accepted_invitation_waits_no_longer(
    owner: Caller, new_person: Callable[..., Caller]
) -> None:
    """A person who joined is listed as a member, and no longer as invited."""
    new_person(owner.tenant_id, "viewer")
    assert owner.get("/team/invitations") == {"invitations": [], "total": 0}


def test_another_tenant_s_invitation_is_not_found(
    owner: Caller,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    refused: Refused,
) -> None:
    """Another tenant's invitation cannot be listed or withdrawn."""
    other = new_person(new_tenant().tenant_id)
    fields = {"email": f"{uuid.uuid4()}@example.com", "role": "viewer"}
    made = other.post_proven(f"/tenants/{other.tenant_id}/invitations", fields, status=201)
    assert owner.get("/team/invitations")["total"] == 0
    response = owner.ask("DELETE", f"/team/invitations/{made['id']}")
    assert refused(response) == (404, "ERR_NOT_FOUND_001", "id")
    assert other.get("/team/invitations")["total"] == 1


def test_what_becomes_of_a_team_is_in_the_log(
    owner: Caller, new_person: Callable[..., Caller], password: str
) -> None:
    """A change has records of the acting and the affected person, with one request id."""
    mine, theirs = f"user:{_id(owner)}", _id(new_person(owner.tenant_id, "viewer"))
    fields = {"email": f"{uuid.uuid4()}@example.com", "role": "viewer"}
    made = owner.post_proven(f"/tenants/{owner.tenant_id}/invitations", fields, status=201)
    _change(owner, theirs, "admin")
    _remove(owner, theirs, password)
    owner.ask("DELETE", f"/team/invitations/{made['id']}")
    records = owner.get("/audit/records", limit=500)["records"]
    said = [(each["principal"], each["operation"], each["request_id"]) for each in records][-8:]
    assert [each[:2] for each in said] == [
        (mine, "invite-viewer"),
        (mine, "step-up"),
        (mine, "change-role"),
        (f"user:{theirs}", "role-is-admin"),
        (mine, "step-up"),
        (mine, "remove-member"),
        (f"user:{theirs}", "membership-ended"),
        (mine, "withdraw-invitation"),
    ]
    assert said[2][2] == said[3][2]
    assert said[5][2] == said[6][2]
