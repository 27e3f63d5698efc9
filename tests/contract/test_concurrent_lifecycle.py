"""Many callers change one key at the same time, and one caller watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fixtures.caller import Caller
from tests.sampling import IS_EXHAUSTIVE

WRITERS = 8
ROUNDS = 75 if IS_EXHAUSTIVE else 6
CHANGES = 200 if IS_EXHAUSTIVE else 20
KYBER = {"algorithm": "Kyber768"}


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


@contextmanager
def _reading(tenant: Caller) -> Iterator[list[list[int]]]:
    """Read the active versions repeatedly; the list has all observations at the end."""
    seen: list[list[int]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            listed = tenant.get("/kms/keys", status="active", **KYBER)
            assert listed["total"] == len(listed["keys"])
            seen.append([key["key_version"] for key in listed["keys"]])

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            yield seen
        finally:
            over.set()
            reader.result()


@pytest.fixture(scope="module")
def rotated(new_tenant: Callable[..., Caller]) -> tuple[Caller, list[Any], list[list[int]]]:
    """A tenant whose key eight callers rotated often, with the responses and the observations."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", KYBER, status=201)
    with ThreadPoolExecutor(WRITERS) as pool, _reading(tenant) as seen:
        asked = [
            pool.submit(tenant.ask, "POST", "/kms/keys/rotate", KYBER)
            for _ in range(WRITERS * ROUNDS)
        ]
        responses = [each.result() for each in asked]
    return tenant, responses, seen


def test_every_rotation_succeeds_once(
    rotated: tuple[Caller, list[Any], list[list[int]]],
) -> None:
    """Each rotation is 201 and makes its own version from the one before."""
    _, responses, _ = rotated
    assert {response.status_code for response in responses} == {201}
    made = [response.json()["data"] for response in responses]
    assert sorted(key["key_version"] for key in made) == list(range(2, WRITERS * ROUNDS + 2))
    assert all(key["old_key_version"] == key["key_version"] - 1 for key in made)


def test_the_versions_have_no_gap(rotated: tuple[Caller, list[Any], list[list[int]]]) -> None:
    """Afterwards the versions have no gaps, and all but the last are retired."""
    tenant, _, _ = rotated
    keys = tenant.get("/kms/keys")["keys"]
    assert [key["key_version"] for key in keys] == list(range(1, WRITERS * ROUNDS + 2))
    assert [key["status"] for key in keys] == WRITERS * ROUNDS * ["retired"] + ["active"]
    assert len({key["public_key"] for key in keys}) == len(keys)


def test_one_version_is_active_at_any_moment(
    rotated: tuple[Caller, list[Any], list[list[int]]],
) -> None:
    """A concurrent reader sees exactly one active version, and its number never decreases."""
    _, _, seen = rotated
    assert {len(active) for active in seen} == {1}
    assert seen == sorted(seen)
    during = {version for (version,) in seen} - {1, WRITERS * ROUNDS + 1}
    assert during, "nobody looked on while the rotations ran"


def test_generate_and_retire_leave_at_most_one_active(tenant: Caller) -> None:
    """With concurrent generate and retire, at most one version is active and numbers are unique."""

    def generate(_: int) -> tuple[int, int]:
        response = tenant.ask("POST", "/kms/keys/generate", KYBER)
        assert response.status_code in (201, 400)
        return response.status_code, response.json().get("data", {}).get("key_version", 0)

    def retire(_: int) -> None:
        response = tenant.ask("GET", "/kms/keys/active", params=KYBER)
        assert response.status_code in (200, 404)
        if response.is_success:
            body = {**KYBER, "key_version": response.json()["data"]["key_version"]}
            tenant.post("/kms/keys/retire", body)

    with ThreadPoolExecutor(WRITERS) as pool, _reading(tenant) as seen:
        generating = [pool.submit(generate, n) for n in range(CHANGES)]
        retiring = [pool.submit(retire, n) for n in range(CHANGES)]
        made = sorted(each.result()[1] for each in generating if each.result()[0] == 201)
        assert all(each.result() is None for each in retiring)
    assert made == list(range(1, len(made) + 1))
    assert tenant.get("/kms/keys")["total"] == len(made)
    assert {len(active) for active in seen} <= {0, 1}


@pytest.mark.parametrize("round_", range(10 if IS_EXHAUSTIVE else 3))
def test_of_generations_at_once_one_succeeds(tenant: Caller, round_: int) -> None:
    """Of eight concurrent generations one is 201; the rest are 400 and name the algorithm."""
    with ThreadPoolExecutor(WRITERS) as pool:
        asked = [pool.submit(tenant.ask, "POST", "/kms/keys/generate", KYBER) for _ in range(8)]
        responses = [each.result() for each in asked]
    assert sorted(response.status_code for response in responses) == [201] + 7 * [400]
    errors = [response.json()["error"] for response in responses if not response.is_success]
    assert {(error["error_code"], error["field"]) for error in errors} == {
        ("ERR_INVALID_001", "algorithm")
    }
    assert tenant.get("/kms/keys")["total"] == 1
