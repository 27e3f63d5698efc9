"""SQL that SQLAlchemy has for each kind of database only."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite


def insert_or_update(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT that takes an ON CONFLICT clause."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - slow

        return insert(table)
    return sqlite.insert(table)
