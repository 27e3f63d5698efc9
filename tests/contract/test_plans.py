"""The features of each plan, and the order of a request's checks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import Caller

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, Algorithm, Kind

PLANS = ["free", "starter", "professional", "enterprise", "enterprise_plus"]
ALL, STARTER_UP, ENTERPRISE_UP = PLANS, PLANS[1:], PLANS[3:]
WRITING = {
    "Kyber768": ALL,
    "X-Wing": STARTER_UP,
    "ML-KEM-1024": ENTERPRISE_UP,
    "Dilithium3": ALL,
    "Composite-ML-DSA": STARTER_UP,
    "ML-DSA-87": ENTERPRISE_UP,
    "SLH-DSA-SHA2-128s": STARTER_UP,
    "SLH-DSA-SHA2-128f": STARTER_UP,
    "SLH-DSA-SHA2-192s": STARTER_UP,
    "SLH-DSA-SHA2-256s": STARTER_UP,
    "XAES-256-GCM": ALL,
    "HMAC-SHA-256": ALL,
    "HMAC-SHA-512": ALL,
}
"""The specification's column "Plans (write side)", and the symmetric algorithms, on every plan."""
WRITES = {
    Kind.KEM: ("/kem/encrypt", "plaintext", "ERR_KEM_001"),
    Kind.CIPHER: ("/kem/encrypt", "plaintext", "ERR_KEM_001"),
    Kind.SIGNATURE: ("/signature/sign", "message", "ERR_SIG_001"),
    Kind.MAC: ("/mac/compute", "message", "ERR_INVALID_001"),
}
"""A writing operation of each kind: its path, a field, and the error code if the field is missing.
"""
READS = {
    Kind.KEM: ("/kem/decrypt", {"ciphertext": "QUJD"}),
    Kind.CIPHER: ("/kem/decrypt", {"ciphertext": "QUJD"}),
    Kind.SIGNATURE: ("/signature/verify", {"message": "QUJD", "signature": "QUJD"}),
    Kind.MAC: ("/mac/verify", {"message": "QUJD", "mac": "QUJD"}),
}
"""A reading operation of each kind: its path and fields."""
POLICY = (403, "ERR_POLICY_001", None)
NOT_FOUND = (404, "ERR_NOT_FOUND_001")


@pytest.fixture(scope="module")
def on_plan(new_tenant: Callable[..., Caller]) -> dict[str, Caller]:
    """One tenant on each plan."""
    return {plan: new_tenant(plan) for plan in PLANS}


def test_every_algorithm_is_in_the_specification() -> None:
    """The table of plans has all served algorithms except legacy ones."""
    assert {algorithm.value for algorithm in CURRENT} <= WRITING.keys()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("algorithm", CURRENT)
def test_writing_needs_the_plan(
    on_plan: dict[str, Caller], algorithm: Algorithm, plan: str
) -> None:
    """Encrypt and sign pass the policy exactly if the plan has the algorithm."""
    path, field, _ = WRITES[ALGORITHMS[algorithm].kind]
    body = {"algorithm": algorithm.value, field: "QUJD"}
    refusal = on_plan[plan].refusal(path, body)
    if plan in WRITING[algorithm.value]:
        assert refusal[:2] == NOT_FOUND
    else:
        assert refusal == POLICY
        generate = on_plan[plan].refusal("/kms/keys/generate", {"algorithm": algorithm.value})
        assert generate == POLICY


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("path", ["/kem/key/wrap", "/kem/wrap"])
def test_key_wrap_needs_starter(on_plan: dict[str, Caller], path: str, plan: str) -> None:
    """Wrap needs starter or higher, also with Kyber768; unwrap is on every plan."""
    body = {"symmetric_key": "QUFBQUFBQUFBQUFBQUFBQQ==", "key_version": 1}
    refusal = on_plan[plan].refusal(path, body)
    assert refusal[:2] == (POLICY[:2] if plan == "free" else NOT_FOUND)
    unwrapped = on_plan[plan].refusal(
        path.replace("wrap", "unwrap"), {"wrapped_key": "AAAA" * 400, "key_version": 1}
    )
    assert unwrapped[:2] == NOT_FOUND


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("algorithm", CURRENT)
def test_reading_needs_no_plan(
    on_plan: dict[str, Caller], world: World, algorithm: Algorithm, plan: str
) -> None:
    """Decrypt, verify and key queries work on every plan for every algorithm."""
    version = {"algorithm": algorithm.value, "key_version": 1}
    path, fields = READS[ALGORITHMS[algorithm].kind]
    refusal = on_plan[plan].refusal(path, {**version, **fields})
    assert refusal[:2] == NOT_FOUND
    listed = on_plan[plan].get("/kms/keys", algorithm=algorithm.value)
    assert listed["total"] == 0


@pytest.mark.parametrize("algorithm", CURRENT)
def test_policy_comes_before_the_other_fields(
    on_plan: dict[str, Caller], algorithm: Algorithm
) -> None:
    """A missing plan is reported before a missing plaintext."""
    named = {"algorithm": algorithm.value}
    path, field, code = WRITES[ALGORITHMS[algorithm].kind]
    refusal = on_plan["free"].refusal(path, named)
    assert refusal == ((400, code, field) if "free" in WRITING[algorithm.value] else POLICY)


def test_algorithm_comes_before_policy_and_fields(on_plan: dict[str, Caller]) -> None:
    """An unknown algorithm is reported before anything else in the body."""
    body = {"algorithm": "RSA", "plaintext": 1, "key_version": "x", "mode": "y"}
    refusal = on_plan["free"].refusal("/kem/encrypt", body)
    assert refusal == (400, "ERR_INVALID_001", "algorithm")


def test_fields_come_before_the_key(on_plan: dict[str, Caller]) -> None:
    """A missing field is reported before a missing key."""
    refusal = on_plan["free"].refusal("/kem/decrypt", {"key_version": 99})
    assert refusal == (400, "ERR_KEM_002", "ciphertext")


@pytest.fixture
def downgraded(operator: Caller, new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant on free with active keys of X-Wing and Dilithium3 from a better plan."""
    tenant = new_tenant("enterprise_plus")
    for algorithm in ("X-Wing", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    changed = operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"plan": "free"})
    assert changed.json()["data"]["plan"] == "free"
    return tenant


def test_the_quota_of_keys_stops_generate_and_nothing_else(downgraded: Caller) -> None:
    """A free tenant with two active keys cannot generate a third, but can rotate and retire."""
    kyber, dilithium = {"algorithm": "Kyber768"}, {"algorithm": "Dilithium3"}
    quota_reached = (403, "ERR_FORBIDDEN_001", None)
    assert downgraded.refusal("/kms/keys/generate", kyber) == quota_reached
    assert downgraded.get("/kms/keys")["total"] == 2
    assert downgraded.post("/kms/keys/rotate", dilithium, status=201)["key_version"] == 2
    assert downgraded.refusal("/kms/keys/generate", kyber) == quota_reached
    downgraded.post("/kms/keys/retire", {**dilithium, "key_version": 2})
    assert downgraded.post("/kms/keys/generate", kyber, status=201)["key_version"] == 1
    assert downgraded.refusal("/kms/keys/generate", dilithium) == quota_reached


def test_what_was_made_on_a_better_plan_is_still_read(world: World, downgraded: Caller) -> None:
    """After a downgrade, the plan's algorithms no longer encrypt (403); a bad ciphertext is still 400."""
    named = {"algorithm": "X-Wing", "key_version": 1}
    assert downgraded.refusal("/kem/encrypt", {**named, "plaintext": "QUJD"}) == POLICY
    refusal = downgraded.refusal("/kem/decrypt", {**named, "ciphertext": "QUJD"})
    assert refusal[:2] == (400, "ERR_KEM_002")


@pytest.mark.parametrize(
    ("path", "status", "fields"),
    [("/kms/keys/rotate", 201, {}), ("/kms/keys/retire", 200, {"key_version": 1})],
)
def test_a_plan_stops_nobody_from_giving_a_key_up(
    downgraded: Caller, path: str, status: int, fields: dict[str, int]
) -> None:
    """Keys of a better plan can be rotated and retired after a downgrade."""
    downgraded.post(path, {"algorithm": "X-Wing", **fields}, status=status)
