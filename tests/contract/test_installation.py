"""The operator's view of a running installation."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from tests.fixtures.caller import Caller
from tests.patience import PATIENCE


def test_the_state_of_an_installation(operator: Caller, new_tenant: Callable[..., Caller]) -> None:
    """All parts are ready. Log, root key, mail, operators and tenants have the right values."""
    new_tenant()
    deadline = time.monotonic() + PATIENCE
    while not (before := operator.get("/installation"))["log"]["checkpoint_size"]:
        assert time.monotonic() < deadline, "no checkpoint was made"
        operator.ask("POST", "/audit/checkpoints", {})
        time.sleep(0.1)
    names = {part["name"] for part in before["parts"]}
    assert {"accounts_database", "rate_limits", "key_service", "keys_database"} <= names
    assert {(part["ready"], part["reason"]) for part in before["parts"]} == {(True, None)}
    operator.ask("POST", "/audit/checkpoints", {})
    (newest,) = operator.get("/audit/checkpoints", algorithm="Dilithium3")["checkpoints"]
    assert before["log"]["log_id"] == newest["log_id"]
    assert 0 < before["log"]["checkpoint_size"] <= newest["size"]
    assert before["log"]["quarantined"] == 0
    assert (before["root_key"]["id"], before["root_key"]["rotation"]) == (1, None)
    assert _at(before["root_key"]["created_at"]) < datetime.now(UTC)
    assert _at(before["log"]["newest_checkpoint_at"]) <= datetime.now(UTC)
    assert before["backups"] == {"last_at": None, "last_number": None, "age_seconds": None}
    assert before["mail"]["mode"] in {"smtp", "folder", "disabled"}
    assert isinstance(before["operators"], list)
    assert before["tenants"]["total"] >= 1


def test_suspended_tenants_are_counted(operator: Caller, new_tenant: Callable[..., Caller]) -> None:
    """Suspended tenants are counted.

    Those with a scheduled deletion are also counted separately.
    """

    def told() -> dict[str, int]:
        tenants: dict[str, int] = operator.get("/installation")["tenants"]
        return tenants

    before = told()
    others = [new_tenant() for _ in range(2)]
    for tenant in others:
        operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": "suspended"})
    operator.ask("DELETE", f"/tenants/{others[0].tenant_id}", params={"days": 3})
    expected = {
        "total": before["total"] + 2,
        "suspended": before["suspended"] + 2,
        "scheduled_for_deletion": before["scheduled_for_deletion"] + 1,
    }
    deadline = time.monotonic() + PATIENCE
    while told() != expected:  # which is up to a second old
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
