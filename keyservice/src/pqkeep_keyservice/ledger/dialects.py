"""SQL that SQLAlchemy has for each kind of database only."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_or_update(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT that takes an ON CONFLICT clause."""
    return {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name].insert(table)
