"""What several tests of pqkeepd have."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures import unprivileged


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that belongs to nobody, who can reach it."""
    with unprivileged.own_folder("server") as made:
        yield made
