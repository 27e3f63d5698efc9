"""Keyrings over HTTP: created, changed, named by every operation, and refused if missing."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation

KYBER = {"algorithm": "Kyber768"}
CARDS = "payments.cards"
FIELDS = {
    *("name", "description", "labels", "purposes", "rotation_days", "archive_after_days"),
    *(
        "minimum_decryption_version",
        "minimum_encryption_version",
        "first_version",
        "derived",
        "deletion_allowed",
        "retired_public_keys_allowed",
        "created_at",
    ),
}
TEXT = base64.b64encode(b"attack at dawn").decode()
NOT_FOUND = (404, "ERR_NOT_FOUND_001", "keyring")
INVALID = (400, "ERR_INVALID_001")


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


def person_of(person: Caller) -> str:
    """Return the principal of a person in the audit log."""
    return f"user:{person.get('/auth/me')['id']}"


def patch(tenant: Caller, name: str, **changes: Any) -> dict[str, Any]:
    """Change a keyring."""
    response = tenant.ask_proven("PATCH", f"/kms/keyrings/{name}", changes)
    assert response.is_success, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def test_a_keyring_is_created_changed_and_listed(tenant: Caller) -> None:
    """Missing fields have defaults, a change leaves other fields, and 0 days become null."""
    made = tenant.post("/kms/keyrings", {"name": CARDS, "labels": {"team": "pay"}}, status=201)
    assert made.keys() == FIELDS
    assert (made["description"], made["rotation_days"], len(made["purposes"])) == ("", None, 9)
    changed = patch(tenant, CARDS, rotation_days=90, purposes=["decrypt", "encrypt"])
    assert changed == made | {"rotation_days": 90, "purposes": ["encrypt", "decrypt"]}
    assert patch(tenant, CARDS, rotation_days=0)["rotation_days"] is None
    assert tenant.get(f"/kms/keyrings/{CARDS}")["labels"] == {"team": "pay"}
    listed = tenant.get("/kms/keyrings")
    assert [each["name"] for each in listed["keyrings"]] == ["default", CARDS]
    assert listed["keyrings"][0]["created_at"] is None
    only = tenant.get("/kms/keyrings", label="team:pay", limit=1)
    assert ([each["name"] for each in only["keyrings"]], only["total"]) == ([CARDS], 1)
    first = tenant.get("/kms/keyrings", limit=1)
    assert (first["total"], first["next"]) == (2, "default")
    assert tenant.get("/kms/keyrings", after=first["next"])["keyrings"][0]["name"] == CARDS


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"name": "-x"}, "name"),
        ({"name": ".x"}, "name"),
        ({"name": "x y"}, "name"),
        ({"name": "ü"}, "name"),
        ({"name": "x\n"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "x", "description": "x" * 257}, "description"),
        ({"name": "x", "description": "\x00"}, "description"),
        ({"name": "x", "labels": ["a"]}, "labels"),
        ({"name": "x", "labels": {"A": "b"}}, "labels"),
        ({"name": "x", "labels": {"a": 1}}, "labels"),
        ({"name": "x", "labels": {"a": None}}, "labels"),
        ({"name": "x", "labels": {"a": "b" * 129}}, "labels"),
        ({"name": "x", "labels": {f"a{n}": "" for n in range(21)}}, "labels"),
        ({"name": "x", "purposes": []}, "purposes"),
        ({"name": "x", "purposes": ["mint"]}, "purposes"),
        ({"name": "x", "purposes": [["sign"]]}, "purposes"),
        ({"name": "x", "purposes": "sign"}, "purposes"),
        ({"name": "x", "rotation_days": -1}, "rotation_days"),
        ({"name": "x", "rotation_days": 3651}, "rotation_days"),
        ({"name": "x", "archive_after_days": "30"}, "archive_after_days"),
        ({"name": "x", "minimum_decryption_version": -1}, "minimum_decryption_version"),
        ({"name": "x", "minimum_encryption_version": 2**31}, "minimum_encryption_version"),
        ({"name": "x", "minimum_encryption_version": "1"}, "minimum_encryption_version"),
        ({"name": "x", "first_version": 0}, "first_version"),
        ({"name": "x", "first_version": 100_001}, "first_version"),
        ({"name": "x", "first_version": "2"}, "first_version"),
        ({"name": "x", "deletion_allowed": 1}, "deletion_allowed"),
        ({"name": "x", "deletion_allowed": "true"}, "deletion_allowed"),
        ({"name": "x", "retired_public_keys_allowed": 1}, "retired_public_keys_allowed"),
        ({"name": "x", "tags": {}}, "tags"),
    ],
)
def test_what_is_not_a_keyring_is_refused(
    tenant: Caller, body: dict[str, object], field: str
) -> None:
    """Each wrong value is 400 ERR_INVALID_001 with its field, and nothing is created."""
    assert tenant.refusal("/kms/keyrings", body) == (*INVALID, field)
    assert tenant.get("/kms/keyrings")["total"] == 1


def test_a_retired_public_key_gets_new_data_only_where_the_keyring_allows_it(
    tenant: Caller,
) -> None:
    """Encrypting to a retired own key is 404 and recorded with its version, also in a batch."""
    tenant.post("/kms/keyrings", {"name": CARDS}, status=201)
    of = KYBER | {"keyring": CARDS}
    key = tenant.post("/kms/keys/generate", of, status=201)["public_key"]
    tenant.post("/kms/keys/rotate", of, status=201)
    supplied = KYBER | {"public_key": key}
    requests = (("encrypt", supplied | {"plaintext": TEXT}), ("encapsulate", supplied))
    for allowed in (False, True, False):
        changed = patch(tenant, CARDS, retired_public_keys_allowed=allowed)
        assert changed["retired_public_keys_allowed"] is allowed
        for operation, body in requests:
            outcome = "success" if allowed else "key-not-found"
            if allowed:
                tenant.post(f"/kem/{operation}", body)
            else:
                missing = (404, "ERR_NOT_FOUND_001", "public_key")
                assert tenant.refusal(f"/kem/{operation}", body) == missing
            (record,) = tenant.get("/audit/records", operation=operation, order="desc", limit=1)[
                "records"
            ]
            named = record["keyring"], record["key_version"], record["outcome"]
            assert named == (CARDS, 1, outcome)
            (item,) = tenant.post(f"/kem/{operation}/batch", {"items": [body]})["results"]
            assert ("data" in item) is allowed


def test_the_first_version_number_is_set_once(tenant: Caller) -> None:
    """The versions of each key begin there and go on by one. A change of the number is refused."""
    tenant.post("/kms/keyrings", {"name": CARDS, "first_version": 7}, status=201)
    of = KYBER | {"keyring": CARDS}
    assert tenant.post("/kms/keys/generate", of, status=201)["key_version"] == 7
    assert tenant.post("/kms/keys/rotate", of, status=201)["key_version"] == 8
    refused = tenant.ask_proven("PATCH", f"/kms/keyrings/{CARDS}", {"first_version": 1})
    assert refusal_of(refused) == (*INVALID, "first_version")
    assert tenant.get(f"/kms/keyrings/{CARDS}")["first_version"] == 7
    assert tenant.get("/kms/keyrings/default")["first_version"] == 1


def test_only_who_archives_keys_has_them_archived(
    tenant: Caller, new_person: Callable[..., Caller]
) -> None:
    """Only an owner sets an age for archiving; API keys and developers can only remove it."""
    limits = {"name": "x", "archive_after_days": 30}
    owner = new_person(tenant.tenant_id)
    developer = new_person(tenant.tenant_id, role="developer")
    for caller in (tenant, developer):
        response = caller.ask_proven("POST", "/kms/keyrings", limits)
        assert refusal_of(response)[:2] == (403, "ERR_FORBIDDEN_001")
    tenant.post("/kms/keyrings", {"name": "x", "rotation_days": 30}, status=201)
    path, change = "/kms/keyrings/x", {"archive_after_days": 30}
    for caller in (tenant, developer):
        response = caller.ask_proven("PATCH", path, change)
        assert refusal_of(response)[:2] == (403, "ERR_FORBIDDEN_001")
    assert owner.ask_proven("PATCH", path, change).json()["data"]["archive_after_days"] == 30
    kept = tenant.ask("PATCH", path, {"archive_after_days": 0}).json()["data"]
    assert kept["archive_after_days"] is None


def test_a_taken_name_and_a_missing_keyring(tenant: Caller) -> None:
    """An existing name is 409; an unknown keyring is 404 in every operation."""
    tenant.post("/kms/keyrings", {"name": CARDS}, status=201)
    for name in (CARDS, "default"):
        taken = tenant.refusal("/kms/keyrings", {"name": name})
        assert taken == (409, "ERR_CONFLICT_001", "name")
    for name in ("nowhere", "-Not-A-Name"):
        assert refusal_of(tenant.ask("GET", f"/kms/keyrings/{name}"))[:2] == NOT_FOUND[:2]
        response = tenant.ask_proven("PATCH", f"/kms/keyrings/{name}", {})
        assert refusal_of(response)[:2] == NOT_FOUND[:2]
    nowhere = KYBER | {"keyring": "nowhere"}
    assert tenant.refusal("/kms/keys/generate", nowhere) == NOT_FOUND
    assert tenant.refusal("/kem/encrypt", nowhere | {"plaintext": TEXT}) == NOT_FOUND
    assert refusal_of(tenant.ask("GET", "/kms/keys", params=nowhere)) == NOT_FOUND
    assert tenant.refusal("/kms/keys/generate", KYBER | {"keyring": "-"}) == (*INVALID, "keyring")


def test_an_answer_names_the_keyring_that_was_named(tenant: Caller) -> None:
    """A response names the keyring only if the request does, even for the default keyring."""
    tenant.post("/kms/keyrings", {"name": CARDS}, status=201)
    assert "keyring" not in tenant.post("/kms/keys/generate", KYBER, status=201)
    for keyring in (CARDS, "default"):
        named = KYBER | {"keyring": keyring}
        if keyring == CARDS:
            assert tenant.post("/kms/keys/generate", named, status=201)["keyring"] == CARDS
        encrypted = tenant.post("/kem/encrypt", named | {"plaintext": TEXT})
        assert (encrypted["keyring"], encrypted["key_version"]) == (keyring, 1)
        assert tenant.get("/kms/keys", keyring=keyring)["keyring"] == keyring
        assert tenant.get("/kms/keys/active", **named)["keyring"] == keyring
        assert tenant.get("/kms/keys/1/usage", **named)["uses"] == 1
    assert "keyring" not in tenant.get("/kms/keys")


def test_the_keys_of_all_keyrings_are_listed_together(
    tenant: Caller, new_person: Callable[..., Caller]
) -> None:
    """One paged request lists the keys of all keyrings, with one record.

    A keyring is refused there.
    """
    for keyring in ("b", "a"):
        tenant.post("/kms/keyrings", {"name": keyring}, status=201)
        named = {"algorithm": "Kyber768", "keyring": keyring}
        tenant.post("/kms/keys/generate", named, status=201)
    tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    expected = [("a", "Kyber768"), ("b", "Kyber768"), ("default", "X-Wing")]
    person = new_person(tenant.tenant_id)
    all_of_them = {"all_keyrings": True, "status": "active"}
    listed = person.get("/kms/keys", **all_of_them)
    assert [(each["keyring"], each["algorithm"]) for each in listed["keys"]] == expected
    found: list[tuple[str, str]] = []
    after: dict[str, str] = {}
    while True:
        page = tenant.get("/kms/keys", **all_of_them, limit=1, **after)
        found += [(each["keyring"], each["algorithm"]) for each in page["keys"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    assert found == expected
    records = tenant.get("/audit/records", operation="list-keys", principal=person_of(person))
    assert [each["keyring"] for each in records["records"]] == [None]
    response = tenant.ask("GET", "/kms/keys?all_keyrings=true&keyring=a")
    assert refusal_of(response) == (*INVALID, "keyring")
    response = tenant.ask("GET", "/kms/keys?all_keyrings=true&after=-/Kyber768:1")
    assert refusal_of(response) == (*INVALID, "after")


def test_an_api_key_of_one_keyring_lists_not_all(
    tenant: Caller, new_person: Callable[..., Caller], installation: Installation
) -> None:
    """An API key with scopes for keyrings cannot list the keys of all keyrings."""
    owner = new_person(tenant.tenant_id)
    scopes = [{"operations": ["list-keys"], "keyrings": ["default"]}]
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    made = owner.post_proven(path, {"scopes": scopes}, status=201)
    scoped = installation.caller(made["api_key"])
    assert scoped.get("/kms/keys")["total"] == 0
    response = scoped.ask("GET", "/kms/keys?all_keyrings=true")
    assert refusal_of(response)[:2] == (403, "ERR_POLICY_001")


def test_a_blob_opens_in_its_own_keyring_only(tenant: Caller) -> None:
    """In another keyring with that version, the ciphertext is refused as damaged."""
    tenant.post("/kms/keyrings", {"name": CARDS}, status=201)
    for body in (KYBER, KYBER | {"keyring": CARDS}):
        tenant.post("/kms/keys/generate", body, status=201)
    blob = tenant.post("/kem/encrypt", {"plaintext": TEXT, "keyring": CARDS})["ciphertext"]
    opening = {"ciphertext": blob, "key_version": 1}
    assert tenant.post("/kem/decrypt", opening | {"keyring": CARDS})["plaintext"] == TEXT
    assert tenant.refusal("/kem/decrypt", opening) == (400, "ERR_KEM_002", "ciphertext")


def test_a_use_without_its_purpose_is_denied_and_recorded_once(tenant: Caller) -> None:
    """Use without the purpose is 403 ERR_POLICY_001 with the policy, and the key service records it."""
    tenant.post("/kms/keyrings", {"name": CARDS, "purposes": ["decrypt"]}, status=201)
    tenant.post("/kms/keys/generate", KYBER | {"keyring": CARDS}, status=201)
    response = tenant.ask("POST", "/kem/encrypt", {"plaintext": TEXT, "keyring": CARDS})
    assert refusal_of(response) == (403, "ERR_POLICY_001", None)
    assert "denied by policy keyring-purposes" in response.json()["error"]["message"]
    records = tenant.get("/audit/records", operation="encrypt", keyring=CARDS)["records"]
    assert [(each["outcome"], each["keyring"]) for each in records] == [("purpose-denied", CARDS)]


def test_keyrings_are_found_by_prefix_page_by_page(tenant: Caller) -> None:
    """Names are case-sensitive, ordered by bytes, and have up to 128 characters."""
    names = ["Pay.b", "_x", "pay", "pay.a", "pay.b", "y" * 128]
    for name in names:
        assert tenant.post("/kms/keyrings", {"name": name}, status=201)["name"] == name
    every = [each["name"] for each in tenant.get("/kms/keyrings")["keyrings"]]
    assert every == sorted([*names, "default"])
    first = tenant.get("/kms/keyrings", prefix="pay", limit=2)
    assert ([each["name"] for each in first["keyrings"]], first["total"]) == (["pay", "pay.a"], 3)
    rest = tenant.get("/kms/keyrings", prefix="pay", limit=2, after=first["next"])
    assert ([each["name"] for each in rest["keyrings"]], "next" in rest) == (["pay.b"], False)
    assert tenant.get("/kms/keyrings", prefix="PAY")["total"] == 0
    response = tenant.ask("GET", "/kms/keyrings", params={"prefix": "a/b"})
    assert refusal_of(response) == (*INVALID, "prefix")


@pytest.mark.parametrize("prefix", ["%", "pa%", "a\\", "ä", "a b", "*", "\x00", "x" * 129])
def test_a_prefix_is_no_pattern(tenant: Caller, prefix: str) -> None:
    """Characters that names do not have are refused; an underscore stands for itself."""
    for name in ("a_b", "axb"):
        tenant.post("/kms/keyrings", {"name": name}, status=201)
    response = tenant.ask("GET", "/kms/keyrings", params={"prefix": prefix})
    assert refusal_of(response) == (*INVALID, "prefix")
    found = tenant.get("/kms/keyrings", prefix="a_")
    assert ([each["name"] for each in found["keyrings"]], found["total"]) == (["a_b"], 1)


@pytest.mark.threat("other-tenant")
def test_a_place_in_a_list_is_a_name_and_no_more(
    tenant: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """A position from another tenant's list, or without a keyring, lists one's own keyrings."""
    other = new_tenant()
    for caller, name in ((tenant, "b"), (other, "a.secret"), (other, "c")):
        caller.post("/kms/keyrings", {"name": name}, status=201)
    place = other.get("/kms/keyrings", limit=1)["next"]
    assert place == "a.secret"
    listed = tenant.get("/kms/keyrings", after=place)
    assert ([each["name"] for each in listed["keyrings"]], listed["total"]) == (["b", "default"], 2)
    assert tenant.get("/kms/keyrings", after="z" * 128)["keyrings"] == []
    for forged in ("", "a/b", "-", "é", "z" * 129):
        response = tenant.ask("GET", "/kms/keyrings", params={"after": forged})
        assert refusal_of(response) == (*INVALID, "after")


@pytest.mark.parametrize("name", ["%2e", "%2E%2e", "a%2fb", "a%00", "default%20"])
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_a_path_leads_to_no_other_keyring(
    tenant: Caller, new_person: Callable[..., Caller], method: str, name: str
) -> None:
    """Dots, slashes and spaces in a path are no way to another endpoint or keyring."""
    owner = new_person(tenant.tenant_id)
    body: dict[str, str] | None = {} if method == "PATCH" else None
    response = owner.ask_proven(method, f"/kms/keyrings/{name}", body)
    assert response.status_code in (400, 404, 405), response.text
    assert tenant.get("/kms/keyrings")["total"] == 1


@pytest.mark.threat("stolen-api-key")
def test_a_keyring_is_deleted_and_restored_by_people(
    tenant: Caller, new_person: Callable[..., Caller]
) -> None:
    """An owner deletes a keyring with a step-up, a program cannot; both can restore it."""
    for name in (CARDS, "logs"):
        tenant.post("/kms/keyrings", {"name": name}, status=201)
    named = KYBER | {"keyring": CARDS}
    tenant.post("/kms/keys/generate", named, status=201)
    blob = tenant.post("/kem/encrypt", named | {"plaintext": TEXT})["ciphertext"]
    owner = new_person(tenant.tenant_id)
    developer = new_person(tenant.tenant_id, role="developer")
    path = f"/kms/keyrings/{CARDS}"
    for caller, code in ((tenant, "ERR_POLICY_001"), (developer, "ERR_FORBIDDEN_001")):
        response = caller.ask_proven("DELETE", path)
        assert refusal_of(response)[:2] == (403, code)
    assert refusal_of(owner.ask("DELETE", path))[0] == 401  # without a step-up
    deleted = owner.ask_proven("DELETE", path).json()["data"]
    assert (deleted["name"], "archive_at" in deleted) == (CARDS, True)
    for response in (
        tenant.ask("GET", path),
        owner.ask_proven("DELETE", path),
        tenant.ask("POST", "/kem/encrypt", named | {"plaintext": TEXT}),
        tenant.ask("GET", "/kms/keys", params=named),
    ):
        assert refusal_of(response)[:2] == NOT_FOUND[:2]
    taken = tenant.refusal("/kms/keyrings", {"name": CARDS})
    assert taken == (409, "ERR_CONFLICT_001", "name")
    assert [each["name"] for each in tenant.get("/kms/keyrings")["keyrings"]] == ["default", "logs"]
    listed = tenant.get("/kms/keyrings", deleted=True)["keyrings"]
    assert [(each["name"], each["archive_at"]) for each in listed] == [
        (CARDS, deleted["archive_at"])
    ]
    restored = tenant.post(f"{path}/restore")
    assert "archive_at" not in restored
    opening = named | {"ciphertext": blob, "key_version": 1}
    assert tenant.post("/kem/decrypt", opening)["plaintext"] == TEXT
    response = owner.ask_proven("DELETE", "/kms/keyrings/default")
    assert refusal_of(response) == (*INVALID, "name")
    assert refusal_of(tenant.ask("POST", "/kms/keyrings/nowhere/restore"))[:2] == NOT_FOUND[:2]


@pytest.mark.threat("stolen-api-key")
def test_a_protected_keyring_keeps_its_keys(
    tenant: Caller, new_person: Callable[..., Caller]
) -> None:
    """No version of a keyring with the label protected is archived, and the keyring is not deleted."""
    owner = new_person(tenant.tenant_id)
    labels = {"protected": "etcd of the cluster prod"}
    tenant.post("/kms/keyrings", {"name": CARDS, "labels": labels}, status=201)
    named = KYBER | {"keyring": CARDS}
    tenant.post("/kms/keys/generate", named, status=201)
    tenant.post("/kms/keys/rotate", named, status=201)
    old = named | {"key_version": 1}
    for response in (
        owner.ask_proven("POST", "/kms/keys/archive", old),
        owner.ask_proven("DELETE", f"/kms/keyrings/{CARDS}"),
    ):
        assert refusal_of(response)[:2] == (403, "ERR_POLICY_001")
        assert "keyring-protection" in response.json()["error"]["message"]
    assert patch(owner, CARDS, labels={})["labels"] == {}
    assert owner.ask_proven("POST", "/kms/keys/archive", old).is_success


@pytest.mark.threat("stolen-api-key")
def test_a_program_deletes_only_a_keyring_that_allows_it(
    tenant: Caller, new_person: Callable[..., Caller], installation: Installation
) -> None:
    """An API key with the scope needs deletion_allowed too, which a developer cannot set."""
    owner = new_person(tenant.tenant_id)
    developer = new_person(tenant.tenant_id, role="developer")
    scopes = [{"operations": ["*", "delete-keyring"], "keyrings": ["payments.*"]}]
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    made = owner.post_proven(path, {"scopes": scopes, "name": "terraform"}, status=201)
    program = installation.caller(made["api_key"])
    keyring = f"/kms/keyrings/{CARDS}"
    assert program.post("/kms/keyrings", {"name": CARDS}, status=201)["deletion_allowed"] is False
    response = program.ask("DELETE", keyring)
    assert refusal_of(response) == (403, "ERR_POLICY_001", None)
    assert "deletion_allowed" in response.json()["error"]["message"]
    response = developer.ask_proven("PATCH", keyring, {"deletion_allowed": True})
    assert refusal_of(response)[:2] == (403, "ERR_FORBIDDEN_001")
    response = developer.ask_proven(
        "POST", "/kms/keyrings", {"name": "x", "deletion_allowed": True}
    )
    assert refusal_of(response)[:2] == (403, "ERR_FORBIDDEN_001")
    response = program.ask("PATCH", "/kms/keyrings/default", {"deletion_allowed": True})
    assert refusal_of(response)[:2] == (403, "ERR_POLICY_001")
    assert patch(owner, CARDS, deletion_allowed=True)["deletion_allowed"] is True
    assert patch(developer, CARDS, deletion_allowed=False)["deletion_allowed"] is False
    assert refusal_of(program.ask("DELETE", keyring))[:2] == (403, "ERR_POLICY_001")
    changed = program.ask("PATCH", keyring, {"deletion_allowed": True}).json()["data"]
    assert changed["deletion_allowed"] is True
    assert patch(tenant, CARDS, description="cards")["deletion_allowed"] is True
    deleted = program.ask("DELETE", keyring, params={"delay_days": 30}).json()["data"]
    assert (deleted["name"], deleted["deletion_allowed"]) == (CARDS, True)
    assert refusal_of(program.ask("DELETE", keyring))[:2] == NOT_FOUND[:2]
    recorded = tenant.get("/audit/records", operation="delete-keyring")["records"]
    outcomes = [record["outcome"] for record in recorded]
    assert outcomes == ["deletion-denied", "deletion-denied", "success", "keyring-not-found"]
    assert tenant.post(f"{keyring}/restore")["deletion_allowed"] is True


@pytest.mark.threat("stolen-api-key")
def test_deletions_and_restores_at_once_take_turns(
    tenant: Caller, new_person: Callable[..., Caller], installation: Installation
) -> None:
    """Of many requests at once, no deletion succeeds twice without a restore between, and no creation."""
    owner = new_person(tenant.tenant_id)
    scopes = [{"operations": ["*", "delete-keyring"], "keyrings": [CARDS]}]
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    made = owner.post_proven(path, {"scopes": scopes, "allow_absent_keyrings": True}, status=201)
    tenant.post("/kms/keyrings", {"name": CARDS}, status=201)
    patch(owner, CARDS, deletion_allowed=True)

    def ask_all(_: int) -> set[int]:
        program = installation.caller(made["api_key"], tenant.tenant_id)
        return {
            program.ask(method, path, body).status_code
            for _ in range(6)
            for method, path, body in (
                ("DELETE", f"/kms/keyrings/{CARDS}?delay_days=30", None),
                ("POST", "/kms/keyrings", {"name": CARDS}),
                ("POST", f"/kms/keyrings/{CARDS}/restore", None),
            )
        }

    with ThreadPoolExecutor(6) as callers:
        statuses = set().union(*callers.map(ask_all, range(6)))
    assert statuses <= {200, 404, 409}
    recorded = tenant.get("/audit/records", outcome="success", limit=500)["records"]
    turns = [
        record["operation"]
        for record in recorded
        if record["operation"] in {"create-keyring", "delete-keyring", "restore-keyring"}
    ]
    assert turns.count("create-keyring") == 1
    assert turns.count("delete-keyring") > 1
    assert ("delete-keyring", "delete-keyring") not in pairwise(turns)


def test_versions_below_a_minimum_are_denied(tenant: Caller) -> None:
    """The error names policy and field, and JWKS omits the key.

    A lower minimum allows the key again.
    """
    tenant.post("/kms/keyrings", {"name": CARDS}, status=201)
    named, signing = KYBER | {"keyring": CARDS}, {"algorithm": "Dilithium3", "keyring": CARDS}
    for body in (named, signing):
        tenant.post("/kms/keys/generate", body, status=201)
    blob = tenant.post("/kem/encrypt", named | {"plaintext": TEXT})["ciphertext"]
    tenant.post("/kms/keys/rotate", named, status=201)
    opening = named | {"ciphertext": blob, "key_version": 1}
    assert patch(tenant, CARDS, minimum_decryption_version=2)["minimum_decryption_version"] == 2
    response = tenant.ask("POST", "/kem/decrypt", opening)
    assert refusal_of(response) == (403, "ERR_POLICY_001", "key_version")
    assert "keyring-minimum-version" in response.json()["error"]["message"]
    tenant.post("/kem/encrypt", named | {"plaintext": TEXT})
    assert tenant.refusal("/signature/sign", signing | {"message": TEXT})[0] == 403
    assert tenant.ask("GET", "/kms/jwks", params={"keyring": CARDS}).json()["keys"] == []
    recorded = tenant.get("/audit/records", operation="decrypt", keyring=CARDS)["records"]
    assert [each["outcome"] for each in recorded] == ["version-below-minimum"]
    patch(tenant, CARDS, minimum_decryption_version=1)
    assert tenant.post("/kem/decrypt", opening)["plaintext"] == TEXT


def test_generating_if_absent(tenant: Caller) -> None:
    """The first call generates a key (201). Later calls return it (200), until it is retired."""
    wanted = KYBER | {"if_absent": True}
    first = tenant.post("/kms/keys/generate", wanted, status=201)
    assert tenant.post("/kms/keys/generate", wanted, status=200) == first
    assert tenant.refusal("/kms/keys/generate", KYBER) == (*INVALID, "algorithm")
    tenant.post("/kms/keys/retire", KYBER | {"key_version": 1})
    assert tenant.post("/kms/keys/generate", wanted, status=201)["key_version"] == 2


@pytest.mark.parametrize(
    ("alias", "algorithm"), [("ML-KEM-768", "Kyber768"), ("ML-DSA-65", "Dilithium3")]
)
def test_the_standard_s_name_is_another_name(tenant: Caller, alias: str, algorithm: str) -> None:
    """A response has the algorithm name of the request; key and record are the same."""
    made = tenant.post("/kms/keys/generate", {"algorithm": alias}, status=201)
    assert made["algorithm"] == alias
    assert tenant.get("/kms/keys/active", algorithm=algorithm) == made | {"algorithm": algorithm}
    for name in (alias, algorithm):
        assert [each["algorithm"] for each in tenant.get("/kms/keys", algorithm=name)["keys"]] == [
            name
        ]
    path, body = (
        ("/kem/encrypt", {"plaintext": TEXT})
        if algorithm == "Kyber768"
        else ("/signature/sign", {"message": TEXT})
    )
    assert tenant.post(path, body | {"algorithm": alias})["algorithm"] == alias
    records = tenant.get("/audit/records")["records"]
    assert {each["algorithm"] for each in records if each["algorithm"]} == {algorithm}


def test_label_changes_keep_other_labels(tenant: Caller) -> None:
    """Labels are set and removed by name, by several people at once, up to 20."""
    tenant.post("/kms/keyrings", {"name": CARDS, "labels": {"team": "a", "env": "b"}}, status=201)
    changed = patch(tenant, CARDS, label_changes={"env": None, "gone": None, "class": ""})
    assert changed["labels"] == {"team": "a", "class": ""}
    with ThreadPoolExecutor(8) as threads:
        names = [f"of-{number}" for number in range(18)]
        list(threads.map(lambda name: patch(tenant, CARDS, label_changes={name: "x"}), names))
    labels = tenant.get(f"/kms/keyrings/{CARDS}")["labels"]
    assert labels == {"team": "a", "class": "", **dict.fromkeys(names, "x")}
    refused = tenant.ask_proven("PATCH", f"/kms/keyrings/{CARDS}", {"label_changes": {"more": "x"}})
    assert refusal_of(refused) == (403, "ERR_FORBIDDEN_001", "label_changes")
    both = patch(tenant, CARDS, labels={"team": "c"}, label_changes={"more": "x"})
    assert both["labels"] == {"team": "c", "more": "x"}
    for wrong in (["a"], {"A": None}, {"a": 1}, {f"a{number}": None for number in range(21)}):
        refused = tenant.ask_proven("PATCH", f"/kms/keyrings/{CARDS}", {"label_changes": wrong})
        assert refusal_of(refused) == (*INVALID, "label_changes")
