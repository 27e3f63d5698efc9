"""The inventory: every key version with its uses, as the audit log proves them."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures import installation as installations
from tests.fixtures.caller import Caller, refusal_of

KEM = {"algorithm": "Kyber768"}
PLAIN = base64.b64encode(b"attack at dawn").decode()
USING = {
    *("encrypt", "decrypt", "encapsulate", "decapsulate", "wrap", "unwrap", "re-encrypt"),
    *("sign", "verify", "generate-data-key", "compute-mac", "verify-mac"),
}


def counted_until(caller: Caller, **query: object) -> dict[str, Any]:
    """Return the first page once it counts all the tenant's records."""
    newest = caller.get("/audit/records", order="desc", limit=1)["records"][0]["id"]
    for _ in range(100):
        response = caller.ask("GET", "/inventory", params=query)
        if response.status_code == 200 and response.json()["data"]["as_of"]["size"] >= newest:
            return response.json()["data"]  # type: ignore[no-any-return]
        time.sleep(0.1)
    raise AssertionError("no checkpoint counts the newest record")


def exported(caller: Caller, size: int) -> Counter[tuple[Any, ...]]:
    """Count the uses in an export up to a size, by key, principal and operation."""
    uses: Counter[tuple[Any, ...]] = Counter()
    for line in caller.ask("GET", "/audit/export").text.splitlines():
        record = json.loads(line).get("record")
        if record is None or record["id"] > size or record["operation"] not in USING:
            continue
        if record["outcome"] not in {"success", "verification-failed"}:
            continue
        key = record["keyring"], record["algorithm"], record["key_version"]
        uses[*key, record["principal"], record["operation"]] += 1
        if record["target"] is not None:
            keyring, algorithm, version = record["target"].split("/")
            uses[keyring, algorithm, int(version), record["principal"], "re-encrypt-target"] += 1
    return uses


def listed(page: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    """Return the uses on a page in the same form."""
    uses = Counter[tuple[Any, ...]]()
    for key in page["keys"]:
        name = key["keyring"], key["algorithm"], key["key_version"]
        for use in key["principals"]:
            uses[*name, use["principal"], use["operation"]] = use["uses"]
        assert key["uses"] == sum(use["uses"] for use in key["operations"])
        assert key["uses"] == sum(use["uses"] for use in key["principals"])
    return uses


@pytest.fixture
def used(new_tenant: Callable[..., Caller], installation: installations.Installation) -> Caller:
    """Return a tenant with keys of every state, used by two programs."""
    tenant = new_tenant()
    labels = {"owner": "payments", "data-class": "card", "confidential-until": "2040-12-31"}
    tenant.post("/kms/keyrings", {"name": "cards", "labels": labels}, status=201)
    for key in (KEM, {**KEM, "keyring": "cards"}, {"algorithm": "X-Wing", "keyring": "cards"}):
        made = tenant.post("/kms/keys/generate", key, status=201)
    other = tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", {"name": "nightly"}, status=201)[
        "api_key"
    ]
    for caller in (tenant, tenant, installation.caller(other, tenant.tenant_id)):
        sealed = caller.post("/kem/encrypt", {**KEM, "plaintext": PLAIN})["ciphertext"]
        caller.post("/kem/decrypt", {**KEM, "key_version": 1, "ciphertext": sealed})
    to = {"algorithm": "X-Wing", "keyring": "cards"}
    body: dict[str, object] = {**KEM, "key_version": 1, "ciphertext": sealed, "to": to}
    tenant.post("/kem/re-encrypt", body)
    own = {"algorithm": "X-Wing", "plaintext": PLAIN, "public_key": made["public_key"]}
    tenant.post("/kem/encrypt", own)
    foreign = new_tenant().post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    tenant.post("/kem/encrypt", {**own, "public_key": foreign["public_key"]})
    assert tenant.ask(
        "POST", "/kem/decrypt", {**KEM, "key_version": 1, "ciphertext": PLAIN}
    ).is_error
    tenant.post_proven("/kms/keys/rotate", KEM, status=201)
    return tenant


def test_the_counts_are_those_of_the_export(used: Caller) -> None:
    """Each use up to the named checkpoint is counted once, by key, principal and operation."""
    page = counted_until(used)
    expected = exported(used, page["as_of"]["size"])
    own = Counter({key: count for key, count in expected.items() if key[0] is not None})
    assert listed(page) == own
    assert sum(own.values()) == 9
    (unattributed,) = page["unattributed"]
    assert (unattributed["algorithm"], unattributed["operation"]) == ("X-Wing", "encrypt")
    assert unattributed["uses"] == 1
    checkpoints = used.get("/audit/checkpoints", after=page["as_of"]["size"] - 1)["checkpoints"]
    assert checkpoints[0]["root"] == page["as_of"]["root"]
    assert not page["merged_principals"]
    assert page["not_seen"]
    first, second = page["keys"][2], page["keys"][3]
    assert (first["key_version"], first["status"], second["status"]) == (1, "retired", "active")
    assert "retired_at" in first
    assert first["private_key"] == "present"
    assert page["keys"][0]["confidential_until"] == "2040-12-31"
    assert page["keys"][0]["owner"] == "payments"
    assert "owner" not in first


def test_pages_and_filters_are_parts_of_the_whole(used: Caller) -> None:
    """Pages of one key each add up to the whole list, and filters exclude the others."""
    whole = counted_until(used)
    keys, query = [], {"limit": "1"}
    while True:
        page = used.get("/inventory", **query)
        keys += page["keys"]
        assert page["total"] == 4
        if "next" not in page:
            break
        query["after"] = page["next"]
    assert keys == whole["keys"]
    of_cards = used.get("/inventory", keyring="cards")["keys"]
    assert of_cards == whole["keys"][:2]
    assert used.get("/inventory", algorithm="X-Wing")["keys"] == [whole["keys"][1]]
    assert used.get("/inventory", keyring="none")["keys"] == []
    today = used.get("/inventory", since="2026-01-01T00:00:00Z")
    assert today["keys"] == whole["keys"]
    assert "since" in today
    assert used.get("/inventory", since="2999-01-01T00:00:00Z")["keys"][0]["uses"] == 0
    named = {"keyring": "default", **KEM, "key_version": 1}
    uses = used.get("/inventory/uses", **named)["uses"]
    assert uses == whole["keys"][2]["principals"]
    one = used.get("/inventory/uses", **named, limit=1)
    rest = used.get("/inventory/uses", **named, after=one["next"])
    assert one["uses"] + rest["uses"] == uses
    foreign = used.get("/inventory/uses", algorithm="X-Wing")["uses"]
    assert [use["operation"] for use in foreign] == ["encrypt"]


def test_who_may_use_a_key_is_counted(
    new_tenant: Callable[..., Caller], installation: installations.Installation
) -> None:
    """The API keys that are counted can use the key, and the filter lists them."""
    tenant = new_tenant()
    tenant.post("/kms/keyrings", {"name": "cards"}, status=201)
    tenant.post("/kms/keys/generate", {**KEM, "keyring": "cards"}, status=201)
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    scopes: tuple[dict[str, object], ...] = (
        {"operations": ["use"], "keyrings": ["card*"]},
        {"operations": ["encrypt"], "keyrings": ["cards"], "algorithms": ["Kyber768"]},
        {"operations": ["use"], "keyrings": ["default"]},
        {"operations": ["use"], "algorithms": ["X-Wing"]},
        {"operations": ["manage-keys"]},
        {"operations": ["verify-only"]},  # no operation of this algorithm
        {"operations": ["use"]},
    )
    made = [tenant.post(path, {"scopes": [scope]}, status=201) for scope in scopes]
    encrypt = {**KEM, "keyring": "cards", "plaintext": PLAIN}
    able = [1] + [
        key["version"]
        for key in made
        if installation.caller(key["api_key"], tenant.tenant_id)
        .ask("POST", "/kem/encrypt", encrypt)
        .is_success
    ]
    assert able == [1, 2, 3, 8]
    counted = counted_until(tenant, keyring="cards", access="true")["keys"][0]
    assert counted["may_use"] == {"api_keys": len(able), "workload_roles": 0}
    assert "may_use" not in tenant.get("/inventory", keyring="cards")["keys"][0]
    found = tenant.get(path, may_use="cards/ML-KEM-768", sort="version", limit=20)
    assert [key["version"] for key in found["api_keys"]] == able
    revoked = installation.operator().ask("DELETE", f"{path}/8")
    assert revoked.is_success
    counted = tenant.get("/inventory", keyring="cards", access="true")["keys"][0]
    assert counted["may_use"]["api_keys"] == len(able) - 1
    for value in ("cards", "cards/", "/Kyber768", "cards/none", "a b/Kyber768"):
        refused = refusal_of(tenant.ask("GET", path, params={"may_use": value, "limit": 5}))
        assert refused == (400, "ERR_INVALID_001", "may_use")


def test_only_the_tenants_own_callers_read_it(
    used: Caller, installation: installations.Installation, new_tenant: Callable[..., Caller]
) -> None:
    """People of every role and API keys with the scope read it. Other tenants see their own."""
    counted_until(used)
    paths: list[tuple[str, dict[str, str]]] = [("/inventory", {}), ("/inventory/uses", KEM)]
    viewer = installation.person(used.tenant_id, "viewer")
    for path, query in paths:
        viewer.get(path, **query)
        assert refusal_of(installation.operator().ask("GET", path, params=query))[0] == 403
    for operations, status in ((["inventory"], 200), (["encrypt-only"], 403)):
        made = used.post(
            f"/tenants/{used.tenant_id}/api-keys",
            {"scopes": [{"operations": operations}]},
            status=201,
        )
        scoped = installation.caller(made["api_key"], used.tenant_id)
        for path, query in paths:
            assert scoped.ask("GET", path, params=query).status_code == status
    made = used.post(
        f"/tenants/{used.tenant_id}/api-keys",
        {"scopes": [{"operations": ["inventory"], "keyrings": ["cards"]}]},
        status=201,
    )
    limited = installation.caller(made["api_key"], used.tenant_id)
    assert limited.ask("GET", "/inventory").status_code == 403
    other = new_tenant()
    page = other.get("/inventory")
    assert (page["keys"], page["unattributed"], page["total"]) == ([], [], 0)
    assert (
        other.get("/inventory/uses", keyring="cards", algorithm="X-Wing", key_version=1)["uses"]
        == []
    )


BAD: list[tuple[str, dict[str, str]]] = [
    ("/inventory", {"limit": "51"}),
    ("/inventory", {"after": "x"}),
    ("/inventory", {"since": "yesterday"}),
    ("/inventory", {"algorithm": "RSA"}),
    ("/inventory/uses", {**KEM, "limit": "1001"}),
    ("/inventory/uses", {**KEM, "keyring": "default"}),
    ("/inventory/uses", {**KEM, "key_version": "0"}),
    ("/inventory/uses", {**KEM, "after": "encrypt"}),
    ("/inventory/uses", {**KEM, "after": "encrypt/" + "x" * 129}),
    ("/inventory/uses", {}),
]


def test_bad_values_are_refused(new_tenant: Callable[..., Caller]) -> None:
    """A value out of range is refused, also a date of the label confidential-until."""
    tenant = new_tenant()
    for path, query in BAD:
        assert refusal_of(tenant.ask("GET", path, params=query))[0] == 400, query
    for until in ("2040-13-01", "20401231", "soon", ""):
        labels = {"labels": {"confidential-until": until}}
        for refused in (
            tenant.ask("POST", "/kms/keyrings", {"name": "dated", **labels}),
            tenant.ask("PATCH", "/kms/keyrings/default", labels),
        ):
            assert refused.status_code in {400, 422}
            assert "confidential-until" in refused.json()["error"]["message"]


def test_keys_elsewhere_are_in_it(new_tenant: Callable[..., Caller]) -> None:
    """A page's counts of keys outside pqkeep equal the counts of the endpoint for such keys."""
    caller = new_tenant()
    caller.post("/kms/keys/generate", KEM, status=201)
    assert counted_until(caller)["external"] == {"sources": [], "total": 0, "moved": 0}
    parts = [
        {
            "type": "cryptographic-asset",
            "name": name,
            "cryptoProperties": {"assetType": "certificate", "certificateProperties": {}},
            "properties": [{"name": "pqkeep:moved", "value": moved}],
        }
        for name, moved in (("a", "true"), ("b", "false"), ("c", "false"))
    ]
    text = json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "components": parts})
    caller.post("/inventory/external", {"source": "tls", "document": text}, status=201)
    found = caller.get("/inventory")["external"]
    assert (found["moved"], found["total"]) == (1, 3)
    assert found == caller.get("/inventory/external")
