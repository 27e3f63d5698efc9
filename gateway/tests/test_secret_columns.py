"""The accounts database has no secret: only digests, or values that need the pepper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, EMAIL, OTHER_EMAIL, World

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.storage.row_mac import covered
from pqkeep_gateway.storage.schema import METADATA

DIGESTS = frozenset(
    {
        "tenants.name_key",
        "operators.digest",
        "operator_sessions.digest",
        "operator_sessions.operator_digest",
        "operator_sessions.reauthentication_digest",
        "api_keys.digest",
        "idempotency_keys.key",
        "idempotency_keys.request",
        "sessions.access_digest",
        "sessions.refresh_digest",
        "sessions.exchanged_digest",
        "sessions.exchange_client",
        "sessions.reauthentication_digest",
        "sessions.proof_digest",
        "spent_refresh_tokens.digest",
        "known_networks.digest",
        "invitations.digest",
        "recovery_codes.digest",
        "challenges.digest",
        "challenges.email_code_digest",
        "challenges.network",
        "step_up_tokens.digest",
        "step_up_tokens.used_by_key",
        "step_up_tokens.used_by_request",
        "registrations.digest",
        "password_resets.digest",
        "used_sign_ins.digest",
        "approvals.digest",
        "approvals.subject",
        "workload_keys.digest",
        "workload_keys.token",
    }
)
"""32 bytes each."""
SALTS = frozenset(
    {
        "idempotency_keys.salt",
        "users.totp_salt",
        "sessions.exchange_salt",
        "outgoing_mail.salt",
        "webhooks.salt",
        "webhooks.previous_salt",
    }
)
"""16 bytes each, from which a secret is derived with the pepper."""
MACS = frozenset(
    {
        "tenants.mac",
        "operators.mac",
        "operator_sessions.mac",
        "api_keys.mac",
        "idempotency_keys.mac",
        "users.mac",
        "identities.mac",
        "sessions.mac",
        "invitations.mac",
        "challenges.mac",
        "step_up_tokens.mac",
        "registrations.mac",
        "password_resets.mac",
        "approvals.mac",
        "webhook_deliveries.mac",
        "webhooks.mac",
        "passkeys.mac",
        "workload_issuers.mac",
        "workload_roles.mac",
        "workload_keys.mac",
    }
)
"""32 bytes each, over the digest and its owner: see test_moved_rows.py."""
BOUND = {
    "tenants.name_key": "a name is not secret",
    "spent_refresh_tokens.digest": "it gives nothing: it only ends a session",
    "used_sign_ins.digest": "it gives nothing: it only refuses a second use",
    "known_networks.digest": "derived from the account",
    "recovery_codes.digest": "derived from the user",
    "sessions.exchanged_digest": "the tokens that follow from it are under the MAC",
    "sessions.exchange_client": "the tokens that follow from it are under the MAC",
    "challenges.email_code_digest": "derived from the challenge's digest, which is under the MAC",
    "challenges.network": "it gives nothing: it says which challenge ends first",
    "step_up_tokens.used_by_key": "a token that is used up does one request only",
    "step_up_tokens.used_by_request": "a token that is used up does one request only",
    "sessions.exchange_salt": "the tokens that follow from it are under the MAC",
    "sessions.proof_digest": "derived from the session, the user, the role and its end",
    "operator_sessions.reauthentication_digest": "derived from the session and its end",
    "sessions.reauthentication_digest": "derived from the session, the user and its end",
    "users.totp_salt": "the secret is derived from the user, too",
    "users.password_hash": "the hash is of the user's id, too",
    "outgoing_mail.salt": "the token is derived from the recipient, too",
}
"""The secrets that their table's MAC is not over, and why they are of no use in another row."""
OWNERS = frozenset({"tenant_id", "user_id", "email_key", "role", "scopes", "operator_digest"})
"""Columns that say what a credential in the same row gives, and to whom."""
CONTENTS = frozenset(
    {
        "idempotency_keys.result",
        "audit_outbox.event",
        "write_probe.filler",
        "campaign_scans.digest",
        "external_keys.document",
        "external_keys.digest",
        "passkeys.credential_id",
        "passkeys.public_key",
    }
)
"""Columns without secrets: response without the credential, action, public key, and filler."""
TEXTS = frozenset(
    {
        "operators.name",
        "operators.last_used_from",
        "operators.role",
        "operator_sessions.source_address",
        "operator_sessions.provider",
        "operator_sessions.subject",
        "operator_sessions.email",
        "operator_sessions.role",
        "tenants.name",
        "tenants.folded_name",
        "tenants.tier",
        "tenants.subscription",
        "tenants.status",
        "tenants.shard",
        "tenants.shard_state",
        "tenant_shards.shard",
        "shards.name",
        "api_keys.last4",
        "api_keys.status",
        "api_keys.last_used_from",
        "api_keys.name",
        "api_keys.scopes",
        "api_keys.allowed_addresses",
        "usage.month",
        "users.email",
        "users.email_key",
        "users.role",
        "users.language",
        "identities.issuer",
        "passkeys.algorithm",
        "passkeys.name",
        "passkeys.transports",
        "identities.subject",
        "sessions.source_address",
        "sessions.user_agent",
        "invitations.email",
        "invitations.email_key",
        "invitations.role",
        "registrations.email",
        "registrations.email_key",
        "password_resets.email_key",
        "contracts.tier",
        "contracts.status",
        "contracts.external_id",
        "invoices.tier",
        "invoices.currency",
        "invoices.external_id",
        "billing_notices.id",
        "audit_outbox.id",
        "audit_outbox.refusal",
        "audit_outbox.shard",
        "audit_sinks.sink",
        "campaigns.name",
        "approvals.operation",
        "approvals.request",
        "approvals.summary",
        "approvals.permission",
        "approvals.state",
        "approvals.outcome",
        "api_key_networks.network",
        "notices.kind",
        "notices.subject",
        "notices.details",
        "notice_settings.kind",
        "external_keys.source",
        "external_keys.imported_by",
        "external_keys.keys",
        "campaigns.description",
        "campaigns.sources",
        "campaigns.target_keyring",
        "campaigns.target_algorithm",
        "campaigns.state",
        "campaigns.created_by",
        "campaigns.canary",
        "campaign_scans.campaign",
        "campaign_scans.place",
        "campaign_scans.principal",
        "campaign_scans.counts",
        "outgoing_mail.about",
        "outgoing_mail.kind",
        "outgoing_mail.recipient",
        "outgoing_mail.inviter",
        "outgoing_mail.language",
        "webhooks.name",
        "webhooks.url",
        "webhooks.kinds",
        "webhooks.state",
        "webhooks.created_by",
        "workload_issuers.name",
        "workload_issuers.issuer",
        "workload_issuers.audience",
        "workload_issuers.algorithms",
        "workload_issuers.keys",
        "workload_issuers.changed_by",
        "workload_roles.name",
        "workload_roles.conditions",
        "workload_roles.scopes",
        "workload_roles.changed_by",
        "webhook_deliveries.kind",
        "webhook_deliveries.body",
        "webhook_deliveries.state",
        "webhook_deliveries.problem",
    }
)
"""Public for every reader of the database."""
PASSWORD_HASHES = frozenset({"users.password_hash"})
"""Argon2id under the pepper."""


def columns(kind: type[Any]) -> set[str]:
    """Return the columns of a type."""
    return {
        f"{table.name}.{column.name}"
        for table in METADATA.sorted_tables
        for column in table.columns
        if isinstance(column.type, kind)
    }


@pytest.mark.threat("accounts-database-reader")
def test_every_column_is_of_a_kind() -> None:
    """Each column of bytes or text is listed as a digest, a salt, or not secret."""
    assert columns(sa.LargeBinary) == DIGESTS | SALTS | CONTENTS | MACS
    assert columns(sa.String) == TEXTS | PASSWORD_HASHES


@pytest.mark.threat("accounts-database-writer")
def test_every_secret_is_bound_to_its_owner() -> None:
    """Each secret column is under its table's MAC with its owner, or has a stated reason."""
    macs = {f"{table.name}.{name}" for table in with_macs() for name in covered(table)}
    assert {f"{table.name}.mac" for table in with_macs()} == MACS
    assert (DIGESTS | SALTS | PASSWORD_HASHES) - macs == set(BOUND)
    owners = {
        f"{table.name}.{column.name}"
        for table in with_macs()
        for column in table.columns
        if column.name in OWNERS
    }
    assert owners <= macs


def with_macs() -> list[sa.Table]:
    """Return the tables with a MAC."""
    return [table for table in METADATA.sorted_tables if "mac" in table.columns]


async def stored(world: World) -> Mapping[str, list[Any]]:
    """Return the values in each column, without NULL."""
    found: dict[str, list[Any]] = {}
    async with world.engine.connect() as connection:
        for table in METADATA.sorted_tables:
            for column in table.columns:
                rows = await connection.execute(sa.select(column).where(column.is_not(None)))
                found[f"{table.name}.{column.name}"] = list(rows.scalars())
    return found


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_a_credential_is_stored_as_its_digest(world: World) -> None:
    """The column of each credential has its digest under the pepper."""
    tokens = await world.join()
    person = await world.principal(tokens)
    made = await world.api_keys.create(world.tenant, ATTRIBUTION)
    invited = await world.invite(OTHER_EMAIL, Role.VIEWER)
    registration = await world.registration_token()
    reset = await world.reset_token()
    _, (used, *recovery_codes) = await world.enroll(person)
    step_up = (await world.step_up.issue(person, used, ATTRIBUTION)).token
    challenge = await world.challenge()
    await world.resets.begin(EMAIL, ATTRIBUTION)
    found = await stored(world)
    expected = {
        "sessions.access_digest": tokens.access,
        "sessions.refresh_digest": tokens.refresh,
        "api_keys.digest": made.plaintext,
        "step_up_tokens.digest": step_up,
        "invitations.digest": invited.token,
        "registrations.digest": registration,
        "password_resets.digest": reset,
        "challenges.digest": challenge,
    }
    for column, credential in expected.items():
        assert world.pepper.digest(credential) in found[column], column
    assert len(found["recovery_codes.digest"]) == len(recovery_codes)
    for column in DIGESTS:
        assert {len(value) for value in found[column]} <= {32}, column
    for column in SALTS:
        assert {len(value) for value in found[column]} <= {16}, column
    assert found["users.totp_salt"]
    assert found["outgoing_mail.salt"]
    assert all(value.startswith("$argon2id$") for value in found["users.password_hash"])
