"""Step-up tokens, on either database: each is good for one action."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    MOMENT,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.people.second_factors import WrongCodeError
from pqkeep_gateway.people.step_up import StepUpRequiredError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.messages import Idempotency

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


def had_no_effect(error: Exception) -> bool:
    """Return whether an action certainly failed without effect."""
    return isinstance(error, WrongCodeError)


async def test_a_step_up_token_acts_once(world: World) -> None:
    """Of 32 actions with one token at once exactly one is done, and none later."""
    person = await world.person()
    done = 0

    async def action() -> None:
        nonlocal done
        await asyncio.sleep(0)
        done += 1

    for number in range(ROUNDS):
        token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
        attempts = [
            world.step_up.spend(person, token, action, had_no_effect) for _ in range(CONCURRENCY)
        ]
        assert await count_successes(attempts, StepUpRequiredError) == 1
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, token, action, had_no_effect)
        assert done == number + 1


async def test_a_failure_without_effect_returns_the_token(world: World) -> None:
    """After an action that failed the token acts again, once."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)

    async def fail() -> None:
        raise WrongCodeError

    async def action() -> str:
        return "done"

    with pytest.raises(WrongCodeError):
        await world.step_up.spend(person, token, fail, had_no_effect)
    assert await world.step_up.spend(person, token, action, had_no_effect) == "done"


async def test_an_action_of_unknown_outcome_uses_the_token_up(world: World) -> None:
    """If it is not known whether an action had an effect, its token is not accepted again."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)

    async def lose() -> None:
        raise UnavailableError

    with pytest.raises(UnavailableError):
        await world.step_up.spend(person, token, lose, had_no_effect)
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, lose, had_no_effect)


def _request(key: bytes, request: bytes) -> Idempotency:
    return Idempotency(key * 32, request * 32)


@pytest.mark.parametrize("outcome", ["done", "unknown"])
async def test_a_repeated_request_is_accepted_with_its_used_token(
    world: World, outcome: str
) -> None:
    """A token that a request with an Idempotency-Key used up is accepted from that request only."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    first, calls = _request(b"a", b"1"), 0

    async def action() -> int:
        nonlocal calls
        calls += 1
        if calls == 1 and outcome == "unknown":
            raise UnavailableError
        return calls

    async def spend(idempotency: Idempotency | None) -> int:
        return await world.step_up.spend(person, token, action, had_no_effect, idempotency)

    with suppress(UnavailableError):
        await spend(first)
    assert [await spend(first), await spend(first)] == [2, 3]
    for other in (None, _request(b"b", b"1"), _request(b"b", b"2")):
        with pytest.raises(StepUpRequiredError):
            await spend(other)
    with pytest.raises(IdempotencyKeyReusedError):
        await spend(_request(b"a", b"2"))
    stranger = replace(person, user=UserId(uuid4()))
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(stranger, token, action, had_no_effect, first)
    world.now += 300
    with pytest.raises(StepUpRequiredError):
        await spend(first)
    assert calls == 3


async def test_a_repetition_that_fails_does_not_return_the_token(world: World) -> None:
    """A used token stays used up, also if the repeated request fails without effect."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)

    async def action() -> None:
        """Do nothing."""

    async def fail() -> None:
        raise WrongCodeError

    request = _request(b"a", b"1")
    await world.step_up.spend(person, token, action, had_no_effect, request)
    with pytest.raises(WrongCodeError):
        await world.step_up.spend(person, token, fail, had_no_effect, request)
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, action, had_no_effect)


async def test_a_repetition_waits_for_the_first_request(world: World) -> None:
    """While a request acts, its repetition with the same token is refused."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    request = _request(b"a", b"1")

    async def action() -> None:
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, token, action, had_no_effect, request)

    await world.step_up.spend(person, token, action, had_no_effect, request)


async def test_a_wrong_password_is_no_step_up(world: World) -> None:
    """No token is given for it, and it is in the log, as the step-ups are that succeed."""
    person = await world.person()
    with pytest.raises(WrongCodeError):
        await world.step_up.issue(person, PASSWORD + "!", ATTRIBUTION)
    await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    failed, done = list(world.log.recorded.values())[-2:]
    assert (failed.operation, failed.outcome) == ("step-up-failed", "ERR_MFA_001")
    assert (done.operation, done.outcome) == ("step-up", "success")


async def test_a_wrong_code_is_no_step_up(world: World) -> None:
    """With an authenticator neither another code nor the password gives a token."""
    person = await world.person()
    totp, _ = await world.enroll(person)
    for wrong in (totp.at(int(world.now) - 3600), PASSWORD):
        with pytest.raises(WrongCodeError):
            await world.step_up.issue(person, wrong, ATTRIBUTION)


async def test_a_token_of_another_kind_is_no_step_up(world: World) -> None:
    """A credential of any other kind is refused before the database is asked."""
    person = await world.person()

    async def action() -> None:
        raise AssertionError

    others = set(CredentialKind) - {CredentialKind.STEP_UP}
    for shown in ("", "pqx_", *map(new_credential, others)):
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, shown, action, had_no_effect)


async def test_a_step_up_token_expires(world: World) -> None:
    """A token is accepted for 300 seconds, and only from its user."""
    person = await world.person()
    token, other_token = [
        await world.step_up.issue(person, PASSWORD, ATTRIBUTION) for _ in range(2)
    ]

    async def action() -> None:
        """Do nothing."""

    other = replace(person, user=UserId(uuid4()))
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(other, token, action, had_no_effect)
    world.now += 300 - MOMENT
    await world.step_up.spend(person, other_token, action, had_no_effect)
    world.now += MOMENT
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, action, had_no_effect)


async def test_a_new_second_factor_ends_step_ups_by_the_password(world: World) -> None:
    """A token that was proved before a second factor was added is of no use afterwards."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    await world.enroll(person)

    async def action() -> None:
        raise AssertionError

    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, action, had_no_effect)
