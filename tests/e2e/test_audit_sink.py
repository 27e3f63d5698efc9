"""The audit log of a complete installation, streamed to a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.installation import Installation

SECONDS = 60
KYBER = {"algorithm": "Kyber768"}


def test_the_file_has_the_log(start: Callable[..., Installation], tmp_path: Path) -> None:
    """Each record is exactly one line in the API's form, before and after a restart."""
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
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["id"] for each in lines] == list(range(1, len(lines) + 1))
    assert lines[: len(shown)] == shown
    assert [each["operation"] for each in lines].count("encrypt") == 4


def _wait_for(path: Path, installation: Installation) -> list[dict[str, object]]:
    """Return all records once the file contains them."""
    records = installation.operator().get("/audit/records", limit=500)["records"]
    deadline = time.monotonic() + SECONDS
    while not path.exists() or path.read_bytes().count(b"\n") < len(records):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found: list[dict[str, object]] = records
    return found
