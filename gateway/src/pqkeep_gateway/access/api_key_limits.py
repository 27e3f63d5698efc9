"""The limits of an API key beside its tenant's plan: scopes, an expiry, addresses.

An API key can create or rotate an API key only within its own limits.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.scopes import Scopes


class BeyondOwnLimitsError(Exception):
    """An API key tried to create an API key with wider limits than its own."""

    def __init__(self, field: str) -> None:
        """Take the name of the wider limit."""
        super().__init__()
        self.field = field


@dataclass(frozen=True, slots=True)
class ApiKeyLimits:
    """The immutable limits of one API key. None: no limit."""

    scopes: Scopes | None = None
    expires_at: datetime | None = None
    """The time from which the key is refused."""
    addresses: Networks | None = None
    """The networks from which the key is accepted."""

    def with_changes(self, changes: "ApiKeyLimits") -> "ApiKeyLimits":
        """Return these limits, replaced by the changes that are not None."""
        return replace(
            self,
            scopes=changes.scopes or self.scopes,
            expires_at=changes.expires_at or self.expires_at,
            addresses=changes.addresses or self.addresses,
        )

    def check_covers(self, others: "ApiKeyLimits") -> None:
        """Check that other limits are at most as wide as these. Raises BeyondOwnLimitsError."""
        if self.scopes is not None and (
            others.scopes is None or not self.scopes.cover(others.scopes)
        ):
            raise BeyondOwnLimitsError("scopes")
        if self.expires_at is not None and (
            others.expires_at is None or others.expires_at > self.expires_at
        ):
            raise BeyondOwnLimitsError("expires_at")
        if self.addresses is not None and (
            others.addresses is None or not self.addresses.covers(others.addresses)
        ):
            raise BeyondOwnLimitsError("allowed_addresses")


UNLIMITED = ApiKeyLimits()
