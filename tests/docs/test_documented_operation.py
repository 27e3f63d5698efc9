"""All ``pqkeepd`` commands in the documentation for operators exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from pqkeep_server.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("installation", "operations", "scaling", "runbooks", "hardening", "tls")
    ),
    ROOT / "deploy" / "README.md",
    *(ROOT / "deploy" / "systemd").glob("*.service"),
]
COMMAND = re.compile(r"(?:^|[`/ ])pqkeepd ((?:[^`|;&\n\"]|\\\n)*)", re.MULTILINE)


def _command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, and its arguments."""
    found: Any = typer.main.get_command(app)
    while words and hasattr(found, "commands") and words[0] in found.commands:
        found, words = found.commands[words[0]], words[1:]
    return found, words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(document: Path) -> None:
    """Each documented command exists, with its options."""
    for said in COMMAND.findall(document.read_text()):
        words = said.replace("\\\n", " ").split("#")[0].split()
        if not words or not re.fullmatch("[a-z][a-z-]*", words[0]):
            continue
        command, rest = _command(words)
        assert not hasattr(command, "commands"), said
        options = {name for each in command.params for name in each.opts}
        assert {word for word in rest if word.startswith("--")} <= options, said
