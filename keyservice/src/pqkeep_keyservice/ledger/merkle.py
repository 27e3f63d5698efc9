"""A Merkle tree over the audit log (RFC 9162, section 2.1), with SHA-256. All hashes have 32 bytes.

Only ``subtrees`` does I/O. It returns the function ``subtree(level, index)`` that the others take:
the hash of the complete subtree over ``2 ** level`` leaves, from leaf ``index << level`` on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, reduce
from hashlib import sha256
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.ledger.records import FORMATS, Formats, Row, record_text
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, AUDIT_TILES

Subtree = Callable[[int, int], bytes]

EMPTY_ROOT = sha256().digest()

TILE_LEVELS = 8
"""Every eighth level of the tree is stored: one hash for 256 hashes below it. The other levels are
computed for a proof."""


class Tile(NamedTuple):
    """The hash of a complete subtree on a stored level."""

    level: int
    position: int
    hash: bytes


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    return sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with these two children."""
    return sha256(b"\1" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """A tree's complete subtrees, the largest first: the state needed to append to it."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def with_leaves(self, leaves: Iterable[bytes]) -> tuple["Frontier", list[Tile]]:
        """Append leaves by their hashes. Return the new frontier and its new tiles."""
        size, hashes = self.size, list(self.hashes)
        tiles: list[Tile] = []
        for leaf in leaves:
            top, full, level = leaf, size, 0
            while full & 1:
                top, full, level = node_hash(hashes.pop(), top), full >> 1, level + 1
                if level % TILE_LEVELS == 0:
                    tiles.append(Tile(level, full, top))
            hashes.append(top)
            size += 1
        return Frontier(size, tuple(hashes)), tiles

    def root(self) -> bytes:
        """Return the hash of the whole tree."""
        return _join(self.hashes)


def frontier(size: int, subtree: Subtree) -> Frontier:
    """Return the frontier of the tree of the first ``size`` leaves."""
    return Frontier(size, tuple(subtree(*position) for position in _complete(0, size)))


def range_hash(begin: int, end: int, subtree: Subtree) -> bytes:
    """Return the hash of the leaves from ``begin`` to before ``end``, as one subtree."""
    return _join(tuple(subtree(*position) for position in _complete(begin, end)))


def inclusion_prover(size: int, subtree: Subtree) -> Callable[[int], list[bytes]]:
    """Return a function from a leaf's index to its inclusion proof (section 2.1.3.1).

    The tree is that of the first ``size`` leaves. Hashes that proofs share are computed once.
    """

    @cache
    def hash_of(begin: int, end: int) -> bytes:
        return range_hash(begin, end, subtree)

    def prove(index: int) -> list[bytes]:
        begin, end = 0, size
        siblings: list[tuple[int, int]] = []
        while end - begin > 1:
            middle = begin + _split(end - begin)
            if index < middle:
                siblings.append((middle, end))
                end = middle
            else:
                siblings.append((begin, middle))
                begin = middle
        return [hash_of(*sibling) for sibling in reversed(siblings)]

    return prove


def consistency_proof(first: int, second: int, subtree: Subtree) -> list[bytes]:
    """Return the proof that the tree of size ``first`` is a prefix of the other (2.1.4.1)."""
    return [] if first == 0 else _consistency_path(first, 0, second, subtree, whole=True)


def _consistency_path(
    first: int, begin: int, end: int, subtree: Subtree, *, whole: bool
) -> list[bytes]:
    if first == end:
        return [] if whole else [range_hash(begin, end, subtree)]
    middle = begin + _split(end - begin)
    if first <= middle:
        return [
            *_consistency_path(first, begin, middle, subtree, whole=whole),
            range_hash(middle, end, subtree),
        ]
    return [
        *_consistency_path(first, middle, end, subtree, whole=False),
        range_hash(begin, middle, subtree),
    ]


def _split(size: int) -> int:
    """Return the largest power of two below a size of at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _complete(begin: int, end: int) -> Iterable[tuple[int, int]]:
    """Split leaves into complete subtrees (level, index), the largest first.

    ``begin`` must be a multiple of the largest subtree's size.
    """
    while begin < end:
        level = (end - begin).bit_length() - 1
        yield level, begin >> level
        begin += 1 << level


def _join(hashes: tuple[bytes, ...]) -> bytes:
    if not hashes:
        return EMPTY_ROOT
    return reduce(lambda right, left: node_hash(left, right), reversed(hashes))


TILE = 1 << TILE_LEVELS
"""Hashes below one tile."""


class DamagedLogError(Exception):
    """Records or tiles of the audit log are missing."""


def log_size(connection: sa.Connection) -> int:
    """Return the number of records in the log."""
    return connection.execute(sa.select(sa.func.max(AUDIT_RECORDS.c.id))).scalar() or 0


def newest_record(connection: sa.Connection) -> tuple[int, int]:
    """Return the newest record's id and time (microseconds since 1970); zeros in an empty log."""
    query = sa.select(AUDIT_RECORDS.c.id, AUDIT_RECORDS.c.recorded_at_us)
    newest = connection.execute(query.order_by(AUDIT_RECORDS.c.id.desc()).limit(1)).one_or_none()
    return (0, 0) if newest is None else (newest.id, newest.recorded_at_us)


def subtrees(connection: sa.Connection, formats: Formats = FORMATS) -> Subtree:
    """Return a function that computes the hash of any complete subtree.

    It raises DamagedLogError if rows are missing or have an unknown format.
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
    """Return the condition for readable records. One of an unknown format counts as missing."""
    return AUDIT_RECORDS.c.format.in_(formats)


def _hashes(connection: sa.Connection, formats: Formats, level: int, begin: int) -> list[bytes]:
    """Return the hashes below one tile: of the next stored level, or of leaves."""
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
