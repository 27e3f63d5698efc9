"""SQL that SQLAlchemy has for each kind of database only."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

Value = str | int | bytes | None


def insert_all(
    connection: sa.Connection, statement: str, rows: Sequence[tuple[Value, ...]]
) -> None:
    """Execute an INSERT with each row, in SQLite by its driver, which does nothing else.

    The driver takes half as long again for texts and tuples whose type is a subclass.
    """
    if connection.dialect.name == "sqlite":
        _driver(connection).executemany(statement, rows)
    elif rows:  # without rows SQLAlchemy would take it for a statement without parameters
        connection.exec_driver_sql(statement, list(rows))


def _driver(connection: sa.Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def insert_or_update(dialect: sa.Dialect, table: sa.Table) -> Any:
    """Return an INSERT that takes an ON CONFLICT clause."""
    if dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - slow

        return insert(table)
    return sqlite.insert(table)


def add_all(
    connection: sa.Connection,
    table: sa.Table,
    adding: Callable[[Any], Any],
    rows: Sequence[tuple[Value, ...]],
) -> None:
    """Execute an INSERT, as ``adding`` completes it, with each row, in the order of the columns."""
    insert_all(connection, _compiled(connection.dialect, table, adding), rows)


def execute(
    connection: sa.Connection, statement: sa.Executable, *values: Value
) -> Sequence[Sequence[Any]]:
    """Execute a statement, which its caller makes once, with its parameters' values in their order.

    Return its rows. For what the event loop does again and again: SQLAlchemy takes 0.1 to 0.4 ms
    for each statement, SQLite's driver some microseconds.
    """
    text = _text(connection.dialect, statement)
    if connection.dialect.name == "sqlite":
        return _driver(connection).execute(text, values).fetchall()
    result = connection.exec_driver_sql(text, values)
    return result.all() if result.returns_rows else ()


@lru_cache
def _text(dialect: sa.Dialect, statement: sa.ClauseElement) -> str:
    return str(statement.compile(dialect=dialect))


@lru_cache
def _compiled(dialect: sa.Dialect, table: sa.Table, adding: Callable[[Any], Any]) -> str:
    """Return the text of an INSERT, which takes SQLAlchemy a millisecond to make."""
    insert = adding(insert_or_update(dialect, table))
    return str(insert.compile(dialect=dialect, column_keys=table.columns.keys()))
