"""How much ``make test`` tries of many similar cases; with PQKEEP_EXHAUSTIVE set it tries each."""

from __future__ import annotations

import os

IS_EXHAUSTIVE = "PQKEEP_EXHAUSTIVE" in os.environ


def step(usual: int) -> int:
    """Return the distance from one case that is tried to the next: usually so many."""
    return 1 if IS_EXHAUSTIVE else usual
