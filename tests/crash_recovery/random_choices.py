"""Random choices from a seed, so that a run can be repeated."""

from collections.abc import Iterator, Sequence
from hashlib import shake_128
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")

_BLOCK = 4096
_WORD = 4


class SeededRandom:
    """Random numbers from a seed."""

    def __init__(self, seed: str) -> None:
        self._words = _words(seed)

    def below(self, count: int) -> int:
        """Return a number from 0 to before ``count``, nearly uniform."""
        return next(self._words) % count

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of several values."""
        return choices[self.below(len(choices))]

    def weighted(self, choices: Sequence[tuple[T, int]]) -> T:
        """Return one of several values, with the probabilities of their weights."""
        sums = list(accumulate(weight for _, weight in choices))
        drawn = self.below(sums[-1])
        return next(choice for (choice, _), sum_ in zip(choices, sums, strict=True) if drawn < sum_)


def _words(seed: str) -> Iterator[int]:
    turn = 0
    while True:
        block = shake_128(f"{seed} {turn}".encode()).digest(_BLOCK)
        for begin in range(0, _BLOCK, _WORD):
            yield int.from_bytes(block[begin : begin + _WORD])
        turn += 1
