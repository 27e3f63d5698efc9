"""The operator lists, sets, weakens and removes rules; a gateway's own frames cannot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation

Run = Callable[..., subprocess.CompletedProcess[str]]
CommandOn = Callable[[Installation, str], Run]


@pytest.mark.threat("compromised-gateway")
def test_the_operator_sets_and_removes_a_rule(
    installation: Installation, command_on: CommandOn, tmp_path: Path
) -> None:
    """A rule denies at once, is weakened by a file, listed in its form, recorded and removed."""
    rules, tenant = command_on(installation, "rules"), installation.new_tenant()
    of_tenant = ("--tenant", tenant.tenant_id)
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    encrypt = {"algorithm": "Kyber768", "plaintext": "", "key_version": 1}
    file = tmp_path / "rules.json"
    rule = {"name": "end", "algorithms": ["Kyber768"], "deny_from": "2020-01-01T00:00:00Z"}
    file.write_text(json.dumps([rule]))
    assert rules("set", str(file), *of_tenant).stdout == "set: end\n"
    assert tenant.refusal("/kem/encrypt", encrypt)[:2] == (403, "ERR_POLICY_001")
    (listed,) = json.loads(rules("list", *of_tenant).stdout)
    assert listed == rule | {
        "exceptions": [],
        "keyrings": ["*"],
        "successor": None,
        "uses": listed["uses"],
        "warn_from": None,
    }
    file.write_text(json.dumps(rule | {"deny_from": "2120-01-01T00:00:00Z"}))
    rules("set", str(file), *of_tenant)
    tenant.post("/kem/encrypt", encrypt)
    assert rules("remove", "end", *of_tenant).stdout == "removed: end\n"
    assert "no rule end" in rules("remove", "end", *of_tenant, status=1).stderr
    file.write_text(json.dumps(rule | {"uses": ["decrypt"]}))
    assert "no valid rules" in rules("set", str(file), *of_tenant, status=1).stderr
    file.write_text(json.dumps({"name": "end"}))
    assert "has no algorithms" in rules("set", str(file), *of_tenant, status=1).stderr
    file.write_text("[]")
    assert "has no rules" in rules("set", str(file), *of_tenant, status=1).stderr
    file.write_text(json.dumps([rule, rule]))
    assert "the same name" in rules("set", str(file), *of_tenant, status=1).stderr
    profile = [rule | {"name": f"own.{kind}"} for kind in ("kem", "mac")]
    file.write_text(json.dumps(profile))
    assert rules("set", str(file), *of_tenant).stdout == "set: own.kem\nset: own.mac\n"
    file.write_text(json.dumps([*profile, rule]))
    rules("set", str(file), *of_tenant)
    records = installation.operator().get("/audit/records", operation="override-rule")["records"]
    own = [record for record in records if record["tenant_id"] == tenant.tenant_id]
    assert {record["principal"] for record in own} == {"operator"}
    assert [record["rule"] for record in own] == ["end", "end", "end", "own", None]
