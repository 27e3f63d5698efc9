"""E-mail codes are valid once, for a limited time and few guesses, on either database."""

from __future__ import annotations

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    FEW_ROUNDS,
    PASSWORD,
    World,
    count_successes,
)

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.people import challenges
from pqkeep_gateway.people.challenges import InvalidChallengeError, SecondFactorRequiredError
from pqkeep_gateway.people.second_factors import WrongCodeError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_a_code_is_used_once(world: World) -> None:
    """Of 32 concurrent uses of a code, exactly one begins a session, and no later use does."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    for _ in range(FEW_ROUNDS):
        challenge = await world.challenge()
        code = await world.email_code(challenge)
        attempts = [world.codes.check(challenge, code, ATTRIBUTION) for _ in range(CONCURRENCY)]
        assert await count_successes(attempts, InvalidChallengeError, WrongCodeError) == 1
        with pytest.raises(InvalidChallengeError):
            await world.codes.check(challenge, code, ATTRIBUTION)


async def test_five_guesses_are_checked(world: World) -> None:
    """Of 32 concurrent guesses at most five are checked; then the correct code is refused too."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    code = await world.email_code(challenge)
    wrong = [f"{(int(code) + 1 + number) % 10**6:06}" for number in range(CONCURRENCY)]
    attempts = [world.codes.check(challenge, text, ATTRIBUTION) for text in wrong]
    assert await count_successes(attempts, WrongCodeError) == 0
    with pytest.raises(WrongCodeError):
        await world.codes.check(challenge, code, ATTRIBUTION)


async def test_the_fifth_attempt_may_succeed(world: World) -> None:
    """After four wrong codes the correct one is accepted, also with a space in it."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    code = await world.email_code(challenge)
    for _ in range(4):
        with pytest.raises(WrongCodeError):
            await world.codes.check(challenge, "no", ATTRIBUTION)
    await world.codes.check(challenge, f"{code[:3]} {code[3:]}", ATTRIBUTION)


async def test_a_code_expires_after_ten_minutes(world: World) -> None:
    """A code is valid for ten minutes, also for an older challenge."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    life = challenges.CODE_LIFETIME.total_seconds()
    for late, accepted in ((1, True), (0, False)):
        challenge = await world.challenge()
        world.now += 200
        code = await world.email_code(challenge)
        world.now += life - late
        attempts = [world.codes.check(challenge, code, ATTRIBUTION)]
        assert await count_successes(attempts, InvalidChallengeError) == accepted


async def test_no_code_is_sent_for_an_expired_challenge(world: World) -> None:
    """From five minutes after the password on, no code is sent and no mail is stored."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    await world.mail(MailKind.SECOND_FACTOR_ADDED)
    world.now += 300
    with pytest.raises(InvalidChallengeError):
        await world.codes.send(challenge, ATTRIBUTION)
    now = date_of(world.now)
    assert await world.mail_outbox.claim(10, now, now) == []


async def test_codes_stay_required_when_mail_is_disabled(world: World) -> None:
    """Without a mail server, an account with e-mail codes cannot sign in by password alone."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    without_mail = world.restarted(sends_mail=False)
    with pytest.raises(SecondFactorRequiredError):
        await without_mail.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
