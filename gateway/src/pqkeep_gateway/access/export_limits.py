"""How many exports of the audit log a tenant may begin, and how many may run at once.

An export costs as much as it is long, and counts as one request against the rate limit.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pqkeep_gateway.access.admission import RateLimitedError
from pqkeep_gateway.access.rate_limit import HOUR, Limit, RateLimiter
from pqkeep_gateway.unavailable import OverloadedError
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
        self._running: Counter[TenantId] = Counter()

    async def count(self, tenant: TenantId) -> None:
        """Count an export that is asked for. Raises RateLimitedError."""
        wait = await self._rate_limiter.enter(f"exports of {tenant}", EXPORTS)
        if wait is not None:
            raise RateLimitedError(EXPORTS, wait)

    @contextmanager
    def run(self, tenant: TenantId) -> Iterator[None]:
        """Count an export while it runs. Raises OverloadedError."""
        if self._running[tenant] >= MAX_AT_ONCE or self._running.total() >= MAX_RUNNING:
            raise OverloadedError
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            self._running += Counter()  # drops tenants at zero
