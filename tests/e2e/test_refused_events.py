"""``pqkeepd refused-events`` beside a running installation."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.audit_events import event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

LATE = 2**63 - 1


def _refused_events(
    pqkeepd_command: Sequence[str | Path], installation: Installation, *options: str
) -> list[list[str]]:
    command = [*pqkeepd_command, "refused-events", "--data", installation.data, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return [line.split("\t") for line in ended.stdout.splitlines()]


def _doctor(pqkeepd_command: Sequence[str | Path], installation: Installation) -> str:
    command = [*pqkeepd_command, "doctor", "--data", installation.data]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return ended.stdout


def test_refused_events_are_listed_and_acknowledged(
    pqkeepd_command: Sequence[str | Path], installation: Installation
) -> None:
    """Each refused event is listed with time, reason and id until it is acknowledged.

    Until then pqkeepd doctor reports them as a fault. The acknowledgement is recorded.
    """
    assert _refused_events(pqkeepd_command, installation, "--acknowledge") == []
    assert "audit events: good" in _doctor(pqkeepd_command, installation)
    stored = event(Attribution("", "ada", ""), INSTALLATION, AuditEvent.SIGN_IN)
    rows = [
        ("1", 1_800_000_000_000_000, msgspec.msgpack.encode(stored), "not-an-event"),
        ("2", LATE, b"damaged", "unreadable"),
    ]
    insert = (
        "INSERT INTO audit_outbox (id, at_us, event, refusal, shard) VALUES (?, ?, ?, ?, 'default')"
    )
    with (
        closing(sqlite3.connect(installation.data / "gateway/accounts.sqlite3")) as database,
        database,
    ):
        database.executemany(insert, rows)
    what = [stored.operation, stored.outcome, str(stored.tenant), "ada"]
    listed = [
        ["2027-01-15T08:00:00Z", "not-an-event", "1", *what],
        [str(LATE), "unreadable", "2"],
    ]
    assert _refused_events(pqkeepd_command, installation) == listed
    assert "the audit log refused 2 events" in _doctor(pqkeepd_command, installation)
    assert _refused_events(pqkeepd_command, installation, "--acknowledge") == listed
    assert _refused_events(pqkeepd_command, installation) == []
    assert _refused_events(pqkeepd_command, installation, "--all") == listed
    assert "audit events: good" in _doctor(pqkeepd_command, installation)
    operator, deadline = installation.operator(), time.monotonic() + PATIENCE
    while not (found := operator.get("/audit/records", operation="acknowledge-events")["records"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert [(each["principal"], each["policy"]) for each in found] == [("pqkeepd", "events-2")]
