"""Creates the tables of root keys, keys and their versions, and of the audit log and its counts."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "keys_0001"
down_revision = None


_KEYRING = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")
_IS_ACTIVE = sa.text("status = 'active' OR disabled_from = 'active'")

_IS_RARE_OPERATION = sa.text(
    "operation <> 'encrypt' AND operation <> 'decrypt' AND operation <> 'encapsulate'"
    " AND operation <> 'decapsulate' AND operation <> 'sign' AND operation <> 'verify'"
    " AND operation <> 'wrap' AND operation <> 'unwrap' AND operation <> 'sign-hash'"
    " AND operation <> 'verify-hash' AND operation <> 'sign-mu' AND operation <> 'verify-mu'"
    " AND operation <> 'sign-jws' AND operation <> 're-encrypt'"
    " AND operation <> 'generate-data-key' AND operation <> 'compute-mac'"
    " AND operation <> 'verify-mac'"
)
_IS_REFUSED = sa.text(
    "outcome NOT IN ('success', 'begun', 'handed-out', 'completed', 'cancelled',"
    " 'verification-failed')"
)


def upgrade() -> None:
    """Create all tables."""
    _create_key_tables()
    _create_audit_tables()


def _create_key_tables() -> None:
    op.create_table(
        "root_keys",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("check_value", sa.LargeBinary, nullable=False),
        sa.Column("added_at_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "shard",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("database_id", sa.Uuid, nullable=False),
    )
    backup = op.create_table(
        "newest_backup",
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(backup, [{"generation": 0, "records": 0, "created_at_us": 0}])
    epoch = op.create_table(
        "service_epoch",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("takeovers", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("backend_pid", sa.Integer, nullable=False),
        sa.Column("backend_start_us", sa.BigInteger, nullable=False),
        sa.Column("held_until_us", sa.BigInteger, nullable=False),
    )
    no_holder = {"epoch": 0, "takeovers": 0, "holder": "", "backend_pid": 0}
    op.bulk_insert(epoch, [{**no_holder, "backend_start_us": 0, "held_until_us": 0}])
    op.create_table(
        "keyrings",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("name", _KEYRING, primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("purposes", sa.Text, nullable=False),
        sa.Column("rotation_days", sa.Integer, nullable=False),
        sa.Column("archive_after_days", sa.Integer, nullable=False),
        sa.Column("minimum_decryption_version", sa.Integer, nullable=False),
        sa.Column("minimum_encryption_version", sa.Integer, nullable=False),
        sa.Column("transit_type", sa.String(65), nullable=False),
        sa.Column("derived", sa.Boolean, nullable=False),
        sa.Column("first_version", sa.Integer, nullable=False),
        sa.Column("deletion_allowed", sa.Boolean, nullable=False),
        sa.Column("retired_public_keys_allowed", sa.Boolean, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=True),
        sa.Column("destruction", sa.String(16), nullable=True),
        sa.Column("destruction_at_us", sa.BigInteger, nullable=True, index=True),
        sa.Column("mac", sa.LargeBinary, nullable=False),
    )
    is_deleted = sa.text(
        "name <> 'default' AND destruction IS NOT NULL AND destruction <> 'cancelled'"
    )
    op.create_index(
        "deleted_keyrings",
        "keyrings",
        ["tenant_id", "name", "destruction"],
        sqlite_where=is_deleted,
        postgresql_where=is_deleted,
    )
    op.create_table(
        "keyring_counts",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("keyrings", sa.Integer, nullable=False),
    )
    op.create_table(
        "tenant_rules",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("rules", sa.Text, nullable=False),
        sa.Column("mac", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "key_revisions",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("keyring", _KEYRING, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        sa.Column("due_at_us", sa.BigInteger, nullable=True),
    )
    op.create_index("ix_due", "key_revisions", ["due_at_us", "tenant_id", "keyring", "algorithm"])
    op.create_table(
        "keys",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("keyring", _KEYRING, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("disabled_from", sa.String(16), nullable=True),
        sa.Column("retired_at_us", sa.BigInteger, nullable=True),
        sa.Column("archive_at_us", sa.BigInteger, nullable=True),
        sa.Column("disabled_until_us", sa.BigInteger, nullable=True),
        sa.Column("imported", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("sealed_seed", sa.LargeBinary, nullable=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("idempotency_key", sa.LargeBinary(32), nullable=True),
        sa.Column("idempotency_request", sa.LargeBinary(32), nullable=True),
        sa.Column("public_key_sha256", sa.LargeBinary(32), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "keyring", "algorithm"],
            ["key_revisions.tenant_id", "key_revisions.keyring", "key_revisions.algorithm"],
        ),
    )
    op.create_index(
        "one_active_key",
        "keys",
        ["tenant_id", "keyring", "algorithm"],
        unique=True,
        sqlite_where=_IS_ACTIVE,
        postgresql_where=_IS_ACTIVE,
    )
    op.create_index("ix_keys_idempotency_key", "keys", ["tenant_id", "idempotency_key"])
    op.create_index("ix_keys_status", "keys", ["algorithm", "status"])
    op.create_index("ix_keys_public_key", "keys", ["tenant_id", "public_key_sha256"])
    op.create_index(
        "ix_keys_listed",
        "keys",
        [
            *("tenant_id", "keyring", "algorithm", "version", "status"),
            *("created_at_us", "archive_at_us", "imported"),
        ],
    )
    probe = op.create_table(
        "write_probe",
        sa.Column("written", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("filler", sa.LargeBinary, nullable=False),
    )
    op.bulk_insert(probe, [{"written": 0, "filler": b"0"}])
    op.create_table(
        "tenant_bundles",
        sa.Column("tenant_id", sa.Uuid, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )


def _create_audit_tables() -> None:
    op.create_table(
        "audit_records",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("format", sa.SmallInteger, nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.LargeBinary(16), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("algorithm", sa.String(32), nullable=True),
        sa.Column("key_version", sa.Integer, nullable=True),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("source_address", sa.String(64), nullable=False),
        sa.Column("policy", sa.String(128), nullable=False),
        sa.Column("event_id", sa.String(36), nullable=True),
        sa.Column("happened_at_us", sa.BigInteger, nullable=True),
        sa.Column("public_key_sha256", sa.LargeBinary(32), nullable=True),
        sa.Column("keyring_revision", sa.Integer, nullable=True),
        sa.Column("keyring", _KEYRING, nullable=True),
        sa.Column("target", sa.String(192), nullable=True),
        sa.Column("rule", sa.String(64), nullable=True),
        sa.Column("campaign", sa.String(64), nullable=True),
        sa.UniqueConstraint("tenant_id", "number"),
    )
    op.create_index(
        "one_event",
        "audit_records",
        ["event_id"],
        unique=True,
        sqlite_where=sa.text("event_id IS NOT NULL"),
        postgresql_where=sa.text("event_id IS NOT NULL"),
    )
    op.create_index(
        "successions",
        "audit_records",
        ["id"],
        sqlite_where=sa.text("operation = 'continue-log'"),
        postgresql_where=sa.text("operation = 'continue-log'"),
    )
    is_move = sa.text("operation IN ('tenant-moved-out', 'tenant-moved-in') AND keyring IS NULL")
    op.create_index(
        "moves",
        "audit_records",
        ["tenant_id", "id"],
        sqlite_where=is_move,
        postgresql_where=is_move,
    )
    op.create_index(
        "key_changes",
        "audit_records",
        ["tenant_id", "keyring", "algorithm", "keyring_revision"],
        sqlite_where=sa.text("keyring_revision IS NOT NULL"),
        postgresql_where=sa.text("keyring_revision IS NOT NULL"),
    )
    for name, column, is_rare in (
        ("rare_operations", "operation", _IS_RARE_OPERATION),
        ("rare_outcomes", "outcome", sa.text("outcome <> 'success'")),
        ("rules", "rule", sa.text("rule IS NOT NULL")),
        ("campaigns", "campaign", sa.text("campaign IS NOT NULL")),
    ):
        op.create_index(
            name,
            "audit_records",
            [column, "id", "tenant_id"],
            sqlite_where=is_rare,
            postgresql_where=is_rare,
        )
    op.create_index(
        "refusals",
        "audit_records",
        ["id", "tenant_id"],
        sqlite_where=_IS_REFUSED,
        postgresql_where=_IS_REFUSED,
    )
    op.create_table(
        "audit_tiles",
        sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("log_id", sa.String(36), nullable=False),
        sa.Column("root", sa.LargeBinary(32), nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("key_version", sa.Integer, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
    op.create_index("checkpoints_by_algorithm", "audit_checkpoints", ["algorithm", "size"])
    op.create_table(
        "audit_cosignatures",
        sa.Column("witness", sa.String(128), primary_key=True),
        sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("origin", sa.String(128), nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
    op.create_index("cosignatures_by_size", "audit_cosignatures", ["size"])
    log = op.create_table(
        "audit_log",
        sa.Column("log_id", sa.String(36), primary_key=True),
        sa.Column("counted_until", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(log, [{"log_id": str(uuid.uuid4()), "counted_until": 0}])
    op.create_table(
        "key_usage",
        sa.Column("tenant_id", sa.String(36), primary_key=True),
        sa.Column("keyring", _KEYRING, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("key_version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("principal", sa.String(128), primary_key=True),
        sa.Column("operation", sa.String(32), primary_key=True),
        sa.Column("uses", sa.BigInteger, nullable=False),
        sa.Column("first_used_us", sa.BigInteger, nullable=False),
        sa.Column("last_used_us", sa.BigInteger, nullable=False),
    )
    op.create_index("key_usage_by_principal", "key_usage", ["tenant_id", "principal"])
    op.create_table(
        "key_totals",
        sa.Column("tenant_id", sa.String(36), primary_key=True),
        sa.Column("keyring", _KEYRING, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("key_version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("uses", sa.BigInteger, nullable=False),
        sa.Column("first_used_us", sa.BigInteger, nullable=False),
        sa.Column("last_used_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "uses",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("keyring", _KEYRING, nullable=False),
        sa.Column("algorithm", sa.String(32), nullable=False),
        sa.Column("key_version", sa.Integer, nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("uses", sa.BigInteger, nullable=False),
        sa.Column("first_used_us", sa.BigInteger, nullable=False),
        sa.Column("last_used_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            *("tenant_id", "keyring", "algorithm", "key_version", "day", "principal", "operation")
        ),
    )
    op.create_index("uses_by_day", "uses", ["day"])
    op.create_index("uses_of_tenant_by_day", "uses", ["tenant_id", "day"])
    op.create_table(
        "use_principals",
        sa.Column("month", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.String(36), primary_key=True),
        sa.Column("principal", sa.String(128), primary_key=True),
    )
    op.create_table(
        "campaign_moves",
        sa.Column("tenant_id", sa.String(36), primary_key=True),
        sa.Column("campaign", sa.String(64), primary_key=True),
        sa.Column("keyring", _KEYRING, primary_key=True),
        sa.Column("algorithm", sa.String(32), primary_key=True),
        sa.Column("key_version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("target", sa.String(192), primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("first_us", sa.BigInteger, nullable=False),
        sa.Column("last_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "operation_counts",
        sa.Column("tenant_id", sa.String(36), primary_key=True),
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("operation", sa.String(32), primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.create_index("operation_counts_by_hour", "operation_counts", ["hour"])
