"""Ciphertexts move from a running OpenBao to pqkeep, and clients of Transit go on with them."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sysconfig
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import openbao
from tests.fixtures.openbao import NEEDS_OPENBAO, OpenBao
from tests.fixtures.processes import START_SECONDS

pytestmark = [
    pytest.mark.campaign,
    NEEDS_OPENBAO,
    pytest.mark.parametrize("server", ["sqlite", "postgresql"], indirect=True),
]
PQKEEP = Path(sysconfig.get_path("scripts")) / "pqkeep"
KEY = "cards"
CIPHERTEXTS = 10_000
BATCH = 250
SAMPLES = 5
"""The batches that are read again: a tenant has 20,000 operations a minute."""
INTERRUPTED_AT = (1000, 6000)
"""The lines of the output at which the command is killed."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """An OpenBao that is left."""
    with openbao.running(tmp_path_factory.mktemp("openbao")) as server:
        yield server


@pytest.fixture(scope="module")
def plaintexts() -> list[str]:
    """What is moved, in base64."""
    return [b64encode(f"card {number}".encode()).decode() for number in range(CIPHERTEXTS)]


@pytest.fixture(scope="module")
def old(original: OpenBao, plaintexts: list[str]) -> list[str]:
    """The ciphertexts there, of two versions of the key."""
    made: list[str] = []
    original.write(f"transit/keys/{KEY}")
    for begin in range(0, CIPHERTEXTS, BATCH):
        if begin == CIPHERTEXTS // 2:
            original.write(f"transit/keys/{KEY}/rotate")
        items = [{"plaintext": text} for text in plaintexts[begin : begin + BATCH]]
        body = {"batch_input": items}
        results = original.write(f"transit/encrypt/{KEY}", body)["data"]["batch_results"]
        made += [result["ciphertext"] for result in results]
    return made


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_ten_thousand_ciphertexts_move_once(
    server: Any, original: OpenBao, old: list[str], plaintexts: list[str], tmp_path: Path
) -> None:
    """Killed twice, the command moves each ciphertext once; hvac decrypts them at the new address."""
    source, output = tmp_path / "old", tmp_path / "moved"
    source.write_text("\n".join(old) + "\n")
    environment = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "PQKEEP_URL": server.address,
        "PQKEEP_API_KEY": server.token,
        "VAULT_TOKEN": original.token,
    }
    words: list[str | Path] = [
        PQKEEP,
        "transit",
        "migrate",
        source,
        "--from",
        original.address,
        "--key",
        KEY,
    ]
    command: list[str | Path] = [*words, "--to", output, "--quiet"]
    for lines in INTERRUPTED_AT:
        with subprocess.Popen(command, env=environment, cwd=tmp_path) as process:
            deadline = time.monotonic() + START_SECONDS
            while lines_of(output) < lines and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert lines_of(output) < CIPHERTEXTS
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["ciphertext"] for row in rows] == old
    moved = [row["pqkeep_ciphertext"] for row in rows]
    assert len(set(moved)) == CIPHERTEXTS
    assert {text.split(":")[1] for text in moved} == {"v3"}
    transit = server.client().secrets.transit
    for begin in range(0, CIPHERTEXTS, CIPHERTEXTS // SAMPLES):
        items = [{"ciphertext": text} for text in moved[begin : begin + BATCH]]
        results = transit.decrypt_data(KEY, batch_input=items)["data"]["batch_results"]
        opened = [result["plaintext"] for result in results]
        assert opened == plaintexts[begin : begin + BATCH]
