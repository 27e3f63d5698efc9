"""The specification's states and transitions of keys, over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation
from tests.sampling import fast_algorithms_first

from pqkeep_protocol.algorithms import ALGORITHMS, KEY_PAIRS, Algorithm, Operation

if TYPE_CHECKING:
    import httpx2

KEY_FIELDS = {"key_version", "algorithm", "status", "public_key", "created_at"}
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
INVALID_ALGORITHM = (400, "ERR_INVALID_001", "algorithm")

every_algorithm = pytest.mark.parametrize("algorithm", fast_algorithms_first(KEY_PAIRS))


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


def statuses(tenant: Caller, algorithm: Algorithm) -> list[str]:
    """Return the statuses of all versions, oldest first."""
    keys: list[dict[str, Any]] = tenant.get("/kms/keys", algorithm=algorithm.value)["keys"]
    assert [key["key_version"] for key in keys] == list(range(1, len(keys) + 1))
    return [key["status"] for key in keys]


@every_algorithm
def test_the_life_of_keys(
    tenant: Caller, installation: Installation, unb64: Callable[[str], bytes], algorithm: Algorithm
) -> None:
    """All transitions of the table in one sequence, with responses and states."""
    named = {"algorithm": algorithm.value}

    first = tenant.post("/kms/keys/generate", named, status=201)
    assert first.keys() == KEY_FIELDS
    assert (first["key_version"], first["algorithm"], first["status"]) == (
        1,
        algorithm.value,
        "active",
    )
    assert len(unb64(first["public_key"])) == ALGORITHMS[algorithm].public_key_size
    assert TIMESTAMP.fullmatch(first["created_at"])
    assert tenant.get("/kms/keys/active", **named) == first

    assert tenant.refusal("/kms/keys/generate", named) == INVALID_ALGORITHM
    assert statuses(tenant, algorithm) == ["active"]

    second = tenant.post("/kms/keys/rotate", named, status=201)
    assert second.keys() == {"public_key", "key_version", "algorithm", "old_key_version"}
    assert (second["key_version"], second["old_key_version"]) == (2, 1)
    assert second["public_key"] != first["public_key"]
    assert statuses(tenant, algorithm) == ["retired", "active"]

    third = tenant.post("/kms/keys/retire", {**named, "key_version": 2})
    assert third.keys() == KEY_FIELDS
    assert (third["key_version"], third["status"]) == (2, "retired")
    assert third["public_key"] == second["public_key"]
    again = tenant.post("/kms/keys/retire", {**named, "key_version": 2})
    assert again == third
    assert statuses(tenant, algorithm) == ["retired", "retired"]
    assert tenant.refusal("/kms/keys/rotate", named)[:2] == (404, "ERR_NOT_FOUND_001")

    fourth = tenant.post("/kms/keys/generate", named, status=201)
    assert fourth["key_version"] == 3
    assert statuses(tenant, algorithm) == ["retired", "retired", "active"]

    installation.archive(tenant.tenant_id, algorithm, 1)
    assert statuses(tenant, algorithm) == ["archived", "retired", "active"]
    archived = tenant.get("/kms/keys/1", **named)
    assert archived == {**first, "status": "archived"}
    assert tenant.refusal("/kms/keys/retire", {**named, "key_version": 1}) == (
        400,
        "ERR_INVALID_001",
        "key_version",
    )


@every_algorithm
def test_a_retired_version_can_be_looked_up(world: World, algorithm: Algorithm) -> None:
    """A key in any status can be read by version."""
    world.add(algorithm)
    listed = world.caller.get("/kms/keys", algorithm=algorithm.value)["keys"]
    shown = [
        world.caller.get(f"/kms/keys/{version}", algorithm=algorithm.value) for version in (1, 2, 3)
    ]
    assert shown == listed
    assert [key["status"] for key in shown] == ["archived", "retired", "active"]


def test_the_list_is_ordered_and_filtered(world: World) -> None:
    """The list is ordered by algorithm and version, filters combine, and total counts matches."""
    everything = world.caller.get("/kms/keys")
    assert everything.keys() == {"keys", "total"}
    assert everything["total"] == len(everything["keys"]) == 3 * len(world.algorithms)
    place = [(key["algorithm"], key["key_version"]) for key in everything["keys"]]
    assert place == sorted(place)
    for status in ("active", "retired", "archived"):
        found = world.caller.get("/kms/keys", status=status)
        assert found["keys"] == [k for k in everything["keys"] if k["status"] == status]
        assert found["total"] == len(world.algorithms)
        one = world.caller.get("/kms/keys", status=status, algorithm="Kyber768")
        assert one["keys"] == [k for k in found["keys"] if k["algorithm"] == "Kyber768"]
        assert one["total"] == 1


def test_a_tenant_without_keys_has_an_empty_list(nobody: Caller) -> None:
    """An empty list is 200 with total 0."""
    assert nobody.get("/kms/keys") == {"keys": [], "total": 0}


def test_archive_over_the_api_changes_nothing(world: World) -> None:
    """Archiving over the API is refused, and the key is unchanged."""
    before = world.caller.get("/kms/keys")
    body = {"algorithm": "Kyber768", "key_version": 2}
    assert world.caller.refusal("/kms/keys/archive", body) == (403, "ERR_KMS_020", None)
    assert world.caller.get("/kms/keys") == before


def test_a_retired_key_is_not_used_by_default(tenant: Caller) -> None:
    """Encrypt without key_version uses the active key, before and after a rotation."""
    named = {"algorithm": "Kyber768"}
    tenant.post("/kms/keys/generate", named, status=201)
    assert tenant.post("/kem/encrypt", {"plaintext": "QUJD"})["key_version"] == 1
    tenant.post("/kms/keys/rotate", named, status=201)
    assert tenant.post("/kem/encrypt", {"plaintext": "QUJD"})["key_version"] == 2


def test_of_concurrent_generations_one_wins(tenant: Caller) -> None:
    """Sixteen concurrent generations: one 201, fifteen 400, one key."""
    named = {"algorithm": "Kyber768"}
    with ThreadPoolExecutor(16) as pool:
        responses = list(
            pool.map(lambda _: tenant.ask("POST", "/kms/keys/generate", named), range(16))
        )
    assert sorted(response.status_code for response in responses) == [201] + 15 * [400]
    assert statuses(tenant, Algorithm("Kyber768")) == ["active"]


def test_concurrent_rotations_all_count(tenant: Caller) -> None:
    """Sixteen concurrent rotations: sixteen new versions, each returned once, one active."""
    named = {"algorithm": "Kyber768"}
    tenant.post("/kms/keys/generate", named, status=201)
    with ThreadPoolExecutor(16) as pool:
        made = list(
            pool.map(lambda _: tenant.post("/kms/keys/rotate", named, status=201), range(16))
        )
    assert sorted(rotated["key_version"] for rotated in made) == list(range(2, 18))
    assert all(rotated["old_key_version"] == rotated["key_version"] - 1 for rotated in made)
    assert statuses(tenant, Algorithm("Kyber768")) == 16 * ["retired"] + ["active"]


@pytest.mark.threat("stolen-api-key")
@every_algorithm
def test_another_tenants_keys_open_nothing(
    world: World,
    new_tenant: Callable[..., Caller],
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    algorithm: Algorithm,
) -> None:
    """Another tenant's key of the same version opens no ciphertext and verifies no signature."""
    stranger = new_tenant()
    named = {"algorithm": algorithm.value}
    stranger.post("/kms/keys/generate", named, status=201)
    stranger.post("/kms/keys/rotate", named, status=201)
    stranger.post("/kms/keys/rotate", named, status=201)
    operations = ALGORITHMS[algorithm].operations
    for version in (2, 3):
        if Operation.DECRYPT in operations:
            blob = world.body(Operation.DECRYPT, algorithm, version)
            assert stranger.refusal("/kem/decrypt", blob)[:2] == (400, "ERR_KEM_002")
        if Operation.DECAPSULATE in operations:
            body = world.body(Operation.DECAPSULATE, algorithm, version)
            right = world.caller.post("/kem/decapsulate", body)["shared_secret"]
            assert right not in stranger.ask("POST", "/kem/decapsulate", body).text
        if Operation.UNWRAP in operations:
            body = world.body(Operation.UNWRAP, algorithm, version)
            assert stranger.refusal("/kem/key/unwrap", body)[:2] == (400, "ERR_KEM_012")
        if Operation.VERIFY in operations:
            body = world.body(Operation.VERIFY, algorithm, version)
            assert stranger.post("/signature/verify", body)["valid"] is False
    mine, other = (_identities(caller) for caller in (world.caller, stranger))
    assert len(other) == 3
    assert mine.isdisjoint(other)


def _identities(caller: Caller) -> set[str]:
    """Return the public keys and fingerprints of a tenant's keys."""
    keys = caller.get("/kms/keys")["keys"]
    return {key.get("public_key") or key["fingerprint"] for key in keys}


def test_another_tenants_keys_do_not_exist(
    world: World,
    nobody: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
) -> None:
    """Another tenant's keys are 404 for every use."""
    for path, body in (
        ("/kem/encrypt", {"plaintext": "QUJD", "key_version": 3}),
        ("/kem/encapsulate", {"key_version": 3}),
        ("/kem/decrypt", world.body(Operation.DECRYPT, Algorithm("Kyber768"), 3)),
        ("/signature/sign", {"message": "QUJD", "key_version": 3}),
        ("/signature/verify", world.body(Operation.VERIFY, Algorithm("Dilithium3"), 3)),
        ("/kms/keys/rotate", {"algorithm": "Kyber768"}),
        ("/kms/keys/retire", {"algorithm": "Kyber768", "key_version": 3}),
    ):
        assert nobody.refusal(path, body)[:2] == (404, "ERR_NOT_FOUND_001"), path
    response = nobody.ask("GET", "/kms/keys/3?algorithm=Kyber768")
    assert refused(response)[:2] == (404, "ERR_NOT_FOUND_001")
    assert nobody.get("/kms/keys")["total"] == 0


def test_keys_and_tenants_are_listed_page_by_page(tenant: Caller, operator: Caller) -> None:
    """Pages with limit and after have each entry once, in order; total counts all."""
    for path in ("generate", "rotate", "rotate"):
        tenant.post(f"/kms/keys/{path}", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kms/keys/generate", {"algorithm": "Dilithium3"}, status=201)
    for caller, path, name in ((tenant, "/kms/keys", "keys"), (operator, "/tenants", "tenants")):
        whole = caller.get(path)
        assert whole.keys() == {name, "total"}
        listed, page = [], caller.get(path, limit=3)
        while True:
            listed += page[name]
            assert page["total"] == whole["total"]
            if "next" not in page:
                break
            assert len(page[name]) == 3
            page = caller.get(path, limit=3, after=page["next"])
        assert listed == whole[name]


@pytest.mark.parametrize(
    "query",
    [
        ("limit", "0"),
        ("limit", "10001"),
        ("limit", "all"),
        ("after", "Kyber768"),
        ("after", "Kyber768:0"),
        ("after", "Kyber512:1"),
        ("after", "Kyber768:1:1"),
        ("after", "Kyber768:+1"),
    ],
)
def test_what_is_no_page(tenant: Caller, query: tuple[str, str]) -> None:
    """A limit or position outside the documented values is 400 ERR_INVALID_001."""
    response = tenant.ask("GET", "/kms/keys", params=dict([query]))
    assert refusal_of(response) == (400, "ERR_INVALID_001", query[0])
