"""What a tenant subscribes to, and whether it still does."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class TenantStatus(StrEnum):
    """Whether a tenant's credentials are accepted."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    """Its keys are being destroyed: there is no way back."""
    DELETED = "deleted"


class TenantNotFoundError(Exception):
    """There is no such tenant."""


class Plan(StrEnum):
    """The values of a tenant's ``plan``."""

    FREE = "free"
    STARTER = "starter"
    PROFESSIONAL = "professional"
    ENTERPRISE = "enterprise"
    ENTERPRISE_PLUS = "enterprise_plus"


class Tier(StrEnum):
    """What is sold: the plans, and Growth, which is the professional plan with less of it."""

    FREE = "free"
    STARTER = "starter"
    GROWTH = "growth"
    PROFESSIONAL = "professional"
    ENTERPRISE = "enterprise"
    ENTERPRISE_PLUS = "enterprise_plus"


WITH_REQUIRED_MFA = frozenset({Plan.PROFESSIONAL, Plan.ENTERPRISE, Plan.ENTERPRISE_PLUS})
"""Plans on which a tenant can require a second factor of its people."""


class MfaNotInPlanError(Exception):
    """The plan does not let a tenant require a second factor."""


PLAN_OF: Mapping[Tier, Plan] = {
    tier: Plan.PROFESSIONAL if tier is Tier.GROWTH else Plan(tier) for tier in Tier
}


class Subscription(StrEnum):
    """Whether a tenant's subscription runs."""

    ACTIVE = "active"
    ENDED = "ended"
    """The tenant is on the free plan, and can still read with every algorithm."""


@dataclass(frozen=True, slots=True)
class Entitlements:
    """One tenant's tier, its subscription's state, and what the operator granted beside."""

    tier: Tier
    subscription: Subscription = Subscription.ACTIVE
    requests_per_minute: int | None = None
    """The tenant's own rate limit; None: its tier's."""

    @property
    def effective_tier(self) -> Tier:
        """The tier whose limits hold."""
        return Tier.FREE if self.subscription is Subscription.ENDED else self.tier

    @property
    def plan(self) -> Plan:
        """What the API says of it."""
        return PLAN_OF[self.effective_tier]
