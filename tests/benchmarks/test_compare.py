"""The command line of the comparison with OpenBao."""

import subprocess
import sys

import pytest
from benchmarks.compare import main
from benchmarks.processes import ROOT
from tests.fixtures.processes import ENVIRONMENT


@pytest.mark.parametrize(
    "arguments",
    [
        ["--connections", "0"],
        ["--connections", "257"],
        ["--seconds", "61"],
        ["--rounds", "0"],
        ["--size", "1048577"],
        ["--only", "hash"],
        ["--token", "admin"],
        ["--openbao"],
    ],
    ids=" ".join,
)
def test_an_argument_out_of_range_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be measured ends with status 2, and a message that names the option."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "bao is not a program that can be run: install OpenBao"),
        (["--openbao", "/nonexistent/bao"], "/nonexistent/bao is not a program that can be run"),
        (["--openbao", "/bin/false"], "/bin/false version failed"),
    ],
    ids=["not on PATH", "no such file", "another program"],
)
def test_without_openbao_nothing_is_measured(arguments: list[str], message: str) -> None:
    """Without OpenBao's program the comparison says so, and ends with status 1."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"compare: {message}")
