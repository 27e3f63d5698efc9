"""May this plan do this with that algorithm? A table; what is not in it is denied."""

from collections.abc import Mapping
from dataclasses import dataclass

from pqkeep_gateway.access.principals import Plan
from pqkeep_protocol.algorithms import READING, Algorithm, Operation

_EVERY_PLAN = frozenset(Plan)
_STARTER_UP = _EVERY_PLAN - {Plan.FREE}
_ENTERPRISE_UP = frozenset({Plan.ENTERPRISE, Plan.ENTERPRISE_PLUS})

WRITING_PLANS: Mapping[Algorithm, frozenset[Plan]] = {
    Algorithm.ML_KEM_768: _EVERY_PLAN,
    Algorithm.X_WING: _STARTER_UP,
    Algorithm.ML_KEM_1024: _ENTERPRISE_UP,
    Algorithm.ML_DSA_65: _EVERY_PLAN,
    Algorithm.COMPOSITE_ML_DSA: _STARTER_UP,
    Algorithm.ML_DSA_87: _ENTERPRISE_UP,
    Algorithm.SLH_DSA_SHA2_128S: _STARTER_UP,
    Algorithm.SLH_DSA_SHA2_128F: _STARTER_UP,
    Algorithm.SLH_DSA_SHA2_192S: _STARTER_UP,
    Algorithm.SLH_DSA_SHA2_256S: _STARTER_UP,
}
"""The plans on which an algorithm's keys are made and used. Reading needs no plan."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Yes, by the named policy."""

    policy: str


@dataclass(frozen=True, slots=True)
class Denied:
    """No, by the named policy."""

    policy: str


Decision = Allowed | Denied

LOOK_UP = frozenset({Operation.LIST_KEYS, Operation.GET_KEY, Operation.GET_ACTIVE_KEY})
"""Operations that show a tenant its own public keys."""

UPKEEP = frozenset({Operation.ROTATE_KEY, Operation.RETIRE_KEY, Operation.ARCHIVE_KEY})
"""Operations that keep a tenant's keys in order: no plan may stand in their way."""


def decide(plan: Plan, operation: Operation, algorithm: Algorithm | None) -> Decision:
    """Decide whether a plan includes an operation; None stands for all algorithms at once."""
    if operation in READING:
        return Allowed("reading-on-every-plan")
    if operation in LOOK_UP:
        return Allowed("own-public-keys")
    if operation in UPKEEP:
        return Allowed("upkeep-on-every-plan")
    if operation is Operation.WRAP and plan not in _STARTER_UP:
        return Denied("plan-lacks-key-wrap")
    if algorithm is not None and plan in WRITING_PLANS.get(algorithm, ()):
        return Allowed("plan-includes-algorithm")
    return Denied("plan-lacks-algorithm")
