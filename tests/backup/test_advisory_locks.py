"""Backup and restore exclude the writing processes by the processes' own locks."""

from __future__ import annotations

from pqkeep_gateway.storage import database
from pqkeep_keyservice.storage import postgresql
from pqkeep_server.backup.databases import ACCOUNTS, KEYS


def test_the_advisory_locks_are_those_of_the_processes() -> None:
    """A restore locks the numbers of the gateway and the key service."""
    assert (ACCOUNTS.lock, KEYS.lock) == (database.MIGRATION_LOCK, postgresql.LOCK)
