"""The rows of an installation's databases, read with only the product's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from pqkeep_gateway.storage import schema as accounts
from pqkeep_keyservice.ledger import schema as ledger
from pqkeep_keyservice.storage import schema as keys
from pqkeep_server.initialise import IN_FILES, Stores

DRIVER = "postgresql+psycopg"
Rows = Sequence[sa.Row[Any]]


@dataclass(frozen=True)
class Snapshot:
    """All rows, in the order of their keys."""

    log_id: str
    records: Rows
    tiles: Rows
    checkpoints: Rows
    key_revisions: Rows
    keys: Rows
    usage: Rows
    tenants: Rows
    api_keys: Rows
    outbox: Rows


def urls_of(databases: Stores, data: Path) -> tuple[sa.URL, sa.URL]:
    """Return the addresses of an installation's accounts and keys."""
    if databases == IN_FILES:
        return sqlite_urls(data)
    accounts_url, keys_url = sa.make_url(databases.accounts), sa.make_url(databases.keys)
    return accounts_url.set(drivername=DRIVER), keys_url.set(drivername=DRIVER)


def sqlite_urls(data: Path) -> tuple[sa.URL, sa.URL]:
    """Return the addresses of a data directory's accounts and keys."""
    return (
        sa.URL.create("sqlite", database=str(data / "gateway" / "accounts.sqlite3")),
        sa.URL.create("sqlite", database=str(data / "keyservice" / "keys.sqlite3")),
    )


def read(accounts_url: sa.URL, keys_url: sa.URL) -> Snapshot:
    """Read all rows for the checks."""
    ours = _all(
        keys_url,
        (ledger.AUDIT_LOG, ledger.AUDIT_RECORDS, ledger.AUDIT_TILES, ledger.AUDIT_CHECKPOINTS),
        (keys.KEY_REVISIONS, keys.KEYS, ledger.KEY_USAGE),
    )
    theirs = _all(accounts_url, (accounts.TENANTS, accounts.API_KEYS, accounts.AUDIT_OUTBOX))
    log, records, tiles, checkpoints, revisions, all_keys, usage = ours
    return Snapshot(log[0].log_id, records, tiles, checkpoints, revisions, all_keys, usage, *theirs)


def _all(url: sa.URL, *tables: Sequence[sa.Table]) -> list[Rows]:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return [
                connection.execute(sa.select(table).order_by(*table.primary_key)).all()
                for group in tables
                for table in group
            ]
    finally:
        engine.dispose()
