"""Help and completion are quick: they load little, and need no service."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

HEAVY = ("httpx2.", "httpcore2.", "ssl.", "cryptography.", "rich.", "asyncio.", "pqkeep.local.")
LOADED = """
import atexit, json, os, sys
atexit.register(lambda: os.write(2, json.dumps(sorted(sys.modules)).encode()))
sys.argv[0] = "pqkeep"
from pqkeep.cli import app
app()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("encrypt", "--help"),
        ("keys", "--help"),
        ("transit", "--help"),
        ("--version",),
        (),
    ],
)
def test_help_loads_little(arguments: tuple[str, ...]) -> None:
    """Help does not load HTTP, cryptography or tables."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", LOADED, *arguments],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    modules = json.loads(ended.stderr[ended.stderr.index(b'["') :])
    assert "pqkeep.cli.encryption" in modules
    assert [name for name in modules if f"{name}.".startswith(HEAVY)] == []


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("enc", {"encrypt"}),
        ("keys r", {"rotate", "retire"}),
        ("encrypt file --algorithm X", {"X-Wing"}),
        ("keys list --status ret", {"retired"}),
    ],
)
def test_completion(nobody: Command, words: str, completed: set[str]) -> None:
    """The shell completes commands, options and algorithms."""
    typed = f"pqkeep {words}"
    complete = nobody.as_(
        _PQKEEP_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(typed.split()) - 1),
    )
    assert completed <= set(complete().out.decode().split())
