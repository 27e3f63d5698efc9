"""The Merkle tree over the audit log, from its rows and tiles."""

from functools import cache

import sqlalchemy as sa

from pqkeep_keyservice.ledger.merkle import TILE_LEVELS, Subtree, leaf_hash, node_hash
from pqkeep_keyservice.ledger.records import FORMATS, Formats, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES

TILE = 1 << TILE_LEVELS
"""Hashes below one tile."""


class DamagedLogError(Exception):
    """Records or tiles of the audit log are missing."""


def log_size(connection: sa.Connection) -> int:
    """Return how many records there are."""
    return connection.execute(sa.select(sa.func.max(AUDIT_RECORDS.c.id))).scalar() or 0


def newest_record(connection: sa.Connection) -> tuple[int, int]:
    """Return the newest record's id and time (microseconds since 1970); 0 and 0 without one."""
    query = sa.select(AUDIT_RECORDS.c.id, AUDIT_RECORDS.c.recorded_at_us)
    newest = connection.execute(query.order_by(AUDIT_RECORDS.c.id.desc()).limit(1)).one_or_none()
    return (0, 0) if newest is None else (newest.id, newest.recorded_at_us)


def subtrees(connection: sa.Connection, formats: Formats = FORMATS) -> Subtree:
    """Return a function that computes the hash of any complete subtree.

    It raises DamagedLogError where rows are missing, or have a format that is not known.
    """

    @cache
    def hashes_of_tile(level: int, tile: int) -> list[bytes]:
        return _hashes(connection, formats, level, tile * TILE)

    @cache
    def subtree(level: int, index: int) -> bytes:
        if level % TILE_LEVELS:
            return node_hash(subtree(level - 1, 2 * index), subtree(level - 1, 2 * index + 1))
        tile, place = divmod(index, TILE)
        hashes = hashes_of_tile(level, tile)
        if place >= len(hashes):
            raise DamagedLogError
        return hashes[place]

    return subtree


def has_format(formats: Formats) -> sa.ColumnElement[bool]:
    """Return whether a record can be read: one of another format is treated as one that is missing."""
    return AUDIT_RECORDS.c.format.in_(formats)


def _hashes(connection: sa.Connection, formats: Formats, level: int, begin: int) -> list[bytes]:
    """Return the hashes below one tile: of a stored level, or of leaves."""
    if level == 0:
        rows = connection.execute(
            sa.select(AUDIT_RECORDS)
            .where(AUDIT_RECORDS.c.id.between(begin + 1, begin + TILE), has_format(formats))
            .order_by(AUDIT_RECORDS.c.id)
        )
        return [leaf_hash(record_text(row, formats)) for row in map(Row._make, rows.all())]
    tiles = connection.execute(
        sa.select(AUDIT_TILES.c.position, AUDIT_TILES.c.hash)
        .where(
            AUDIT_TILES.c.level == level,
            AUDIT_TILES.c.position.between(begin, begin + TILE - 1),
        )
        .order_by(AUDIT_TILES.c.position)
    )
    return [tile.hash for index, tile in enumerate(tiles, begin) if tile.position == index]
