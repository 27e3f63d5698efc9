"""Every plan, operation and algorithm has a decision; what is in no table is denied."""

from typing import Any, cast

import pytest

from pqkeep_gateway.access import policy
from pqkeep_gateway.access.policy import Allowed, Denied, decide
from pqkeep_gateway.access.principals import Plan
from pqkeep_gateway.tenancy import plans
from pqkeep_protocol.algorithms import ALGORITHMS, READING, Algorithm, Operation

SPECIFIED_FROM = {
    "Kyber768": "free",
    "X-Wing": "starter",
    "ML-KEM-1024": "enterprise",
    "Dilithium3": "free",
    "Composite-ML-DSA": "starter",
    "ML-DSA-87": "enterprise",
    "SLH-DSA-SHA2-128s": "starter",
    "SLH-DSA-SHA2-128f": "starter",
    "SLH-DSA-SHA2-192s": "starter",
    "SLH-DSA-SHA2-256s": "starter",
}
"""The first plan that may write with an algorithm; the plans are in ascending order."""
WRITING = [
    operation
    for operation in Operation
    if operation not in READING | policy.LOOK_UP | policy.UPKEEP and "wrap" not in operation
]


@pytest.mark.parametrize("plan", Plan)
@pytest.mark.parametrize("operation", Operation)
def test_there_is_always_a_decision(plan: Plan, operation: Operation) -> None:
    """No plan, operation and algorithm raises, and every decision names its policy."""
    for algorithm in (*ALGORITHMS, None):
        decision = decide(plan, operation, algorithm)
        assert isinstance(decision, Allowed | Denied)
        assert decision.policy


@pytest.mark.parametrize("plan", Plan)
@pytest.mark.parametrize("operation", sorted(READING))
def test_reading_is_on_every_plan(plan: Plan, operation: Operation) -> None:
    """decrypt, decapsulate, unwrap, verify and verify-hash need no plan."""
    for algorithm in ALGORITHMS:
        assert isinstance(decide(plan, operation, algorithm), Allowed)


@pytest.mark.parametrize("plan", Plan)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_use_follows_the_specification(plan: Plan, algorithm: Algorithm) -> None:
    """encrypt, encapsulate, sign, sign-hash and generate are allowed from the specified plan up."""
    ascending = list(Plan)
    included = ascending.index(plan) >= ascending.index(Plan(SPECIFIED_FROM[algorithm.value]))
    for operation in ("encrypt", "encapsulate", "sign", "sign-hash", "generate-key"):
        if operation in Operation._value2member_map_:
            decision = decide(plan, Operation(operation), algorithm)
            assert isinstance(decision, Allowed) is included


@pytest.mark.parametrize("plan", Plan)
def test_writing_without_an_algorithm_is_denied(plan: Plan) -> None:
    """What names no algorithm cannot write, on any plan."""
    for operation in WRITING:
        assert isinstance(decide(plan, operation, None), Denied)


def test_what_is_in_no_table_is_denied() -> None:
    """A plan or an algorithm that nobody has heard of is denied, and does not raise."""
    unknown = cast(Any, "unknown")
    assert isinstance(decide(unknown, Operation.ENCRYPT, Algorithm("Kyber768")), Denied)
    assert isinstance(decide(Plan.ENTERPRISE_PLUS, Operation.ENCRYPT, unknown), Denied)
    assert isinstance(decide(Plan.ENTERPRISE_PLUS, unknown, None), Denied)


def test_every_algorithm_has_its_plans() -> None:
    """The policy's table has every algorithm, and each has at least one plan."""
    assert policy.WRITING_PLANS.keys() == ALGORITHMS.keys()
    assert all(policy.WRITING_PLANS.values())


def test_the_plans_file() -> None:
    """plans.toml has the specification's quotas of keys and the settled ones of API keys."""
    terms = plans.read()
    assert {plan.value: (terms[plan].pqc_keys, terms[plan].api_keys) for plan in Plan} == {
        "free": (2, 2),
        "starter": (10, 5),
        "professional": (100, 20),
        "enterprise": (None, 100),
        "enterprise_plus": (None, 100),
    }
