"""All tables of the accounts database."""

import sqlalchemy as sa
from alembic import op

revision = "accounts_0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    _create_operators()
    _create_tenant_tables()
    _create_people_tables()
    _create_billing_tables()
    _create_outboxes()
    _create_campaign_tables()
    _create_inventory()
    _create_approvals()
    _create_notices()
    _create_webhooks()
    _create_workloads()


def _create_operators() -> None:
    op.create_table(
        "operators",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("added_at_us", sa.BigInteger, nullable=False),
        sa.Column("rotated_at_us", sa.BigInteger, nullable=False),
        sa.Column("last_used_at_us", sa.BigInteger, nullable=True),
        sa.Column("last_used_from", sa.String(64), nullable=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "operator_sessions",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("operator_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("last_seen_at_us", sa.BigInteger, nullable=False),
        sa.Column("source_address", sa.String(64), nullable=False),
        sa.Column("provider", sa.String(32), nullable=True),
        sa.Column("subject", sa.String(255), nullable=True),
        sa.Column("email", sa.String(254), nullable=True),
        sa.Column("role", sa.String(16), nullable=True),
        sa.Column("reauthenticated_until_us", sa.BigInteger, nullable=True),
        sa.Column("reauthentication_digest", sa.LargeBinary(32), nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )


def _create_tenant_tables() -> None:
    shards = op.create_table(
        "shards",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("database_id", sa.Uuid, nullable=True),
    )
    op.bulk_insert(shards, [{"name": "default", "draining": False, "created_at_us": 0}])
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("name_key", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("folded_name", sa.Text, nullable=False),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("subscription", sa.String(16), nullable=False),
        sa.Column("requests_per_minute", sa.Integer, nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
        sa.Column("requires_mfa", sa.Boolean, nullable=False),
        sa.Column("requires_approval", sa.Boolean, nullable=False),
        sa.Column("deletion_at_us", sa.BigInteger, nullable=True, index=True),
        sa.Column("told_deletion_at_us", sa.BigInteger, nullable=True),
        sa.Column("shard", sa.String(32), sa.ForeignKey("shards.name"), nullable=False, index=True),
        sa.Column("shard_state", sa.String(16), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "tenant_shards",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("shard", sa.String(32), sa.ForeignKey("shards.name"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("revoked_at_us", sa.BigInteger, nullable=True),
        sa.Column("accepted_until_us", sa.BigInteger, nullable=True),
        sa.Column("last_used_at_us", sa.BigInteger, nullable=True),
        sa.Column("last_used_from", sa.String(64), nullable=True),
        sa.Column("name", sa.String(64), nullable=True),
        sa.Column("scopes", sa.Text, nullable=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=True),
        sa.Column("allowed_addresses", sa.Text, nullable=True),
        sa.Column("last_administered_at_us", sa.BigInteger, nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("operations", sa.Integer, nullable=False),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.LargeBinary(32), primary_key=True),
        sa.Column("request", sa.LargeBinary(32), nullable=False),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("api_key_version", sa.Integer, nullable=True),
        sa.Column("revoked_version", sa.Integer, nullable=True),
        sa.Column("salt", sa.LargeBinary(16), nullable=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("result", sa.LargeBinary, nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )


def _create_people_tables() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("email_key", sa.String(254), nullable=False, unique=True),
        sa.Column("password_hash", sa.String(255), nullable=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("totp_salt", sa.LargeBinary(16), nullable=True),
        sa.Column("last_totp_step", sa.BigInteger, nullable=True),
        sa.Column("has_mfa", sa.Boolean, nullable=False),
        sa.Column("last_sign_in_at_us", sa.BigInteger, nullable=True),
        sa.Column("email_codes", sa.Boolean, nullable=False),
        sa.Column("first_day_dismissed", sa.Boolean, nullable=False),
        sa.Column("checkpoint_kept", sa.Boolean, nullable=False),
        sa.Column("codes_at_us", sa.BigInteger, nullable=True),
        sa.Column("passkeys", sa.Integer, nullable=False),
        sa.Column("language", sa.String(8), nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "passkeys",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("credential_id", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("algorithm", sa.String(16), nullable=False),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("counter", sa.BigInteger, nullable=False),
        sa.Column("is_syncable", sa.Boolean, nullable=False),
        sa.Column("is_synced", sa.Boolean, nullable=False),
        sa.Column("transports", sa.String(128), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("last_used_at_us", sa.BigInteger, nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("access_digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("access_expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("refresh_digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("refresh_expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("refreshed_at_us", sa.BigInteger, nullable=False),
        sa.Column("source_address", sa.String(64), nullable=False),
        sa.Column("used_second_factor", sa.Boolean, nullable=False),
        sa.Column("exchanged_digest", sa.LargeBinary(32), nullable=True, index=True),
        sa.Column("exchange_client", sa.LargeBinary(32), nullable=True),
        sa.Column("exchange_salt", sa.LargeBinary(16), nullable=True),
        sa.Column("reauthenticated_until_us", sa.BigInteger, nullable=True),
        sa.Column("reauthentication_digest", sa.LargeBinary(32), nullable=True),
        sa.Column("proof_digest", sa.LargeBinary(32), nullable=True),
        sa.Column("proof_until_us", sa.BigInteger, nullable=True),
        sa.Column("user_agent", sa.String(256), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "spent_refresh_tokens",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("session_id", sa.Uuid, sa.ForeignKey("sessions.id"), nullable=False, index=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "known_networks",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("last_sign_in_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "invitations",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("email_key", sa.String(254), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("id", sa.Uuid, nullable=False, unique=True, index=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_invitations_address", "tenant_id", "email_key", unique=True),
    )
    op.create_table(
        "recovery_codes",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
    )
    op.create_table(
        "challenges",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("email_code_digest", sa.LargeBinary(32), nullable=True),
        sa.Column("email_code_attempts", sa.Integer, nullable=False),
        sa.Column("network", sa.LargeBinary(32), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "step_up_tokens",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("is_reserved", sa.Boolean, nullable=False),
        sa.Column("used_by_key", sa.LargeBinary(32), nullable=True),
        sa.Column("used_by_request", sa.LargeBinary(32), nullable=True),
        sa.Column("factor_at_us", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "registrations",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("email_key", sa.String(254), nullable=False, index=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "password_resets",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("email_key", sa.String(254), nullable=False, index=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(255), primary_key=True),
        sa.Column("subject", sa.String(255), primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("linked_at_us", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_identities_user", "issuer", "user_id", unique=True),
    )
    op.create_table(
        "used_sign_ins",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False, index=True),
    )


def _create_billing_tables() -> None:
    op.create_table(
        "contracts",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("started_at_us", sa.BigInteger, nullable=False),
        sa.Column("period_start_us", sa.BigInteger, nullable=False),
        sa.Column("period_end_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("as_of_us", sa.BigInteger, nullable=False),
        sa.Column("price_cents", sa.BigInteger, nullable=False),
        sa.Column("cancel_at_period_end", sa.Boolean, nullable=False),
        sa.Column("external_id", sa.String(255), nullable=True, unique=True),
        sa.Column("revision", sa.Integer, nullable=False),
    )
    is_running = sa.text("status != 'ended'")
    op.create_index(
        "ix_contracts_running",
        "contracts",
        ["tenant_id"],
        unique=True,
        sqlite_where=is_running,
        postgresql_where=is_running,
    )
    op.create_table(
        "invoices",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("tier", sa.String(32), nullable=False),
        sa.Column("amount_cents", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("period_start_us", sa.BigInteger, nullable=False),
        sa.Column("period_end_us", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("external_id", sa.String(255), nullable=True, unique=True),
    )
    op.create_table(
        "billing_notices",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("received_at_us", sa.BigInteger, nullable=False, index=True),
    )


def _create_outboxes() -> None:
    op.create_table(
        "audit_outbox",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("event", sa.LargeBinary, nullable=False),
        sa.Column("refusal", sa.String(32), nullable=True),
        sa.Column("acknowledged_at_us", sa.BigInteger, nullable=True),
        sa.Column("shard", sa.String(32), nullable=False),
    )
    probe = op.create_table(
        "write_probe",
        sa.Column("written", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("filler", sa.LargeBinary, nullable=False),
    )
    op.bulk_insert(probe, [{"written": 0, "filler": b"0"}])
    op.create_table(
        "audit_sinks",
        sa.Column("sink", sa.String(300), primary_key=True),
        sa.Column("record", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Uuid, nullable=False),
        sa.Column("held_until_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "outgoing_mail",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("recipient", sa.String(254), nullable=False),
        sa.Column("inviter", sa.String(254), nullable=False),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("language", sa.String(8), nullable=False),
        sa.Column("salt", sa.LargeBinary(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("next_attempt_at_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("attempts", sa.Integer, nullable=False),
    )


def _create_campaign_tables() -> None:
    op.create_table(
        "campaigns",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("description", sa.String(256), nullable=False),
        sa.Column("sources", sa.Text, nullable=False),
        sa.Column("target_keyring", sa.String(128), nullable=False),
        sa.Column("target_algorithm", sa.String(32), nullable=False),
        sa.Column("quiet_days", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("changed_at_us", sa.BigInteger, nullable=False),
        sa.Column("canary", sa.Text, nullable=True),
    )
    op.create_table(
        "campaign_scans",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("campaign", sa.String(64), primary_key=True),
        sa.Column("place", sa.String(200), primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scanned_at_us", sa.BigInteger, nullable=False),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("unreadable", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "campaign"], ["campaigns.tenant_id", "campaigns.name"]
        ),
    )


def _create_inventory() -> None:
    op.create_table(
        "external_keys",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("source", sa.String(64), primary_key=True),
        sa.Column("document", sa.LargeBinary(32), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("imported_at_us", sa.BigInteger, nullable=False),
        sa.Column("imported_by", sa.String(128), nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("moved", sa.Integer, nullable=False),
        sa.Column("keys", sa.Text, nullable=False),
    )


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("operation", sa.String(64), nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("subject", sa.LargeBinary(32), nullable=False),
        sa.Column("permission", sa.String(32), nullable=False),
        sa.Column("requester", sa.Uuid, nullable=False),
        sa.Column("requested_at_us", sa.BigInteger, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("decided_by", sa.Uuid, nullable=True),
        sa.Column("decided_at_us", sa.BigInteger, nullable=True),
        sa.Column("outcome", sa.String(32), nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
    )


def _create_notices() -> None:
    op.create_table(
        "api_key_networks",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("network", sa.String(64), primary_key=True),
        sa.Column("first_used_at_us", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "version"], ["api_keys.tenant_id", "api_keys.version"]
        ),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(128), nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("level", sa.BigInteger, nullable=False),
        sa.Column("opened_at_us", sa.BigInteger, nullable=False),
        sa.Column("raised_at_us", sa.BigInteger, nullable=False),
        sa.Column("dismissed_at_us", sa.BigInteger, nullable=True),
        sa.Column("closed_at_us", sa.BigInteger, nullable=True),
        sa.Column("mailed_at_us", sa.BigInteger, nullable=True),
    )
    op.create_index("ix_notices_raised", "notices", ["tenant_id", "raised_at_us"])
    is_open = sa.text("closed_at_us IS NULL")
    op.create_index(
        "ix_notices_open",
        "notices",
        ["tenant_id", "kind", "subject"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_table(
        "notice_views",
        sa.Column("notice_id", sa.Uuid, sa.ForeignKey("notices.id"), primary_key=True),
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), primary_key=True, index=True),
        sa.Column("seen_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "notice_settings",
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("days", sa.Integer, nullable=False),
    )
    op.create_table(
        "notice_mail_refusals",
        sa.Column("user_id", sa.Uuid, sa.ForeignKey("users.id"), primary_key=True),
    )
    op.create_table(
        "notice_checks",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("due_at_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("held_until_us", sa.BigInteger, nullable=False),
        sa.Column("mailed_at_us", sa.BigInteger, nullable=True),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("salt", sa.LargeBinary(16), nullable=False),
        sa.Column("previous_salt", sa.LargeBinary(16), nullable=True),
        sa.Column("previous_until_us", sa.BigInteger, nullable=True),
        sa.Column("kinds", sa.Text, nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("failing_since_us", sa.BigInteger, nullable=True),
        sa.Column("last_success_at_us", sa.BigInteger, nullable=True),
        sa.Column("next_attempt_at_us", sa.BigInteger, nullable=True, index=True),
        sa.Column("paused_until_us", sa.BigInteger, nullable=False),
        sa.Column("held_until_us", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_webhooks_name", "tenant_id", "name", unique=True),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("webhook_id", sa.Uuid, sa.ForeignKey("webhooks.id"), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False, index=True),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("attempted_at_us", sa.BigInteger, nullable=True),
        sa.Column("next_attempt_at_us", sa.BigInteger, nullable=True),
        sa.Column("status", sa.Integer, nullable=True),
        sa.Column("problem", sa.String(32), nullable=True),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_webhook_deliveries_webhook", "webhook_id", "created_at_us"),
    )


def _create_workloads() -> None:
    op.create_table(
        "workload_issuers",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("audience", sa.String(512), nullable=False),
        sa.Column("algorithms", sa.Text, nullable=False),
        sa.Column("keys", sa.Text, nullable=True),
        sa.Column("changed_at_us", sa.BigInteger, nullable=False),
        sa.Column("changed_by", sa.String(128), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_workload_issuers_name", "tenant_id", "name", unique=True),
    )
    op.create_table(
        "workload_roles",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column(
            "issuer_id",
            sa.Uuid,
            sa.ForeignKey("workload_issuers.id"),
            nullable=False,
            index=True,
        ),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("conditions", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("lifetime_seconds", sa.Integer, nullable=False),
        sa.Column("changed_at_us", sa.BigInteger, nullable=False),
        sa.Column("changed_by", sa.String(128), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_workload_roles_name", "tenant_id", "name", unique=True),
    )
    op.create_table(
        "workload_keys",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("role_id", sa.Uuid, sa.ForeignKey("workload_roles.id"), nullable=False),
        sa.Column("token", sa.LargeBinary(32), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.Column("kept_until_us", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.Index("ix_workload_keys_role", "role_id", "kept_until_us"),
        sa.Index("ix_workload_keys_token", "token"),
    )
