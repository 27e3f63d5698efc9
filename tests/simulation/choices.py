"""Random choices from a seed, with a stream for each purpose.

With separate streams, one part's draws do not change another part's.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random  # noqa: TID251 - a seed must give the same run again
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Numbers from a seed and a purpose."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._random = Random(f"{seed} {purpose}")  # noqa: S311 - nothing secret
        self.fraction = self._random.random
        """Return a number from 0 to before 1."""

    def happens(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.fraction() < probability

    def below(self, count: int) -> int:
        """Return a number from 0 to before ``count``."""
        return int(self.fraction() * count)

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of several values."""
        return choices[self.below(len(choices))]

    def weighted(self, choices: Sequence[tuple[T, int]]) -> T:
        """Return one of several values, with the probabilities of their weights."""
        drawn = self.below(sum(weight for _, weight in choices))
        for choice, weight in choices:
            drawn -= weight
            if drawn < 0:
                return choice
        raise AssertionError

    def delay(self, shortest: float, longest: float) -> float:
        """Return seconds between two limits; small values are more frequent."""
        return shortest + (longest - shortest) * self.fraction() ** 3
