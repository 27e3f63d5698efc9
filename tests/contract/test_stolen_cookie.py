"""The power of an attacker with an owner's access cookie only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx2
import pytest
from pyotp import TOTP
from tests.contract.rows import api_rows
from tests.contract.sensitive_requests import OF_PASSKEY, Prepared, prepare
from tests.fixtures.caller import API, TLS, Caller, read_envelope
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import Permission, Role, may
from pqkeep_gateway.http.cookies import ACCESS
from pqkeep_gateway.http.endpoint import Endpoint

ROWS = api_rows()
STEP_UP = (401, "ERR_MFA_013")
DENIED = (403, "ERR_FORBIDDEN_001")
NEEDS_NO_SESSION = frozenset({Permission.PUBLIC, Permission.SIGN_UP})
ALLOWED: Mapping[str, str] = {
    "generate_key": "adds a key, which gives nobody access",
    "create_keyring": "adds a keyring without keys; one that destroys keys needs a step-up",
    "retire_key": "what the key protects can still be read",
    "disable_key": "destroys nothing, and can be undone",
    "enable_key": "gives back what was there before, and nothing to anybody else",
    "cancel_archive": "destroys nothing, and the key can be archived again",
    "put_campaign": "is a plan, and enforces nothing",
    "close_campaign": "is a plan, and can be opened again",
    "end_canary": "gives back what was there before, and nothing to anybody else",
    "import_external_keys": "is a statement, and the record has the digest of the one before",
    "remove_external_keys": "is a statement, which can be made again",
    "test_webhook": "goes where messages go anyway",
    "resend_webhook_delivery": "goes where it went before",
    "restore_keyring": "destroys nothing, and the keyring can be deleted again",
    "see_notices": "says only that this person has seen them",
    "dismiss_notice": "is recorded, and the notice returns when its cause grows",
    "change_first_day": "is only about a list on this person's overview",
    "change_notice_mail": "is only about mail to this person, and colleagues still get theirs",
    "confirm_mfa": "needs a code of the app whose enrollment needed a step-up",
    "disable_mfa": "needs a code of the factor that it removes",
    "add_passkey": "needs a challenge, which needed a step-up",
    "begin_passkey_step_up": "gives nothing without the passkey",
    "step_up": "needs the proof itself",
    "withdraw_invitation": "gives nobody access, and can be made again",
    "refuse_request": "destroys nothing, and the request can be made again",
    "withdraw_request": "destroys nothing, and the request can be made again",
    "end_session": "leaves less access than before",
    "logout": "leaves less access than before",
}
"""Changes without a step-up, each with the reason. Using keys is the purpose of a session."""


def _is_sensitive(row: Endpoint) -> bool:
    """Return True if an owner's cookie alone must not allow a row. Rows in ALLOWED are exceptions."""
    is_change = row.method != "GET" and row.permission is not Permission.USE_KEYS
    is_for_owners = may(Role.OWNER, row.permission) and row.permission not in NEEDS_NO_SESSION
    return is_change and is_for_owners and row.name not in ALLOWED


SENSITIVE = tuple(row for row in ROWS if _is_sensitive(row))


@pytest.fixture
def prepared(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Prepared:
    """An owner with objects to change."""
    prepared = prepare(new_tenant, new_person)
    assert prepared.approval  # it takes another owner, and tests compare the team
    return prepared


@pytest.fixture
def owner(new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]) -> Caller:
    """An owner with a retired and an active key, an API key and an invitation."""
    person = new_person(new_tenant().tenant_id)
    for path in ("generate", "rotate"):
        person.post_proven(f"/kms/keys/{path}", {"algorithm": "Kyber768"}, status=201)
    return person


def _state(owner: Caller) -> object:
    """Return the state that an attacker could have changed permanently."""
    return [
        owner.get(path)
        for path in (
            "/auth/me",
            "/auth/sessions",
            "/kms/keys",
            "/team/members",
            "/team/invitations",
            "/billing/subscription",
            f"/tenants/{owner.tenant_id}",
            f"/tenants/{owner.tenant_id}/api-keys",
        )
    ]


def _attack(prepared: Prepared, name: str, **headers: str) -> tuple[int, str]:
    """Send a valid request for a row with the owner's access cookie; return the refusal."""
    request = prepared.request(name)
    owner = prepared.owner
    response = httpx2.request(
        request.method,
        f"{owner.client.base_url}{API}{request.path}",
        json=request.body,
        headers={"Cookie": f"{ACCESS}={owner.client.cookies[ACCESS]}", **headers},
        trust_env=False,
        verify=TLS,
        timeout=PATIENCE,
    )
    return response.status_code, read_envelope(response)["error"]["error_code"]


@pytest.mark.threat("stolen-access-cookie")
def test_every_change_has_its_place() -> None:
    """Each change by an owner needs a step-up, or is listed with the reason why not."""
    assert [row.name for row in SENSITIVE if not row.needs_step_up] == []
    assert ALLOWED.keys() <= {row.name for row in ROWS if not row.needs_step_up}
    assert [row.name for row in ROWS if row.needs_step_up and not _is_sensitive(row)] == []


@pytest.mark.threat("stolen-access-cookie")
def test_a_stolen_cookie_changes_nothing(prepared: Prepared) -> None:
    """With only an access cookie every sensitive request is refused, and nothing changes."""
    before = _state(prepared.owner)
    rows = [row for row in SENSITIVE if row.name not in OF_PASSKEY]
    got = {row.name: _attack(prepared, row.name) for row in rows}
    assert got == dict.fromkeys(got, STEP_UP)
    assert _state(prepared.owner) == before


def test_a_stolen_cookie_has_no_keys_destroyed_by_age(owner: Caller) -> None:
    """Setting a keyring's automatic archiving requires a step-up; other settings do not."""
    row = next(each for each in ROWS if each.name == "create_keyring")
    assert row.step_up_for is not None
    destroying = {"name": "of-a-thief", row.step_up_for.name: 30}
    assert owner.refusal("/kms/keyrings", destroying)[:2] == STEP_UP
    assert owner.get("/kms/keyrings")["total"] == 1
    made = owner.post_proven("/kms/keyrings", destroying, status=201)
    assert made["archive_after_days"] == 30
    owner.post("/kms/keyrings", {"name": "plain", row.step_up_for.name: 0}, status=201)


@pytest.mark.threat("stolen-access-cookie")
def test_a_stolen_cookie_cannot_prove_anything(prepared: Prepared) -> None:
    """A code of an app that the thief enrols, and an invented token, prove nothing."""
    owner = prepared.owner
    assert _attack(prepared, "enroll_mfa") == STEP_UP
    assert _attack(prepared, "enroll_mfa", **{"X-Step-Up-Token": "pqu_" + "0" * 49}) == STEP_UP
    code = {"totp_code": "123456"}
    assert owner.refusal("/auth/mfa/confirm", code)[:2] == (409, "ERR_CONFLICT_001")
    assert owner.refusal("/auth/mfa/disable", code)[:2] == (409, "ERR_CONFLICT_001")
    assert owner.refusal("/auth/step-up", code)[2] == "password"


def test_an_app_steps_up_only_when_it_is_in_force(owner: Caller) -> None:
    """An app with unconfirmed enrollment proves nothing; the previous factor still does."""
    app = TOTP(owner.post_proven("/auth/mfa/enroll")["secret"])
    assert owner.refusal("/auth/step-up", {"totp_code": app.now()})[2] == "password"
