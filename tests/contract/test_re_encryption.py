"""Re-encryption over HTTP: to another key, algorithm or keyring, with permission for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep_protocol.algorithms import Algorithm

if TYPE_CHECKING:
    from tests.fixtures.caller import Caller

KEM, HYBRID = Algorithm.ML_KEM_768, Algorithm.X_WING
PLAINTEXT = "YSBjYW5hcnkgaW4gYSBtaW5l"
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
ROW, OTHER_ROW = "cm93LTE=", "cm93LTI="


@pytest.fixture(scope="module")
def mover(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with two versions of a key, a key of another algorithm, and one elsewhere."""
    tenant = new_tenant()
    for algorithm in (KEM, HYBRID):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    for name, purposes in (
        ("archive", None),
        ("read-only", ["decrypt"]),
        ("write-only", ["encrypt"]),
    ):
        keyring = {"name": name, "purposes": purposes}
        tenant.post("/kms/keyrings", keyring, status=201)
        tenant.post("/kms/keys/generate", {"algorithm": HYBRID, "keyring": name}, status=201)
    return tenant


def _encrypted(tenant: Caller, **more: object) -> dict[str, Any]:
    return tenant.post("/kem/encrypt", {"plaintext": PLAINTEXT, **more})


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ({"algorithm": HYBRID}, (HYBRID, "default")),
        ({"algorithm": HYBRID, "keyring": "archive"}, (HYBRID, "archive")),
    ],
)
def test_a_ciphertext_moves(mover: Caller, to: object, expected: tuple[str, str]) -> None:
    """The result opens only with the target key, with the same associated data."""
    sealed = _encrypted(mover, associated_data=ROW)
    body = {
        "ciphertext": sealed["ciphertext"],
        "key_version": sealed["key_version"],
        "associated_data": ROW,
        "to": to,
    }
    moved = mover.post("/kem/re-encrypt", body)
    assert (moved.pop("moved"), moved["algorithm"], moved["keyring"]) == (True, *expected)
    assert moved["ciphertext"] != sealed["ciphertext"]
    assert PLAINTEXT not in str(moved)
    opened = mover.post("/kem/decrypt", {**moved, "associated_data": ROW})
    assert opened["plaintext"] == PLAINTEXT
    assert mover.refusal("/kem/decrypt", moved)[1] == "ERR_KEM_002"
    (record,) = mover.get("/audit/records", operation="re-encrypt", order="desc", limit=1)[
        "records"
    ]
    assert (record["algorithm"], record["key_version"]) == (KEM, sealed["key_version"])
    assert record["outcome"] == "success"


def test_data_that_is_already_there(mover: Caller) -> None:
    """Without another key, form or binding, all forms come back unchanged and not moved."""
    sealed = _encrypted(mover, associated_data=ROW)
    envelope = {"envelope": _encrypted(mover, format="envelope")["envelope"]}
    wrapped = mover.post("/kem/key/wrap", {"symmetric_key": KEY, "key_version": 1})
    bound = {"ciphertext": sealed["ciphertext"], "key_version": 1, "associated_data": ROW}
    key = {"wrapped_key": wrapped["wrapped_key"], "key_version": 1}
    for body, name in (
        (bound, "ciphertext"),
        ({**bound, "to": {"algorithm": KEM, "associated_data": ROW}}, "ciphertext"),
        (envelope, "envelope"),
        (key, "wrapped_key"),
    ):
        same = mover.post("/kem/re-encrypt", body)
        assert (same["moved"], same["key_version"]) == (False, 1)
        assert same[name] == body[name]
    items = [bound, {**bound, "to": {"associated_data": ""}}]
    results = mover.post("/kem/re-encrypt/batch", {"items": items})["results"]
    assert [result["data"]["moved"] for result in results] == [False, True]


def test_a_retired_version_moves_to_the_active_one(new_tenant: Callable[..., Caller]) -> None:
    """After a rotation an old ciphertext moves to the new version; both versions count one more use."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    sealed = _encrypted(tenant)
    tenant.post("/kms/keys/rotate", {"algorithm": KEM}, status=201)
    moved = tenant.post("/kem/re-encrypt", {"ciphertext": sealed["ciphertext"], "key_version": 1})
    assert moved["key_version"] == 2
    uses = [tenant.get(f"/kms/keys/{version}/usage", algorithm=KEM)["uses"] for version in (1, 2)]
    assert uses == [2, 1]
    listed = tenant.get("/kms/keys/usage")
    assert "2" in str(listed)


def test_other_data_to_bind_to(mover: Caller) -> None:
    """New associated data replaces the source's; empty data means none."""
    sealed = _encrypted(mover, associated_data=ROW)
    body = {
        "ciphertext": sealed["ciphertext"],
        "key_version": sealed["key_version"],
        "associated_data": ROW,
    }
    moved = mover.post("/kem/re-encrypt", {**body, "to": {"associated_data": OTHER_ROW}})
    del moved["moved"]
    mover.post("/kem/decrypt", {**moved, "associated_data": OTHER_ROW})
    assert mover.refusal("/kem/decrypt", {**moved, "associated_data": ROW})[0] == 400
    free = mover.post("/kem/re-encrypt", {**body, "to": {"associated_data": ""}})
    del free["moved"]
    mover.post("/kem/decrypt", free)


def test_envelopes_and_wrapped_keys(mover: Caller) -> None:
    """An envelope becomes an envelope or a ciphertext; a wrapped key becomes a wrapped key."""
    envelope = _encrypted(mover, format="envelope")["envelope"]
    moved = mover.post("/kem/re-encrypt", {"envelope": envelope, "to": {"algorithm": HYBRID}})
    assert mover.post("/kem/decrypt", {"envelope": moved["envelope"]})["plaintext"] == PLAINTEXT
    bare = mover.post("/kem/re-encrypt", {"envelope": envelope, "to": {"format": "ciphertext"}})
    del bare["moved"]
    assert mover.post("/kem/decrypt", bare)["plaintext"] == PLAINTEXT
    wrapped = mover.post("/kem/key/wrap", {"symmetric_key": KEY, "key_version": 1})
    body = {"wrapped_key": wrapped["wrapped_key"], "key_version": 1, "to": {"algorithm": HYBRID}}
    again = mover.post("/kem/re-encrypt", body)
    del again["moved"]
    assert again.keys() == {"wrapped_key", "key_version", "algorithm", "keyring"}
    opened = mover.post("/kem/key/unwrap", again)
    assert opened["symmetric_key"] == KEY


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ciphertext": None}, (400, "ERR_KEM_002", "ciphertext")),
        ({"wrapped_key": "AAAA"}, (400, "ERR_KEM_002", "ciphertext")),
        ({"key_version": None}, (400, "ERR_KEM_002", "key_version")),
        ({"key_version": 9}, (404, "ERR_NOT_FOUND_001", None)),
        ({"ciphertext": "AAAA"}, (400, "ERR_KEM_002", "ciphertext")),
        ({"associated_data": ROW}, (400, "ERR_KEM_002", "ciphertext")),
        ({"algorithm": HYBRID}, (400, "ERR_INVALID_001", "algorithm")),
        ({"to": 7}, (400, "ERR_KEM_002", "to")),
        ({"to": {"algorithm": "Dilithium3"}}, (400, "ERR_KEM_002", "to")),
        ({"to": {"surprise": 1}}, (400, "ERR_KEM_002", "to")),
        ({"to": {"key_version": 1}}, (400, "ERR_KEM_002", "to")),
        ({"to": {"algorithm": "ML-KEM-1024"}}, (404, "ERR_NOT_FOUND_001", "to")),
        ({"to": {"keyring": "archive"}}, (404, "ERR_NOT_FOUND_001", "to")),
    ],
)
def test_what_cannot_be_re_encrypted(
    mover: Caller, changes: dict[str, object], expected: tuple[int, str, str | None]
) -> None:
    """Each invalid input has its documented code and field."""
    sealed = _encrypted(mover)
    body = {"ciphertext": sealed["ciphertext"], "key_version": sealed["key_version"], **changes}
    assert mover.refusal("/kem/re-encrypt", body) == expected


def test_purposes_of_keyrings_hold_for_both_keys(mover: Caller) -> None:
    """The source's keyring must allow decrypting, and the target's encrypting."""
    sealed = _encrypted(mover, algorithm=HYBRID, keyring="write-only")
    body = {"ciphertext": sealed["ciphertext"], "key_version": 1, "algorithm": HYBRID}
    from_there = {**body, "keyring": "write-only", "to": {"keyring": "archive"}}
    assert mover.refusal("/kem/re-encrypt", from_there)[0] in {400, 403, 404}
    own = _encrypted(mover, algorithm=HYBRID)
    body = {"ciphertext": own["ciphertext"], "key_version": 1, "algorithm": HYBRID}
    to_there = {**body, "to": {"keyring": "read-only"}}
    assert mover.refusal("/kem/re-encrypt", to_there)[0] in {400, 403, 404}
    mover.post("/kem/re-encrypt", {**body, "to": {"keyring": "write-only"}})
    missing = mover.refusal("/kem/re-encrypt", {**body, "to": {"keyring": "nowhere"}})
    assert missing == (404, "ERR_NOT_FOUND_001", "to")


USE = {"operations": ["re-encrypt"]}


@pytest.mark.parametrize(
    ("scopes", "status"),
    [
        ([{"operations": ["use"]}], 200),
        ([USE], 200),
        ([{**USE, "keyrings": ["default"]}, {**USE, "keyrings": ["archive"]}], 200),
        ([{**USE, "keyrings": ["default"]}], 403),
        ([{**USE, "keyrings": ["archive"]}], 403),
        ([{**USE, "algorithms": [KEM]}], 403),
        ([{**USE, "algorithms": [HYBRID]}], 403),
        ([{"operations": ["encrypt-only"]}], 403),
        ([{"operations": ["decrypt-only"]}], 403),
        ([{"operations": ["encrypt-only"]}, {"operations": ["decrypt-only"]}], 403),
    ],
)
def test_scopes_hold_for_both_keys(
    *,
    installation: Any,
    operator: Caller,
    mover: Caller,
    scopes: list[dict[str, object]],
    status: int,
) -> None:
    """The API key's scopes must allow re-encrypt for both the source and the target."""
    sealed = _encrypted(mover)
    made = operator.post(f"/tenants/{mover.tenant_id}/api-keys", {"scopes": scopes}, status=201)
    limited = installation.caller(made["api_key"], mover.tenant_id)
    body = {
        "ciphertext": sealed["ciphertext"],
        "key_version": sealed["key_version"],
        "to": {"keyring": "archive", "algorithm": HYBRID},
    }
    assert limited.ask("POST", "/kem/re-encrypt", body).status_code == status
    operator.ask("DELETE", f"/tenants/{mover.tenant_id}/api-keys/{made['version']}")


def test_the_plan_must_have_the_target(new_tenant: Callable[..., Caller]) -> None:
    """Data cannot move to an algorithm outside the plan."""
    tenant = new_tenant("free")
    tenant.post("/kms/keys/generate", {"algorithm": KEM}, status=201)
    sealed = _encrypted(tenant)
    body = {"ciphertext": sealed["ciphertext"], "key_version": 1}
    tenant.post("/kem/re-encrypt", body)
    refused = tenant.refusal("/kem/re-encrypt", {**body, "to": {"algorithm": HYBRID}})
    assert refused[:2] == (403, "ERR_POLICY_001")


def test_a_batch_moves(mover: Caller) -> None:
    """300 ciphertexts move in three batches and open in order; a damaged one stays behind."""
    texts = [f"{each:04}" for each in range(300)]
    moved: list[dict[str, Any]] = []
    for start in range(0, 300, 100):
        items = [{"plaintext": each} for each in texts[start : start + 100]]
        made = mover.post("/kem/encrypt/batch", {"items": items})["results"]
        sealed = [
            {"ciphertext": each["data"]["ciphertext"], "key_version": each["data"]["key_version"]}
            for each in made
        ]
        sealed.append({"ciphertext": "AAAA", "key_version": 1})
        body = {"items": sealed, "to": {"algorithm": HYBRID}}
        *done, damaged = mover.post("/kem/re-encrypt/batch", body)["results"]
        assert damaged["error"]["error_code"] == "ERR_KEM_002"
        moved += [each["data"] for each in done]
        for each in moved[-100:]:
            del each["moved"]
    opened: list[str] = []
    for start in range(0, 300, 100):
        results = mover.post("/kem/decrypt/batch", {"items": moved[start : start + 100]})["results"]
        opened += [each["data"]["plaintext"] for each in results]
    assert opened == texts


def test_items_that_are_too_large_together(mover: Caller) -> None:
    """A shared large field counts for each item: a batch above the limit is refused before sending."""
    sealed = _encrypted(mover)
    item = {"ciphertext": sealed["ciphertext"], "key_version": sealed["key_version"]}
    body = {"items": [item] * 128, "to": {"associated_data": "A" * 4 * 16_000}}
    assert mover.refusal("/kem/re-encrypt/batch", body) == (400, "ERR_INVALID_001", "items")
