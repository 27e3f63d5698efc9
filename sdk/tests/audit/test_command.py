"""``pqkeep audit verify``, run as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from sdk.tests.audit.conftest import Log, Signer

PQKEEP = Path(sysconfig.get_path("scripts")) / "pqkeep"
Save = Callable[..., Path]
Run = Callable[..., tuple[int, str]]
"""Takes arguments; returns status and output."""


def run_program(program: Sequence[str | Path], *arguments: str | Path) -> tuple[int, str]:
    """Run a program; return status and output. It must end without a traceback."""
    ended = subprocess.run(
        [*program, *arguments],
        env={"PATH": os.defpath, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in ended.stdout
    return ended.returncode, ended.stdout


@pytest.fixture
def run(pqkeep_command: Sequence[str | Path]) -> Run:
    """The command, imported once."""
    return partial(run_program, pqkeep_command)


@pytest.fixture
def export(log: Log, save: Save) -> Path:
    """A whole export."""
    return save("export.jsonl", log.export())


@pytest.fixture
def keys(log: Log, save: Save) -> Path:
    """The trusted keys, from another source."""
    return save("keys.json", [log.signer.key()])


def test_verified(log: Log, export: Path, keys: Path, signer: Signer) -> None:
    """For a verified log the exit status is 0, and the output shows each verified fact."""
    status, said = run_program([PQKEEP], "audit", "verify", export, "--keys", keys)
    assert status == 0
    first, last = "2026-11-20T11:00:01.000000Z", "2026-11-20T11:00:21.000000Z"
    signed = f"at 2026-11-21T00:00:00.000000Z, root {log.root(21).hex()}, signed with Dilithium3"
    assert said.splitlines() == [
        f"log         {log.log_id}",
        f"records     21, all of the log's first 21, from {first} to {last}, in {export}",
        f"checkpoint  21 records {signed} version 1",
        f"key         Dilithium3 version 1, {signer.fingerprint()}, trusted",
        "verified",
    ]


def test_a_tenant_and_older_checkpoints(run: Run, log: Log, keys: Path, save: Save) -> None:
    """The output names the tenant of an export, and counts older checkpoints."""
    tenant = log.records[0]["tenant_id"]
    kept = save("kept.jsonl", [log.checkpoint(5), log.checkpoint(13)])
    proofs = log.consistency(5, 21), log.consistency(13, 21)
    path = save("export.jsonl", log.export(log.checkpoint(5), *proofs, tenant=tenant))
    status, said = run("audit", "verify", path, kept, "--keys", keys)
    assert status == 0
    assert f"records     7, those of tenant {tenant} of the log's first 21, from" in said
    assert "checkpoint  3 more, of 5 to 13 records" in said


def test_without_keys(run: Run, export: Path) -> None:
    """Without trusted keys the status is 0, and the output says that only consistency was verified."""
    status, said = run("audit", "verify", export)
    assert status == 0
    assert "not trusted" in said
    assert "this proves only that the files are consistent" in said


def test_not_verified(run: Run, log: Log, keys: Path, save: Save) -> None:
    """For a wrong log the exit status is 7.

    Each finding is a line: file, line, kind, and the error.
    """
    lines = log.export()
    lines[9]["record"]["outcome"] = "refused"
    del lines[12]
    path = save("export.jsonl", lines)
    status, said = run("audit", "verify", path, "--keys", keys)
    assert status == 7
    assert said.splitlines() == [
        f"{path}:10: edited: record 7 was edited: it is not what was signed",
        f"{path}:13: missing: record 10 is missing",
        f"{path}:24: wrong-count: the end counts 21 records; there are 20",
        "NOT VERIFIED: 3 findings",
    ]


def test_json(run: Run, log: Log, keys: Path, save: Save) -> None:
    """JSON output has the result, the findings and the verified facts."""
    lines = log.export()
    lines[9]["record"]["outcome"] = "refused"
    good, bad = save("good.jsonl", log.export()), save("bad.jsonl", lines)
    status, said = run("audit", "verify", good, "--keys", keys, "--output", "json")
    result = json.loads(said)
    assert (status, result["verified"], result["findings"]) == (0, True, [])
    assert result["checkpoints"][0]["root"] == log.root(21).hex()
    assert result["portions"][0]["records"] == 21
    status, said = run("audit", "verify", bad, "--keys", keys, "--output", "json")
    result = json.loads(said)
    assert (status, result["verified"]) == (7, False)
    assert result["findings"] == [
        {
            "kind": "edited",
            "message": "record 7 was edited: it is not what was signed",
            "file": str(bad),
            "line": 10,
            "record": 7,
        }
    ]


def test_files_that_cannot_be_read(run: Run, export: Path, tmp_path: Path) -> None:
    """For a missing file, a directory and a pipe, the exit status is 1. The error names them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "nothing", tmp_path, pipe):
        for arguments in ((path,), (export, path), (export, "--keys", path)):
            status, said = run("audit", "verify", *arguments)
            assert status == 1
            assert said.startswith(f"pqkeep: cannot read {path}: ")


def test_a_name_that_is_no_text(run: Run, tmp_path: Path) -> None:
    """A file name with control characters is shown without them."""
    status, said = run("audit", "verify", os.fsdecode(bytes(tmp_path) + b"/\x1b[2J\xff"))
    assert status == 1
    assert said.startswith(f"pqkeep: cannot read {tmp_path}/?[2J?: ")


@pytest.mark.parametrize(
    "arguments",
    [("audit", "verify"), ("audit", "verify", "--unknown", "x"), ("unknown",), ("audit", "prove")],
)
def test_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    """For an unknown command and for missing files, the exit status is 2, with an explanation."""
    status, said = run(*arguments)
    assert status == 2
    assert "Usage: pqkeep" in said


def test_help(run: Run) -> None:
    """--help names the command, its options and its statuses; --version shows the version."""
    assert "audit" in run("--help")[1]
    assert "verify" in run("audit", "--help")[1]
    status, said = run("audit", "verify", "--help")
    assert status == 0
    for word in ("FILE...", "--keys", "--output", "7 if anything is wrong"):
        assert word in said
    assert run("--version") == (0, "pqkeep 0.1.0\n")


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("typer", ".whl[cli]"), ("cryptography", ".whl[audit]")],
)
def test_without_an_extra(export: Path, missing: str, extra: str) -> None:
    """Without a needed extra, the command names the extra, and its exit status is 1."""
    start = f"import sys; sys.modules[{missing!r}] = None; from pqkeep.cli import app; app()"
    status, said = run_program((sys.executable, "-c", start), "audit", "verify", export)
    assert status == 1
    assert extra in said


def test_a_byte_order_mark(run: Run, export: Path, keys: Path) -> None:
    """An export with a byte-order mark and other line ends, as an editor saves it, is verified."""
    export.write_bytes(b"\xef\xbb\xbf" + export.read_bytes().replace(b"\n", b"\r\n"))
    keys.write_bytes(b"\xef\xbb\xbf" + keys.read_bytes())
    status, said = run("audit", "verify", export, "--keys", keys)
    assert (status, said.splitlines()[-1]) == (0, "verified")


def test_what_is_no_log(run: Run, export: Path, keys: Path, tmp_path: Path) -> None:
    """If no line of a file is from a log, the exit status is 1. One damaged line is a finding."""
    other = tmp_path / "other"
    for content in (b"", b"\x89PNG\r\n", b"hello", b'{"kty":"AKP"}', export.read_bytes()[:40]):
        other.write_bytes(content)
        assert run("audit", "verify", other, "--keys", keys)[0] == 1
        assert run("audit", "verify", export, "--keys", other)[0] == 1
    other.write_bytes(b"{" + export.read_bytes())
    assert run("audit", "verify", other, "--keys", keys)[0] == 7
