"""The command line of the comparison with OpenBao."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.compare import main
from benchmarks.errors import BenchmarkError
from benchmarks.openbao import built, version
from benchmarks.processes import ROOT
from tests.fixtures.processes import ENVIRONMENT
from tests.patience import PATIENCE


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the source of a small program."""
    (tmp_path / "go.mod").write_text("module made\n\ngo 1.21\n")
    (tmp_path / "main.go").write_text('package main\n\nfunc main() { println("made") }\n')
    return tmp_path


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
    """An impossible option ends with status 2, and the message names it."""
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
        (["--openbao", "/"], "/ is neither OpenBao's program nor its source"),
    ],
    ids=["not on PATH", "no such file", "another program", "another directory"],
)
def test_without_openbao_nothing_is_measured(arguments: list[str], message: str) -> None:
    """Without OpenBao's program, the comparison names it and ends with status 1."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"compare: {message}")


def test_a_source_needs_go(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a source without Go, the message names Go."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with (
        pytest.raises(BenchmarkError, match="is a source, and go"),
        built(source, print),
    ):
        pass


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("go") is None, reason="go builds it")
def test_a_source_is_built(source: Path) -> None:
    """Go builds the measured program from a source; afterwards it is removed."""
    with built(source, print) as program:
        assert version(program) == "made"
    assert not program.exists()
    (source / "main.go").write_text("package main")
    with pytest.raises(BenchmarkError, match="function main is undeclared"), built(source, print):
        pass
