"""Proofs of the wrong length prove nothing, with any hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pqkeep.audit._merkle import EMPTY_ROOT, is_grown, leaf_hash, node_hash, proven_root

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log

LEAF = leaf_hash(b"a leaf")


@pytest.mark.parametrize(("index", "size"), [(0, 0), (1, 1), (5, 5), (-1, 5)])
def test_a_leaf_outside_the_tree(index: int, size: int) -> None:
    """A leaf outside the tree has no root."""
    for length in range(5):
        assert proven_root(LEAF, index, size, [LEAF] * length) is None


def test_the_length_of_a_path(log: Log) -> None:
    """Each leaf has one valid length of its path. Other lengths are refused."""
    for size in range(1, 22):
        for index in range(size):
            right = len(log.path(index, size))
            lengths = [n for n in range(10) if proven_root(LEAF, index, size, [LEAF] * n)]
            assert lengths == [right]


def test_a_chain_that_is_too_long() -> None:
    """Hashes that reach the new root in too many steps do not prove growth."""
    one, two = LEAF, node_hash(LEAF, LEAF)
    assert is_grown(1, one, 2, two, [LEAF])
    assert not is_grown(1, one, 2, node_hash(two, LEAF), [LEAF, LEAF])


def test_growth_needs_two_trees() -> None:
    """A tree may grow from the same size, or from zero, without a proof. It may never shrink."""
    assert is_grown(3, LEAF, 3, LEAF, [])
    assert not is_grown(3, LEAF, 3, LEAF, [LEAF])
    assert is_grown(0, EMPTY_ROOT, 3, LEAF, [])
    assert not is_grown(0, EMPTY_ROOT, 3, LEAF, [LEAF])
    assert not is_grown(0, LEAF, 3, LEAF, [])
    assert not is_grown(3, LEAF, 2, LEAF, [])
