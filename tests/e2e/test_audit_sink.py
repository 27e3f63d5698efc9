"""The audit log of a complete installation, streamed to a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

KYBER = {"algorithm": "Kyber768"}


def test_the_file_has_the_log(start: Callable[..., Installation], tmp_path: Path) -> None:
    """Each record is a line in the API's form, in order. Only a restart may repeat lines."""
    path = tmp_path / "audit.jsonl"
    settings = {"audit_sink": f"file://{path}"}
    installation = start(settings=settings)
    demo = installation.demo()
    demo.post("/kms/keys/generate", KYBER, status=201)
    for _ in range(3):
        demo.post("/kem/encrypt", {**KYBER, "plaintext": "QUJD"})
    _wait_for(path, installation)
    installation.stop()

    again = start(data=installation.data)
    again.demo().post("/kem/encrypt", {**KYBER, "plaintext": "QUJD"})
    shown = _wait_for(path, again)
    # A stop between a page's lines and its cursor has the next gateway send the page again.
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    restarts = [at for at in range(1, len(lines)) if lines[at]["id"] <= lines[at - 1]["id"]]
    assert len(restarts) <= 1
    by_id = {line["id"]: line for line in lines}
    assert list(by_id) == list(range(1, len(by_id) + 1))
    assert all(by_id[line["id"]] == line for line in lines)
    assert list(by_id.values())[: len(shown)] == shown
    assert [line["operation"] for line in by_id.values()].count("encrypt") == 4


def _wait_for(path: Path, installation: Installation) -> list[dict[str, object]]:
    """Return all records once the file contains them."""
    records = installation.operator().get("/audit/records", limit=500)["records"]
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or len(set(path.read_bytes().split(b"\n")[:-1])) < len(records):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found: list[dict[str, object]] = records
    return found
