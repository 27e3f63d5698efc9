"""docs/cli.md matches the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from typer.testing import CliRunner

from pqkeep.cli import app
from pqkeep.cli.documents import FORMATS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SCRIPTS = sysconfig.get_path("scripts")
PROGRAM = Path(SCRIPTS) / "pqkeep"
OPTION = re.compile(r"--[a-z][a-z-]+")
COMPLETION = {"--install-completion", "--show-completion"}


def section(title: str) -> str:
    """Return the text under a heading."""
    return re.split(
        r"^## ", DOCUMENT.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE
    )[0]


def rows(title: str) -> list[list[str]]:
    """Return the cells of the tables under a heading."""
    lines = re.findall(r"^\|( [`\d].*)\|$", section(title), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_completion_is_documented() -> None:
    """The command completes typed words by itself."""
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert set(OPTION.findall(shown.output)) >= COMPLETION
    assert "--install-completion" in DOCUMENT


def test_every_format_is_documented() -> None:
    """The table of formats has all formats with their fields."""
    found = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows("Formats")}
    formats = {
        name: {each.name for each in fields(kind) if each.name not in {"algorithm", "key_version"}}
        for kind, name in FORMATS.items()
    }
    assert {name: found[name] for name in formats} == formats
    assert {name for name in found if name.startswith("pqkeep/")} == set(formats)


@dataclass(frozen=True)
class Shell:
    """A folder to run the command in, as a tenant."""

    program: Sequence[str | Path]
    directory: Path
    environment: Mapping[str, str]

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> int:
        """Run the command; return its status."""
        ended = subprocess.run(
            [*self.program, *arguments],
            cwd=self.directory,
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        is_result = ended.returncode in {0, 9, 10} or arguments[0] == "audit"
        assert is_result or ended.stderr.count(b"\n") >= 2
        return ended.returncode

    def ended_by(self, number: signal.Signals) -> int:
        """Start a command, send it a signal during its read, and return its status."""
        process = subprocess.Popen(
            [PROGRAM, "encrypt", "-", "--public-key", "key.json", "--to", "never"],
            cwd=self.directory,
            env=dict(self.environment),
            stdin=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(bytes(1_000_000))  # more than a pipe holds: some of it was read
        process.send_signal(number)
        try:
            return process.wait(PATIENCE)
        finally:
            process.stdin.close()
            process.kill()
            process.wait()

    def into_a_closed_pipe(self) -> int:
        """Run a command and discard its output."""
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as closed:
            return subprocess.run(
                [PROGRAM, "keys", "public-key", "Kyber768"],
                cwd=self.directory,
                env=dict(self.environment),
                stdout=closed,
                timeout=PATIENCE,
                check=False,
            ).returncode


@pytest.fixture(scope="module")
def shell(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    pqkeep_command: Sequence[str | Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Shell:
    """A tenant on the plan free, with two keys and a signed file; and the operator's key."""
    directory = tmp_path_factory.mktemp("documented-command")
    api_key = new_tenant("free").api_key
    environment = {
        "PATH": os.defpath,
        "HOME": str(directory / "home"),
        "PQKEEP_URL": installation.base_url,
        "PQKEEP_API_KEY": api_key,
    }
    (directory / "operator").write_text(installation.ready["operator_key"])
    (directory / "operator").chmod(0o600)
    (directory / "file").write_text("data")
    shell = Shell(pqkeep_command, directory, environment)
    assert shell("keys", "generate", "Kyber768") == 0
    assert shell("keys", "generate", "Dilithium3") == 0
    assert shell("keys", "public-key", "Kyber768", "--to", "key.json") == 0
    assert shell("sign", "file") == 0
    (directory / "changed").write_text("other")
    return shell


def _rate_limited(shell: Shell) -> int:
    """Use up a tenant's only request of the minute, and send another."""
    operator = ("--api-key-file", "operator")
    made = subprocess.run(
        [*shell.program, "tenants", "create", os.urandom(8).hex(), *operator, "--output", "json"],
        cwd=shell.directory,
        env=dict(shell.environment),
        capture_output=True,
        check=True,
    )
    tenant = json.loads(made.stdout)["id"]
    shell("api-keys", "create", "--tenant", tenant, "--to", "limited", *operator)
    shell("tenants", "update", tenant, "--requests-per-minute", "1", *operator)
    shell("keys", "list", "--api-key-file", "limited")
    return shell("keys", "list", "--api-key-file", "limited")


def _with_data_left(shell: Shell) -> int:
    """Encrypt a file, rotate the key, and count what a campaign would move."""
    key = "default/Kyber768"
    assert shell("encrypt", "file", "--envelope", "--to", "old") == 0
    assert shell("keys", "rotate", "Kyber768") == 0
    assert shell("campaign", "create", "rotated", "--from", key, "--to", key) == 0
    return shell("campaign", "run", "rotated", "old", "--dry-run")


A_TENANT = b"version: 1\ntenants:\n  - name: Elsewhere\n"
ENDINGS: Mapping[int, Callable[[Shell], int]] = {
    0: lambda shell: shell("verify", "file"),
    1: lambda shell: shell("encrypt", "not-there"),
    2: lambda shell: shell("keys", "list", PQKEEP_API_KEY=""),
    3: lambda shell: shell("keys", "list", PQKEEP_API_KEY="pqk_wrong"),
    4: lambda shell: shell("keys", "show", "Kyber768", "--key-version", "9"),
    5: lambda shell: shell("keys", "generate", "X-Wing"),
    6: _rate_limited,
    7: lambda shell: shell("verify", "changed", "--signature", "file.sig"),
    8: lambda shell: shell("keys", "list", PQKEEP_URL="http://127.0.0.1:1"),
    9: _with_data_left,
    10: lambda shell: shell(
        *("apply", "-f", "-", "--dry-run", "--api-key-file", "operator"), stdin=A_TENANT
    ),
    130: lambda shell: shell.ended_by(signal.SIGINT),
    141: lambda shell: shell.into_a_closed_pipe(),
    143: lambda shell: shell.ended_by(signal.SIGTERM),
}


def test_every_status_is_documented() -> None:
    """The table of statuses lists exactly the statuses that are shown below."""
    assert [int(row[0]) for row in rows("For scripts") if row[0].isdigit()] == sorted(ENDINGS)


@pytest.mark.parametrize("status", ENDINGS)
def test_every_status_comes(shell: Shell, status: int) -> None:
    """Each status in the table is the command's status in that case."""
    assert ENDINGS[status](shell) == status
