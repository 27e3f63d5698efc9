"""The accounts database on a PostgreSQL server, which several gateways can share.

Transactions are READ COMMITTED. Data that must not change between two statements is locked by the
first one, or protected by a unique constraint.
"""

from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from pqkeep_gateway.storage.time_limits import LIMITS, TRANSACTION_SECONDS, TimeLimits
from pqkeep_protocol.startup.secret_files import password_file_of

POOL_SIZE = 10
SESSION = {
    "application_name": "pqkeep gateway",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}


def postgresql_engine(
    url: str, password_file: Path | None, limits: TimeLimits = LIMITS
) -> AsyncEngine:
    """Return an engine that connects at its first use. Raises ConfigError.

    ``password_file``: in libpq's format.
    """
    if password_file is not None:
        password_file = password_file_of(password_file, "PostgreSQL password")
    statement = f"{limits.statement}s"
    connect = partial(
        asyncpg.connect,
        url,
        passfile=password_file,
        timeout=limits.connect,
        server_settings=SESSION | {"statement_timeout": statement, "lock_timeout": statement},
        target_session_attrs="read-write",
    )
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        isolation_level="READ COMMITTED",
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=limits.wait,
        execution_options={TRANSACTION_SECONDS: limits.transaction},
        hide_parameters=True,
    )
    sa.event.listen(engine.sync_engine, "checkout", _on_checkout)
    return engine


def _on_checkout(connection: Any, *_: object) -> None:
    """Replace an idle connection that the server has closed."""
    if connection.driver_connection.is_closed():
        raise sa.exc.DisconnectionError
