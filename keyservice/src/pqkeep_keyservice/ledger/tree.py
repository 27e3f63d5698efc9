"""The audit log's tree, from its rows and tiles."""

from functools import cache

import sqlalchemy as sa

from pqkeep_keyservice.ledger.merkle import (
    TILE_LEVELS,
    Frontier,
    Subtree,
    fold,
    frontier,
    leaf_hash,
)
from pqkeep_keyservice.ledger.records import LogState, insert_tiles, record_from_row
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES

TILE = 1 << TILE_LEVELS
"""Hashes below one that is kept."""


class DamagedLogError(Exception):
    """Records or tiles of the audit log are not there."""


def subtrees(connection: sa.Connection) -> Subtree:
    """Return a function that knows the hash of every complete subtree.

    Raises DamagedLogError where rows are missing.
    """

    @cache
    def row(level: int, tile: int) -> list[bytes]:
        return _hashes(connection, level, tile * TILE, TILE)

    @cache
    def subtree(level: int, index: int) -> bytes:
        kept = level - level % TILE_LEVELS
        count = 1 << (level - kept)
        tile, place = divmod(index * count, TILE)
        hashes = row(kept, tile)[place : place + count]
        if len(hashes) != count:
            raise DamagedLogError
        return fold(hashes)

    return subtree


def make_tiles(connection: sa.Connection) -> None:
    """Make the tiles that are not there yet: of a log that is older than its tree."""
    tiles = connection.execute(sa.select(sa.func.count()).select_from(AUDIT_TILES)).scalar_one()
    size = connection.execute(sa.select(sa.func.max(AUDIT_RECORDS.c.id))).scalar() or 0
    if tiles or size < TILE:
        return
    tree = Frontier()
    for begin in range(0, size, TILE):
        tree, new = tree.grown(_hashes(connection, 0, begin, TILE))
        insert_tiles(connection, new)


def load_log_state(connection: sa.Connection) -> LogState:
    """Return the end of the log. Raises DamagedLogError."""
    newest = connection.execute(
        sa.select(AUDIT_RECORDS.c.id, AUDIT_RECORDS.c.recorded_at_us)
        .order_by(AUDIT_RECORDS.c.id.desc())
        .limit(1)
    ).one_or_none()
    if newest is None:
        return LogState(Frontier(), 0)
    return LogState(frontier(newest.id, subtrees(connection)), newest.recorded_at_us)


def _hashes(connection: sa.Connection, level: int, begin: int, count: int) -> list[bytes]:
    """Return the hashes of neighbours on a level that is kept, or of leaves."""
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
