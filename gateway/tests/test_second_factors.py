"""Authenticators, recovery codes and challenges, on either database: each works only once."""

from __future__ import annotations

import asyncio

import pytest
from gateway.tests.world import ATTRIBUTION, CONCURRENCY, EMAIL, ROUNDS, World, count_successes
from pyotp import TOTP

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, new_mail
from pqkeep_gateway.people.challenges import InvalidChallengeError
from pqkeep_gateway.people.second_factors import NotEnrolledError, WrongCodeError
from pqkeep_gateway.people.sessions import Tokens
from pqkeep_gateway.storage.second_factors import AlreadyEnrolledError, SqlSecondFactors
from pqkeep_protocol.audit_events import AuditEvent

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.mark.parametrize("drift", [-30, 0, 30])
async def test_a_code_is_accepted_once(world: World, drift: int) -> None:
    """Of 32 concurrent uses, a code of this or a neighbouring step is accepted once."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    code = totp.at(int(world.now) + drift)
    challenge = await world.challenge()
    attempts = [
        world.sign_in.answer_challenge(challenge, code, ATTRIBUTION) for _ in range(CONCURRENCY)
    ]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(outcome, Tokens) for outcome in outcomes) == 1
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer_challenge(await world.challenge(), code, ATTRIBUTION)


@pytest.mark.parametrize("drift", [-60, 60])
async def test_a_code_of_another_time_is_refused(world: World, drift: int) -> None:
    """A code of two or more steps before or after now is refused."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer_challenge(
            await world.challenge(), totp.at(int(world.now) + drift), ATTRIBUTION
        )


async def test_an_earlier_code_is_refused_after_a_later_one(world: World) -> None:
    """After an accepted step the codes of earlier steps are refused, even if unused."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    await world.sign_in.answer_challenge(
        await world.challenge(), totp.at(int(world.now)), ATTRIBUTION
    )
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer_challenge(
            await world.challenge(), totp.at(int(world.now) - 30), ATTRIBUTION
        )


async def test_the_authenticator_in_force_is_the_one_that_was_confirmed(world: World) -> None:
    """Of a concurrent confirmation and enrollment one succeeds, so active secrets are confirmed."""
    for round_ in range(ROUNDS):
        person = await world.person(f"{round_}@example.com")
        totp = TOTP((await world.factors.enroll(person)).secret)
        attempts = [
            world.factors.confirm(person, totp.at(int(world.now)), ATTRIBUTION),
            world.factors.enroll(person),
        ]
        refusals = (NotEnrolledError, WrongCodeError, AlreadyEnrolledError)
        assert await count_successes(attempts, *refusals) == 1


async def test_a_recovery_code_is_accepted_once(world: World) -> None:
    """Of 32 concurrent uses of each recovery code, exactly one succeeds."""
    person = await world.person()
    used = 0
    while used < ROUNDS:
        _, codes = await world.enroll(person)
        account = await world.account()
        for code in codes[: ROUNDS - used]:
            used += 1
            attempts = [world.factors.check(account, code, ATTRIBUTION) for _ in range(CONCURRENCY)]
            assert await count_successes(attempts, WrongCodeError) == 1
        mail = new_mail(MailKind.SECOND_FACTOR_REMOVED, EMAIL, date_of(world.now))
        disabled = event(ATTRIBUTION, world.tenant.id, AuditEvent.DISABLE_MFA)
        await SqlSecondFactors(world.engine).remove(person, mail, disabled)
    assert world.log.operations.count("use-recovery-code") == ROUNDS


async def test_a_challenge_expires_after_five_minutes(world: World) -> None:
    """A challenge is valid for 300 seconds."""
    totp, _ = await world.enroll(await world.person())
    challenge = await world.challenge()
    world.now += 300
    with pytest.raises(InvalidChallengeError):
        await world.sign_in.answer_challenge(challenge, totp.at(int(world.now)), ATTRIBUTION)


async def test_no_secret_of_codes_is_in_the_database(world: World) -> None:
    """The database has only a salt of an authenticator, which makes no code without the pepper."""
    totp, codes = await world.enroll(await world.person())
    account = await world.account()
    assert account.totp_salt is not None
    assert account.totp_salt not in totp.byte_secret()
    assert totp.secret not in repr(account)
    assert not any(code in repr(account) for code in codes)
