"""The tables of keys, and their creation. The audit log's tables are in ``ledger/schema.py``."""

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    false,
)

from pqkeep_keyservice.ledger.schema import KEYRING_TEXT
from pqkeep_protocol.commits import PROBE_TABLE
from pqkeep_protocol.startup.settings import ConfigError

METADATA = MetaData()

ROOT_KEYS = Table(
    "root_keys",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("check_value", LargeBinary, nullable=False),
    Column("added_at_us", BigInteger, nullable=False),
)

SHARD = Table(
    "shard",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("database_id", Uuid, nullable=False),
)
"""One row: the database's shard and id. It is empty before the first start. Copies share the id."""

NEWEST_BACKUP = Table(
    "newest_backup",
    METADATA,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("records", BigInteger, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
)
"""One row: number and time of the newest announced backup, or zeros."""

SERVICE_EPOCH = Table(
    "service_epoch",
    METADATA,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("takeovers", BigInteger, nullable=False),
    Column("holder", String(255), nullable=False),
    Column("backend_pid", Integer, nullable=False),
    Column("backend_start_us", BigInteger, nullable=False),
    Column("held_until_us", BigInteger, nullable=False),
)
"""One row, used only on PostgreSQL: the holder's session, and until when it is protected."""

KEYRINGS = Table(
    "keyrings",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("name", KEYRING_TEXT, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("description", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("purposes", Text, nullable=False),
    Column("rotation_days", Integer, nullable=False),
    Column("archive_after_days", Integer, nullable=False),
    Column("minimum_decryption_version", Integer, nullable=False),
    Column("minimum_encryption_version", Integer, nullable=False),
    Column("transit_type", String(65), nullable=False),
    Column("derived", Boolean, nullable=False),
    Column("first_version", Integer, nullable=False),
    Column("deletion_allowed", Boolean, nullable=False),
    Column("retired_public_keys_allowed", Boolean, nullable=False),
    Column("created_at_us", BigInteger, nullable=True),
    Column("destruction", String(16), nullable=True),
    Column("destruction_at_us", BigInteger, nullable=True, index=True),
    Column("mac", LargeBinary, nullable=False),
    Index("deleted_keyrings", "tenant_id", "name", "destruction"),
)
"""``mac`` covers all other columns. The default keyring has a row only after its first change, and
``destruction`` in that row concerns all private keys of the tenant. In another row it concerns the
private keys of that keyring, which is then deleted. The index has only deleted keyrings: the
migration says so, because the condition here would load both databases' dialects."""

KEYRING_COUNTS = Table(
    "keyring_counts",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("keyrings", Integer, nullable=False),
)
"""The number of a tenant's keyrings, without the default one and the destroyed ones. So a new
keyring needs no count of the rows."""

TENANT_RULES = Table(
    "tenant_rules",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("rules", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
)
"""``rules`` is all rules of a tenant, in the form of ``rules_text``. ``mac`` covers all other
columns. A row stays when the last rule is deleted: its revision is compared with the log."""

KEY_REVISIONS = Table(
    "key_revisions",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("keyring", KEYRING_TEXT, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("due_at_us", BigInteger, nullable=True),
    Index("ix_due", "due_at_us", "tenant_id", "keyring", "algorithm"),
)
"""``mac`` covers everything stored for a key except the sealed seeds. ``due_at_us`` follows from
the same data: the time of the next automatic change."""

KEYS = Table(
    "keys",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("keyring", KEYRING_TEXT, primary_key=True),
    Column("algorithm", String(32), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("status", String(16), nullable=False),
    Column("disabled_from", String(16), nullable=True),
    Column("retired_at_us", BigInteger, nullable=True),
    Column("archive_at_us", BigInteger, nullable=True),
    Column("disabled_until_us", BigInteger, nullable=True),
    Column("imported", Boolean, nullable=False, server_default=false()),
    Column("public_key", LargeBinary, nullable=False),
    Column("sealed_seed", LargeBinary, nullable=True),
    Column("created_at_us", BigInteger, nullable=False),
    Column("idempotency_key", LargeBinary(32), nullable=True),
    Column("idempotency_request", LargeBinary(32), nullable=True),
    Column("public_key_sha256", LargeBinary(32), nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "keyring", "algorithm"],
        ["key_revisions.tenant_id", "key_revisions.keyring", "key_revisions.algorithm"],
    ),
    Index("ix_keys_idempotency_key", "tenant_id", "idempotency_key"),
    Index("ix_keys_status", "algorithm", "status"),
    Index("ix_keys_public_key", "tenant_id", "public_key_sha256"),
    Index(
        "ix_keys_listed",
        *("tenant_id", "keyring", "algorithm", "version", "status"),
        *("created_at_us", "archive_at_us", "imported"),
    ),
)
"""The unique partial index ``one_active_key`` ensures that a key has one active version at most,
even if it is disabled.

``ix_keys_listed`` has all columns that lists filter and sort by, so that they read no public keys.
The columns for the Idempotency-Key hold pqkeep_protocol.messages.Idempotency.
"""

WRITE_PROBE = Table(
    PROBE_TABLE,
    METADATA,
    Column("written", BigInteger, primary_key=True, autoincrement=False),
    Column("filler", LargeBinary, nullable=False),
)

TENANT_BUNDLES = Table(
    "tenant_bundles",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""The bundles of departed tenants, in parts, until the target shard has them. The log has their
digests."""


NEWEST = "keys_0001"
"""The schema revision of this version of pqkeep."""


def migrate(connection: sa.Connection, name: str) -> None:
    """Bring the schema up to date. Raises ConfigError, which has the database's ``name``.

    An unknown revision belongs to another version of pqkeep, or to another program. Such a database
    is not changed.
    """
    if _revision(connection) != NEWEST:
        _migrate(connection, name)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql(
        "SELECT version_num FROM alembic_version"
    ).scalar()
    return revision


def _migrate(connection: sa.Connection, name: str) -> None:
    from alembic import command  # noqa: PLC0415 - slow, and most starts need no migration
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, NEWEST)
    except CommandError:
        raise ConfigError(
            f"the database {name} has the unknown schema revision {_revision(connection)}: another "
            "version of pqkeep created it. Nothing was changed. Use the version that created it, "
            "or a new database"
        ) from None
