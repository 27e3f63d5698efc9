"""``pqkeepd`` explains itself."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

PQKEEPD = Path(sysconfig.get_path("scripts")) / "pqkeepd"


def run(*arguments: str) -> tuple[int, str]:
    """Run the command; return status and output."""
    ended = subprocess.run(
        [PQKEEPD, *arguments],
        env={"PATH": os.defpath, "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("dev", "--help"),
        ("backup", "--help"),
        ("restore", "--help"),
        ("recovery-key", "create", "--help"),
        ("root-key", "rotate", "--help"),
    ],
)
def test_help(arguments: tuple[str, ...]) -> None:
    """--help ends well and shows how to call it."""
    status, said = run(*arguments)
    assert status == 0
    assert "Usage: pqkeepd" in said


def test_help_names_the_commands() -> None:
    """The first help names dev and says what pqkeepd is for."""
    _, said = run("--help")
    assert "dev" in said
    assert "pqkeep" in said


def test_help_names_the_options() -> None:
    """The help of dev has every option, the default port among them."""
    _, said = run("dev", "--help")
    for word in ("--port", "8080", "--data", "--ready-file"):
        assert word in said


@pytest.mark.parametrize("arguments", [("unknown",), ("dev", "--unknown"), ("dev", "too-much")])
def test_a_usage_error(arguments: tuple[str, ...]) -> None:
    """What is no command or option is status 2 with an explanation, and no traceback."""
    status, said = run(*arguments)
    assert status == 2
    assert "Usage" in said
    assert "Traceback" not in said
