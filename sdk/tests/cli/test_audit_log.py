"""``pqkeep audit`` with a service; ``audit verify`` has tests of its own."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tests.patience import PATIENCE

from pqkeep import Client, NotFoundError

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command


def test_records(command: Command, tenant: Client) -> None:
    """Records are listed from the newest, limited in number and filtered."""
    tenant.keys.generate("Kyber768")
    for _ in range(3):
        tenant.kem.encrypt(b"")
    tenant.keys.rotate("Kyber768")
    lines = command("audit", "records").out.decode().splitlines()
    assert lines[0].split() == [
        "ID",
        "RECORDED",
        "OPERATION",
        "KEYRING",
        "ALGORITHM",
        "VERSION",
        "OUTCOME",
        "PRINCIPAL",
        "FROM",
    ]
    assert [line.split()[2] for line in lines[1:6]] == [
        "rotate-key",
        *["encrypt"] * 3,
        "generate-key",
    ]
    filters = ("--operation", "encrypt", "--outcome", "success", "-a", "Kyber768", "-k", "1")
    ended = command("audit", "records", *filters, "--limit", "2", "--output", "json")
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [record["operation"] for record in records] == ["encrypt"] * 2
    assert records[0]["id"] > records[1]["id"]
    ended = command("audit", "records", "--oldest-first", "--limit", "0", "--output", "json")
    everything = [json.loads(line) for line in ended.out.splitlines()]
    assert [record["id"] for record in everything] == [
        record.id for record in tenant.audit.records()
    ]
    tenant.keys.list()  # by a program, so that it is no page view
    ended = command("audit", "records", "--no-page-views", "--limit", "1", "--output", "json")
    assert json.loads(ended.out)["operation"] == "list-keys"


def test_records_of_a_time(command: Command, tenant: Client) -> None:
    """Times without an offset are UTC; other text is a usage error."""
    tenant.keys.generate("Kyber768")
    (record,) = tenant.audit.records(operation="generate-key")
    recorded = record.recorded_at.replace(tzinfo=None).isoformat()
    arguments = ("audit", "records", "--operation", "generate-key", "--output", "json")
    assert command(*arguments, "--since", recorded).out.count(b"\n") == 1
    assert command(*arguments, "--until", recorded).out == b""
    assert command(*arguments, "--since", f"{recorded}+00:00").out.count(b"\n") == 1
    for given in ("yesterday", "1", "0h", "1y", "-1h", "1.5h", "99999999h", "", "2026-13-01"):
        assert command(*arguments, "--since", given).status == 2, given
    for given in ("1h", "30m", "2d", "1w", "90s", "1 h", "1H", " 1h ", "2026-01-01", "20260101"):
        assert command(*arguments, "--since", given).out.count(b"\n") == 1, given
        assert command(*arguments, "--until", given).out.count(b"\n") == 0, given
    for given in ("2026-01-01T00:00+01:00", "2026-01-01t00:00:00z", "2026-01-01 00:00"):
        assert command(*arguments, "--since", given).out.count(b"\n") == 1, given


def test_what_is_saved_is_verified(command: Command, tenant: Client) -> None:
    """Saved exports, checkpoints and keys are accepted by audit verify."""
    tenant.keys.generate("Kyber768")
    _until_covered(tenant)
    assert command("audit", "export", "--to", "export.jsonl").err == "export.jsonl: 3 records\n"
    assert command("audit", "export", "--to", "-").out.endswith(b'{"type":"end","records":3}\n')
    for name, *arguments in (
        ("checkpoints.jsonl", "checkpoint", "--algorithm", "Dilithium3"),  # others may be older
        ("keys.json", "keys"),
    ):
        said = command("audit", *arguments, "--output", "json")
        (command.directory / name).write_bytes(said.out)
    ended = command("audit", "verify", "export.jsonl", "checkpoints.jsonl", "--keys", "keys.json")
    assert (ended.status, ended.out.splitlines()[-1]) == (0, b"verified"), ended
    assert command("audit", "export", "--to", "export.jsonl").status == 1
    assert command("audit", "keys").out.split()[-1].isalnum()
    log = ("--log", json.loads((command.directory / "keys.json").read_bytes())["log_id"])
    for name in ("records", "checkpoint", "note", "keys"):
        assert command("audit", name, *log).out
        other = command("audit", name, "--log", "00000000-0000-4000-8000-000000000000")
        assert (other.status, "no such log" in other.err) == (4, True)
    assert command("audit", "export", "--to", "one.jsonl", *log).status == 0
    assert command("audit", "checkpoint", "--sign", *log).status == 2


def test_a_checkpoint_on_demand(operator_command: Command, command: Command) -> None:
    """The operator can have the log signed; a tenant cannot."""
    arguments = ("audit", "checkpoint", "--sign", "--algorithm", "SLH-DSA-SHA2-128s")
    ended = operator_command(*arguments, "--output", "json")
    assert json.loads(ended.out)["algorithm"] == "SLH-DSA-SHA2-128s"
    table = operator_command("audit", "checkpoint").out.decode()
    assert "SLH-DSA-SHA2-128s" in table
    assert command(*arguments).status == 5


def _until_covered(tenant: Client) -> None:
    """Wait until a checkpoint covers the newest record."""
    (newest, *_) = tenant.audit.records(order="desc", page_size=1)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            tenant.audit.proof(newest.id)
        except NotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return
