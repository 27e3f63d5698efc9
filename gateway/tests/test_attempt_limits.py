"""Limits on failed attempts stop only the source of the attempts."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.principals import SessionId
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter, TooManyAttemptsError
from pqkeep_gateway.people.attempt_limits import (
    ATTEMPTS,
    ATTEMPTS_PER_DELAY,
    ATTEMPTS_PER_SOURCE,
    DELAYS,
    MAIL_BY_ANYBODY,
    AttemptLimits,
    KnownNetworks,
    network_digest,
)
from pqkeep_gateway.people.password_resets import LIFETIME
from pqkeep_gateway.storage.known_networks import SqlKnownNetworks
from pqkeep_gateway.unavailable import OverloadedError

OWNER, STRANGER = "192.0.2.7", "198.51.100.9"
EMAIL = "ada@example.com"


class WrongError(Exception):
    """The password or code is wrong."""


class Clock:
    """A clock that a test moves, in seconds."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class MemoryNetworks(SqlKnownNetworks):
    """Known networks in memory."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()

    async def is_known(self, digest: bytes, since: datetime) -> bool:
        return digest in self.digests


class Setting:
    """Attempt limits, known networks, and their clock."""

    def __init__(self, pepper: Pepper) -> None:
        self.clock, self.networks = Clock(), MemoryNetworks()
        self._pepper = pepper
        rate_limiter = MemoryRateLimiter(self.clock)
        known = KnownNetworks(self.networks, pepper, self.clock)
        self.limits = AttemptLimits(rate_limiter, known, pepper)

    def remember(self, source_address: str) -> None:
        """Make a network known for an account."""
        self.networks.digests.add(network_digest(self._pepper, EMAIL, source_address))

    async def guess(self, source_address: str) -> float | None:
        """Try a wrong password; return None, or the seconds to wait after a refusal."""
        try:
            await fail(self.limits.password(EMAIL, source_address))
        except TooManyAttemptsError as refused:
            return refused.wait
        return None


@pytest.fixture
def setting(pepper: Pepper) -> Setting:
    """New limits with a clock."""
    return Setting(pepper)


@pytest.fixture
def limits(setting: Setting) -> AttemptLimits:
    """New limits without a known network."""
    return setting.limits


async def fail(attempt: AbstractAsyncContextManager[bool | None]) -> None:
    with suppress(WrongError):
        async with attempt:
            raise WrongError


async def succeed(attempt: AbstractAsyncContextManager[bool | None]) -> None:
    async with attempt:
        pass


async def test_what_succeeds_does_not_count(limits: AttemptLimits) -> None:
    """Successful attempts are unlimited."""
    session = SessionId(uuid4())
    for _ in range(3 * ATTEMPTS_PER_SOURCE.events):
        await succeed(limits.password(EMAIL, OWNER))
        await succeed(limits.code(EMAIL, OWNER))
        await succeed(limits.step_up(session))


async def test_a_stranger_does_not_shut_the_owner_out(limits: AttemptLimits) -> None:
    """Wrong passwords from one address stop only that address."""
    for _ in range(ATTEMPTS.events):
        await fail(limits.password(EMAIL, STRANGER))
    with pytest.raises(TooManyAttemptsError):
        await succeed(limits.password(EMAIL, STRANGER))
    await succeed(limits.password(EMAIL, OWNER))


@pytest.mark.threat("flood")
async def test_strangers_from_everywhere_are_delayed(setting: Setting) -> None:
    """Wrong passwords for one account delay the next attempt up to a minute, from any address."""
    pauses = []
    for number in range(70):
        wait = await setting.guess(f"203.0.113.{number}") or 0
        pauses.append(wait)
        if wait:
            setting.clock.now += wait
            assert await setting.guess(f"203.0.113.{number}") is None
    delayed = [pause for pause in pauses if pause]
    assert delayed == sorted(delayed)
    assert set(pauses) == set(DELAYS)


async def test_an_hour_later_there_is_no_delay(setting: Setting) -> None:
    """An hour after the failures, attempts are not delayed any more."""
    for number in range(ATTEMPTS_PER_DELAY.events + 1):
        assert await setting.guess(f"203.0.113.{number}") is None
    assert await setting.guess(OWNER) == DELAYS[1]
    setting.clock.now += ATTEMPTS_PER_DELAY.seconds
    assert await setting.guess(OWNER) is None


async def test_elsewhere_the_owner_waits_a_minute_at_most(setting: Setting) -> None:
    """After any failures, a password from a new address is refused for at most a minute."""
    for number in range(250):
        setting.clock.now += 20
        while await setting.guess(f"203.0.113.{number}") is None:
            pass
    wait = await setting.guess(OWNER)
    assert wait is not None
    assert wait <= DELAYS[-1]
    setting.clock.now += wait
    await succeed(setting.limits.password(EMAIL, OWNER))


async def test_what_is_refused_or_not_tried_does_not_count(setting: Setting) -> None:
    """A refused or overloaded attempt does not count as a failure."""
    for _ in range(3 * ATTEMPTS.events):
        with suppress(OverloadedError):
            async with setting.limits.password(EMAIL, OWNER):
                raise OverloadedError
    for _ in range(ATTEMPTS.events):
        assert await setting.guess(OWNER) is None
    for _ in range(2 * ATTEMPTS_PER_SOURCE.events):
        assert await setting.guess(OWNER) is not None
    await fail(setting.limits.password("another@example.com", OWNER))


async def test_an_address_tries_no_list_of_accounts(limits: AttemptLimits) -> None:
    """The failures of one address at all accounts count together against its limit."""
    for number in range(ATTEMPTS_PER_SOURCE.events):
        await fail(limits.password(f"{number}@example.com", STRANGER))
    with pytest.raises(TooManyAttemptsError):
        await fail(limits.password("another@example.com", STRANGER))


async def test_a_code_is_tried_where_the_account_is_known(setting: Setting) -> None:
    """Failed codes of an attacker with the password do not block a known network."""
    setting.remember(OWNER)
    for number in range(2 * ATTEMPTS.events):
        with suppress(TooManyAttemptsError):
            await fail(setting.limits.code(EMAIL, f"203.0.113.{number}"))
    await succeed(setting.limits.code(EMAIL, OWNER))
    for _ in range(ATTEMPTS.events):
        await fail(setting.limits.code(EMAIL, OWNER))
    with pytest.raises(TooManyAttemptsError):
        await succeed(setting.limits.code(EMAIL, OWNER))


async def test_codes_are_counted_by_account(limits: AttemptLimits) -> None:
    """An attacker with the password can try few codes, from any number of addresses."""
    for number in range(ATTEMPTS.events):
        await fail(limits.code(EMAIL, f"203.0.113.{number}"))
    with pytest.raises(TooManyAttemptsError):
        await succeed(limits.code(EMAIL, OWNER))


async def test_nothing_outside_stops_a_session_s_step_up(limits: AttemptLimits) -> None:
    """A step-up is limited only by failures of its own session."""
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
    """IPv6 addresses with the same 64-bit prefix count as one address."""
    assert network_of(address) == network


class LockOut(RuleBasedStateMachine):
    """Attackers everywhere fail at an account and request its mail; its owner is at home."""

    def __init__(self) -> None:
        super().__init__()
        self.setting = Setting(Pepper(bytes(32)))
        self.setting.remember(OWNER)
        self.session = SessionId(uuid4())
        self.guesses: list[float] = []
        self.letters: list[float] = []
        self.letters_home: list[float] = []

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self.setting.clock.now

    @rule(seconds=st.sampled_from([0.5, 5, 30, 300, 1800]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.setting.clock.now += seconds

    @rule(first=st.integers(0, 200), many=st.integers(1, 40))
    def strangers_guess(self, first: int, many: int) -> None:
        """Many addresses each try a password and a code."""

        async def run() -> None:
            for number in range(first, first + many):
                if await self.setting.guess(f"203.0.113.{number}") is None:
                    self.guesses.append(self.now)
                with suppress(TooManyAttemptsError):
                    await fail(self.setting.limits.code(EMAIL, f"203.0.113.{number}"))

        asyncio.run(run())

    @rule(many=st.integers(1, 10))
    def strangers_ask_for_mail(self, many: int) -> None:
        """Attackers request mail; a refusal means that an earlier mail is still valid."""

        async def run() -> None:
            for number in range(many):
                try:
                    await self.setting.limits.count_mail(EMAIL, f"203.0.113.{number}")
                except TooManyAttemptsError:
                    assert self.letters[-1] > self.now - LIFETIME.total_seconds()
                else:
                    self.letters.append(self.now)

        asyncio.run(run())

    @rule()
    def owner_asks_for_mail(self) -> None:
        """At home, only the owner's own mails count."""
        recent = [at for at in self.letters_home if at > self.now - MAIL_BY_ANYBODY.seconds]
        if len(recent) < MAIL_BY_ANYBODY.events:
            asyncio.run(self.setting.limits.count_mail(EMAIL, OWNER))
            self.letters_home.append(self.now)

    @invariant()
    def the_owner_comes_in(self) -> None:
        """At home, the owner can always try a password or code, and step up."""

        async def run() -> None:
            await succeed(self.setting.limits.password(EMAIL, OWNER))
            await succeed(self.setting.limits.code(EMAIL, OWNER))
            await succeed(self.setting.limits.step_up(self.session))

        asyncio.run(run())

    @invariant()
    def guesses_are_few(self) -> None:
        """Any hour has at most the guesses of three stages, plus one a minute."""
        recent = [at for at in self.guesses if at > self.now - 3600]
        assert len(recent) <= 3 * ATTEMPTS_PER_DELAY.events + 3600 / DELAYS[-1] + 1

    @invariant()
    def the_mailbox_is_not_flooded(self) -> None:
        """Attackers cause at most two mails in half an hour."""
        recent = [at for at in self.letters if at > self.now - MAIL_BY_ANYBODY.seconds]
        assert len(recent) <= MAIL_BY_ANYBODY.events


TestLockOut = LockOut.TestCase
TestLockOut.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
