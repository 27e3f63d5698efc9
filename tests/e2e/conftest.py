"""A used data directory to copy, and commands on the data of an installation."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE

Run = Callable[..., subprocess.CompletedProcess[str]]
"""Takes arguments, and the expected status."""


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


@pytest.fixture
def command_on(pqkeepd_command: Sequence[str | Path]) -> Callable[[Installation, str], Run]:
    """Return a group of pqkeepd's commands, for the data of an installation."""

    def command(installation: Installation, group: str) -> Run:
        def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
            ended = subprocess.run(
                [*pqkeepd_command, group, *arguments, "--data", installation.data],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert ended.returncode == status, ended.stderr
            return ended

        return run

    return command
