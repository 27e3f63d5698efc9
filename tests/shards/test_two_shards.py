"""Two shards: each tenant's keys, records and outages are in its own shard."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.patience import PATIENCE
from tests.portal.visitors import get_page

from pqkeep import Client
from pqkeep.audit import verify
from pqkeep_server.initialise import Layout
from pqkeep_server.root_key import rotate
from pqkeep_server.settings_file import edited

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.caller import Caller
    from tests.shards.conftest import TwoShards

SECRET = base64.b64encode(b"a secret").decode()
RETRY = "Retry-After"


def use(caller: Caller) -> dict[str, Any]:
    """Make keys, encrypt and sign; return the decryption request."""
    for algorithm in ("Kyber768", "Dilithium3"):
        made = caller.ask("POST", "/kms/keys/generate", {"algorithm": algorithm, "if_absent": True})
        assert made.status_code in {200, 201}, made.text
    encrypted = caller.post("/kem/encrypt", {"plaintext": SECRET})
    caller.post("/signature/sign", {"algorithm": "Dilithium3", "message": SECRET})
    return {name: encrypted[name] for name in ("ciphertext", "key_version")}


def is_readable(caller: Caller, encrypted: dict[str, Any]) -> bool:
    """Return True if it decrypts."""
    return bool(caller.post("/kem/decrypt", encrypted)["plaintext"] == SECRET)


def log_of(caller: Caller, **query: str) -> str:
    """Return the id of a caller's log."""
    return str(caller.get("/audit/keys", **query)["log_id"])


def test_each_tenant_has_its_keys_and_records_in_its_shard(two_shards: TwoShards) -> None:
    """Keys, records, proofs, usage and public keys come from the tenant's own shard."""
    logs = {shard: log_of(two_shards.operator, shard=shard) for shard in ("default", "b")}
    assert len(set(logs.values())) == 2
    assert log_of(two_shards.operator) == logs["default"]
    for shard, log in logs.items():
        tenant = two_shards.new_tenant(shard)
        assert is_readable(tenant, use(tenant))
        assert log_of(tenant) == log
        operations = [each["operation"] for each in tenant.get("/audit/records")["records"]]
        assert operations[0] == "create-tenant"
        assert {"create-api-key", "generate-key", "encrypt", "sign", "decrypt"} <= set(operations)
        assert tenant.get("/usage")["total"] >= 3
        assert len(tenant.ask("GET", "/kms/jwks").json()["keys"]) == 1
        elsewhere = {"default": "b", "b": "default"}[shard]
        asked = two_shards.operator.get("/audit/records", shard=shard, order="desc", limit="50")
        assert tenant.tenant_id in {each["tenant_id"] for each in asked["records"]}
        others = two_shards.operator.get("/audit/records", shard=elsewhere, limit="500")
        assert tenant.tenant_id not in {each["tenant_id"] for each in others["records"]}


def test_an_export_is_of_one_log(two_shards: TwoShards) -> None:
    """The exports of a tenant and of its shard have that log's id and checkpoints."""
    tenant = two_shards.new_tenant("b")
    use(tenant)
    for caller, query in ((tenant, {}), (two_shards.operator, {"shard": "b"})):
        text = caller.ask("GET", "/audit/export", params=query).text
        head, *lines = [json.loads(line) for line in text.splitlines()]
        assert head["log_id"] == log_of(tenant)
        assert lines[-1]["type"] == "end"


@pytest.mark.campaign
def test_a_shard_that_is_none_is_refused(two_shards: TwoShards) -> None:
    """An unknown shard is 400, a malformed one 422, and a tenant may not name any."""
    operator = two_shards.operator
    tenant = two_shards.new_tenant()
    for caller, shard, status in ((operator, "c", 400), (operator, "B", 422), (tenant, "b", 403)):
        response = caller.ask("GET", "/audit/records", params={"shard": shard})
        assert response.status_code == status, response.text
    body = {"name": "nowhere", "shard": "c"}
    assert operator.refusal("/tenants", body) == (400, "ERR_INVALID_001", "shard")


@pytest.mark.campaign
def test_new_tenants_are_spread(two_shards: TwoShards) -> None:
    """A tenant without a named shard goes to the shard with the fewest tenants."""
    operator = two_shards.operator
    for _ in range(6):
        two_shards.new_tenant()
    shards = {each["name"]: each for each in operator.get("/installation")["shards"]}
    counts = [shards[name]["tenants"] for name in ("default", "b")]
    assert abs(counts[0] - counts[1]) <= 1
    assert {each["log_id"] for each in shards.values()} == {
        log_of(operator),
        log_of(operator, shard="b"),
    }


@pytest.mark.parametrize(
    ("gone", "other"),
    [("b", "default"), pytest.param("default", "b", marks=pytest.mark.campaign)],
)
def test_one_shard_gone_is_its_own_tenants_loss(
    two_shards: TwoShards, gone: str, other: str
) -> None:
    """Tenants of a stopped shard get 503; others work, and the shard is named."""
    lost, spared = two_shards.new_tenant(gone), two_shards.new_tenant(other)
    before = use(lost), use(spared)
    with two_shards.without(gone):
        refused = lost.ask("POST", "/kem/decrypt", before[0])
        assert (refused.status_code, refused.headers[RETRY]) == (503, "1")
        assert is_readable(spared, before[1])
        rotated = spared.ask("POST", f"/tenants/{spared.tenant_id}/api-keys")
        assert rotated.status_code == 201
        records = spared.get("/audit/records", order="desc", limit="1")["records"]
        assert records[0]["operation"] == "create-api-key"
        two_shards.until(lambda: two_shards.readiness() == (200, [f"key_service:{gone}"]))
        told = {each["name"]: each for each in two_shards.operator.get("/installation")["shards"]}
        assert (told[gone]["ready"], told[other]["ready"]) == (False, True)
        assert two_shards.operator.client.get("/healthz").status_code == 200
        made = two_shards.operator.ask("POST", f"/tenants/{lost.tenant_id}/api-keys")
        assert made.status_code == 201
    two_shards.until(lambda: lost.ask("POST", "/kem/decrypt", before[0]).status_code == 200)
    two_shards.until(lambda: _newest(lost, "create-api-key") == 2)
    two_shards.until(lambda: two_shards.readiness() == (200, []))


@pytest.mark.threat("swapped-key-service")
def test_another_database_is_not_the_shard_s(two_shards: TwoShards) -> None:
    """A key service with an empty database by mistake takes no calls and makes no keys."""
    tenant = two_shards.new_tenant("b")
    encrypted = use(tenant)
    settings = two_shards.settings["b"]
    text = settings.read_text()
    changes = {"database": "empty.sqlite3", "database_password_file": None}
    with two_shards.without("b"):
        (settings.parent / "empty.sqlite3").touch(0o600)
        settings.write_text(edited(text, changes))
    two_shards.until(lambda: "it has another database than the shard b has" in said(two_shards))
    for method, path, body in (
        ("GET", "/kms/keys", None),
        ("POST", "/kem/decrypt", encrypted),
        ("POST", "/kms/keys/generate", {"algorithm": "X-Wing"}),
    ):
        assert tenant.ask(method, path, body).status_code == 503
    with two_shards.without("b"):
        settings.write_text(text)
    two_shards.until_serving()
    assert is_readable(tenant, encrypted)


def said(two_shards: TwoShards) -> str:
    """Return the gateway's output."""
    return two_shards.output.read_text()


@pytest.mark.campaign
def test_both_logs_are_streamed(two_shards: TwoShards) -> None:
    """The sink gets the records of both logs, and each line names its log."""
    expected = {
        (shard, log_of(two_shards.operator, shard=shard), two_shards.new_tenant(shard).tenant_id)
        for shard in ("default", "b")
    }
    two_shards.until(lambda: expected <= _streamed(two_shards))


@pytest.mark.campaign
def test_each_shard_has_a_root_key_of_its_own(two_shards: TwoShards) -> None:
    """One shard's root key is replaced while both serve, and every key of both shards still opens."""
    tenants = [two_shards.new_tenant(shard) for shard in ("default", "b")]
    encrypted = [use(tenant) for tenant in tenants]
    layout = Layout(two_shards.layout.directory, "b")
    assert two_shards.layout.shards == ("default", "b")
    rotate(layout, destroy_old=False, report=lambda _: None, last_requests_seconds=0)
    two_shards.until(lambda: _root_keys(two_shards) == {"default": 1, "b": 2})
    for tenant, each in zip(tenants, encrypted, strict=True):
        assert is_readable(tenant, each)


@pytest.mark.campaign
def test_metrics_say_which_shard_it_is(two_shards: TwoShards) -> None:
    """Each metric of a key service has its shard as a label, and none is duplicated."""
    text = httpx2.get(f"{two_shards.management}/metrics", trust_env=False, timeout=PATIENCE).text
    lines = [line for line in text.splitlines() if line.startswith("pqkeep_audit_log_records{")]
    assert {line.partition("}")[0].partition("{")[2] for line in lines} == {
        'shard="default"',
        'shard="b"',
    }


@pytest.mark.campaign
def test_an_operator_looks_at_each_shard(two_shards: TwoShards) -> None:
    """The operator's pages show the shards, with links to each log's records and proofs."""
    use(two_shards.new_tenant("b"))
    operator = two_shards.caller(None)
    operator.post("/auth/operator", {"operator_key": two_shards.operator_key})
    page = get_page(operator, "/portal/operator").text
    assert all(f'/audit?shard={shard}">{shard}<' in page for shard in ("default", "b"))
    records = get_page(operator, "/portal/audit?shard=b").text
    assert 'href="/api/v1/audit/export?shard=b"' in records
    found = re.search(r'href="[^"]*(/audit/[0-9]+\?shard=b)"', records)
    assert found
    record = get_page(operator, f"/portal{found[1]}")
    assert record.status_code == 200
    assert 'data-shard="b"' in record.text


@pytest.mark.campaign
def test_the_client_names_a_shard(two_shards: TwoShards, tmp_path: Path) -> None:
    """With the client an operator makes a tenant in a shard, and verifies that shard's log."""
    with Client(two_shards.url, two_shards.operator_key) as client:
        tenant = client.tenants.create("by the client", shard="b")
        assert next(client.audit.records(order="desc", shard="b")).tenant_id == tenant.id
        newest = client.audit.checkpoints(shard="b")[-1]
        assert client.audit.keys(shard="b").log_id == newest.log_id
        client.audit.export(tmp_path / "b.jsonl", shard="b")
    report = verify([tmp_path / "b.jsonl"])
    assert report.is_verified
    assert report.log_id == newest.log_id


def _root_keys(made: TwoShards) -> dict[str, int]:
    return {each["name"]: each["root_key"] for each in made.operator.get("/installation")["shards"]}


def _newest(caller: Caller, operation: str) -> int:
    records = caller.get("/audit/records", operation=operation)["records"]
    return len(records)


def _streamed(made: TwoShards) -> set[tuple[str, str, str]]:
    if not made.sink.exists():
        return set()
    lines = map(json.loads, made.sink.read_text().splitlines())
    return {(each["shard"], each["log_id"], each["record"]["tenant_id"]) for each in lines}
