"""A part of the data directory that cannot be read is named, and nothing is written over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Installation

SECONDS = 60.0
PQKEEPD = Path(sys.executable).with_name("pqkeepd")
LIKE_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
"""Before a program: root may read what its owner may read, and no more."""
KYBER = {"algorithm": "Kyber768"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="setpriv takes root's rights from root")

PARTS = {
    ".": "cannot use the data directory",
    "lock": "cannot use the data directory",
    "dev.json": "cannot read",
    "gateway": "cannot read",
    "gateway/settings.toml": "cannot read",
    "gateway/pepper": "pepper: Permission denied",
    "gateway/accounts.sqlite3": "cannot open the database",
    "keyservice": "cannot read the settings file",
    "keyservice/settings.toml": "cannot read the settings file",
    "keyservice/root.key": "cannot read the root key",
    "keyservice/keys.sqlite3": "cannot open the database",
}


def _contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_cannot_be_read_is_named_and_kept(
    start: Callable[..., Installation], tmp_path: Path
) -> None:
    """Whichever part it is: one clear message, no start, no file changed, and good once readable."""
    data = tmp_path / "data"
    first = start(data)
    first.demo().post("/kms/keys/generate", KYBER, status=201)
    sealed = first.demo().post("/kem/encrypt", {"plaintext": "QUJD"})
    assert first.stop() == 0
    before = _contents(data)
    for part, message in PARTS.items():
        path = data / part
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            ended = subprocess.run(
                [*LIKE_ANYBODY, PQKEEPD, "dev", "--port", "0", "--data", data],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": os.defpath},
                timeout=SECONDS,
                check=False,
                text=True,
            )
        finally:
            path.chmod(mode)
        assert ended.returncode == 1, part
        assert message in ended.stdout, part
        assert "Traceback" not in ended.stdout, part
        assert before.items() <= _contents(data).items(), part
    opened = start(data).demo().post("/kem/decrypt", {**sealed, **KYBER})
    assert opened["plaintext"] == "QUJD"
