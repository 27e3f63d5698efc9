"""An unreadable part of the data directory is named, and never overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE
from tests.sampling import sampled

PQKEEPD = Path(sys.executable).with_name("pqkeepd")
LIKE_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
"""Prefix for a program: root then has only the rights of a file's owner."""
KYBER = {"algorithm": "Kyber768"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="setpriv takes root's rights from root")

PARTS = {
    ".": "cannot use the data directory",
    "lock": "cannot use the data directory",
    "dev.json": "cannot use the credentials",
    "gateway": "cannot read",
    "gateway/settings.toml": "cannot read",
    "gateway/pepper": "pepper: Permission denied",
    "gateway/accounts.sqlite3": "cannot open the database",
    "keyservice": "cannot read the settings file",
    "keyservice/settings.toml": "cannot read the settings file",
    "keyservice/root.key": "cannot use the root key",
    "keyservice/keys.sqlite3": "cannot open the database",
}


def _contents(directory: Path, part: Path) -> dict[Path, bytes]:
    """Return the content of files; the own process may change a readable database."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {
        path: path.read_bytes()
        for path in files
        if ".sqlite3" not in path.name or path.is_relative_to(part)
    }


@dataclass(frozen=True)
class Stopped:
    """A data directory that was served once, with a request for its key."""

    data: Path
    decrypt: dict[str, Any]


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory,
) -> Stopped:
    """One for all tests, which leave it unchanged."""
    folder = tmp_path_factory.mktemp("unreadable")
    with running(folder) as first:
        first.demo().post("/kms/keys/generate", KYBER, status=201)
        sealed = first.demo().post("/kem/encrypt", {"plaintext": "QUJD"})
        assert first.stop() == 0
    return Stopped(folder / "data", {**sealed, **KYBER})


@pytest.mark.parametrize(("part", "message"), sampled(PARTS.items(), 5))
def test_what_cannot_be_read_is_named_and_kept(stopped: Stopped, part: str, message: str) -> None:
    """For each part: one clear message, no start, and no file is overwritten."""
    path = stopped.data / part
    before = _contents(stopped.data, path)
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        ended = subprocess.run(
            [*LIKE_ANYBODY, PQKEEPD, "dev", "--port", "0", "--data", stopped.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath},
            timeout=PATIENCE,
            check=False,
            text=True,
        )
    finally:
        path.chmod(mode)
    assert ended.returncode == 1
    assert message in ended.stdout
    assert "Traceback" not in ended.stdout, ended.stdout
    assert before.items() <= _contents(stopped.data, path).items()


def test_what_can_be_read_again_is_good(
    stopped: Stopped, start: Callable[..., Installation]
) -> None:
    """Afterwards the same data directory works, and its keys open old ciphertexts."""
    opened = start(data=stopped.data).demo().post("/kem/decrypt", stopped.decrypt)
    assert opened["plaintext"] == "QUJD"
