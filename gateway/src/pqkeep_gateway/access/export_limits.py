"""How many exports of the audit log a tenant may begin, and how many may run at once.

An export costs as much as it is long, and counts as one request against the rate limit.
"""

from contextlib import AbstractContextManager

from pqkeep_gateway.access.admission import RateLimitedError
from pqkeep_gateway.access.concurrency_limit import ConcurrencyLimit
from pqkeep_gateway.access.rate_limit import HOUR, Limit, RateLimiter
from pqkeep_protocol.keys import TenantId

EXPORTS = Limit(120, HOUR)
"""That a tenant, or the operator, may begin."""
MAX_AT_ONCE = 2
"""Of one tenant, or of the operator, in one gateway."""
MAX_RUNNING = 64
"""Of all together, in one gateway."""


class ExportLimits:
    """Counts the exports of one gateway."""

    def __init__(self, rate_limiter: RateLimiter) -> None:
        self._rate_limiter = rate_limiter
        self._running = ConcurrencyLimit(MAX_AT_ONCE, MAX_RUNNING)

    async def count(self, tenant: TenantId) -> None:
        """Count an export that is asked for. Raises RateLimitedError."""
        wait = await self._rate_limiter.enter(f"exports of {tenant}", EXPORTS)
        if wait is not None:
            raise RateLimitedError(EXPORTS, wait)

    def run(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Count an export while it runs. Raises OverloadedError."""
        return self._running.run(tenant)
