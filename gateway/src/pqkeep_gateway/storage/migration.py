"""Creates the tables of a new database, and refuses a database of another schema."""

import sqlalchemy as sa

from pqkeep_protocol.startup.settings import ConfigError

NEWEST = "accounts_0001"
"""The revision of the schema that this version of pqkeep uses."""
LOCK = 0x7071_6B65_6570_0002
"""The advisory lock of migrations on a server: "pqkeep", 2."""


def migrate(connection: sa.Connection, location: str) -> None:
    """Bring the schema up to date. Raises ConfigError, with the database's location.

    A schema of another version of pqkeep, older or newer, is left as it is.
    """
    if _revision(connection) == NEWEST:
        return
    if connection.dialect.name == "postgresql":
        _wait_for_other_migrations(connection)
    _migrate(connection, location)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql(
        "SELECT version_num FROM alembic_version"
    ).scalar()
    return revision


def _wait_for_other_migrations(connection: sa.Connection) -> None:
    """Hold the lock of migrations until the transaction ends."""
    for setting in ("statement_timeout", "lock_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {setting} = '60s'")
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


def _migrate(connection: sa.Connection, location: str) -> None:
    from alembic import command  # noqa: PLC0415 - slow, and most starts find the newest schema
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "pqkeep_gateway.storage:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, NEWEST)
    except CommandError:
        raise ConfigError(
            f"the database {location} was made by another version of pqkeep, and cannot be used "
            "or upgraded by this one"
        ) from None
