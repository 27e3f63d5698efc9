"""The policy table: the operations and algorithms of each tier. Anything else is denied."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from pqkeep_gateway.access.entitlements import PLAN_OF, Entitlements, Plan, Subscription, Tier
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    LISTING,
    ON_KEYRINGS,
    ON_RULES,
    Algorithm,
    Operation,
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Allowed by the named policy."""

    policy: str


@dataclass(frozen=True, slots=True)
class Denied:
    """Denied by the named policy."""

    policy: str


Decision = Allowed | Denied

NOT_IN_TABLE = Denied("not-in-the-table")


class Question(NamedTuple):
    """A key of the policy table; ``algorithm`` None: for operations on all algorithms."""

    tier: Tier
    subscription: Subscription
    operation: Operation
    algorithm: Algorithm | None


class Policy:
    """The decision for every question; an unknown question is denied."""

    def __init__(self, table: Mapping[Question, Decision]) -> None:
        """Take the decisions."""
        self._table = table

    def decide(
        self, entitlements: Entitlements, operation: Operation, algorithm: Algorithm | None
    ) -> Decision:
        """Decide whether a tenant may carry out an operation."""
        question = Question(entitlements.tier, entitlements.subscription, operation, algorithm)
        return self._table.get(question, NOT_IN_TABLE)

    def plans_that_allow(
        self, operation: Operation, algorithm: Algorithm | None
    ) -> tuple[Plan, ...]:
        """Return the plans on which an operation is allowed."""
        tiers = (
            tier
            for tier in Tier
            if isinstance(self.decide(Entitlements(tier), operation, algorithm), Allowed)
        )
        return tuple(dict.fromkeys(PLAN_OF[tier] for tier in tiers))


def questions() -> tuple[Question, ...]:
    """Return every question that a request can ask."""
    return tuple(
        Question(tier, subscription, operation, algorithm)
        for tier, subscription, operation in product(Tier, Subscription, Operation)
        for algorithm in (*Algorithm, None)
        if _can_be_asked(operation, algorithm)
    )


def _can_be_asked(operation: Operation, algorithm: Algorithm | None) -> bool:
    if algorithm is None:
        return operation in LISTING or operation in ON_KEYRINGS or operation in ON_RULES
    return operation in ALGORITHMS[algorithm].operations
