"""Batches over HTTP: each item gets the response of the single call, regardless of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import Caller

from pqkeep_gateway.api.batch import BATCHED
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.messages import MAX_ITEMS

if TYPE_CHECKING:
    import httpx2

Refused = Callable[["httpx2.Response"], tuple[int, str, str | None]]
MAX_BODY = 4 * 1024 * 1024
RANDOM = frozenset({"ciphertext", "kem_ciphertext", "shared_secret", "wrapped_key", "signature"})
"""Fields with different values in each response, which are not compared."""
NAMES = frozenset({"algorithm", "key_version"})
NOT_THIS: tuple[Any, ...] = ("not base64!", 7, ["AAAA"], {}, "AAAA")
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65


def _alone(caller: Caller, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a single call's result in the form of a batch's item."""
    response = caller.ask("POST", path, body).json()
    found = {name: response[name] for name in ("data", "error") if name in response}
    if found.get("error", {}).get("message", "").startswith("unknown field"):
        found["error"]["message"] += ", reference"  # which an item may have
    return found


def _comparable(result: dict[str, Any], random: AbstractSet[str]) -> dict[str, Any]:
    data = result.get("data")
    if data is None:
        return result
    return {"data": {name: name if name in random else each for name, each in data.items()}}


@pytest.mark.parametrize("operation", sorted(BATCHED))
def test_every_item_is_answered_as_the_call_alone(
    world: World, paths: dict[Operation, str], operation: Operation
) -> None:
    """In one batch, good and bad items of every kind get the data or error of their single call."""
    path = paths[operation]
    is_data_key = operation is Operation.GENERATE_DATA_KEY
    random = RANDOM | {"plaintext"} if is_data_key else RANDOM
    algorithms = [
        each for each in sorted(world.algorithms) if operation in ALGORITHMS[each].operations
    ]
    good = [world.body(operation, algorithm, 3) for algorithm in algorithms]
    first = good[0]
    bad: list[dict[str, Any]] = [
        {},
        {**first, "key_version": 9999},
        {**first, "key_version": 0},
        {**first, "key_version": "1"},
        {**first, "key_version": 2**40},
        {**first, "algorithm": "nonsense"},
        {**first, "algorithm": SIGNATURE if ALGORITHMS[KEM].operations >= {operation} else KEM},
        {**first, "surprise": 1},
        {**first, "key_version": 1},
        *({**first, name: value} for name in first.keys() - NAMES for value in NOT_THIS),
    ]
    items = [each for place, item in enumerate(bad) for each in (item, good[place % len(good)])]
    results: list[dict[str, Any]] = []
    for start in range(0, len(items), MAX_ITEMS):
        part = items[start : start + MAX_ITEMS]
        results += world.caller.post(f"{path}/batch", {"items": part})["results"]
    alone = {
        json.dumps(item): _comparable(_alone(world.caller, path, item), random)
        for item in [*bad, *good]
    }
    assert [_comparable(each, random) for each in results] == [
        alone[json.dumps(each)] for each in items
    ]


def test_what_a_batch_makes_another_opens(world: World, b64: Callable[[bytes], str]) -> None:
    """A batch opens the 128 ciphertexts of another, in order and with the references."""
    items = [{"reference": f"row-{each}", "plaintext": b64(bytes([each]))} for each in range(128)]
    made = world.caller.post("/kem/encrypt/batch", {"items": items, "algorithm": "X-Wing"})
    assert [each["reference"] for each in made["results"]] == [each["reference"] for each in items]
    opened = world.caller.post(
        "/kem/decrypt/batch", {"items": [each["data"] for each in made["results"]]}
    )
    assert [each["data"]["plaintext"] for each in opened["results"]] == [
        each["plaintext"] for each in items
    ]


def test_references_need_not_differ(world: World) -> None:
    """A result or an error has its item's reference, if the item has one."""
    items = [
        {"reference": "same", "plaintext": "AAAA"},
        {"reference": "same", "plaintext": "?"},
        {"reference": None, "plaintext": "AAAA"},
        {"plaintext": "AAAA"},
        {"reference": "ünïcode \U0001f511", "plaintext": "AAAA"},
    ]
    results = world.caller.post("/kem/encrypt/batch", {"items": items})["results"]
    assert [each.get("reference") for each in results] == [
        "same",
        "same",
        None,
        None,
        "ünïcode \U0001f511",
    ]
    assert ["data" in each for each in results] == [True, False, True, True, True]
    assert "reference" not in results[3]


@pytest.mark.parametrize("reference", ["", "x" * 129, 7, ["a"], "line\nbreak", "\u0000"])
def test_a_bad_reference_is_its_items_error(world: World, reference: object) -> None:
    """An invalid reference is refused with the operation's code, and not returned."""
    body = {"items": [{"reference": reference, "plaintext": "AAAA"}, {"plaintext": "AAAA"}]}
    first, second = world.caller.post("/kem/encrypt/batch", body)["results"]
    assert first["error"]["error_code"] == "ERR_KEM_001"
    assert first["error"]["field"] == "reference"
    assert first.keys() == {"error"}
    assert "data" in second


def test_fields_beside_the_items_count_for_all(world: World) -> None:
    """A field beside the items applies to all; an item that repeats it is refused."""
    body: dict[str, Any] = {
        "algorithm": "X-Wing",
        "key_version": 3,
        "mode": None,
        "items": [
            {"plaintext": "AAAA"},
            {"plaintext": "AAAA", "algorithm": "X-Wing"},
            {"plaintext": "AAAA", "algorithm": None},
            {"plaintext": "AAAA", "mode": "standard"},
        ],
    }
    first, second, third, fourth = world.caller.post("/kem/encrypt/batch", body)["results"]
    for each in (first, third, fourth):
        assert each["data"]["algorithm"] == "X-Wing"
        assert each["data"]["key_version"] == 3
    assert second["error"]["error_code"] == "ERR_KEM_001"
    assert second["error"]["field"] == "algorithm"


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([], id="none"),
        pytest.param([{"plaintext": "AAAA"}] * (MAX_ITEMS + 1), id="129"),
        pytest.param({"plaintext": "AAAA"}, id="an object"),
        pytest.param("AAAA", id="a text"),
        pytest.param(None, id="null"),
        pytest.param(7, id="a number"),
    ],
)
def test_what_is_no_list_of_items_is_refused(world: World, refused: Refused, items: object) -> None:
    """A batch without 1 to 128 items is 400 with its operation's code."""
    response = world.caller.ask("POST", "/kem/encrypt/batch", {"items": items})
    assert refused(response) == (400, "ERR_KEM_001", "items")


@pytest.mark.parametrize("item", [None, 7, "AAAA", [], [{"plaintext": "AAAA"}], True])
def test_what_is_no_item_is_refused_alone(world: World, item: object) -> None:
    """An item that is not an object gets an error of its own."""
    body = {"items": [{"plaintext": "AAAA"}, item, {"plaintext": "AAAA"}]}
    results = world.caller.post("/kem/encrypt/batch", body)["results"]
    assert ["data" in each for each in results] == [True, False, True]
    assert results[1]["error"]["error_code"] == "ERR_KEM_001"


@pytest.mark.parametrize("name", ["surprise", "plaintext", "reference"])
def test_what_cannot_count_for_all_is_refused(world: World, refused: Refused, name: str) -> None:
    """In a batch, unknown fields beside the items, and large items and references, are 400."""
    response = world.caller.ask("POST", "/kem/encrypt/batch", {"items": [{}], name: "AAAA"})
    assert refused(response) == (400, "ERR_KEM_001", name)


def test_a_batch_of_4_mib_is_answered(world: World, b64: Callable[[bytes], str]) -> None:
    """Four items of 4 MiB in total are encrypted; one byte more is 400."""
    text = b64(bytes(786_000))
    body = json.dumps({"items": [{"plaintext": text}] * 4}).encode()
    for content, status in (
        (body.ljust(MAX_BODY), 200),
        (body.ljust(MAX_BODY + 1), 400),
    ):
        response = world.caller.ask(
            "POST",
            "/kem/encrypt/batch",
            content=content,
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == status
    results = world.caller.post("/kem/encrypt/batch", {"items": [{"plaintext": text}] * 3})
    assert all("data" in each for each in results["results"])


def test_each_item_counts_against_the_rate_limit(
    operator: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """A batch counts as its items, and is admitted or refused as a whole."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"requests_per_minute": 20})

    def ask(items: int) -> httpx2.Response:
        return tenant.ask(
            "POST", "/kem/encapsulate/batch", {"key_version": 1, "items": [{}] * items}
        )

    # The key was generated within this minute.
    assert ask(10).headers["ratelimit-remaining"] == "9"
    assert refused(ask(21)) == (400, "ERR_INVALID_001", "items")
    assert refused(ask(9)) == (429, "ERR_RATE_LIMIT_001", None)
    assert ask(5).headers["ratelimit-remaining"] == "2"
    assert ask(1).headers["ratelimit-remaining"] == "1"
    records = tenant.get("/audit/records", operation="encapsulate", limit=500)["records"]
    assert len(records) == 10 + 5 + 1


def test_a_batch_on_a_plan_without_the_algorithm(
    new_tenant: Callable[..., Caller], installation: Any
) -> None:
    """Items that a policy denies are 403, and each is recorded. The others succeed."""
    tenant = new_tenant("free")
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    items = [
        {"plaintext": "AAAA", "algorithm": algorithm}
        for algorithm in (KEM, Algorithm.X_WING, KEM, Algorithm.ML_KEM_1024)
    ]
    results = tenant.post("/kem/encrypt/batch", {"items": items})["results"]
    assert [each.get("error", {}).get("error_code") for each in results] == [
        None,
        "ERR_POLICY_001",
        None,
        "ERR_POLICY_001",
    ]
    records = tenant.get("/audit/records", operation="encrypt")["records"]
    assert sorted((each["algorithm"], each["outcome"]) for each in records) == [
        ("Kyber768", "success"),
        ("Kyber768", "success"),
        ("ML-KEM-1024", "ERR_POLICY_001"),
        ("X-Wing", "ERR_POLICY_001"),
    ]


def test_the_allowance_is_spent_by_what_succeeds(own_rules: Any) -> None:
    """Only successful items use up the quota. A batch that exceeds the quota is refused as a whole."""
    tenant = own_rules.new_tenant("free")
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    good: dict[str, Any] = {"plaintext": "AAAA"}
    late, bad = {**good, "key_version": 9}, {"mode": "standard"}
    body: dict[str, Any] = {"items": [good] * 10 + [late] * 5 + [bad] * 40}
    results = tenant.post("/kem/encrypt/batch", body)["results"]
    assert sum("data" in each for each in results) == 10
    assert tenant.refusal("/kem/encrypt/batch", {"items": [good] * 11})[1] == "ERR_POLICY_001"
    results = tenant.post("/kem/encrypt/batch", {"items": [good] * 10 + [bad]})["results"]
    assert sum("data" in each for each in results) == 10
    assert tenant.refusal("/kem/encrypt/batch", {"items": [good]})[1] == "ERR_POLICY_001"
    used = tenant.get("/usage")["operations_used"]
    assert used == 20


def test_scopes_hold_for_each_item(
    installation: Any, operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """An API key for one algorithm gets an error only for items with another."""
    tenant = new_tenant()
    for algorithm in (KEM, Algorithm.X_WING):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    scopes = [{"operations": ["encrypt"], "algorithms": ["X-Wing"]}]
    made = operator.post(f"/tenants/{tenant.tenant_id}/api-keys", {"scopes": scopes}, status=201)
    limited = installation.caller(made["api_key"], tenant.tenant_id)
    items = [{"plaintext": "AAAA", "algorithm": each} for each in (Algorithm.X_WING, KEM)]
    first, second = limited.post("/kem/encrypt/batch", {"items": items})["results"]
    assert "data" in first
    assert second["error"]["error_code"] == "ERR_POLICY_001"
    assert "api-key-scope" in second["error"]["message"]
    response = limited.ask("POST", "/kem/decrypt/batch", {"items": [{}]})
    assert response.status_code == 403
