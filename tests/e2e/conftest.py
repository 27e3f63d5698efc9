"""A data directory that has been used once, to copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.installation import running

if TYPE_CHECKING:
    pass


@pytest.fixture(scope="session")
def made_data(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Path], Path]:
    """Copy a data directory with a key."""
    folder = tmp_path_factory.mktemp("made")
    with running(folder) as installation:
        installation.demo().post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)

    def copy(to: Path) -> Path:
        return Path(shutil.copytree(folder / "data", to, ignore=shutil.ignore_patterns("*.sock")))

    return copy
