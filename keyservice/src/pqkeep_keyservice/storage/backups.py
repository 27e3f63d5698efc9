"""Which backup is the newest, as far as backups were announced."""

import sqlalchemy as sa

from pqkeep_keyservice.ledger.checkpoints import log_id
from pqkeep_keyservice.ledger.tree import log_size
from pqkeep_keyservice.storage.key_versions import find_generation
from pqkeep_keyservice.storage.schema import NEWEST_BACKUP
from pqkeep_protocol.administration import AnnounceBackup, NewestBackup


def find_newest_backup(connection: sa.Connection) -> NewestBackup | None:
    """Return the newest backup; None if none was announced."""
    row = connection.execute(sa.select(NEWEST_BACKUP)).one()
    generation, records, created_at_us = row
    if not created_at_us:
        return None
    return NewestBackup(generation=generation, records=records, created_at_us=created_at_us)


def announce_backup(connection: sa.Connection, backup: AnnounceBackup) -> NewestBackup | None:
    """Note a backup unless a newer one is noted; return the newest.

    None if it cannot be a backup of this database.
    """
    is_of_this_log = backup.log_id == log_id(connection)
    is_of_this_generation = backup.generation == find_generation(connection)
    if not (is_of_this_log and is_of_this_generation and backup.records <= log_size(connection)):
        return None
    new = backup.generation, backup.records, backup.created_at_us
    is_newer = sa.tuple_(*NEWEST_BACKUP.c) < sa.tuple_(*map(sa.literal, new))
    noted = dict(zip(NEWEST_BACKUP.c, new, strict=True))
    connection.execute(sa.update(NEWEST_BACKUP).where(is_newer).values(noted))
    return find_newest_backup(connection)
