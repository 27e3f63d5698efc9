"""Creates the tables of a new database, and refuses a database of another schema."""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from pqkeep_protocol.startup.settings import ConfigError


def migrate(connection: sa.Connection, name: str) -> None:
    """Bring the schema up to date. Raises ConfigError, with the database's name.

    A revision that is not among the migrations belongs to another version of pqkeep, older or
    newer, or to another program: such a database is left as it is.
    """
    config = AlembicConfig()
    config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in known:
            raise ConfigError(
                f"the database {name} has the schema revision {revision}, which this version of "
                "pqkeep does not know: it was created by another version. Nothing was changed. "
                "Use the version that created it, or a new database"
            )
    command.upgrade(config, "head")
