"""Tiers, ended subscriptions, the month's quota, and an operator's own plans and policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.sampling import SLOW_ALGORITHMS, later

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, LIFECYCLE, READING, Algorithm, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping


POLICY = (403, "ERR_POLICY_001", None)
KYBER, X_WING = {"algorithm": "Kyber768"}, {"algorithm": "X-Wing"}
ALLOWANCE = 20
"""Operations per month on free, in the installation with its own rules."""


def _change(operator: Caller, tenant: Caller, **changes: object) -> dict[str, Any]:
    response = operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", changes)
    assert response.status_code == 200, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def _message(tenant: Caller, path: str, body: object) -> str:
    """Return the message of a request refused by a policy."""
    response = tenant.ask("POST", path, body)
    assert (response.status_code, response.json()["error"]["error_code"]) == POLICY[:2]
    message: str = response.json()["error"]["message"]
    return message


@pytest.fixture(scope="module")
def ended(operator: Caller, world: World) -> Iterator[World]:
    """The world with an ended subscription. It is renewed afterwards."""
    changed = _change(operator, world.caller, subscription="ended", requests_per_minute=1_000_000)
    assert (changed["plan"], changed["subscription"]) == ("free", "ended")
    yield world
    changed = _change(operator, world.caller, subscription="active", requests_per_minute="plan")
    assert changed["plan"] == "enterprise_plus"


USES = [
    later((operation, algorithm)) if algorithm in SLOW_ALGORITHMS else (operation, algorithm)
    for algorithm in CURRENT
    for operation in sorted(ALGORITHMS[algorithm].operations - LIFECYCLE)
]


@pytest.mark.parametrize(("operation", "algorithm"), USES)
def test_after_a_subscription_everything_is_read_and_free_is_written(
    ended: World, paths: Mapping[Operation, str], operation: Operation, algorithm: Algorithm
) -> None:
    """Reading works with every algorithm; writing only with free's, without key wrap."""
    body = ended.body(operation, algorithm, 3)
    if operation is Operation.RE_ENCRYPT:  # which writes with the target's
        body["to"] = {"algorithm": "Kyber768"}
    is_free = algorithm in ("Kyber768", "Dilithium3") or ALGORITHMS[algorithm].is_symmetric
    free = is_free and operation is not Operation.WRAP
    if operation not in READING and not free:
        assert "subscription-ended" in _message(ended.caller, paths[operation], body)
        return
    data = ended.caller.post(paths[operation], body)
    if operation is Operation.DECRYPT:
        assert data["plaintext"] == ended.plaintext
    if operation is Operation.UNWRAP:
        assert data["symmetric_key"] == ended.secret
    verifying = (Operation.VERIFY, Operation.VERIFY_HASH, Operation.VERIFY_MU, Operation.VERIFY_MAC)
    if operation in verifying:
        assert data["valid"] is True


def test_after_a_subscription_the_plan_is_free(ended: World, operator: Caller) -> None:
    """The tenant sees the plan free; the operator also sees its earlier tier."""
    path = f"/tenants/{ended.caller.tenant_id}"
    assert ended.caller.get(path)["plan"] == "free"
    assert operator.get(path)["plan"] == "free"
    listed = [each for each in operator.get("/tenants")["tenants"] if each["id"] in path]
    assert [(each["plan"], each["tier"]) for each in listed] == [("free", "enterprise_plus")]


@pytest.fixture
def tenant(operator: Caller, new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant on starter with one X-Wing key and an ended subscription."""
    made = new_tenant("starter")
    made.post("/kms/keys/generate", X_WING, status=201)
    _change(operator, made, subscription="ended")
    return made


def test_after_a_subscription_keys_are_kept_in_order(tenant: Caller) -> None:
    """Keys can be rotated, listed and retired.

    New keys can only have the free plan's algorithms.
    """
    assert tenant.post("/kms/keys/rotate", X_WING, status=201)["key_version"] == 2
    tenant.post("/kms/keys/retire", {**X_WING, "key_version": 2})
    assert tenant.get("/kms/keys")["total"] == 2
    assert tenant.refusal("/kms/keys/generate", X_WING) == POLICY
    tenant.post("/kms/keys/generate", KYBER, status=201)


def test_after_a_subscription_free_s_limits_hold(tenant: Caller) -> None:
    """Rate limit and number of API keys are those of the plan free."""
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    tenant.post(path, status=201)
    assert tenant.refusal(path, {}) == (400, "ERR_INVALID_001", None)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(tenant.ask, "GET", "/kms/keys") for _ in range(100)]
        late = [each.result() for each in asked if not each.result().is_success]
    assert late
    assert late[0].headers["ratelimit-limit"] == "100"


@pytest.mark.parametrize("change", [{"plan": "starter"}, {"tier": "starter"}])
def test_a_new_plan_is_a_running_subscription(
    operator: Caller, tenant: Caller, change: dict[str, object]
) -> None:
    """Setting a plan or tier renews the subscription, unless the request also ends it."""
    renewed = _change(operator, tenant, **change)
    assert (renewed["plan"], renewed["subscription"]) == ("starter", "active")
    tenant.post("/kem/encrypt", {**X_WING, "plaintext": "QUJD"})
    again = _change(operator, tenant, **change, subscription="ended")
    assert (again["plan"], again["tier"], again["subscription"]) == ("free", "starter", "ended")
    assert tenant.refusal("/kem/encrypt", {**X_WING, "plaintext": "QUJD"}) == POLICY


def test_growth_is_the_professional_plan(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """A tenant on growth has the plan professional with all its features."""
    tenant = new_tenant("free")
    changed = _change(operator, tenant, tier="growth")
    assert (changed["plan"], changed["tier"]) == ("professional", "growth")
    assert tenant.get(f"/tenants/{tenant.tenant_id}")["plan"] == "professional"
    tenant.post("/kms/keys/generate", X_WING, status=201)
    assert tenant.refusal("/kms/keys/generate", {"algorithm": "ML-KEM-1024"}) == POLICY
    professional = _change(operator, tenant, plan="professional")
    assert (professional["plan"], professional["tier"]) == ("professional", "professional")


@pytest.mark.parametrize("plan", ["growth", "gold"])
def test_growth_is_no_plan(operator: Caller, plan: str) -> None:
    """The name of a tier that is not a plan makes no tenant: 400, field plan."""
    body = {"name": f"tenant {plan}", "plan": plan}
    assert operator.refusal("/tenants", body) == (400, "ERR_INVALID_001", "plan")


@pytest.mark.parametrize(
    ("plan", "path", "body", "names"),
    [
        ("free", "/kem/encrypt", X_WING, "plan-lacks-algorithm"),
        ("free", "/kem/key/wrap", KYBER, "plan-lacks-key-wrap"),
        ("free", "/kem/wrap", X_WING, "plan-lacks-algorithm and plan-lacks-key-wrap"),
        ("professional", "/signature/sign", {"algorithm": "ML-DSA-87"}, "plan-lacks-algorithm"),
    ],
)
def test_a_refusal_names_the_policy(
    new_tenant: Callable[..., Caller], plan: str, path: str, body: object, names: str
) -> None:
    """A refusal by policy names the policy."""
    message = _message(new_tenant(plan), path, body)
    assert message.startswith(f"denied by policy {names}: plans that allow it: ")
    assert plan not in message.rpartition(": ")[2].split(", ")


@pytest.fixture(scope="module")
def own_operator(own_rules: Installation) -> Caller:
    """The operator of the installation with its own rules."""
    return own_rules.operator()


def test_an_own_policy_denies_by_its_name(own_rules: Installation) -> None:
    """An operator's policy refuses exactly what it forbids, with 403 and its name."""
    tenant = own_rules.new_tenant("starter")
    tenant.post("/kms/keys/generate", X_WING, status=201)
    body = {**X_WING, "plaintext": "QUJD"}
    message = _message(tenant, "/kem/encrypt", body)
    assert message.startswith("denied by policy no-x-wing-for-starters: plans that allow it: ")
    made = tenant.post("/kem/encapsulate", {**X_WING, "key_version": 1})
    read = {**X_WING, "key_version": 1, "kem_ciphertext": made["kem_ciphertext"]}
    assert tenant.post("/kem/decapsulate", read)["shared_secret"] == made["shared_secret"]
    better = own_rules.new_tenant("professional")
    better.post("/kms/keys/generate", X_WING, status=201)
    better.post("/kem/encrypt", body)


def test_an_own_rate_limit_holds(own_rules: Installation) -> None:
    """A tier's rate limit is the one in the operator's plans file."""
    tenant = own_rules.new_tenant("starter")
    statuses = [tenant.ask("GET", "/kms/keys").status_code for _ in range(10)]
    assert statuses == 7 * [200] + 3 * [429]


def test_an_own_number_of_keys_holds(own_rules: Installation, own_operator: Caller) -> None:
    """A tier's number of active keys, over all algorithms, is the one in the operator's plans file."""
    tenant = own_rules.new_tenant("free")
    _change(own_operator, tenant, tier="growth")
    for algorithm in ("Kyber768", "X-Wing", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    more = {"algorithm": "Composite-ML-DSA"}
    assert tenant.refusal("/kms/keys/generate", more) == (403, "ERR_FORBIDDEN_001", None)
    _change(own_operator, tenant, tier="professional")
    tenant.post("/kms/keys/generate", more, status=201)


@pytest.fixture
def frugal(own_rules: Installation) -> Caller:
    """A tenant on free with a key and an unused quota."""
    tenant = own_rules.new_tenant("free")
    tenant.post("/kms/keys/generate", KYBER, status=201)
    return tenant


ENCRYPT = {"plaintext": "QUJD"}
CHANGE = "; an operator can change the plan with pqkeep tenants update TENANT --plan PLAN"
SPENT = f"denied by policy monthly-allowance: the monthly quota is used up{CHANGE}"


def _spend(tenant: Caller) -> None:
    for _ in range(ALLOWANCE):
        tenant.post("/kem/encrypt", ENCRYPT)


def test_the_allowance_is_exact(frugal: Caller) -> None:
    """Of twice as many concurrent operations exactly the quota succeeds; the rest are 403."""
    with ThreadPoolExecutor(16) as pool:
        asked = [
            pool.submit(frugal.ask, "POST", "/kem/encrypt", ENCRYPT) for _ in range(2 * ALLOWANCE)
        ]
        statuses = [each.result().status_code for each in asked]
    assert sorted(statuses) == ALLOWANCE * [200] + ALLOWANCE * [403]
    assert _message(frugal, "/kem/encrypt", ENCRYPT) == SPENT


def test_what_fails_is_no_operation(frugal: Caller) -> None:
    """Failing requests of any kind do not use the quota."""
    for path, body, status in (
        ("/kem/encrypt", {}, 400),
        ("/kem/encrypt", {"algorithm": "RSA"}, 400),
        ("/kem/encrypt", X_WING, 403),
        ("/kem/encrypt", {**ENCRYPT, "key_version": 9}, 404),
        ("/kem/decrypt", {"ciphertext": "QUJD", "key_version": 1}, 400),
        ("/signature/sign", {"message": "QUJD"}, 404),
        ("/kms/keys/generate", KYBER, 400),
    ):
        for _ in range(ALLOWANCE // 4):
            assert frugal.refusal(path, body)[0] == status
    _spend(frugal)
    assert _message(frugal, "/kem/encrypt", ENCRYPT) == SPENT


def test_failures_at_once_cost_nothing(frugal: Caller) -> None:
    """Concurrent failing operations do not use the quota."""
    body = {"ciphertext": "QUJD" * 400, "key_version": 1}
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(frugal.ask, "POST", "/kem/decrypt", body) for _ in range(60)]
        assert {each.result().status_code for each in asked} <= {400, 403}
    _spend(frugal)
    assert _message(frugal, "/kem/encrypt", ENCRYPT) == SPENT


def test_looking_after_keys_is_no_operation(frugal: Caller) -> None:
    """Key management does not use the quota, and works after the quota is used up."""
    for spend in (_spend, lambda _: None):
        frugal.post("/kms/keys/rotate", KYBER, status=201)
        version = frugal.get("/kms/keys/active", **KYBER)["key_version"]
        frugal.get("/kms/keys")
        frugal.get(f"/kms/keys/{version}", **KYBER)
        frugal.get(f"/tenants/{frugal.tenant_id}/api-keys")
        spend(frugal)
        assert frugal.post("/kms/keys/retire", {**KYBER, "key_version": version})
        frugal.post("/kms/keys/generate", KYBER, status=201)
    assert _message(frugal, "/kem/encrypt", ENCRYPT) == SPENT


def test_reading_is_an_operation(frugal: Caller) -> None:
    """Reading counts like writing, and an invalid signature is a counted result."""
    made = frugal.post("/kem/encrypt", ENCRYPT)
    read = {"ciphertext": made["ciphertext"], "key_version": 1}
    frugal.post("/kms/keys/generate", {"algorithm": "Dilithium3"}, status=201)
    check = {"message": "QUJD", "signature": "QUJD", "key_version": 1}
    for _ in range(9):
        frugal.post("/kem/decrypt", read)
        assert frugal.post("/signature/verify", check)["valid"] is False
    frugal.post("/kem/decrypt", read)
    assert _message(frugal, "/kem/decrypt", read) == SPENT
    assert _message(frugal, "/signature/verify", check) == SPENT


def test_the_allowance_belongs_to_the_tenant(
    own_rules: Installation, own_operator: Caller, frugal: Caller
) -> None:
    """A tenant's API keys share its quota; another tenant has its own."""
    _spend(frugal)
    made = own_operator.post(f"/tenants/{frugal.tenant_id}/api-keys", status=201)
    second = own_rules.caller(made["api_key"], frugal.tenant_id)
    assert _message(second, "/kem/encrypt", ENCRYPT) == SPENT
    other = own_rules.new_tenant("free")
    other.post("/kms/keys/generate", KYBER, status=201)
    other.post("/kem/encrypt", ENCRYPT)


def test_other_plans_have_no_allowance(own_operator: Caller, frugal: Caller) -> None:
    """On another plan operations are not counted; back on free, earlier use still counts."""
    _spend(frugal)
    for tier in ("growth", "professional", "enterprise", "enterprise_plus"):
        _change(own_operator, frugal, tier=tier)
        _spend(frugal)
    _change(own_operator, frugal, tier="free")
    assert _message(frugal, "/kem/encrypt", ENCRYPT) == SPENT


def test_after_a_subscription_free_s_allowance_holds(
    own_rules: Installation, own_operator: Caller
) -> None:
    """After a subscription, reading counts against free's quota until it is renewed."""
    tenant = own_rules.new_tenant("enterprise")
    tenant.post("/kms/keys/generate", {"algorithm": "ML-KEM-1024"}, status=201)
    named = {"algorithm": "ML-KEM-1024", "key_version": 1}
    made = tenant.post("/kem/encrypt", {**named, **ENCRYPT})
    read = {**named, "ciphertext": made["ciphertext"]}
    _change(own_operator, tenant, subscription="ended")
    for _ in range(ALLOWANCE):
        tenant.post("/kem/decrypt", read)
    assert _message(tenant, "/kem/decrypt", read) == SPENT
    _change(own_operator, tenant, subscription="active")
    tenant.post("/kem/decrypt", read)
