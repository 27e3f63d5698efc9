"""The accounts database in a SQLite file."""

import os
import sqlite3
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_protocol.startup.sqlite_files import EXISTING, OWN_CODE, open_database_file, uri_of

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a commit survives a power failure
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 5000",
)
TRIES, PAUSE = 50, 0.1
"""Of a pragma, and seconds between them: of several that open a new file, one makes it a WAL's, for
which the others are not made to wait."""

SQLITE_READ_ONLY = "sqlite_readonly"
"""The option of a connection whose transaction cannot write: named after PostgreSQL's."""


def sqlite_engine(path: str) -> AsyncEngine:
    """Return an engine on a file, which may be empty. Raises ConfigError."""
    # The driver would report a problem in a thread that outlives the event loop.
    os.close(open_database_file(path))
    engine = create_async_engine(
        sa.URL.create("sqlite+aiosqlite", database=uri_of(path), query=EXISTING),
        hide_parameters=True,
    )
    sa.event.listen(engine.sync_engine, "connect", _on_connect)
    sa.event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None  # no implicit BEGIN: see _on_begin
    cursor = connection.cursor()
    try:
        for pragma in PRAGMAS:
            _execute(cursor, pragma)
        _require_no_code(cursor)
    except Exception:
        connection.close()  # not in the pool yet
        raise
    cursor.close()


def _require_no_code(cursor: Any) -> None:
    cursor.execute(OWN_CODE)
    if cursor.fetchone()[0]:
        raise ConfigError("the accounts database has views or triggers, and pqkeep makes none")


def _execute(cursor: Any, pragma: str) -> None:
    for _ in range(TRIES):
        try:
            cursor.execute(pragma)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(PAUSE)
        else:
            return
    cursor.execute(pragma)


def _on_begin(connection: sa.Connection) -> None:
    """Take the write lock at once, or never: a transaction that needs it later can fail."""
    is_read_only = bool(connection.get_execution_options().get(SQLITE_READ_ONLY))
    if connection.info.get(SQLITE_READ_ONLY, False) is not is_read_only:
        connection.exec_driver_sql(f"PRAGMA query_only = {is_read_only:d}")
        connection.info[SQLITE_READ_ONLY] = is_read_only
    connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")
