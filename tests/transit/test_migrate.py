"""``pqkeep transit migrate``: 10,000 ciphertexts of a real OpenBao, interrupted twice."""

from __future__ import annotations

import base64
import csv
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hvac
import pytest
from tests.fixtures import openbao
from tests.fixtures.installation import running
from tests.fixtures.openbao import NEEDS_OPENBAO

pytestmark = [pytest.mark.campaign, NEEDS_OPENBAO, pytest.mark.timeout(900)]
COUNT = 10_000
IN_A_BATCH = 100
READ = 20
"""One of so many is read at the end: reading all would meet the rate limit."""
KEY = "cards"
PROGRAM = Path(sysconfig.get_path("scripts")) / "pqkeep"


def texts() -> list[str]:
    """Return the plaintexts in base64."""
    return [base64.b64encode(f"card {number}".encode()).decode() for number in range(COUNT)]


def in_batches(values: list[str], name: str, ask: Callable[[list[dict[str, str]]], Any]) -> Any:
    """Yield the results of batch requests, one for each value."""
    for place in range(0, len(values), IN_A_BATCH):
        items = [{name: value} for value in values[place : place + IN_A_BATCH]]
        yield from ask(items)["data"]["batch_results"]


def test_ten_thousand_ciphertexts_move_once(
    tmp_path: Path, connected: Callable[..., hvac.Client]
) -> None:
    """After two SIGKILLs each ciphertext is moved once, in order, and hvac reads it at pqkeep."""
    folders = [tmp_path / "openbao", tmp_path / "pqkeep"]
    for folder in folders:
        folder.mkdir()
    with (
        openbao.running(folders[0]) as old,
        running(folders[1], settings={"transit": True}) as installation,
    ):
        there = connected(url=old.address, token=old.token).secrets.transit
        there.create_key(name=KEY)
        sealed = in_batches(
            texts(), "plaintext", lambda items: there.encrypt_data(KEY, None, batch_input=items)
        )
        before = [item["ciphertext"] for item in sealed]
        (tmp_path / "old").write_text("\n".join(before))
        tenant = installation.new_tenant()
        environment = {
            **os.environ,
            **installation.environment(tenant.api_key),
            "VAULT_TOKEN": old.token,
        }
        output = tmp_path / "moved.csv"
        run: list[str | Path] = [PROGRAM, "transit", "migrate", tmp_path / "old", "--to", output]
        run += ["--from", old.address, "--key", KEY]
        for part in (0.2, 0.6):
            with subprocess.Popen(run, env=environment) as process:
                while not output.exists() or output.stat().st_size < part * COUNT * 120:
                    assert process.poll() is None
                    time.sleep(0.001)
                process.send_signal(signal.SIGKILL)
        ended = subprocess.run(run, env=environment, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        rows = list(csv.DictReader(output.read_text().splitlines()))
        assert [row["ciphertext"] for row in rows] == before
        after = [row["pqkeep_ciphertext"] for row in rows]
        assert len({*after}) == COUNT
        assert all(text.startswith("vault:v2:") for text in after)
        here = connected(url=installation.base_url, token=tenant.api_key).secrets.transit
        opened = in_batches(
            after[::READ],
            "ciphertext",
            lambda items: here.decrypt_data(KEY, None, batch_input=items),
        )
        assert [item["plaintext"] for item in opened] == texts()[::READ]
