"""Approval by a second person over HTTP: every door asks, and another person decides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures.caller import TLS, Caller, refusal_of
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

KEY = {"algorithm": "Kyber768"}
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
NEEDS_APPROVAL = frozenset(
    {
        *("archive_key", "create_keyring", "update_keyring", "delete_keyring"),
        *("change_role", "remove_member", "invite", "change_organization"),
        *("put_rule", "put_rules", "delete_rule", "begin_canary"),
    }
)
DENIED_PROGRAM = (403, "ERR_POLICY_001", None)


class Team:
    """A tenant that requires approval: two owners, an admin, a developer, and an API key."""

    def __init__(self, tenant: Caller, new_person: Callable[..., Caller]) -> None:
        self.tenant = tenant
        self.ada, self.bob = new_person(tenant.tenant_id), new_person(tenant.tenant_id)
        self.admin = new_person(tenant.tenant_id, "admin")
        self.developer = new_person(tenant.tenant_id, "developer")
        tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
        tenant.post("/kms/keys/generate", {**KEY, "keyring": "payments"}, status=201)
        tenant.post("/kms/keys/rotate", {**KEY, "keyring": "payments"}, status=201)
        sources = {"sources": [KEY], "target": {"algorithm": "X-Wing"}}
        assert tenant.ask("PUT", "/campaigns/move", sources).is_success
        tenant.post("/kms/keys/generate", KEY, status=201)
        assert _sent(self.ada, *_SWITCH_ON).is_success

    def requests(self) -> Mapping[str, tuple[str, str, dict[str, Any] | None]]:
        """Return a request of each kind that needs approval."""
        developer = _id(self.developer)
        invitations = f"/tenants/{self.tenant.tenant_id}/invitations"
        archive = {**KEY, "keyring": "payments", "key_version": 1}
        rule = {"algorithms": ["X-Wing"]}
        return {
            "archive": ("POST", "/kms/keys/archive", archive),
            "delete": ("DELETE", "/kms/keyrings/payments", None),
            "create": ("POST", "/kms/keyrings", {"name": "short", "archive_after_days": 1}),
            "days": ("PATCH", "/kms/keyrings/payments", {"archive_after_days": 30}),
            "make owner": ("PATCH", f"/team/members/{developer}", {"role": "owner"}),
            "make admin": ("PATCH", f"/team/members/{developer}", {"role": "admin"}),
            "invite owner": ("POST", invitations, {"email": _email(), "role": "owner"}),
            "invite admin": ("POST", invitations, {"email": _email(), "role": "admin"}),
            "rule": ("PUT", "/rules/algorithms/one", rule),
            "rules": ("PUT", "/rules/algorithms", {"profile": "cnsa-2.0"}),
            "canary": ("POST", "/campaigns/move/canary", {"until": TOMORROW}),
            "off": ("PATCH", "/auth/organization", {"require_approval": False}),
        }


_SWITCH_ON = ("PATCH", "/auth/organization", {"require_approval": True})


def _email() -> str:
    return f"{uuid.uuid4()}@example.com"


def _id(person: Caller) -> str:
    found: str = person.get("/auth/me")["id"]
    return found


def _sent(by: Caller, method: str, path: str, body: object = None) -> httpx2.Response:
    return by.ask_proven(method, path, body)


def _asked(by: Caller, method: str, path: str, body: object = None) -> str:
    """Send a request that must wait; return its id."""
    response = _sent(by, method, path, body)
    assert response.status_code == 202, response.text
    data = response.json()["data"]
    assert data["state"] == "waiting"
    found: str = data["id"]
    return found


def _approve(by: Caller, approval: str) -> httpx2.Response:
    return by.ask_proven("POST", f"/approvals/{approval}/approve", {})


def _records(tenant: Caller, approval: str) -> list[dict[str, Any]]:
    """Return the records about a request, in their order."""
    records = tenant.get("/audit/records", limit=200)["records"]
    return [record for record in records if approval in (record["policy"] or "")]


@pytest.fixture
def team(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Team:
    """The team."""
    return Team(new_tenant(), new_person)


def test_these_operations_need_approval() -> None:
    """Exactly these operations need approval, and each needs a step-up too."""
    gated = {row.name: row for row in api_rows() if row.subject_of is not None}
    assert gated.keys() == NEEDS_APPROVAL
    assert all(row.needs_step_up or row.step_up_for for row in gated.values())


@pytest.mark.threat("one-malicious-administrator")
def test_every_door_asks(team: Team) -> None:
    """Each request waits without any change. Only another owner can approve it."""
    keys, members = team.ada.get("/kms/keys", all_keyrings=True), team.ada.get("/team/members")
    asked = {name: _asked(team.ada, *sent) for name, sent in team.requests().items()}
    assert team.ada.get("/kms/keys", all_keyrings=True) == keys
    assert team.ada.get("/team/members") == members
    assert team.ada.get("/kms/keyrings")["total"] == 2
    assert team.ada.get("/rules/algorithms")["rules"] == []
    for approval in asked.values():
        assert refusal_of(_approve(team.ada, approval)) == (403, "ERR_FORBIDDEN_001", None)
    waiting = team.admin.get("/approvals", waiting=True)
    assert waiting["total"] == len(asked)
    for name in ("create", "archive", "invite admin", "make admin", "rule", "canary", "off"):
        done = _approve(team.bob, asked[name])
        assert done.is_success, (name, done.text)
        assert done.json()["data"]["state"] == "executed"
    assert team.ada.get("/kms/keyrings")["total"] == 3
    assert [rule["name"] for rule in team.ada.get("/rules/algorithms")["rules"]] == ["one"]
    assert team.developer.get("/auth/me")["role"] == "admin"
    (invited,) = team.ada.get("/team/invitations")["invitations"]
    assert invited["role"] == "admin"
    assert not team.ada.get("/auth/organization")["require_approval"]
    outdated = _approve(team.bob, asked["rules"])  # the rules have changed since
    assert refusal_of(outdated) == (409, "ERR_CONFLICT_001", None)


@pytest.mark.threat("one-malicious-administrator")
def test_a_deletion_in_the_log(team: Team) -> None:
    """The log has the request, a refused approval, the approval, and the deletion."""
    request = ("DELETE", "/kms/keyrings/payments")
    approval = _asked(team.ada, *request)
    assert _asked(team.ada, *request) == approval  # a repetition is no second request
    assert refusal_of(_approve(team.ada, approval))[0] == 403
    assert refusal_of(_approve(team.developer, approval))[0] == 403
    done = _approve(team.admin, approval)
    assert done.json()["data"]["decided_by"] == _id(team.admin)
    assert team.ada.ask("GET", "/kms/keyrings/payments").status_code == 404
    ada, admin = f"user:{_id(team.ada)}", f"user:{_id(team.admin)}"
    about = _records(team.tenant, approval)
    assert [(record["operation"], record["principal"]) for record in about] == [
        ("request-approval", ada),
        ("approve-request", admin),
        ("execute-request", ada),
    ]
    records = team.tenant.get("/audit/records", limit=200)["records"]
    refused = [
        record["principal"]
        for record in records
        if (record["operation"], record["outcome"]) == ("approve-request", "ERR_FORBIDDEN_001")
    ]
    assert ada in refused
    (deleted,) = [record for record in records if record["operation"] == "delete-keyring"]
    assert (deleted["principal"], deleted["request_id"]) == (ada, about[1]["request_id"])
    assert deleted["keyring"] == "payments"


def test_refused_and_withdrawn(team: Team) -> None:
    """A refused and a withdrawn request are not executed; both are in the log."""
    refused, withdrawn = (
        _asked(team.ada, "DELETE", f"/kms/keyrings/payments?delay_days={days}") for days in (8, 9)
    )
    assert team.bob.post(f"/approvals/{refused}/refuse")["state"] == "refused"
    assert team.bob.refusal(f"/approvals/{withdrawn}/withdraw", {})[0] == 403
    assert team.ada.post(f"/approvals/{withdrawn}/withdraw")["state"] == "withdrawn"
    for approval, action in ((refused, "refuse-request"), (withdrawn, "withdraw-request")):
        assert refusal_of(_approve(team.bob, approval)) == (409, "ERR_CONFLICT_001", None)
        assert _records(team.tenant, approval)[-1]["operation"] == action
    assert team.ada.get("/kms/keyrings/payments")["name"] == "payments"


@pytest.mark.threat("one-malicious-administrator")
def test_programs_cannot_pass_it_by(team: Team, installation: Installation) -> None:
    """An API key that may delete keyrings is refused, here and as a client of Vault Transit."""
    scopes = {"scopes": [{"operations": ["*", "delete-keyrings"]}]}
    path = f"/tenants/{team.tenant.tenant_id}/api-keys"
    made = team.ada.post_proven(path, scopes, status=201)
    program = installation.caller(made["api_key"], team.tenant.tenant_id)
    allowed = {"deletion_allowed": True}
    assert _sent(team.ada, "PATCH", "/kms/keyrings/payments", allowed).is_success
    assert refusal_of(program.ask("DELETE", "/kms/keyrings/payments")) == DENIED_PROGRAM
    refused = [
        record["policy"]
        for record in team.tenant.get("/audit/records", limit=200)["records"]
        if (record["operation"], record["outcome"]) == ("delete-keyring", "ERR_POLICY_001")
    ]
    assert refused == ["second-person"]
    path = "/v1/transit/keys/cards"
    with httpx2.Client(
        base_url=installation.base_url,
        headers={"X-Vault-Token": made["api_key"]},
        timeout=PATIENCE,
        trust_env=False,
        verify=TLS,
    ) as client:
        assert client.post(path).status_code == 200
        assert _sent(team.ada, "PATCH", "/kms/keyrings/cards", allowed).is_success
        for way in (path, f"{path}/soft-delete"):
            denied = client.delete(way)
            assert denied.status_code == 403
            assert "second-person" in denied.text
    assert team.ada.get("/kms/keyrings/cards")["name"] == "cards"


def test_programs_decide_nothing(team: Team) -> None:
    """An API key sees and decides no request."""
    program = team.tenant
    for way in ("approvals", f"approvals/{uuid.uuid4()}"):
        assert program.ask("GET", f"/{way}").status_code == 403
    assert refusal_of(program.ask("POST", f"/approvals/{uuid.uuid4()}/approve", {}))[0] == 403


def test_what_needs_no_approval(team: Team) -> None:
    """Requests that destroy nothing and add no approver are executed at once."""
    later = ("PATCH", "/kms/keyrings/payments", {"archive_after_days": 30})
    assert _approve(team.bob, _asked(team.ada, *later)).is_success
    developer = f"/team/members/{_id(team.developer)}"
    invitations = f"/tenants/{team.tenant.tenant_id}/invitations"
    for sent in (
        ("PATCH", "/kms/keyrings/payments", {"archive_after_days": 30}),
        ("PATCH", "/kms/keyrings/payments", {"archive_after_days": 60}),
        ("PATCH", "/kms/keyrings/payments", {"description": "changed"}),
        ("POST", "/kms/keyrings", {"name": "plain"}),
        ("PATCH", developer, {"role": "viewer"}),
        ("POST", invitations, {"email": _email(), "role": "developer"}),
        ("DELETE", developer, None),
        ("PATCH", "/auth/organization", {"require_approval": True}),
    ):
        assert _sent(team.ada, *sent).status_code in (200, 201), sent
    shorter = ("PATCH", "/kms/keyrings/payments", {"archive_after_days": 59})
    assert _sent(team.ada, *shorter).status_code == 202
    assert _sent(team.ada, "DELETE", "/kms/keyrings/none").status_code == 404


def test_owners_stay_two(team: Team, operator: Caller) -> None:
    """While approval is required no request leaves one owner; the operator's doors stay open."""
    bob = f"/team/members/{_id(team.bob)}"
    for sent in (("PATCH", bob, {"role": "viewer"}), ("DELETE", bob, None)):
        assert refusal_of(_sent(team.ada, *sent))[:2] == (409, "ERR_CONFLICT_001")
    named = {"role": "developer", "tenant_id": team.tenant.tenant_id}
    assert operator.ask("PATCH", bob, named).is_success
    refused = _sent(team.ada, "PATCH", f"/team/members/{_id(team.developer)}", {"role": "owner"})
    assert refusal_of(refused)[:2] == (409, "ERR_CONFLICT_001")  # no other member may approve it
    assert operator.ask("PATCH", bob, {**named, "role": "owner"}).is_success


def test_a_tenant_with_one_owner(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A tenant with one owner cannot require approval."""
    owner = new_person(new_tenant().tenant_id)
    new_person(owner.tenant_id, "admin")
    assert refusal_of(_sent(owner, *_SWITCH_ON)) == (409, "ERR_CONFLICT_001", None)


@pytest.mark.threat("stolen-access-cookie")
def test_an_approval_needs_a_step_up(team: Team) -> None:
    """Without its own step-up token an approval is refused, even with a session's proof."""
    approval = _asked(team.ada, "DELETE", "/kms/keyrings/payments")
    step_up = {"password": "the horse prefers oats", "for_session": True}
    team.bob.post("/auth/step-up", step_up)
    assert team.bob.refusal(f"/approvals/{approval}/approve", {})[:2] == (401, "ERR_MFA_013")
    assert team.bob.get(f"/approvals/{approval}")["state"] == "waiting"


def test_a_notice_says_that_a_request_waits(team: Team) -> None:
    """While a request waits there is a notice, which leads to the approvals."""

    def waiting() -> list[tuple[str, str]]:
        notices = team.bob.get("/notices")["notices"]
        return [
            (notice["text"], notice["path"])
            for notice in notices
            if notice["kind"] == "approval-waiting"
        ]

    assert waiting() == []
    approval = _asked(team.ada, "DELETE", "/kms/keyrings/payments")
    ((text, path),) = waiting()
    assert text == "A request waits for the approval of a second person."
    assert path.endswith("/approvals")
    team.bob.post(f"/approvals/{approval}/refuse")
    assert waiting() == []


def test_they_are_told_by_mail(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """Each other possible approver gets one mail, without a token."""
    tenant = new_tenant()
    emails = [_email() for _ in range(3)]
    ada, _ = (installation.person(tenant.tenant_id, email=email) for email in emails[:2])
    installation.person(tenant.tenant_id, "admin", emails[2])
    assert _sent(ada, *_SWITCH_ON).is_success
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    _asked(ada, "DELETE", "/kms/keyrings/payments")
    for email in emails[1:]:
        (mail,) = installation.mailbox.messages(email, "approval-requested", 1)
        text = str(mail.get_content())
        assert emails[0] in text
        assert "Delete the keyring payments" in text
        assert "/portal/approvals" in text
    assert not installation.mailbox.messages_so_far(emails[0], "approval-requested")
