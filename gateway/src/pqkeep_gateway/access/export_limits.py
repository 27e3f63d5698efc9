"""Limits for exports of the audit log: how many may begin, and how many may run at once.

The cost of an export grows with its length, but it counts as one request of the rate limit.
"""

from contextlib import AbstractContextManager

from pqkeep_gateway.access.admission import RateLimitedError
from pqkeep_gateway.access.concurrency_limit import ConcurrencyLimit
from pqkeep_gateway.access.rate_limit import HOUR, Limit, RateLimiter
from pqkeep_protocol.keys import TenantId

EXPORTS = Limit(120, HOUR)
"""Per tenant, and for the operator."""
MAX_AT_ONCE = 2
"""Per tenant or operator, in one gateway."""
MAX_RUNNING = 64
"""In total, in one gateway."""


class ExportLimits:
    """Counts the exports of one gateway."""

    def __init__(self, rate_limiter: RateLimiter) -> None:
        self._rate_limiter = rate_limiter
        self._running = ConcurrencyLimit(MAX_AT_ONCE, MAX_RUNNING)

    async def count(self, tenant: TenantId) -> None:
        """Count a requested export. Raises RateLimitedError."""
        wait = await self._rate_limiter.enter(f"exports of {tenant}", EXPORTS)
        if wait is not None:
            raise RateLimitedError(EXPORTS, wait)

    def run(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Count an export while it runs. Raises OverloadedError."""
        return self._running.run(tenant)
