"""Windows are exact, and each subject has its own."""

from limits import RateLimitItemPerHour, RateLimitItemPerSecond

from pqkeep_gateway.access.rate_limit import RateLimiter

FIVE_AN_HOUR = RateLimitItemPerHour(5)


def test_so_many_and_no_more() -> None:
    """The fifth may come, the sixth may not, and hears within what time the next may."""
    limiter = RateLimiter()
    assert [limiter.retry_after(FIVE_AN_HOUR, "a") for _ in range(5)] == 5 * [None]
    for _ in range(3):
        seconds = limiter.retry_after(FIVE_AN_HOUR, "a")
        assert seconds is not None
        assert 1 <= seconds <= 3600


def test_each_subject_has_its_own_window() -> None:
    """One subject's events count against nobody else, also where names run together."""
    limiter = RateLimiter()
    for _ in range(5):
        assert limiter.retry_after(FIVE_AN_HOUR, "a", "b") is None
    assert limiter.retry_after(FIVE_AN_HOUR, "a", "b") is not None
    for other in (("a", "c"), ("b", "a"), ("a",), ("ab",)):
        assert limiter.retry_after(FIVE_AN_HOUR, *other) is None


def test_a_limit_of_a_second_is_at_least_a_second() -> None:
    """Retry-After is a whole number of seconds, one at least."""
    limiter = RateLimiter()
    limit = RateLimitItemPerSecond(1, 60)
    assert limiter.retry_after(limit, "a") is None
    seconds = limiter.retry_after(limit, "a")
    assert isinstance(seconds, int)
    assert 1 <= seconds <= 60
