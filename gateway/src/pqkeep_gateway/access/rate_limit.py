"""How often. For now: how many tenants one address may sign up."""

import math
import time

from limits import RateLimitItem, RateLimitItemPerHour
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

SIGN_UPS: RateLimitItem = RateLimitItemPerHour(20)


class RateLimiter:
    """Exact sliding windows, in this process's memory."""

    def __init__(self) -> None:
        """Start with empty windows."""
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def retry_after(self, limit: RateLimitItem, *subject: str) -> int | None:
        """Count one event; return None, or the seconds after which the next may come."""
        if self._limiter.hit(limit, *subject):
            return None
        reset = self._limiter.get_window_stats(limit, *subject).reset_time
        return max(1, math.ceil(reset - time.time()))
