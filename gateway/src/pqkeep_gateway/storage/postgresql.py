"""The accounts database on a PostgreSQL server, which several gateways may share.

Transactions are READ COMMITTED. What must not change between two statements is locked by the
first, or kept by a unique constraint.
"""

from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from pqkeep_protocol.startup.secret_files import check_secret_file

CONNECT_SECONDS = 2.0
WAIT_SECONDS = 2.0
"""For a connection to be free, and for one to be made."""
POOL = 10
LOCK = 0x7071_6B65_6570_0002
"""The advisory lock of a migration: "pqkeep", 2."""
SESSION = {
    "application_name": "pqkeep gateway",
    "statement_timeout": "3s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}
_MISFITS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)


def postgresql_engine(url: str, password_file: Path | None) -> AsyncEngine:
    """Return an engine that connects when it is first used. Raises ConfigError.

    The password, if there is one, is in a file as libpq knows it.
    """
    if password_file is not None:
        check_secret_file(password_file, "PostgreSQL password")
    connect = partial(
        asyncpg.connect,
        url,
        passfile=password_file,
        timeout=CONNECT_SECONDS,
        server_settings=SESSION,
        target_session_attrs="read-write",
    )
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        isolation_level="READ COMMITTED",
        pool_size=POOL,
        max_overflow=0,
        pool_timeout=WAIT_SECONDS,
        hide_parameters=True,
    )
    sa.event.listen(engine.sync_engine, "checkout", _on_checkout)
    return engine


def wait_for_other_migrations(connection: sa.Connection) -> None:
    """Let nobody else migrate before this transaction is over."""
    for setting in ("statement_timeout", "lock_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {setting} = '60s'")
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


def is_misfit(error: BaseException) -> bool:
    """Return whether a server says what it will say the next time too."""
    driver = getattr(error, "orig", None)
    return isinstance(driver and driver.__cause__, _MISFITS)


def _on_checkout(connection: Any, *_: object) -> None:
    """Take no connection that the server has closed while it was idle: the pool makes another."""
    if connection.driver_connection.is_closed():
        raise sa.exc.DisconnectionError
