"""Creates the tables of a new database, and refuses a database of another schema."""

import sqlalchemy as sa

from pqkeep_protocol.startup.settings import ConfigError

NEWEST = "keys_0001"
"""The revision of the schema that this version of pqkeep uses."""


def migrate(connection: sa.Connection, name: str) -> None:
    """Bring the schema up to date. Raises ConfigError, with the database's name.

    A revision that is not among the migrations belongs to another version of pqkeep, older or
    newer, or to another program: such a database is left as it is.
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
    from alembic import command  # noqa: PLC0415 - slow, and most starts find the newest schema
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, NEWEST)
    except CommandError:
        raise ConfigError(
            f"the database {name} has the schema revision {_revision(connection)}, which this "
            "version of pqkeep does not know: it was created by another version. Nothing was "
            "changed. Use the version that created it, or a new database"
        ) from None
