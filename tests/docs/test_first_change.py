"""The steps of docs/first-change.md make an endpoint that passes its test."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.docs.first_change import apply, copy_repository
from tests.patience import PATIENCE

DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")
CHECKS = (
    ("-m", "tests.docs"),
    ("-m", "ruff", "check", "--no-cache", "."),
    ("-m", "ruff", "format", "--check", "--no-cache", "."),
    (
        *("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
        *("tests/contract/test_algorithms_of_a_plan.py", "tests/docs/test_generated.py"),
        *("tests/docs/test_documented_audit.py", "gateway/tests/test_scopes.py"),
        *("tests/architecture/test_access_names.py", "gateway/tests/test_self_description.py"),
    ),
)
"""The parts of ``make docs``, ``make lint`` and ``make test`` that concern the change."""


def make_environment(copy: Path) -> Path:
    """Make an environment with our packages and the copy's distributions; return its Python."""
    environment = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = environment / "lib" / version / "site-packages"
    paths = [str(copy / name / "src") for name in DISTRIBUTIONS]
    folder.joinpath("copy.pth").write_text("\n".join([*paths, sysconfig.get_path("purelib")]))
    return environment / "bin" / "python"


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the repository with the page's change."""
    copy_repository(tmp_path)
    assert len(apply(tmp_path)) == 7, "a test and six files"
    return tmp_path


@pytest.mark.campaign
def test_the_page_works_in_one_try(changed: Path) -> None:
    """The endpoint responds, the style is right, and the generated tables have it."""
    python = make_environment(changed)
    for check in CHECKS:
        ended = subprocess.run(
            [python, *check],
            cwd=changed,
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, f"{check}\n{ended.stdout}\n{ended.stderr}"


def test_the_page_fits_the_code(changed: Path) -> None:
    """Each place on the page occurs once in its file, and the result is valid Python."""
    endpoint = changed / "gateway/src/pqkeep_gateway/api/plan_limits.py"
    compile(endpoint.read_text(), str(endpoint), "exec")
