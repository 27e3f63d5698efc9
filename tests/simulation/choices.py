"""Choices that a seed decides: a stream of numbers for each purpose.

One stream for each purpose keeps what one part draws from changing what another one gets.
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
        """Return whether something does that has a probability."""
        return self.fraction() < probability

    def below(self, count: int) -> int:
        """Return a number from 0 to before ``count``."""
        return int(self.fraction() * count)

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of several."""
        return choices[self.below(len(choices))]

    def weighted(self, choices: Sequence[tuple[T, int]]) -> T:
        """Return one of several, each as often as its weight says."""
        drawn = self.below(sum(weight for _, weight in choices))
        for choice, weight in choices:
            drawn -= weight
            if drawn < 0:
                return choice
        raise AssertionError

    def delay(self, shortest: float, longest: float) -> float:
        """Return seconds between two, more often few than many."""
        return shortest + (longest - shortest) * self.fraction() ** 3
