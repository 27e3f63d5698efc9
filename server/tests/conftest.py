"""Fixtures for several tests of pqkeepd."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures import unprivileged


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder of the user nobody, who can reach it."""
    with unprivileged.own_folder("server") as made:
        yield made
