"""What the command loads to say what it can do: nothing that takes long."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("httpx2.", "httpcore2.", "ssl.", "cryptography.", "rich.", "asyncio.", "pqkeep.local.")
LOADED = """
import atexit, json, os, sys
atexit.register(lambda: os.write(2, json.dumps(sorted(sys.modules)).encode()))
sys.argv[0] = "pqkeep"
from pqkeep.cli import app
app()
"""


@pytest.mark.parametrize(
    "arguments", [("--help",), ("encrypt", "--help"), ("keys", "--help"), ("--version",), ()]
)
def test_help_loads_little(arguments: tuple[str, ...]) -> None:
    """Neither HTTP nor cryptography nor tables are loaded to say what there is."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", LOADED, *arguments],
        capture_output=True,
        check=False,
        timeout=60,
    )
    modules = json.loads(ended.stderr[ended.stderr.index(b'["') :])
    assert "pqkeep.cli.encryption" in modules
    assert [name for name in modules if f"{name}.".startswith(HEAVY)] == []
