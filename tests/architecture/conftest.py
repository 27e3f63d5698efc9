"""A copy of the source tree that a test may spoil."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the sources and pyproject.toml, and nothing else."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for distribution in DISTRIBUTIONS:
        shutil.copytree(
            ROOT / distribution / "src",
            tmp_path / distribution / "src",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return tmp_path


@pytest.fixture(scope="session")
def lint_imports() -> Callable[[Path], tuple[int, str]]:
    """Run the import linter on a copy, whose packages win over those that are installed."""

    def run(copy: Path) -> tuple[int, str]:
        paths = [str(copy / distribution / "src") for distribution in DISTRIBUTIONS]
        ended = subprocess.run(
            [Path(sysconfig.get_path("scripts")) / "lint-imports", "--no-cache"],
            cwd=copy,
            env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run
