"""Failed attempts are counted where only whoever makes them is stopped."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from uuid import uuid4

import pytest

from pqkeep_gateway.access.clock import steady_clock
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.principals import SessionId
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_gateway.access.source_address import network_of
from pqkeep_gateway.people.attempt_limits import (
    ATTEMPTS,
    ATTEMPTS_PER_ACCOUNT,
    ATTEMPTS_PER_SOURCE,
    AttemptLimits,
    TooManyAttemptsError,
)

OWNER, STRANGER = "192.0.2.7", "198.51.100.9"
EMAIL = "ada@example.com"


class WrongError(Exception):
    """The password or code is wrong."""


@pytest.fixture
def limits(pepper: Pepper) -> AttemptLimits:
    """New counters."""
    return AttemptLimits(MemoryRateLimiter(steady_clock()), pepper)


async def fail(attempt: AbstractAsyncContextManager[None]) -> None:
    with pytest.raises(WrongError):
        async with attempt:
            raise WrongError


async def succeed(attempt: AbstractAsyncContextManager[None]) -> None:
    async with attempt:
        pass


async def test_what_succeeds_does_not_count(limits: AttemptLimits) -> None:
    """Whoever is right may go on for ever."""
    session = SessionId(uuid4())
    for _ in range(3 * ATTEMPTS_PER_SOURCE.events):
        await succeed(limits.password(EMAIL, OWNER))
        await succeed(limits.code(EMAIL, OWNER))
        await succeed(limits.step_up(session))


async def test_a_stranger_does_not_shut_the_owner_out(limits: AttemptLimits) -> None:
    """Wrong passwords from one address stop that address, and nobody else."""
    for _ in range(ATTEMPTS.events):
        await fail(limits.password(EMAIL, STRANGER))
    with pytest.raises(TooManyAttemptsError):
        await succeed(limits.password(EMAIL, STRANGER))
    await succeed(limits.password(EMAIL, OWNER))


async def test_strangers_from_everywhere_are_stopped(limits: AttemptLimits) -> None:
    """From however many addresses, an account takes so many wrong passwords and no more."""
    for number in range(ATTEMPTS_PER_ACCOUNT.events):
        await fail(limits.password(EMAIL, f"203.0.113.{number % 250}"))
    with pytest.raises(TooManyAttemptsError):
        await succeed(limits.password(EMAIL, OWNER))


async def test_an_address_tries_no_list_of_accounts(limits: AttemptLimits) -> None:
    """One address fails so often at all accounts together."""
    for number in range(ATTEMPTS_PER_SOURCE.events):
        await fail(limits.password(f"{number}@example.com", STRANGER))
    with pytest.raises(TooManyAttemptsError):
        await fail(limits.password("another@example.com", STRANGER))


async def test_codes_are_counted_by_account(limits: AttemptLimits) -> None:
    """Whoever knows the password tries few codes, from however many addresses."""
    for number in range(ATTEMPTS.events):
        await fail(limits.code(EMAIL, f"203.0.113.{number}"))
    with pytest.raises(TooManyAttemptsError):
        await succeed(limits.code(EMAIL, OWNER))


async def test_nothing_outside_stops_a_session_s_step_up(limits: AttemptLimits) -> None:
    """A step-up fails with its own session's failures only."""
    mine, another = SessionId(uuid4()), SessionId(uuid4())
    for _ in range(ATTEMPTS.events):
        await fail(limits.step_up(another))
        await fail(limits.password(EMAIL, STRANGER))
        await fail(limits.code(EMAIL, STRANGER))
    await succeed(limits.step_up(mine))
    with pytest.raises(TooManyAttemptsError):
        await succeed(limits.step_up(another))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("not an address", "not an address"),
    ],
)
def test_an_ipv6_customer_is_one_address(address: str, network: str) -> None:
    """The 64 bits of an IPv6 address that its holder chooses do not make it another one."""
    assert network_of(address) == network
