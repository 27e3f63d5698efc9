"""What limits an API key beside its tenant's plan: scopes, an expiry, addresses.

An API key can be made or rotated by another one only within the other's limits.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.scopes import Scopes


class BeyondOwnLimitsError(Exception):
    """An API key asked for an API key that may do more than itself."""

    def __init__(self, field: str) -> None:
        """Take the name of the limit that would be wider."""
        super().__init__()
        self.field = field


@dataclass(frozen=True, slots=True)
class ApiKeyLimits:
    """The limits of one API key, which never change. None: no limit."""

    scopes: Scopes | None = None
    expires_at: datetime | None = None
    """From then on it is accepted no longer."""
    addresses: Networks | None = None
    """Where it is accepted from."""

    def with_changes(self, changes: "ApiKeyLimits") -> "ApiKeyLimits":
        """Return these limits, with those in their place that are not None."""
        return replace(
            self,
            scopes=changes.scopes or self.scopes,
            expires_at=changes.expires_at or self.expires_at,
            addresses=changes.addresses or self.addresses,
        )

    def check_covers(self, others: "ApiKeyLimits") -> None:
        """Check that others allow nothing that these do not. Raises BeyondOwnLimitsError."""
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
