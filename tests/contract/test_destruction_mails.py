"""Owners get one e-mail about each scheduled destruction, without a token."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

KIND = "destruction-scheduled"
KYBER = {"algorithm": "Kyber768"}


def _owners(installation: Installation, tenant: Caller) -> tuple[Caller, str, str]:
    """Make two owners and one other member. Return one owner and both owners' addresses."""
    emails = [f"{uuid.uuid4()}@example.com" for _ in range(2)]
    owner, _ = (installation.person(tenant.tenant_id, email=each) for each in emails)
    installation.person(tenant.tenant_id, "admin", f"admin-{emails[0]}")
    return owner, emails[0], emails[1]


def _told(installation: Installation, email: str, count: int = 1) -> str:
    """Return the newest of this number of such e-mails.

    Check that it has no token and no link with one.
    """
    found = installation.mailbox.messages(email, KIND, count)
    assert len(found) == count
    text = str(found[-1].get_content())
    assert not re.search(r"pq[a-z]_", text)
    assert "#" not in text
    return text


def test_a_scheduled_key_is_told_once(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """Each owner gets one e-mail with the time. A repeated request sends no second one."""
    tenant = new_tenant()
    tenant.post("/kms/keyrings", {"name": "payments"}, status=201)
    named = {**KYBER, "keyring": "payments"}
    tenant.post("/kms/keys/generate", named, status=201)
    tenant.post("/kms/keys/rotate", named, status=201)
    owner, first, second = _owners(installation, tenant)
    of_it = {**named, "key_version": 1, "delay_days": 9}
    at = owner.post_proven("/kms/keys/archive", of_it)["archive_at"]
    when = f"{at[:10]} {at[11:16]} UTC"
    for email in (first, second):
        text = _told(installation, email)
        assert f"Kyber768 v1 of the keyring payments is destroyed at {when}." in text
    assert owner.post_proven("/kms/keys/archive", of_it)["archive_at"] == at
    owner.post("/kms/keys/archive/cancel", {**named, "key_version": 1})
    owner.post_proven("/kms/keys/archive", of_it)
    _told(installation, first, 2)  # the second scheduling's, and none of the one that was there
    assert not installation.mailbox.messages_so_far(f"admin-{first}", KIND)


def test_a_keyrings_days_are_told_when_they_change(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """Setting a keyring's automatic destruction sends an e-mail; other changes do not."""
    tenant = new_tenant()
    owner, first, _ = _owners(installation, tenant)
    owner.post_proven("/kms/keyrings", {"name": "cards", "archive_after_days": 400}, status=201)
    assert "keyring cards are destroyed after 400 days." in _told(installation, first)
    for change in (
        {"description": "cards", "archive_after_days": 400},
        {"archive_after_days": 90},
    ):
        assert owner.ask_proven("PATCH", "/kms/keyrings/cards", change).is_success
    assert "destroyed after 90 days." in _told(installation, first, 2)
    assert owner.ask_proven("PATCH", "/kms/keyrings/cards", {"archive_after_days": 0}).is_success
    owner.post_proven("/kms/keyrings", {"name": "other", "archive_after_days": 30}, status=201)
    assert "keyring other are destroyed" in _told(installation, first, 3)


def test_a_deleted_keyring_is_told(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """The owners get one e-mail with the time at which its keys are destroyed."""
    tenant = new_tenant()
    tenant.post("/kms/keyrings", {"name": "cards"}, status=201)
    owner, first, second = _owners(installation, tenant)
    at = owner.ask_proven("DELETE", "/kms/keyrings/cards").json()["data"]["archive_at"]
    for email in (first, second):
        when = f"{at[:10]} {at[11:16]} UTC"
        assert f"deleted keyring cards are destroyed at {when}." in _told(installation, email)


def test_a_tenants_deletion_is_told_once(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """The owners of a tenant with a scheduled deletion get one e-mail each, with the time."""
    tenant = new_tenant()
    _, first, second = _owners(installation, tenant)
    operator = installation.operator()
    path = f"/tenants/{tenant.tenant_id}"
    operator.ask("PATCH", path, {"status": "suspended"})
    for _ in range(2):
        response = operator.ask("DELETE", path)
        assert response.is_success, response.text
    at = response.json()["data"]["deletion_at"]
    for email in (first, second):
        text = _told(installation, email)
        assert f"all keys of your organization are destroyed at {at[:10]} {at[11:16]} UTC." in text
