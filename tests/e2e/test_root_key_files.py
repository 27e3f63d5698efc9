"""A root key's file is lost, or replaced, while the key service runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fixtures.installation import running
from tests.patience import PATIENCE
from tests.sampling import later

from pqkeep_server.initialise import Layout


@pytest.mark.parametrize(
    "is_lost",
    [pytest.param(True, id="lost"), later(pytest.param(False, id="replaced"))],
)
def test_doctor_names_the_command_that_saves_the_keys(
    is_lost: bool,  # noqa: FBT001 - parametrized
    pqkeepd_command: Sequence[str | Path],
    tmp_path: Path,
) -> None:
    """Doctor warns against a stop, and its command seals every key under a new root key."""
    with running(tmp_path) as installation:
        demo, layout = installation.demo(), Layout(installation.data)
        demo.ask("POST", "/kms/keys/generate", {"algorithm": "ML-KEM-768"})
        encrypted = demo.post("/kem/encrypt", {"plaintext": "aGVsbG8="})
        sealed = {name: encrypted[name] for name in ("ciphertext", "key_version")}

        def pqkeepd(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*pqkeepd_command, *words, "--data", installation.data]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False
            )

        layout.root_key.unlink()
        if not is_lost:
            layout.root_key.write_bytes(os.urandom(32))
            layout.root_key.chmod(0o400)
        told = pqkeepd("doctor")
        assert told.returncode == 1
        assert "do not stop it" in told.stdout
        assert f"pqkeepd root-key rotate --data {installation.data}" in told.stdout
        done = pqkeepd("root-key", "rotate")
        assert done.returncode == 0, done.stderr
        assert "settings: good" in pqkeepd("doctor").stdout
        installation.stop()
    with running(tmp_path, data=installation.data) as again:
        assert again.demo().post("/kem/decrypt", sealed)["plaintext"] == "aGVsbG8="
