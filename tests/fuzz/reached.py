"""The requirements of a case for success: a token, a code, or an existing id."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from pyotp import TOTP
from tests.fuzz.world import PASSWORD, Person, Tenant, World

Fields = dict[str, Any]
Reach = Callable[[World, Tenant, Person], Fields]
"""Prepares an object for one of a tenant's people, and returns the fields that name it."""


def _registration(world: World, _tenant: Tenant, _person: Person) -> Fields:
    email = f"{uuid.uuid4()}@example.com"
    world.call("POST", "/auth/register", {"email": email})
    token = world.mailbox.token(email, "registration")
    return {"token": token, "name": f"fuzz {email}", "password": PASSWORD}


def _invitation(world: World, tenant: Tenant, _person: Person) -> Fields:
    token = world.invite(tenant, "viewer")["invitation_token"]
    return {"token": token, "password": PASSWORD}


def _password_reset(world: World, _tenant: Tenant, person: Person) -> Fields:
    world.call("POST", "/auth/forgot-password", {"email": person.email})
    token = world.mailbox.token(person.email, "password-reset")
    return {"token": token, "new_password": PASSWORD + " again"}


def _sign_in(_world: World, _tenant: Tenant, person: Person) -> Fields:
    return {"email": person.email, "password": PASSWORD}


def _challenge(world: World, _tenant: Tenant, person: Person) -> Fields:
    world.call("PATCH", "/auth/me", {"email_codes": True}, person=person, proven=True)
    fields = {"email": person.email, "password": PASSWORD}
    error = world.ask("POST", "/auth/login", fields).json()["error"]
    return {"challenge_token": error["challenge_token"]}


def _code(world: World, tenant: Tenant, person: Person) -> Fields:
    found = _challenge(world, tenant, person)
    world.call("POST", "/auth/mfa/email", found)
    return found | {"email_code": world.mailbox.code(person.email)}


def _enrollment(world: World, _tenant: Tenant, person: Person) -> Fields:
    made = world.call("POST", "/auth/mfa/enroll", person=person, proven=True)
    return {"totp_code": TOTP(made["secret"]).now()}


def _second_factor(world: World, tenant: Tenant, person: Person) -> Fields:
    code = _enrollment(world, tenant, person)
    made = world.call("POST", "/auth/mfa/confirm", code, person=person)
    return {"recovery_code": made["recovery_codes"][0]}


def _password(_world: World, _tenant: Tenant, _person: Person) -> Fields:
    return {"password": PASSWORD}


def _session(world: World, _tenant: Tenant, person: Person) -> Fields:
    (one,) = world.call("GET", "/auth/sessions", person=person)["sessions"]
    return {"id": one["id"]}


def _colleague(_world: World, tenant: Tenant, _person: Person) -> Fields:
    return {"id": tenant.people["viewer"].id}


def _open_invitation(world: World, tenant: Tenant, _person: Person) -> Fields:
    return {"id": world.invite(tenant, "viewer")["id"]}


def _subscription(world: World, tenant: Tenant, _person: Person) -> Fields:
    owner = tenant.people["owner"]
    bought = {"tier": "professional"}
    world.call("POST", "/billing/subscriptions/checkout", bought, person=owner, proven=True)
    return {}


def _retired_key(world: World, tenant: Tenant, _person: Person) -> Fields:
    named = {"algorithm": "X-Wing"}
    for step in ("generate", "rotate"):
        world.call("POST", f"/kms/keys/{step}", named, credential=tenant.api_key)
    retired = named | {"key_version": 1}
    world.call("POST", "/kms/keys/retire", retired, credential=tenant.api_key)
    return retired


def _old_ciphertext(world: World, tenant: Tenant, _person: Person) -> Fields:
    named = {"algorithm": "Kyber768"}
    world.call("POST", "/kms/keys/generate", named, credential=tenant.api_key)
    made = world.call("POST", "/kem/encrypt", {"plaintext": "QUJD"}, credential=tenant.api_key)
    world.call("POST", "/kms/keys/rotate", named, credential=tenant.api_key)
    left_out = dict.fromkeys(("envelope", "wrapped_key", "associated_data", "keyring", "to"))
    return {"ciphertext": made["ciphertext"], "key_version": 1, **named, **left_out}


def _wrapped_private_key(world: World, tenant: Tenant, _person: Person) -> Fields:
    named = {"algorithm": "Kyber768"}
    path = "/kms/keys/import-key?algorithm=Kyber768"
    import_key = world.call("GET", path, credential=tenant.api_key)
    return {
        **named,
        "keyring": None,
        "import_key_id": import_key["import_key_id"],
        "wrapped_private_key": world.wrap_a_private_key(import_key),
    }


def _operator(world: World, _tenant: Tenant, _person: Person) -> Fields:
    return {"operator_key": world.operator}


def _suspended(world: World, tenant: Tenant, _person: Person) -> Fields:
    path, fields = f"/tenants/{tenant.id}", {"status": "suspended"}
    world.call("PATCH", path, fields, credential=world.operator)
    return {"tenant_id": tenant.id}


def _to_be_deleted(world: World, tenant: Tenant, person: Person) -> Fields:
    named = _suspended(world, tenant, person)
    world.call("DELETE", f"/tenants/{tenant.id}", credential=world.operator)
    return named


REACHED: dict[str, Reach] = {
    "confirm_registration": _registration,
    "accept_invitation": _invitation,
    "reset_password": _password_reset,
    "login": _sign_in,
    "send_email_code": _challenge,
    "verify_mfa": _code,
    "confirm_mfa": _enrollment,
    "disable_mfa": _second_factor,
    "step_up": _password,
    "end_session": _session,
    "change_role": _colleague,
    "remove_member": _colleague,
    "withdraw_invitation": _open_invitation,
    "cancel_subscription": _subscription,
    "archive_key": _retired_key,
    "re_encrypt": _old_ciphertext,
    "import_key": _wrapped_private_key,
    "delete_tenant": _suspended,
    "cancel_tenant_deletion": _to_be_deleted,
    "operator_login": _operator,
}
"""By operation."""
