"""The Merkle tree of RFC 9162, section 2.1, with SHA-256, for verifiers.

All hashes have 32 bytes. The tree's size and the leaf's position give the expected length of a
proof.
"""

from collections.abc import Sequence
from hashlib import sha256

HASH_SIZE = 32
EMPTY_ROOT = sha256().digest()


def leaf_hash(text: bytes) -> bytes:
    """Return the hash of a leaf."""
    return sha256(b"\0" + text).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with two children."""
    return sha256(b"\1" + left + right).digest()


def proven_root(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that an inclusion proof leads to (section 2.1.3.2).

    Returns None if the proof has the wrong length.
    """
    if not 0 <= index < size:
        return None
    inner = (index ^ (size - 1)).bit_length()
    if len(path) != inner + (index >> inner).bit_count():
        return None
    root = leaf
    for level, step in enumerate(path):
        # Beyond the inner part every neighbour is a whole subtree to the left.
        if level >= inner or index >> level & 1:
            root = sha256(b"\1" + step + root).digest()
        else:
            root = sha256(b"\1" + root + step).digest()
    return root


def is_grown(
    first: int, first_root: bytes, second: int, second_root: bytes, path: Sequence[bytes]
) -> bool:
    """Return True if a consistency proof shows that one tree grew into another (section 2.1.4.2)."""
    if first > second:
        return False
    if first == second:
        return not path and first_root == second_root
    if first == 0:
        return not path and first_root == EMPTY_ROOT
    # The lowest steps lie inside the last subtree that both trees have, and need no proof.
    shared = (first & -first).bit_length() - 1
    position = (first - 1) >> shared
    inner = ((first - 1) ^ (second - 1)).bit_length() - shared
    is_complete = position == 0
    start, steps = (first_root, path) if is_complete else (b"".join(path[:1]), path[1:])
    if len(steps) != inner + (position >> inner).bit_count() or not start:
        return False
    old = new = start
    for level, step in enumerate(steps):
        if level >= inner or position >> level & 1:
            old, new = node_hash(step, old), node_hash(step, new)
        else:
            new = node_hash(new, step)
    return (old, new) == (first_root, second_root)


class GrowingTree:
    """A tree that grows by leaves. It keeps one hash for each complete subtree."""

    __slots__ = ("_subtrees", "size")

    def __init__(self, size: int = 0, subtrees: Sequence[bytes] = ()) -> None:
        """Begin with the hashes of complete subtrees, the largest first."""
        self.size = size
        self._subtrees = list(subtrees)

    def add(self, leaf: bytes) -> None:
        """Add a leaf by its hash."""
        top, size = leaf, self.size
        while size & 1:
            top, size = node_hash(self._subtrees.pop(), top), size >> 1
        self._subtrees.append(top)
        self.size += 1

    @property
    def subtrees(self) -> tuple[bytes, ...]:
        """The complete subtrees, the largest first."""
        return tuple(self._subtrees)

    def root(self) -> bytes:
        """Return the hash of the whole tree."""
        if not self._subtrees:
            return EMPTY_ROOT
        *left, root = self._subtrees
        for node in reversed(left):
            root = node_hash(node, root)
        return root
