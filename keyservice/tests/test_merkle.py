"""The audit log's tree matches RFC 9162, computed in another way."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_keyservice.ledger.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    frontier,
    inclusion_prover,
    leaf_hash,
    node_hash,
)

LEAVES = [leaf_hash(bytes([n % 251, n // 251])) for n in range(600)]


def tree_hash(leaves: list[bytes]) -> bytes:
    """Return MTH(D[n]) by its recursive definition (section 2.1.1)."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return sha256(b"\x01" + tree_hash(leaves[:half]) + tree_hash(leaves[half:])).digest()


def subtree(level: int, index: int) -> bytes:
    """Return the hash of a complete subtree of LEAVES."""
    leaves = LEAVES[index << level : (index + 1) << level]
    assert len(leaves) == 1 << level
    return tree_hash(leaves)


def root_by_inclusion(leaf: bytes, index: int, size: int, proof: list[bytes]) -> bytes | None:
    """Verify as in section 2.1.3.2. Return the root, or None for a proof of wrong length."""
    number, last, root = index, size - 1, leaf
    for step in proof:
        if last == 0:
            return None
        if number & 1 or number == last:
            root = node_hash(step, root)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            root = node_hash(root, step)
        number, last = number >> 1, last >> 1
    return root if last == 0 else None


def is_consistent(first: int, second: int, roots: tuple[bytes, bytes], proof: list[bytes]) -> bool:
    """Verify as in section 2.1.4.2, for 0 < first < second."""
    path = ([roots[0]] if first & (first - 1) == 0 else []) + proof
    if not path:
        return False
    number, last = first - 1, second - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old = new = path[0]
    for step in path[1:]:
        if last == 0:
            return False
        if number & 1 or number == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new = node_hash(new, step)
        number, last = number >> 1, last >> 1
    return last == 0 and (old, new) == roots


def test_hashes_are_separated() -> None:
    """Leaves and nodes are hashed with different first bytes, so a leaf cannot pass for a node."""
    assert leaf_hash(b"x") == sha256(b"\x00x").digest()
    assert node_hash(b"l" * 32, b"r" * 32) == sha256(b"\x01" + b"l" * 32 + b"r" * 32).digest()
    assert Frontier().root() == EMPTY_ROOT == sha256(b"").digest()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 255, 256, 257, 600])
def test_the_root_is_the_definition_s(size: int) -> None:
    """A tree grown leaf by leaf, and one built from subtrees, have the defined root."""
    grown = Frontier().with_leaves(LEAVES[:size])[0]
    assert grown.size == size
    assert grown.root() == tree_hash(LEAVES[:size])
    assert frontier(size, subtree) == grown


@given(st.integers(0, 300), st.integers(0, 300))
def test_growing_in_steps_changes_nothing(first: int, more: int) -> None:
    """A tree grown in one or two steps is the same."""
    in_steps = (
        Frontier().with_leaves(LEAVES[:first])[0].with_leaves(LEAVES[first : first + more])[0]
    )
    assert in_steps == Frontier().with_leaves(LEAVES[: first + more])[0]


@given(st.integers(1, 600), st.data())
def test_an_inclusion_proof_leads_to_the_root(size: int, data: st.DataObject) -> None:
    """Each leaf's proof is valid for that leaf and place only."""
    index = data.draw(st.integers(0, size - 1))
    prove = inclusion_prover(size, subtree)
    proof = prove(index)
    root = tree_hash(LEAVES[:size])
    assert root_by_inclusion(LEAVES[index], index, size, proof) == root
    assert root_by_inclusion(leaf_hash(b"another"), index, size, proof) != root
    elsewhere = data.draw(st.integers(0, size - 1).filter(lambda n: n != index) | st.just(size))
    if elsewhere < size:
        assert prove(elsewhere) == inclusion_prover(size, subtree)(elsewhere)
        assert root_by_inclusion(LEAVES[index], elsewhere, size, proof) != root


@given(st.integers(2, 600), st.data())
def test_a_consistency_proof_joins_two_trees(second: int, data: st.DataObject) -> None:
    """The proof for any two sizes is valid, and invalid with a changed earlier root."""
    first = data.draw(st.integers(1, second - 1))
    proof = consistency_proof(first, second, subtree)
    roots = tree_hash(LEAVES[:first]), tree_hash(LEAVES[:second])
    assert is_consistent(first, second, roots, proof)
    assert not is_consistent(first, second, (leaf_hash(b"another"), roots[1]), proof)


def test_nothing_is_consistent_with_everything() -> None:
    """The empty tree, and a tree with itself, need an empty proof."""
    assert consistency_proof(0, 600, subtree) == []
    assert consistency_proof(600, 600, subtree) == []


def test_every_eighth_level_is_handed_out() -> None:
    """A growing tree returns the hash of each complete subtree of 256 and 65,536 leaves."""
    leaves = [leaf_hash(n.to_bytes(4, "big")) for n in range(65_600)]
    tiles = Frontier().with_leaves(leaves[:300])[1] + Frontier().with_leaves(leaves)[1][1:]
    assert [(tile.level, tile.position) for tile in tiles] == [
        *((8, index) for index in range(256)),
        (16, 0),
    ]
    assert all(
        tile.hash
        == tree_hash(leaves[tile.position << tile.level : (tile.position + 1) << tile.level])
        for tile in (tiles[0], tiles[255], tiles[256])
    )
    assert Frontier().with_leaves(tile.hash for tile in tiles[:256])[0].root() == tiles[256].hash
