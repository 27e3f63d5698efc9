"""A Python that only root can run is reported before anything is made or started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.e2e.test_two_users import folder
from tests.fixtures.two_users import ENVIRONMENT, GATEWAY, IDS, initialised, python
from tests.patience import PATIENCE

__all__ = ["folder"]
CODE = "from pqkeep_server.cli import app; app()"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """Return a Python in a folder that only root can reach."""
    own = folder / "own"
    own.mkdir(mode=0o700)
    (own / "python3").symlink_to(python())
    return own / "python3"


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of pqkeepd with that Python."""
    return subprocess.run(
        [program, "-P", "-c", CODE, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _names_both(said: str, program: Path) -> bool:
    """Return True if a message names the user, the program and the program's real file."""
    return all(str(each) in said for each in (GATEWAY, program, program.resolve()))


def test_init_makes_nothing(program: Path, folder: Path) -> None:
    """Init names the user and the Python, and makes no data directory."""
    ended = run(program, "init", "--data", folder / "none", *IDS)
    assert ended.returncode == 1
    assert _names_both(ended.stderr, program)
    assert not (folder / "none").exists()


def test_start_and_doctor_say_it(program: Path, folder: Path) -> None:
    """With another installation's Python, start has exit status 78, and doctor names the user."""
    layout, _ = initialised(folder / "data")
    started = run(program, "start", "--data", layout.directory)
    assert started.returncode == os.EX_CONFIG
    assert _names_both(started.stderr, program)
    examined = run(program, "doctor", "--data", layout.directory)
    assert examined.returncode == 1
    _, _, problem = examined.stdout.partition("users: wrong\n")
    assert _names_both(problem.splitlines()[0], program)
