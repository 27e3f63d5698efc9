"""How a database gets its tables."""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig


def migrate(connection: sa.Connection) -> None:
    """Bring the schema up to date. Raises CommandError where a newer version has been here."""
    config = AlembicConfig()
    config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
