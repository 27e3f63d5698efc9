"""The tables of the accounts database, as the migrations create them.

Times are microseconds since 1970, UTC. Digests are HMAC-SHA-256 under the pepper: 32 bytes.
``mac``: see pqkeep_gateway.storage.row_mac.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    text,
)

from pqkeep_gateway.storage.row_mac import mac_column
from pqkeep_protocol.commits import PROBE_TABLE
from pqkeep_protocol.keys import DEFAULT_SHARD

METADATA = MetaData()

SHARDS = Table(
    "shards",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("draining", Boolean, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("database_id", Uuid, nullable=True),
)
"""Every shard that was ever in a gateway's settings. ``draining``: it accepts no new tenants.
``database_id``: the database of its key services, once one has claimed it."""

TENANTS = Table(
    "tenants",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("name", String(255), nullable=False),
    Column("name_key", LargeBinary(32), nullable=False, unique=True),
    Column("folded_name", Text, nullable=False),
    Column("tier", String(32), nullable=False),
    Column("subscription", String(16), nullable=False),
    Column("requests_per_minute", Integer, nullable=True),
    Column("status", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("updated_at_us", BigInteger, nullable=False),
    Column("requires_mfa", Boolean, nullable=False, default=False),
    Column("requires_approval", Boolean, nullable=False, default=False),
    Column("deletion_at_us", BigInteger, nullable=True, index=True),
    Column("told_deletion_at_us", BigInteger, nullable=True),
    Column("shard", String(32), ForeignKey("shards.name"), nullable=False, index=True),
    Column("shard_state", String(16), nullable=False, default="serving"),
    mac_column("tenants", "id", "tier", "subscription", "requires_mfa", "requires_approval"),
)
"""``folded_name``: the form in which names are compared; see pqkeep_gateway.storage.tenants.
``shard_state``: ``moving`` while the tenant moves to another shard."""

TENANT_SHARDS = Table(
    "tenant_shards",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("shard", String(32), ForeignKey("shards.name"), primary_key=True),
    Column("position", Integer, nullable=False),
)
"""The shards of a tenant that was moved, past and present. Positions count from 0, in the order of
its first arrival. Their logs have its records."""

OPERATORS = Table(
    "operators",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("added_at_us", BigInteger, nullable=False),
    Column("rotated_at_us", BigInteger, nullable=False),
    Column("last_used_at_us", BigInteger, nullable=True),
    Column("last_used_from", String(64), nullable=True),
    Column("role", String(16), nullable=False),
    mac_column("operators", "name", "digest", "role"),
)

OPERATOR_SESSIONS = Table(
    "operator_sessions",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("operator_digest", LargeBinary(32), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("last_seen_at_us", BigInteger, nullable=False),
    Column("source_address", String(64), nullable=False),
    Column("provider", String(32), nullable=True),
    Column("subject", String(255), nullable=True),
    Column("email", String(254), nullable=True),
    Column("role", String(16), nullable=True),
    Column("reauthenticated_until_us", BigInteger, nullable=True),
    Column("reauthentication_digest", LargeBinary(32), nullable=True),
    mac_column(
        "operator_sessions",
        *("digest", "operator_digest", "created_at_us", "provider", "subject", "email", "role"),
    ),
)
"""``operator_digest``: of the credential that began it, or of the provider's settings. The session
ends when they change. ``provider`` to ``role``: only in sessions that began at a provider.
``reauthentication_digest``: see ``OperatorSessions.spend``."""

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("last4", String(4), nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("revoked_at_us", BigInteger, nullable=True),
    Column("accepted_until_us", BigInteger, nullable=True),
    Column("last_used_at_us", BigInteger, nullable=True),
    Column("last_used_from", String(64), nullable=True),
    Column("name", String(64), nullable=True),
    Column("scopes", Text, nullable=True),
    Column("expires_at_us", BigInteger, nullable=True),
    Column("allowed_addresses", Text, nullable=True),
    Column("last_administered_at_us", BigInteger, nullable=True),
    mac_column(
        "api_keys",
        "tenant_id",
        "version",
        "digest",
        "name",
        "scopes",
        "expires_at_us",
        "allowed_addresses",
    ),
)
"""``accepted_until_us``: for a rotated key, the end of its overlap with the new one. ``scopes``:
JSON. ``allowed_addresses``: networks, separated by spaces. null: no limit.
``last_administered_at_us``: the last request beyond using and viewing keys."""

API_KEY_NETWORKS = Table(
    "api_key_networks",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("network", String(64), primary_key=True),
    Column("first_used_at_us", BigInteger, nullable=False),
    ForeignKeyConstraint(["tenant_id", "version"], ["api_keys.tenant_id", "api_keys.version"]),
)
"""The networks from which an API key was used; see pqkeep_gateway.storage.last_uses."""

USAGE = Table(
    "usage",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("operations", Integer, nullable=False),
)
"""Successful operations of tenants with a quota; ``month``: 2026-01, UTC."""

IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("key", LargeBinary(32), primary_key=True),
    Column("request", LargeBinary(32), nullable=False),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("api_key_version", Integer, nullable=True),
    Column("revoked_version", Integer, nullable=True),
    Column("salt", LargeBinary(16), nullable=True),
    Column("created_at_us", BigInteger, nullable=False, index=True),
    Column("result", LargeBinary, nullable=True),
    mac_column(
        "idempotency_keys",
        "key",
        "request",
        "tenant_id",
        "api_key_version",
        "revoked_version",
        "salt",
        "result",
    ),
)
"""The result of a request with an Idempotency-Key: a tenant, or an API key that is derived again
from ``salt``. ``request``: the request's SHA-256. ``result``: of a billing request, as msgpack."""

AUDIT_OUTBOX = Table(
    "audit_outbox",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("at_us", BigInteger, nullable=False, index=True),
    Column("event", LargeBinary, nullable=False),
    Column("refusal", String(32), nullable=True),
    Column("acknowledged_at_us", BigInteger, nullable=True),
    Column("shard", String(32), nullable=False, default=DEFAULT_SHARD),
)
"""Events that are not in the audit log yet, as msgpack; see pqkeep_protocol.audit.Event.

``shard``: the shard of the tenant at the time of the event. ``refusal``: the reason why the log
refused the event for good. It is kept, and not sent again. ``acknowledged_at_us``: the time when an
operator acknowledged the refusal.
"""

AUDIT_SINKS = Table(
    "audit_sinks",
    METADATA,
    Column("sink", String(300), primary_key=True),
    Column("record", BigInteger, nullable=False),
    Column("holder", Uuid, nullable=False),
    Column("held_until_us", BigInteger, nullable=False),
)
"""The last record of a shard's log that a sink has, and the lease of the gateway that streams to
it. ``sink``: its address, followed by # and the shard's name unless that is ``default``."""

USERS = Table(
    "users",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False, index=True),
    Column("email", String(254), nullable=False),
    Column("email_key", String(254), nullable=False, unique=True),
    Column("password_hash", String(255), nullable=True),
    Column("role", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("totp_salt", LargeBinary(16), nullable=True),
    Column("last_totp_step", BigInteger, nullable=True),
    Column("has_mfa", Boolean, nullable=False, default=False),
    Column("last_sign_in_at_us", BigInteger, nullable=True),
    Column("email_codes", Boolean, nullable=False, default=False),
    Column("first_day_dismissed", Boolean, nullable=False, default=False),
    Column("checkpoint_kept", Boolean, nullable=False, default=False),
    Column("codes_at_us", BigInteger, nullable=True),
    Column("passkeys", Integer, nullable=False, default=0),
    Column("language", String(8), nullable=True),
    mac_column(
        "users",
        "id",
        "tenant_id",
        "email",
        "email_key",
        "role",
        "has_mfa",
        "email_codes",
        "passkeys",
    ),
)
"""``email_key``: the address in lower case. ``last_totp_step``: the last accepted step.
``codes_at_us``: the time of the recovery codes, and of the authenticator app if there is one.
``passkeys``: their number. The MAC covers it, so that deleted rows of PASSKEYS leave the second
factor required. ``language``: that of the last page of the portal, for mails.
``password_hash``: NULL for people who sign in only through a provider."""

IDENTITIES = Table(
    "identities",
    METADATA,
    Column("issuer", String(255), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
    Column("linked_at_us", BigInteger, nullable=False),
    mac_column("identities", "issuer", "subject", "user_id"),
    Index("ix_identities_user", "issuer", "user_id", unique=True),
)
"""The identities of users at single sign-on providers."""

USED_SIGN_INS = Table(
    "used_sign_ins",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("expires_at_us", BigInteger, nullable=False, index=True),
)
"""Used states of single sign-on, and used challenges of passkeys; see single_sign_on and passkeys
in pqkeep_gateway.people."""

PASSKEYS = Table(
    "passkeys",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
    Column("credential_id", LargeBinary, nullable=False, unique=True),
    Column("algorithm", String(16), nullable=False),
    Column("public_key", LargeBinary, nullable=False),
    Column("counter", BigInteger, nullable=False),
    Column("is_syncable", Boolean, nullable=False),
    Column("is_synced", Boolean, nullable=False),
    Column("transports", String(128), nullable=False),
    Column("name", String(64), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("last_used_at_us", BigInteger, nullable=True),
    mac_column(
        "passkeys",
        "id",
        "user_id",
        "credential_id",
        "algorithm",
        "public_key",
        "counter",
        "is_syncable",
        "created_at_us",
    ),
)
"""WebAuthn credentials. ``public_key``: SubjectPublicKeyInfo in DER. ``transports``: separated by
spaces. ``is_syncable`` and ``is_synced``: the backup flags of the last use."""

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
    Column("access_digest", LargeBinary(32), nullable=False, unique=True),
    Column("access_expires_at_us", BigInteger, nullable=False),
    Column("refresh_digest", LargeBinary(32), nullable=False, unique=True),
    Column("refresh_expires_at_us", BigInteger, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("refreshed_at_us", BigInteger, nullable=False),
    Column("source_address", String(64), nullable=False),
    Column("used_second_factor", Boolean, nullable=False, default=False),
    Column("exchanged_digest", LargeBinary(32), nullable=True, index=True),
    Column("exchange_client", LargeBinary(32), nullable=True),
    Column("exchange_salt", LargeBinary(16), nullable=True),
    Column("reauthenticated_until_us", BigInteger, nullable=True),
    Column("reauthentication_digest", LargeBinary(32), nullable=True),
    Column("proof_digest", LargeBinary(32), nullable=True),
    Column("proof_until_us", BigInteger, nullable=True),
    Column("user_agent", String(256), nullable=False),
    mac_column(
        "sessions",
        "id",
        "user_id",
        "access_digest",
        "access_expires_at_us",
        "refresh_digest",
        "refresh_expires_at_us",
        "created_at_us",
        "used_second_factor",
    ),
)
"""``exchanged_digest`` is the digest of the last exchanged refresh token. With ``exchange_salt`` it
gives the same new tokens again, to the client with the digest ``exchange_client``.

After a reauthentication at the provider, one step-up is allowed until ``reauthenticated_until_us``.
The browser's cookie has ``reauthentication_digest``. A proof of identity is valid until
``proof_until_us``. The browser's cookie has ``proof_digest``.
"""

SPENT_REFRESH_TOKENS = Table(
    "spent_refresh_tokens",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("session_id", Uuid, ForeignKey("sessions.id"), nullable=False, index=True),
    Column("expires_at_us", BigInteger, nullable=False),
)
"""Exchanged refresh tokens. A second use ends the session."""

KNOWN_NETWORKS = Table(
    "known_networks",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
    Column("last_sign_in_at_us", BigInteger, nullable=False),
)
"""Networks of earlier sign-ins; see pqkeep_gateway.storage.known_networks."""

INVITATIONS = Table(
    "invitations",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("email", String(254), nullable=False),
    Column("email_key", String(254), nullable=False),
    Column("role", String(16), nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("id", Uuid, nullable=False, unique=True, index=True),
    mac_column(
        "invitations", "digest", "tenant_id", "email", "email_key", "role", "expires_at_us", "id"
    ),
    Index("ix_invitations_address", "tenant_id", "email_key", unique=True),
)

RECOVERY_CODES = Table(
    "recovery_codes",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
)

CHALLENGES = Table(
    "challenges",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("email_code_digest", LargeBinary(32), nullable=True),
    Column("email_code_attempts", Integer, nullable=False, default=0),
    Column("network", LargeBinary(32), nullable=False),
    mac_column("challenges", "digest", "user_id"),
)
"""Sign-ins with a correct password that still need a code. ``network``: as in KNOWN_NETWORKS."""

STEP_UP_TOKENS = Table(
    "step_up_tokens",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False, index=True),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("is_reserved", Boolean, nullable=False),
    Column("used_by_key", LargeBinary(32), nullable=True),
    Column("used_by_request", LargeBinary(32), nullable=True),
    Column("factor_at_us", BigInteger, nullable=False),
    mac_column("step_up_tokens", "digest", "user_id", "expires_at_us", "factor_at_us"),
)
"""``factor_at_us``: when the factor that proved the identity was added; 0 for the password and the
provider. ``used_by_…``: the Idempotency-Key of the request that used it. The same request may use it
again."""

CONTRACTS = Table(
    "contracts",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("tier", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("period_start_us", BigInteger, nullable=False),
    Column("period_end_us", BigInteger, nullable=False, index=True),
    Column("as_of_us", BigInteger, nullable=False),
    Column("price_cents", BigInteger, nullable=False),
    Column("cancel_at_period_end", Boolean, nullable=False),
    Column("external_id", String(255), nullable=True, unique=True),
    Column("revision", Integer, nullable=False),
    Index(
        "ix_contracts_running",
        "tenant_id",
        unique=True,
        sqlite_where=text("status != 'ended'"),
        postgresql_where=text("status != 'ended'"),
    ),
)
"""Bought subscriptions. Ended ones are kept, so that a late notice cannot restart them."""

INVOICES = Table(
    "invoices",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False, index=True),
    Column("tier", String(32), nullable=False),
    Column("amount_cents", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("period_start_us", BigInteger, nullable=False),
    Column("period_end_us", BigInteger, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("external_id", String(255), nullable=True, unique=True),
)

BILLING_NOTICES = Table(
    "billing_notices",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("received_at_us", BigInteger, nullable=False, index=True),
)
"""Identifiers of applied notices from an external provider, so that each is applied once."""

REGISTRATIONS = Table(
    "registrations",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("email", String(254), nullable=False),
    Column("email_key", String(254), nullable=False, index=True),
    Column("expires_at_us", BigInteger, nullable=False),
    mac_column("registrations", "digest", "email", "email_key", "expires_at_us"),
)
"""Addresses of sign-ups that are not confirmed yet."""

PASSWORD_RESETS = Table(
    "password_resets",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("email_key", String(254), nullable=False, index=True),
    Column("expires_at_us", BigInteger, nullable=False),
    mac_column("password_resets", "digest", "email_key", "expires_at_us"),
)
"""Includes addresses without an account, so that both cases take equally long."""

OUTGOING_MAIL = Table(
    "outgoing_mail",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("recipient", String(254), nullable=False),
    Column("inviter", String(254), nullable=False),
    Column("about", Text, nullable=False),
    Column("language", String(8), nullable=False),
    Column("salt", LargeBinary(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("next_attempt_at_us", BigInteger, nullable=False, index=True),
    Column("attempts", Integer, nullable=False),
)
"""Undelivered mail; see pqkeep_gateway.outgoing_mail."""

NOTICES = Table(
    "notices",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("details", Text, nullable=False),
    Column("level", BigInteger, nullable=False),
    Column("opened_at_us", BigInteger, nullable=False),
    Column("raised_at_us", BigInteger, nullable=False),
    Column("dismissed_at_us", BigInteger, nullable=True),
    Column("closed_at_us", BigInteger, nullable=True),
    Column("mailed_at_us", BigInteger, nullable=True),
    Index("ix_notices_raised", "tenant_id", "raised_at_us"),
    Index(
        "ix_notices_open",
        "tenant_id",
        "kind",
        "subject",
        unique=True,
        sqlite_where=text("closed_at_us IS NULL"),
        postgresql_where=text("closed_at_us IS NULL"),
    ),
)
"""See pqkeep_gateway.notices. ``tenant_id``: zero for operators. ``details``: JSON.
``mailed_at_us``: the time of the last mail that named it."""

NOTICE_VIEWS = Table(
    "notice_views",
    METADATA,
    Column("notice_id", Uuid, ForeignKey("notices.id"), primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), primary_key=True, index=True),
    Column("seen_at_us", BigInteger, nullable=False),
)
"""Who has seen a notice, and when last."""

NOTICE_SETTINGS = Table(
    "notice_settings",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("days", Integer, nullable=False),
)
"""A tenant's choices about kinds of notices. ``days``: the threshold; 0 for kinds without one."""

NOTICE_MAIL_REFUSALS = Table(
    "notice_mail_refusals",
    METADATA,
    Column("user_id", Uuid, ForeignKey("users.id"), primary_key=True),
)
"""Owners and admins who want no mail about notices."""

NOTICE_CHECKS = Table(
    "notice_checks",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("due_at_us", BigInteger, nullable=False, index=True),
    Column("held_until_us", BigInteger, nullable=False),
    Column("mailed_at_us", BigInteger, nullable=True),
)
"""The times of a tenant's next check for notices, and of its last mail.

Until ``held_until_us``, one gateway has the check alone. Zero stands for the installation.
"""

CAMPAIGNS = Table(
    "campaigns",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("description", String(256), nullable=False),
    Column("sources", Text, nullable=False),
    Column("target_keyring", String(128), nullable=False),
    Column("target_algorithm", String(32), nullable=False),
    Column("quiet_days", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("created_by", String(128), nullable=False),
    Column("changed_at_us", BigInteger, nullable=False),
    Column("canary", Text, nullable=True),
)
"""``sources``: JSON; see pqkeep_gateway.storage.campaigns. ``canary``: the newest one, as JSON."""

CAMPAIGN_SCANS = Table(
    "campaign_scans",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("campaign", String(64), primary_key=True),
    Column("place", String(200), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("scanned_at_us", BigInteger, nullable=False),
    Column("recorded_at_us", BigInteger, nullable=False),
    Column("principal", String(128), nullable=False),
    Column("counts", Text, nullable=False),
    Column("unreadable", BigInteger, nullable=False),
    ForeignKeyConstraint(["tenant_id", "campaign"], ["campaigns.tenant_id", "campaigns.name"]),
)
"""The newest scan of each place. ``digest``: The newest scan of each place. ``counts``: JSON."""

EXTERNAL_KEYS = Table(
    "external_keys",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("source", String(64), primary_key=True),
    Column("document", LargeBinary(32), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("imported_at_us", BigInteger, nullable=False),
    Column("imported_by", String(128), nullable=False),
    Column("total", Integer, nullable=False),
    Column("moved", Integer, nullable=False),
    Column("keys", Text, nullable=False),
)
"""Keys elsewhere. ``document`` and ``digest``: SHA-256 of the imported document, and of the list of
keys that is kept. ``keys``: JSON."""

APPROVALS = Table(
    "approvals",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False, index=True),
    Column("operation", String(64), nullable=False),
    Column("request", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("summary", Text, nullable=False),
    Column("subject", LargeBinary(32), nullable=False),
    Column("permission", String(32), nullable=False),
    Column("requester", Uuid, nullable=False),
    Column("requested_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("decided_by", Uuid, nullable=True),
    Column("decided_at_us", BigInteger, nullable=True),
    Column("outcome", String(32), nullable=True),
    mac_column(
        "approvals",
        "id",
        "tenant_id",
        "operation",
        "request",
        "digest",
        "summary",
        "subject",
        "permission",
        "requester",
        "requested_at_us",
        "expires_at_us",
        "state",
        "decided_by",
        "decided_at_us",
    ),
)
"""Requests that a second person approves; see pqkeep_gateway.storage.approvals. ``digest`` and
``subject``: SHA-256 of the request, and of the state of what it changes. ``requester`` and
``decided_by``: users, who may have left. ``outcome``: the error code of a failed execution."""

WEBHOOKS = Table(
    "webhooks",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("url", String(2048), nullable=False),
    Column("salt", LargeBinary(16), nullable=False),
    Column("previous_salt", LargeBinary(16), nullable=True),
    Column("previous_until_us", BigInteger, nullable=True),
    Column("kinds", Text, nullable=True),
    Column("state", String(16), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("created_by", String(128), nullable=False),
    Column("failures", Integer, nullable=False, default=0),
    Column("failing_since_us", BigInteger, nullable=True),
    Column("last_success_at_us", BigInteger, nullable=True),
    Column("next_attempt_at_us", BigInteger, nullable=True, index=True),
    Column("paused_until_us", BigInteger, nullable=False, default=0),
    Column("held_until_us", BigInteger, nullable=False, default=0),
    mac_column("webhooks", "id", "tenant_id", "url", "salt", "previous_salt", "previous_until_us"),
    Index("ix_webhooks_name", "tenant_id", "name", unique=True),
)
"""``kinds``: the wanted kinds of notices, separated by spaces; null: all. ``previous_…``: the secret before the last rotation, and the end of its overlap. ``failures``:
since the last success. ``next_attempt_at_us``: null if no message waits. ``held_until_us``: the
lease of the gateway that sends."""

WEBHOOK_DELIVERIES = Table(
    "webhook_deliveries",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("webhook_id", Uuid, ForeignKey("webhooks.id"), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at_us", BigInteger, nullable=False, index=True),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("attempted_at_us", BigInteger, nullable=True),
    Column("next_attempt_at_us", BigInteger, nullable=True),
    Column("status", Integer, nullable=True),
    Column("problem", String(32), nullable=True),
    mac_column("webhook_deliveries", "id", "webhook_id", "kind", "body", "created_at_us"),
    Index("ix_webhook_deliveries_webhook", "webhook_id", "created_at_us"),
)
"""Messages to webhooks. ``status`` and ``problem``: of the last attempt. ``next_attempt_at_us``:
null unless it waits."""

WORKLOAD_ISSUERS = Table(
    "workload_issuers",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("issuer", String(512), nullable=False),
    Column("audience", String(512), nullable=False),
    Column("algorithms", Text, nullable=False),
    Column("keys", Text, nullable=True),
    Column("changed_at_us", BigInteger, nullable=False),
    Column("changed_by", String(128), nullable=False),
    mac_column(
        "workload_issuers",
        "id",
        "tenant_id",
        "name",
        "issuer",
        "audience",
        "algorithms",
        "keys",
    ),
    Index("ix_workload_issuers_name", "tenant_id", "name", unique=True),
)
"""Issuers of workloads' tokens. ``algorithms``: JSON. ``keys``: a JWK Set; null: it is fetched."""

WORKLOAD_ROLES = Table(
    "workload_roles",
    METADATA,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("issuer_id", Uuid, ForeignKey("workload_issuers.id"), nullable=False, index=True),
    Column("name", String(64), nullable=False),
    Column("conditions", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("lifetime_seconds", Integer, nullable=False),
    Column("changed_at_us", BigInteger, nullable=False),
    Column("changed_by", String(128), nullable=False),
    mac_column(
        "workload_roles",
        "id",
        "tenant_id",
        "issuer_id",
        "name",
        "conditions",
        "scopes",
        "lifetime_seconds",
    ),
    Index("ix_workload_roles_name", "tenant_id", "name", unique=True),
)
"""Roles of workloads. ``conditions`` and ``scopes``: JSON. A changed role has a new id."""

WORKLOAD_KEYS = Table(
    "workload_keys",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("role_id", Uuid, ForeignKey("workload_roles.id"), nullable=False),
    Column("token", LargeBinary(32), nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("kept_until_us", BigInteger, nullable=False),
    mac_column("workload_keys", "digest", "role_id", "token", "expires_at_us"),
    Index("ix_workload_keys_role", "role_id", "kept_until_us"),
    Index("ix_workload_keys_token", "token"),
)
"""Short-lived API keys of workloads. ``token``: SHA-256 of the token that was exchanged, which is
counted until ``kept_until_us``."""

WRITE_PROBE = Table(
    PROBE_TABLE,
    METADATA,
    Column("written", BigInteger, primary_key=True, autoincrement=False),
    Column("filler", LargeBinary, nullable=False),
)

TABLES_OF_USER = tuple(table for table in METADATA.tables.values() if "user_id" in table.c)
"""Tables with rows that are deleted with their user."""
