"""The Merkle tree over the audit log, from its rows and tiles."""

from functools import cache

import sqlalchemy as sa

from pqkeep_keyservice.ledger.merkle import TILE_LEVELS, Subtree, fold, leaf_hash
from pqkeep_keyservice.ledger.records import record_from_row
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES

TILE = 1 << TILE_LEVELS
"""Hashes below one tile."""


class DamagedLogError(Exception):
    """Records or tiles of the audit log are missing."""


def log_size(connection: sa.Connection) -> int:
    """Return how many records there are."""
    return connection.execute(sa.select(sa.func.max(AUDIT_RECORDS.c.id))).scalar() or 0


def subtrees(connection: sa.Connection) -> Subtree:
    """Return a function that computes the hash of any complete subtree.

    It raises DamagedLogError where rows are missing.
    """

    @cache
    def hashes_of_tile(level: int, tile: int) -> list[bytes]:
        return _hashes(connection, level, tile * TILE, TILE)

    @cache
    def subtree(level: int, index: int) -> bytes:
        stored_level = level - level % TILE_LEVELS
        count = 1 << (level - stored_level)
        tile, place = divmod(index * count, TILE)
        hashes = hashes_of_tile(stored_level, tile)[place : place + count]
        if len(hashes) != count:
            raise DamagedLogError
        return fold(hashes)

    return subtree


def _hashes(connection: sa.Connection, level: int, begin: int, count: int) -> list[bytes]:
    """Return the hashes of neighbours on a stored level, or of leaves."""
    if level == 0:
        rows = connection.execute(
            sa.select(AUDIT_RECORDS)
            .where(AUDIT_RECORDS.c.id.between(begin + 1, begin + count))
            .order_by(AUDIT_RECORDS.c.id)
        )
        return [leaf_hash(record_from_row(row).text()) for row in rows]
    tiles = connection.execute(
        sa.select(AUDIT_TILES.c.hash)
        .where(
            AUDIT_TILES.c.level == level,
            AUDIT_TILES.c.position.between(begin, begin + count - 1),
        )
        .order_by(AUDIT_TILES.c.position)
    )
    return list(tiles.scalars())
