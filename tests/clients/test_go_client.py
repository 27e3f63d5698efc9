"""The Go client is current, well formed, and does what its README says: ``make interop`` runs most."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.clients.driver import INTEROP
from tests.clients.go_api import OPERATIONS, TYPES, formatted, operations, simplified, types
from tests.fixtures.installation import Installation

CLIENT = OPERATIONS.parents[1]
README = CLIENT / "README.md"
EXAMPLE = re.compile(
    r"^<!-- example: first-encryption -->\n```go\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
GO = shutil.which("go") or ""
needs_go = pytest.mark.skipif(not GO, reason="there is no Go")


@needs_go
@pytest.mark.campaign
def test_generated_code_is_current() -> None:
    """Operations and types are those of the API: ``python -m tests.clients.go_api``."""
    described = simplified()
    assert OPERATIONS.read_text() == formatted(operations(described))
    assert TYPES.read_text() == types(described)


@needs_go
@pytest.mark.campaign
@pytest.mark.parametrize(
    "command",
    [
        ("gofmt", "-l", "."),
        (GO, "vet", "./..."),
        (INTEROP / "bin/staticcheck", "./..."),
        (GO, "mod", "tidy", "-diff"),
    ],
)
def test_checks(command: tuple[str | Path, ...]) -> None:
    """Go's own checks, and staticcheck, have nothing to say."""
    ended = subprocess.run(command, cwd=CLIENT, capture_output=True, text=True, check=True)
    assert ended.stdout == ""


@needs_go
@pytest.mark.campaign
def test_under_hostile_servers() -> None:
    """The client's own tests pass, with the race detector where a C compiler is there."""
    options = ["-race"] if shutil.which("gcc") else []
    subprocess.run([GO, "test", *options, "./..."], cwd=CLIENT, check=True)


@needs_go
@pytest.mark.campaign
def test_readme(installation: Installation, tmp_path: Path) -> None:
    """The README's program encrypts with a real service, in a module of its own."""
    found = EXAMPLE.search(README.read_text())
    assert found is not None
    (tmp_path / "main.go").write_text(found[1])
    for command in (
        [GO, "mod", "init", "program"],
        [GO, "mod", "edit", "-require", "pqkeep@v0.0.0", "-replace", f"pqkeep={CLIENT}"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    tenant = installation.new_tenant()
    ended = subprocess.run(
        [GO, "run", "."],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **installation.environment(tenant.api_key)},
    )
    assert ended.stdout == "hello, world\nthere is no such key: ERR_NOT_FOUND_001\n"
