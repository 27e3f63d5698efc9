"""README and the pages for users, in the order of the map, followed by one person.

All commands run in one shell, in one directory, with one installation and one tenant.
"""

from __future__ import annotations

import os
import re
import shlex
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.fixtures.installation import Installation
from tests.fixtures.terminal import typed

ROOT = Path(__file__).parents[2]
SCRIPTS = sysconfig.get_path("scripts")
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TUTORIAL = re.compile(r"<!-- tutorial -->\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = ("try.md", "cli.md", "sdk.md", "local-encryption.md", "migrate.md")
"""The pages for users, in the order of docs/README.md."""
PLACEHOLDERS = "export PQKEEP_URL=http://127.0.0.1:8080 PQKEEP_API_KEY=pqk_…\n"
SHOWN = (
    r'\{"data":\{"plaintext":"aGVsbG8sIHdvcmxk".*',
    r"README\.md\.pqk: encrypted to Kyber768 version \d+",
    r"again\.md: decrypted",
    r"verified",
    r"plan\.txt\.pqk: encrypted to Kyber768 version \d+",
    r"meet at noon",
    r"version \d+ is retired",
    r"copy\.txt",
    r"-----BEGIN PQKEEP ENCRYPTED DATA-----",
    r"meet at one",
    r"plan\.txt\.pqk: re-encrypted",
    r"plan\.txt: the signature is good, by Dilithium3 version 1",
    r"pqkeep: plan\.txt: the signature is not good",
    r"verified",
)
"""Lines that a reader of the pages sees."""
STARTS = {"make run\n"}
"""Blocks that start processes which the tests already run."""
VARIABLES = {"PQKEEP_URL", "PQKEEP_API_KEY"}


def python(program: str) -> str:
    """Return the command that runs a program with README's interpreter."""
    return f".venv/bin/python -c {shlex.quote(program)}\n"


def readme() -> str:
    """Return the commands of README's "Encrypt something"."""
    text = (ROOT / "README.md").read_text().split("\n## Encrypt something\n", 1)[1]
    blocks = FENCE.findall(text.split("\n## ", 1)[0])
    assert [language for language, _ in blocks] == ["sh"]
    return "".join(code for _, code in blocks)


def document(name: str) -> str:
    """Return the commands of a page, with its Python blocks as one program at the end.

    A page with a tutorial gives only the tutorial's commands.
    """
    text = (ROOT / "docs" / name).read_text()
    commands = TUTORIAL.findall(text)
    blocks = FENCE.findall(text)
    if not commands:
        commands = [code for language, code in blocks if language == "sh" and code not in STARTS]
    program = "".join(code for language, code in blocks if language == "python")
    return "".join(commands) + (python(program) if program else "")


def make_environment(folder: Path, command: Sequence[str | Path]) -> None:
    """Make an environment like that of the tests, with another pqkeep command."""
    ours = Path(SCRIPTS)
    (folder / ours.name).mkdir(parents=True)
    for each in {*ours.parent.iterdir(), *ours.iterdir()} - {ours, ours / "pqkeep"}:
        (folder / each.relative_to(ours.parent)).symlink_to(each)
    pqkeep = folder / ours.name / "pqkeep"
    pqkeep.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, command))} "$@"\n')
    pqkeep.chmod(0o700)


def test_everything_in_order(
    installation: Installation, pqkeep_command: Sequence[str | Path], tmp_path: Path
) -> None:
    """A reader who follows README and then each page meets no error."""
    tenant, directory = installation.new_tenant(), tmp_path / "checkout"
    directory.mkdir()
    make_environment(directory / ".venv", pqkeep_command)
    (directory / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    (directory / "report.pdf").write_bytes(b"a report")
    (directory / "operator.key").write_text(installation.ready["operator_key"])
    exported = f"export PQKEEP_URL={installation.base_url} PQKEEP_API_KEY={tenant.api_key}\n"
    commands = readme()
    assert commands.startswith(PLACEHOLDERS)
    commands = commands.replace(PLACEHOLDERS, exported)
    commands += "".join(document(name) for name in PAGES)
    path = f"{directory / '.venv' / Path(SCRIPTS).name}:{os.defpath}"
    environment = {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "NO_PROXY": "*"}
    responses = {b"API key: ": tenant.api_key}
    text = typed(commands, responses, directory=directory, environment=environment)
    assert tenant.api_key not in text
    for line in SHOWN:
        assert re.search(rf"^{line}$", text, re.MULTILINE), (line, text)
    assert (directory / "again.md").read_bytes() == (directory / "README.md").read_bytes()
    assert (directory / "copy.pdf").read_bytes() == b"a report"
    assert (directory / "log.jsonl").stat().st_size > 0


def test_two_names_for_address_and_api_key() -> None:
    """Every command in every document reads address and API key from the same two variables."""
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("deploy/**/*.md")]
    sent = re.compile(r"X-API-Key: \$(\w+)|\$\{?(PQKEEP_\w+)")
    used = {
        name
        for path in documents
        for found in sent.findall(path.read_text())
        for name in found
        if name
    }
    assert used == VARIABLES
