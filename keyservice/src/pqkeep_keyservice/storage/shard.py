"""Whose database it is: one shard's, from its first start on."""

import sqlalchemy as sa

from pqkeep_keyservice.storage.schema import SHARD
from pqkeep_protocol.startup.settings import ConfigError


def claim_shard(connection: sa.Connection, name: str) -> None:
    """Note whose database it is, unless that is noted. Raises ConfigError if it is another's."""
    found: str | None = connection.execute(sa.select(SHARD.c.name)).scalar_one_or_none()
    if found is None:
        connection.execute(sa.insert(SHARD), {"name": name})
    elif found != name:
        raise ConfigError(
            f'this database is that of the shard "{found}", and the settings say'
            f' shard = "{name}": name the shard\'s own database, or its name'
        )
