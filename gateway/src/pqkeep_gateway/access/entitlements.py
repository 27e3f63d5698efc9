"""A tenant's tier and the state of its subscription."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class TenantStatus(StrEnum):
    """Whether a tenant's credentials are accepted."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    """Its keys are being destroyed. This cannot be undone."""
    DELETED = "deleted"


class TenantNotFoundError(Exception):
    """The tenant does not exist."""


class Plan(StrEnum):
    """The values of a tenant's ``plan``."""

    FREE = "free"
    STARTER = "starter"
    PROFESSIONAL = "professional"
    ENTERPRISE = "enterprise"
    ENTERPRISE_PLUS = "enterprise_plus"


class Tier(StrEnum):
    """The tiers on sale: the plans, and Growth, a smaller professional plan."""

    FREE = "free"
    STARTER = "starter"
    GROWTH = "growth"
    PROFESSIONAL = "professional"
    ENTERPRISE = "enterprise"
    ENTERPRISE_PLUS = "enterprise_plus"


WITH_REQUIRED_MFA = frozenset({Plan.PROFESSIONAL, Plan.ENTERPRISE, Plan.ENTERPRISE_PLUS})
"""Plans on which a tenant can require a second factor for its people."""


class MfaNotInPlanError(Exception):
    """The plan does not include requiring a second factor."""


PLAN_OF: Mapping[Tier, Plan] = {
    tier: Plan.PROFESSIONAL if tier is Tier.GROWTH else Plan(tier) for tier in Tier
}


class Subscription(StrEnum):
    """The state of a tenant's subscription."""

    ACTIVE = "active"
    ENDED = "ended"
    """The tenant has the free plan, and can still read with every algorithm."""


@dataclass(frozen=True, slots=True)
class Entitlements:
    """A tenant's tier, the state of its subscription, and its own rate limit."""

    tier: Tier
    subscription: Subscription = Subscription.ACTIVE
    requests_per_minute: int | None = None
    """The tenant's own rate limit; None: the rate limit of its tier."""

    @property
    def effective_tier(self) -> Tier:
        """The tier with the limits that apply."""
        return Tier.FREE if self.subscription is Subscription.ENDED else self.tier

    @property
    def plan(self) -> Plan:
        """The plan that the API shows."""
        return PLAN_OF[self.effective_tier]
