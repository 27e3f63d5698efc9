"""Whose database it is: one shard's, from its first start on."""

from uuid import UUID, uuid4

import sqlalchemy as sa

from pqkeep_keyservice.storage.schema import SHARD
from pqkeep_protocol.startup.settings import ConfigError


def claim_shard(connection: sa.Connection, name: str) -> UUID:
    """Note whose database it is, unless that is noted; return which database it is.

    Raises ConfigError if it is another shard's.
    """
    if (database := check_shard(connection, name)) is None:
        database = uuid4()
        connection.execute(sa.insert(SHARD), {"name": name, "database_id": database})
    return database


def check_shard(connection: sa.Connection, name: str) -> UUID | None:
    """Return which database it is; None if nobody's yet. Raises ConfigError if another shard's."""
    row = connection.execute(sa.select(SHARD.c.name, SHARD.c.database_id)).one_or_none()
    if row is None:
        return None
    found: str = row.name
    database: UUID = row.database_id
    if found != name:
        raise ConfigError(
            f'this database is that of the shard "{found}", and the settings say'
            f' shard = "{name}": name the shard\'s own database, or its name'
        )
    return database
