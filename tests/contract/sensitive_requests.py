"""A valid request for each operation with step-up, for a prepared owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from tests.contract.rows import api_rows
from tests.fixtures.caller import Caller

from pqkeep_gateway.http.endpoint import Endpoint

NEW_PASSWORD = "the horse is tired of oats"  # noqa: S105 - nobody's yet
KEY = {"algorithm": "Kyber768"}
OF_PASSKEY = frozenset({"rename_passkey", "remove_passkey"})
"""Operations on a passkey, by its owner's step-up with it: see test_passkeys.py."""
ROWS: Mapping[str, Endpoint] = {
    row.name: row
    for row in api_rows()
    if (row.needs_step_up or row.step_up_for is not None) and row.name not in OF_PASSKEY
}
"""By name."""

ISSUER = {
    "url": "https://token.actions.githubusercontent.com",
    "audience": "pqkeep",
    "algorithms": ["RS256"],
}
ROLE = {"issuer": "ci", "claims": {"sub": "x"}, "scopes": [{"operations": ["use"]}]}


@dataclass(frozen=True)
class Request:
    """One request, without a step-up."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Prepared:
    """An owner and a colleague."""

    owner: Caller
    colleague: str
    webhook: str
    new_person: Callable[..., Caller] = field(repr=False)

    @cached_property
    def approval(self) -> str:
        """A request that waits for another owner's approval."""
        return _asked(self.owner, self.new_person(self.owner.tenant_id))

    def request(self, name: str) -> Request:
        """Return a request that succeeds once. The key service refuses only the import."""
        row = ROWS[name]
        path, body = row.path.format(**self._path), None
        if name == "approve_request":
            path = f"/approvals/{self.approval}/approve"
        if row.takes_body:
            body = self._bodies().get(name, {})
        return Request(row.method, path, body)

    @property
    def _path(self) -> Mapping[str, object]:
        return {
            "tenant_id": self.owner.tenant_id,
            "id": self.colleague,
            "version": 1,
            "name": "payments",
            "kind": "key-old",
            "webhook": self.webhook,
            "issuer": "ci",
            "role": "deploy",
        }

    def _bodies(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "change_password": {"new_password": NEW_PASSWORD},
            "change_me": {"email_codes": False},
            "change_organization": {"require_mfa": False},
            "rotate_key": KEY,
            "archive_key": {**KEY, "key_version": 1},
            "import_key": {
                "algorithm": "X-Wing",
                "import_key_id": "7b0f3c52-52a5-4d0e-9a43-7f4d0c8f8a11",
                "wrapped_private_key": "Fyf0eJ8oWZ0OQK3MwPQBXGpZ8YwWxqUJ",
            },
            "create_keyring": {"name": "short-lived", "archive_after_days": 30},
            "update_keyring": {"description": "changed"},
            "begin_canary": {"until": (datetime.now(UTC) + timedelta(days=7)).isoformat()},
            "rotate_api_key": {"key_id": "1"},
            "invite": {"email": "grace@example.com", "role": "viewer"},
            "change_role": {"role": "viewer"},
            "change_notice_setting": {"enabled": False},
            "check_out": {"tier": "professional"},
            "put_workload_issuer": ISSUER,
            "put_workload_role": ROLE,
            "create_webhook": {"name": "pager", "url": "https://hooks.example.com/"},
            "change_webhook": {"active": False},
            "put_rule": {"algorithms": ["Kyber768"]},
            "put_rules": {"name": "payments", "algorithms": ["Kyber768"]},
        }


def prepare(
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    plan: str = "enterprise_plus",
    *,
    buys: bool = True,
) -> Prepared:
    """Make an owner with the objects of the requests, and without a proof."""
    tenant = new_tenant(plan)
    owner = new_person(tenant.tenant_id)
    colleague = new_person(tenant.tenant_id, "developer").get("/auth/me")["id"]
    tenant.post("/kms/keys/generate", KEY, status=201)
    tenant.post("/kms/keys/rotate", KEY, status=201)
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    rule = {"algorithms": ["Kyber768"]}
    assert owner.ask_proven("PUT", "/rules/algorithms/payments", rule).is_success
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    webhook = owner.post_proven("/webhooks", hook, status=201)["id"]
    workloads = f"/tenants/{tenant.tenant_id}/workloads"
    for path, body in (("issuers/ci", ISSUER), ("roles/deploy", ROLE)):
        assert owner.ask_proven("PUT", f"{workloads}/{path}", body).is_success
    plan_of_move = {"sources": [KEY], "target": {"algorithm": "X-Wing"}}
    assert tenant.ask("PUT", "/campaigns/payments", plan_of_move).is_success
    if buys:
        owner.post_proven("/billing/subscriptions/checkout", {"tier": "starter"})
    return Prepared(owner, colleague, webhook, new_person)


def _asked(owner: Caller, other: Caller) -> str:
    """Let another owner ask for an approval, while it is required; return the request's id."""
    required = {"require_approval": True}
    assert owner.ask_proven("PATCH", "/auth/organization", required).is_success
    rule = {"algorithms": ["X-Wing"]}
    asked = other.ask_proven("PUT", "/rules/algorithms/payments", rule).json()["data"]
    off = other.ask_proven("PATCH", "/auth/organization", {"require_approval": False})
    owner.post_proven(f"/approvals/{off.json()['data']['id']}/approve")
    member = f"/team/members/{other.get('/auth/me')['id']}"
    assert owner.ask_proven("PATCH", member, {"role": "admin"}).is_success
    approval: str = asked["id"]
    return approval
