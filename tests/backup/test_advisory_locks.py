"""Backup and restore exclude the processes that write by the processes' own locks."""

from __future__ import annotations

from pqkeep_gateway.storage import database
from pqkeep_keyservice.storage import postgresql
from pqkeep_server.backup.databases import ACCOUNTS, KEYS


def test_the_advisory_locks_are_those_of_the_processes() -> None:
    """The numbers that a restore locks are the gateway's and the key service's."""
    assert (ACCOUNTS.lock, KEYS.lock) == (database.MIGRATION_LOCK, postgresql.LOCK)
