"""Reads and fills the tables of a database, and migrates their schema.

Tables and columns are read from the database itself. So backups contain what later migrations add,
without a change here.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.util import CommandError

BATCH_ROWS = 200
"""Rows in memory at a time."""
_VERSION_TABLE = "alembic_version"


class DatabaseError(Exception):
    """A database cannot be read or filled. The message is for the operator."""


def revision(connection: sa.Connection) -> str:
    """Return the revision of the schema."""
    return MigrationContext.configure(connection).get_current_revision() or ""


def migrate(connection: sa.Connection, migrations: str, to: str) -> None:
    """Migrate the schema to a revision. Raises DatabaseError if the revision is unknown."""
    config = AlembicConfig()
    config.set_main_option("script_location", migrations)
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except CommandError:
        problem = (
            "the backup has a schema that this version of pqkeep does not know: use a newer one"
        )
        raise DatabaseError(problem) from None


def create_empty_tables(connection: sa.Connection, migrations: str, to: str) -> dict[str, sa.Table]:
    """Create the tables of a revision, without the rows that migrations insert; return them."""
    migrate(connection, migrations, to)
    created = tables(connection)
    for table in reversed(created):
        connection.execute(sa.delete(table))
    return {table.name: table for table in created}


def tables(connection: sa.Connection) -> list[sa.Table]:
    """Return all tables except Alembic's own table.

    A table comes after the tables that it refers to.
    """
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != _VERSION_TABLE]


def rows(connection: sa.Connection, table: sa.Table) -> Iterator[list[list[Any]]]:
    """Yield a table's rows in batches, in the order of its primary key."""
    query = sa.select(table).order_by(*table.primary_key)
    result = connection.execute(query, execution_options={"yield_per": BATCH_ROWS})
    for batch in result.partitions():
        yield [[_portable(value) for value in row] for row in batch]


def insert(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], batch: list[list[Any]]
) -> None:
    """Insert rows. Raises DatabaseError if the table has other columns."""
    if set(names) != set(table.columns.keys()):
        raise DatabaseError(f"the table {table.name} has other columns than in the backup")
    is_uuid = {name: isinstance(table.columns[name].type, sa.Uuid) for name in names}
    values = [
        {
            name: UUID(value) if is_uuid[name] and value is not None else value
            for name, value in zip(names, row, strict=True)
        }
        for row in batch
    ]
    connection.execute(sa.insert(table), values)


def finish(connection: sa.Connection, migrations: str) -> None:
    """Migrate restored tables to the newest schema, and advance their sequences."""
    migrate(connection, migrations, "head")
    for table in tables(connection):
        _advance_sequences(connection, table)


def _advance_sequences(connection: sa.Connection, table: sa.Table) -> None:
    """Set a PostgreSQL sequence to the highest number in the table."""
    for column in table.primary_key:
        if "nextval" not in str(getattr(column.server_default, "arg", "")):
            continue
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        last = connection.execute(sa.select(sa.func.max(column))).scalar()
        if last is not None:
            connection.execute(sa.select(sa.func.setval(sequence, last)))


def _portable(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex  # as SQLite stores it
    if value is None or isinstance(value, bool | int | float | str | bytes | dict | list):
        return value
    raise DatabaseError(f"a backup cannot hold values of type {type(value).__name__}")
