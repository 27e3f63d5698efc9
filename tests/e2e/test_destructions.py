"""``pqkeepd destructions`` lists and cancels scheduled destructions, on the key service's machine."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

import httpx2
import pytest
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_server.initialise import ACCOUNTS_FILE, Layout

Run = Callable[..., subprocess.CompletedProcess[str]]
CommandOn = Callable[[Installation, str], Run]


@pytest.fixture
def destructions(installation: Installation, command_on: CommandOn) -> Run:
    """The command with an installation's data."""
    return command_on(installation, "destructions")


@pytest.mark.threat("compromised-gateway")
def test_a_tenant_is_kept(installation: Installation, destructions: Run) -> None:
    """The cancellation is recorded, and the gateway adopts it and schedules nothing again."""
    operator, tenant = installation.operator(), installation.new_tenant()
    path = f"/tenants/{tenant.tenant_id}"
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    operator.ask("PATCH", path, {"status": "suspended"})
    assert operator.ask("DELETE", path).is_success
    (line,) = [each for each in _lines(destructions) if tenant.tenant_id in each]
    assert line.endswith("all keys\tscheduled")
    assert destructions("cancel", tenant.tenant_id).stdout == f"cancelled: {line}\n"
    deadline = time.monotonic() + PATIENCE
    while "deletion_at" in operator.get(path):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not any(tenant.tenant_id in each for each in _lines(destructions))
    assert operator.ask("PATCH", path, {"status": "active"}).is_success
    tenant.post("/kem/encapsulate", {"algorithm": "Kyber768", "key_version": 1})
    records = operator.get("/audit/records", operation="cancel-destruction")["records"]
    own = [each for each in records if each["tenant_id"] == tenant.tenant_id]
    assert [each["principal"] for each in own] == ["operator"]


@pytest.mark.threat("compromised-gateway")
def test_a_killed_gateway_does_not_undo_a_cancellation(
    tmp_path: Path, command_on: CommandOn
) -> None:
    """A gateway is killed before it stores its schedule; meanwhile the key service cancels it.

    A lock of its database holds the gateway at that instant. The next gateway keeps the tenant.
    """
    with running(tmp_path) as installation:
        destructions = command_on(installation, "destructions")
        operator, tenant = installation.operator(), installation.new_tenant().tenant_id
        path, pids = f"/tenants/{tenant}", installation.children()
        operator.ask("PATCH", path, {"status": "suspended"})
        os.kill(pids["pqkeep_keyservice"], signal.SIGSTOP)
        database = Layout(installation.data).gateway / ACCOUNTS_FILE
        row = "SELECT deletion_at_us IS NULL FROM tenants WHERE id = ?"
        with (
            ThreadPoolExecutor() as pool,
            closing(sqlite3.connect(database, isolation_level=None)) as accounts,
        ):
            schedule = pool.submit(operator.ask, "DELETE", path)
            identifier = UUID(tenant).hex
            _until(lambda: accounts.execute(row, (identifier,)).fetchone() == (0,))
            accounts.execute("BEGIN IMMEDIATE")
            os.kill(pids["pqkeep_keyservice"], signal.SIGCONT)
            _until(lambda: any(tenant in line for line in _lines(destructions)))
            os.kill(pids["pqkeep_gateway"], signal.SIGKILL)
            destructions("cancel", tenant)
            accounts.execute("ROLLBACK")
            assert isinstance(schedule.exception(PATIENCE), httpx2.HTTPError)

        def is_kept() -> bool:
            with suppress(httpx2.HTTPError):
                return "deletion_at" not in operator.get(path)
            return False

        _until(is_kept)
        assert not any(tenant in line for line in _lines(destructions))
        records = operator.get("/audit/records", operation="schedule-destruction")["records"]
        assert [record["tenant_id"] for record in records] == [tenant]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_deleted_keyring_is_kept(installation: Installation, destructions: Run) -> None:
    """A deleted keyring is listed by name, and restored without a gateway."""
    tenant = installation.new_tenant()
    for name in ("Cards", "logs"):
        tenant.post("/kms/keyrings", {"name": name}, status=201)
        owner = installation.person(tenant.tenant_id)
        assert owner.ask_proven("DELETE", f"/kms/keyrings/{name}").is_success
    lines = [each for each in _lines(destructions) if tenant.tenant_id in each]
    assert [line.split("\t", 2)[2] for line in lines] == [
        "all keys in Cards\tscheduled",
        "all keys in logs\tscheduled",
    ]
    kept = destructions("cancel", tenant.tenant_id, "--keyring", "Cards").stdout
    assert kept == f"cancelled: {lines[0]}\n"
    assert [each for each in _lines(destructions) if tenant.tenant_id in each] == lines[1:]
    listed = tenant.get("/kms/keyrings")["keyrings"]
    assert [each["name"] for each in listed] == ["Cards", "default"]


def test_a_key_is_kept(installation: Installation, destructions: Run) -> None:
    """A key version is cancelled by name, and an unknown name is refused with advice."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    installation.archive(tenant.tenant_id, Algorithm.ML_KEM_768, 1, days=7)
    (line,) = [each for each in _lines(destructions) if tenant.tenant_id in each]
    assert line.endswith("default\tKyber768\tversion 1")
    words = ("cancel", tenant.tenant_id, "--algorithm", "Kyber768", "--key-version")
    assert "destructions list" in destructions(*words, "2", status=1).stderr
    assert "destructions list" in destructions("cancel", tenant.tenant_id, status=1).stderr
    destructions(*words, "1")
    assert not any(tenant.tenant_id in each for each in _lines(destructions))


@pytest.mark.threat("compromised-gateway")
def test_a_failed_shard(tmp_path: Path, command_on: CommandOn) -> None:
    """If one shard does not respond, the destructions of others are listed and can be cancelled."""
    with running(tmp_path, shards=2) as installation:
        destructions = command_on(installation, "destructions")
        other = Layout(installation.data).shards[1]
        operator, body = installation.operator(), {"name": "other", "plan": "free", "shard": other}
        tenant = str(operator.post("/tenants", body, status=201)["id"])
        operator.ask("PATCH", f"/tenants/{tenant}", {"status": "suspended"})
        assert operator.ask("DELETE", f"/tenants/{tenant}").is_success
        Layout(installation.data).operator_socket.unlink()
        listed = destructions("list", status=1)
        assert tenant in listed.stdout
        assert "nothing listens" in listed.stderr
        assert destructions("cancel", tenant).stdout.startswith("cancelled: ")
        assert tenant not in destructions("list", status=1).stdout
        unknown = destructions("cancel", tenant, status=1).stderr
        assert "nothing listens" in unknown  # it could be scheduled in the shard that fails


def _lines(destructions: Run) -> list[str]:
    return destructions("list").stdout.splitlines()
