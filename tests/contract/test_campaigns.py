"""Campaigns over HTTP: planned, counted by re-encryption, stated by scans, tried by a canary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.caller import Caller, refusal_of

KEM, NEW = "Kyber768", "ML-KEM-1024"
PLAINTEXT = "YSBjYW5hcnkgaW4gYSBtaW5l"
PLAN = {
    "sources": [{"keyring": "default", "algorithm": KEM}],
    "target": {"keyring": "default", "algorithm": NEW},
}
DIGEST = "ab" * 32


def ago(**units: float) -> str:
    """Return a time before now, in the form of the API."""
    return (datetime.now(UTC) - timedelta(**units)).isoformat()


def scan(**changes: Any) -> dict[str, Any]:
    """Return a scan of one place with two ciphertexts of a source and one of another key."""
    counts = [
        {"algorithm": KEM, "key_version": 1, "count": 2},
        {"algorithm": NEW, "key_version": 1, "count": 1},
    ]
    stated = {"place": "cards", "sha256": DIGEST, "scanned_at": ago(minutes=1), "counts": counts}
    return stated | changes


@pytest.fixture(scope="module")
def mover(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with an old and a new key, and an open campaign from one to the other."""
    tenant = new_tenant()
    for algorithm in (KEM, NEW):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    put(tenant, "cards", PLAN)
    return tenant


def put(tenant: Caller, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Put a campaign."""
    response = tenant.ask("PUT", f"/campaigns/{name}", body)
    assert response.is_success, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def sealed(tenant: Caller, algorithm: str = KEM) -> dict[str, Any]:
    """Return the fields of a re-encryption of a new ciphertext to the new key."""
    made = tenant.post("/kem/encrypt", {"plaintext": PLAINTEXT, "algorithm": algorithm})
    return {
        "ciphertext": made["ciphertext"],
        "key_version": made["key_version"],
        "algorithm": algorithm,
        "to": {"algorithm": NEW},
    }


def last_record(tenant: Caller, operation: str) -> dict[str, Any]:
    """Return the newest record of an operation."""
    listed = tenant.get("/audit/records", operation=operation, order="desc", limit=1)
    record: dict[str, Any] = listed["records"][0]
    return record


def test_a_campaign_is_put_listed_replaced_and_closed(new_tenant: Callable[..., Caller]) -> None:
    """A put keeps the creation, a delete closes, a put opens again; each has its record."""
    tenant = new_tenant()
    assert tenant.get("/campaigns") == {"campaigns": [], "total": 0}
    made = put(tenant, "cards", PLAN)
    assert made["sources"] == [{"keyring": "default", "algorithm": KEM, "key_versions": None}]
    assert (made["state"], made["quiet_days"], made["description"]) == ("open", 30, "")
    assert last_record(tenant, "put-campaign")["campaign"] == "cards"
    changed = put(tenant, "cards", PLAN | {"description": "x", "quiet_days": 7})
    assert changed["created_at"] == made["created_at"]
    assert (changed["description"], changed["quiet_days"]) == ("x", 7)
    assert tenant.ask("DELETE", "/campaigns/cards").json()["data"]["state"] == "closed"
    assert last_record(tenant, "close-campaign")["campaign"] == "cards"
    assert [each["state"] for each in tenant.get("/campaigns")["campaigns"]] == ["closed"]
    assert put(tenant, "cards", PLAN)["state"] == "open"
    assert tenant.get("/campaigns/cards")["name"] == "cards"
    assert tenant.refusal("/campaigns/none/scans", scan())[:2] == (404, "ERR_NOT_FOUND_001")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sources": []}, "sources"),
        ({"sources": None}, "sources"),
        ({"sources": [{"algorithm": "ML-DSA-65"}]}, "sources"),
        ({"sources": [{"algorithm": KEM, "key_versions": []}]}, "sources"),
        ({"sources": [{"algorithm": KEM, "key_versions": [0]}]}, "sources"),
        ({"sources": [{"algorithm": KEM, "key_versions": ["1"]}]}, "sources"),
        ({"sources": [{"algorithm": KEM, "more": 1}]}, "sources"),
        ({"sources": [{"algorithm": KEM}, {"algorithm": KEM, "key_versions": [1]}]}, "sources"),
        ({"sources": [{"algorithm": KEM, "keyring": f"k{i}"} for i in range(21)]}, "sources"),
        ({"target": {"algorithm": "ML-DSA-65"}}, "target"),
        ({"target": {}}, "target"),
        ({"target": "default"}, "target"),
        ({"quiet_days": 0}, "quiet_days"),
        ({"state": "done"}, "state"),
    ],
)
def test_a_malformed_campaign_is_refused(
    mover: Caller, changes: dict[str, Any], field: str
) -> None:
    """Each wrong value is 400 with its field, and the campaign stays unchanged."""
    before = mover.get("/campaigns")["campaigns"][0]
    response = mover.ask("PUT", "/campaigns/cards", PLAN | changes)
    assert (response.status_code, response.json()["error"]["field"]) == (400, field)
    assert mover.get("/campaigns")["campaigns"][0] == before


@pytest.mark.threat("campaign-api-key")
def test_only_a_move_of_the_campaign_can_name_it(mover: Caller) -> None:
    """Another source or target, a closed and an unknown campaign are refused, alone and in a batch."""
    named = {"campaign": "cards"}
    put(mover, "done", PLAN | {"state": "closed"})
    put(mover, "version-9", PLAN | {"sources": [{"algorithm": KEM, "key_versions": [9]}]})
    wrong = {
        "source": sealed(mover, NEW) | named,
        "target": sealed(mover) | named | {"to": {"algorithm": KEM}},
        "keyring": sealed(mover) | named | {"to": {"algorithm": NEW, "keyring": "none"}},
        "version": sealed(mover) | {"campaign": "version-9"},
        "closed": sealed(mover) | {"campaign": "done"},
        "unknown": sealed(mover) | {"campaign": "none"},
        "malformed": sealed(mover) | {"campaign": "a b"},
    }
    codes = {
        "closed": (409, "ERR_CONFLICT_001", "campaign"),
        "unknown": (404, "ERR_NOT_FOUND_001", "campaign"),
    }
    for name, body in wrong.items():
        expected = codes.get(name, (400, "ERR_INVALID_001", "campaign"))
        assert mover.refusal("/kem/re-encrypt", body) == expected, name
    items = [*wrong.values(), sealed(mover) | named, sealed(mover)]
    results = mover.post("/kem/re-encrypt/batch", {"items": items})["results"]
    errors = [result.get("error", {}).get("error_code") for result in results]
    alone = [codes.get(name, (0, "ERR_INVALID_001"))[1] for name in wrong]
    assert errors == [*alone, None, None]


def test_a_re_encryption_names_its_campaign_in_the_record(mover: Caller) -> None:
    """The record of a move has the campaign, in a single call and in a batch.

    Other records have none.
    """
    mover.post("/kem/re-encrypt", sealed(mover) | {"campaign": "cards"})
    assert last_record(mover, "re-encrypt")["campaign"] == "cards"
    mover.post("/kem/re-encrypt", sealed(mover))
    assert last_record(mover, "re-encrypt")["campaign"] is None
    moved = mover.post("/kem/re-encrypt/batch", {"items": [sealed(mover)], "campaign": "cards"})
    assert "data" in moved["results"][0], moved
    assert last_record(mover, "re-encrypt")["campaign"] == "cards"


def test_a_campaign_is_replaced_only_if_the_request_says_so(
    new_tenant: Callable[..., Caller],
) -> None:
    """One request creates a campaign or is refused, so two programs cannot both create it."""
    caller = new_tenant()
    body = {
        "sources": [{"keyring": "default", "algorithm": "Kyber768"}],
        "target": {"keyring": "default", "algorithm": "X-Wing"},
        "replace": False,
    }
    assert caller.ask("PUT", "/campaigns/once", body).status_code == 200
    refused = caller.ask("PUT", "/campaigns/once", {**body, "quiet_days": 7})
    assert refusal_of(refused)[0] == 409
    assert caller.get("/campaigns/once")["quiet_days"] == 30


def test_a_scan_replaces_the_place_s_earlier_one(mover: Caller) -> None:
    """The newest scan of a place counts, an older one is refused, and the record has the digest."""
    made = mover.post("/campaigns/cards/scans", scan(unreadable=3), status=201)
    assert (made["left"], made["other"], made["unreadable"]) == (2, 1, 3)
    record = last_record(mover, "add-campaign-scan")
    assert (record["campaign"], record["policy"]) == ("cards", f"sha256-{DIGEST}")
    older = scan(scanned_at=ago(hours=1))
    assert mover.refusal("/campaigns/cards/scans", older) == (
        409,
        "ERR_CONFLICT_001",
        "scanned_at",
    )
    assert mover.post("/campaigns/cards/scans", scan(counts=[]), status=201)["left"] == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"place": ""}, "place"),
        ({"place": "x" * 201}, "place"),
        ({"place": "a\nb"}, "place"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"sha256": "ab" * 31}, "sha256"),
        ({"scanned_at": ago(hours=-1)}, "scanned_at"),
        ({"counts": [{"algorithm": KEM, "key_version": 1, "count": -1}]}, "counts"),
        ({"counts": [{"algorithm": KEM, "key_version": 1, "count": 1}] * 2}, "counts"),
        ({"counts": [{"algorithm": KEM, "key_version": 0, "count": 1}]}, "counts"),
        ({"counts": None}, "counts"),
        ({"unreadable": -1}, "unreadable"),
    ],
)
def test_a_malformed_scan_is_refused(mover: Caller, changes: Mapping[str, Any], field: str) -> None:
    """Each wrong value is 400 with its field."""
    refusal = mover.refusal("/campaigns/cards/scans", scan(**changes))
    assert refusal == (400, "ERR_INVALID_001", field)


def test_progress_is_moved_beside_left(new_tenant: Callable[..., Caller]) -> None:
    """Moved is the log's count, left the newest scans' sum, and quiet the sources' newest use."""
    tenant = new_tenant()
    for algorithm in (KEM, NEW):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    put(tenant, "cards", PLAN)
    before = tenant.get("/campaigns/cards")
    assert (before["moved"]["count"], before["left"]["count"]) == (0, None)
    assert (before["quiet"]["is_quiet"], before["canary"]["state"]) == (True, "none")
    old = sealed(tenant) | {"campaign": "cards"}
    tenant.post("/kem/re-encrypt", old)
    tenant.post("/kem/re-encrypt/batch", {"items": [old, old], "campaign": None})
    tenant.post("/campaigns/cards/scans", scan(), status=201)
    tenant.post("/campaigns/cards/scans", scan(place="b", unreadable=1), status=201)
    found = tenant.get("/campaigns/cards")
    knowledge = [found[part]["knowledge"] for part in ("moved", "left", "quiet", "canary")]
    assert knowledge == ["exact", "statement", "observed", "observed"]
    assert found["moved"]["count"] == 3
    (moved,) = found["moved"]["by_version"]
    assert (moved["algorithm"], moved["target_algorithm"], moved["count"]) == (KEM, NEW, 3)
    assert (found["left"]["count"], found["left"]["unreadable"]) == (4, 1)
    assert found["quiet"]["is_quiet"] is False
    listed = tenant.get("/audit/records", campaign="cards", operation="re-encrypt")
    assert len(listed["records"]) == found["moved"]["count"]


def test_a_source_of_the_target_s_own_key_is_all_but_the_active_version(
    new_tenant: Callable[..., Caller],
) -> None:
    """A campaign within one key counts its older versions as left, and the active version not."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    own = {"algorithm": KEM}
    put(tenant, "cards", {"sources": [own], "target": own})
    old = sealed(tenant) | {"campaign": "cards", "to": own}
    tenant.post("/kms/keys/rotate", own, status=201)
    tenant.post("/kem/re-encrypt", old)
    new = sealed(tenant) | {"campaign": "cards", "to": own}
    assert tenant.post("/kem/re-encrypt", new)["moved"] is False
    counts = [{**own, "key_version": 1, "count": 5}, {**own, "key_version": 2, "count": 7}]
    tenant.post("/campaigns/cards/scans", scan(counts=counts), status=201)
    found = tenant.get("/campaigns/cards")
    assert (found["moved"]["count"], found["left"]["count"]) == (1, 5)
    assert found["left"]["scans"][0]["other"] == 7


@pytest.mark.threat("campaign-api-key")
def test_a_canary_names_who_still_needs_the_sources(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A canary disables the sources until a time, lists each refused caller, and can end at once."""
    tenant = new_tenant()
    for algorithm in (KEM, NEW):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    owner = new_person(tenant.tenant_id)
    old = sealed(tenant)
    put(tenant, "cards", PLAN)
    read = {name: old[name] for name in ("ciphertext", "key_version", "algorithm")}
    until = {"until": ago(days=-7)}
    assert tenant.ask("POST", "/campaigns/cards/canary", until).status_code == 403
    assert owner.ask("POST", "/campaigns/cards/canary", until).status_code == 401
    assert owner.ask("DELETE", "/campaigns/cards/canary").status_code == 409
    begun = owner.post_proven("/campaigns/cards/canary", until, status=201)
    assert begun["state"] == "running"
    assert begun["disabled"] == [{"keyring": "default", "algorithm": KEM, "key_versions": [1]}]
    for _ in range(2):
        assert tenant.refusal("/kem/decrypt", read)[0] == 404
    tenant.refusal("/kem/encrypt", {"plaintext": PLAINTEXT, "algorithm": KEM})
    canary = tenant.get("/campaigns/cards")["canary"]
    assert {
        (each["principal"], each["key_version"], each["count"]) for each in canary["refused"]
    } == {
        ("api-key:1", 1, 2),
        ("api-key:1", None, 1),
    }
    other = PLAN | {"sources": [{"algorithm": "X-Wing"}]}
    assert tenant.ask("PUT", "/campaigns/cards", other).status_code == 409
    again = owner.post_proven("/campaigns/cards/canary", {"until": ago(days=-9)}, status=201)
    assert (again["since"], again["disabled"]) == (begun["since"], begun["disabled"])
    assert (
        owner.post_proven("/campaigns/cards/canary", until, status=201)["until"] == again["until"]
    )
    assert tenant.get("/kms/keys")["keys"][0]["disabled_until"] == again["until"]
    ended = owner.ask("DELETE", "/campaigns/cards/canary").json()["data"]
    assert (ended["state"], len(ended["refused"])) == ("ended", 2)
    assert tenant.post("/kem/decrypt", read)["plaintext"] == PLAINTEXT
    assert len(tenant.get("/campaigns/cards")["canary"]["refused"]) == 2
    assert last_record(tenant, "begin-canary")["campaign"] == "cards"
    assert last_record(tenant, "end-canary")["principal"].startswith("user:")


@pytest.mark.threat("campaign-api-key")
def test_a_canary_enables_nothing_that_it_did_not_disable(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A version that a person disabled before or during the canary is still disabled afterwards."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": KEM}, status=201)
    tenant.post("/kms/keys/disable", {"algorithm": KEM, "key_version": 1})
    owner = new_person(tenant.tenant_id)
    put(tenant, "cards", PLAN)
    begun = owner.post_proven("/campaigns/cards/canary", {"until": ago(days=-7)}, status=201)
    assert begun["disabled"][0]["key_versions"] == [2]
    tenant.post("/kms/keys/disable", {"algorithm": KEM, "key_version": 2})
    assert owner.ask("DELETE", "/campaigns/cards/canary").is_success
    assert {key["status"] for key in tenant.get("/kms/keys")["keys"]} == {"disabled"}


@pytest.mark.threat("campaign-api-key")
def test_a_canary_extends_nothing_that_it_did_not_disable(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """A later time does not extend a key that a person disabled until an earlier one."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    for _ in range(2):
        tenant.post("/kms/keys/rotate", {"algorithm": KEM}, status=201)
    owner = new_person(tenant.tenant_id)
    put(tenant, "cards", PLAN)
    by_person = ago(days=-2)

    def disable(version: int) -> str:
        named = {"algorithm": KEM, "key_version": version, "until": by_person}
        return str(tenant.post("/kms/keys/disable", named)["disabled_until"])

    disable(1)
    begun = {"until": ago(days=-7)}
    assert owner.post_proven("/campaigns/cards/canary", begun, status=201)["state"] == "running"
    tenant.post("/kms/keys/enable", {"algorithm": KEM, "key_version": 2})
    expected = disable(2)
    later = owner.post_proven("/campaigns/cards/canary", {"until": ago(days=-9)}, status=201)
    keys = {key["key_version"]: key["disabled_until"] for key in tenant.get("/kms/keys")["keys"]}
    assert keys == {1: expected, 2: expected, 3: later["until"]}


def test_a_key_is_disabled_until_a_time(new_tenant: Callable[..., Caller]) -> None:
    """A key shows its time, and a time in the past or more than 366 days ahead is 400."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    named = {"algorithm": KEM, "key_version": 1}
    for until in (ago(seconds=1), ago(days=-367), "tomorrow"):
        refusal = tenant.refusal("/kms/keys/disable", named | {"until": until})
        assert refusal == (400, "ERR_INVALID_001", "until"), until
    until = ago(days=-3)
    shown = tenant.post("/kms/keys/disable", named | {"until": until})
    assert (shown["status"], shown["disabled_until"][:19]) == ("disabled", until[:19])
    assert tenant.get("/kms/keys")["keys"][0]["disabled_until"] == shown["disabled_until"]
    assert "disabled_until" not in tenant.post("/kms/keys/disable", named)
    assert "disabled_until" not in tenant.post("/kms/keys/enable", named)


@pytest.mark.threat("campaign-api-key")
def test_another_tenant_s_campaign_does_not_exist(
    mover: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """Another tenant gets 404 for each request about a campaign, and cannot name it."""
    other = new_tenant()
    other.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    other.post("/kms/keys/generate", {"algorithm": NEW}, status=201)
    for method, path, body in (
        ("GET", "/campaigns/cards", None),
        ("DELETE", "/campaigns/cards", None),
        ("POST", "/campaigns/cards/scans", scan()),
        ("POST", "/kem/re-encrypt", sealed(other) | {"campaign": "cards"}),
    ):
        assert other.ask(method, path, body).status_code == 404, path
    assert other.get("/campaigns")["total"] == 0
    assert mover.get("/campaigns/cards")["state"] == "open"
