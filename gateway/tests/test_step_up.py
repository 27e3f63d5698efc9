"""A step-up token is valid for one action, and a proof for 300 seconds, on either database."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    MOMENT,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.people.attempt_limits import ATTEMPTS, USED_CODES
from pqkeep_gateway.people.second_factors import UsedCodeError, WrongCodeError
from pqkeep_gateway.people.step_up import StepUpRequiredError
from pqkeep_gateway.storage.users import UserNotFoundError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Idempotency

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


def had_no_effect(error: Exception) -> bool:
    """Return whether a failed action is known to have had no effect."""
    return isinstance(error, WrongCodeError)


async def test_a_step_up_token_acts_once(world: World) -> None:
    """Of 32 concurrent actions with one token, exactly one is executed, and no later one."""
    person = await world.person()
    done = 0

    async def action() -> None:
        nonlocal done
        await asyncio.sleep(0)
        done += 1

    for number in range(ROUNDS):
        token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
        attempts = [
            world.step_up.spend(person, token, action, had_no_effect) for _ in range(CONCURRENCY)
        ]
        assert await count_successes(attempts, StepUpRequiredError) == 1
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, token, action, had_no_effect)
        assert done == number + 1


async def test_a_failure_without_effect_returns_the_token(world: World) -> None:
    """After an action that failed without effect, the token can be used once more."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token

    async def fail() -> None:
        raise WrongCodeError

    async def action() -> str:
        return "done"

    with pytest.raises(WrongCodeError):
        await world.step_up.spend(person, token, fail, had_no_effect)
    assert await world.step_up.spend(person, token, action, had_no_effect) == "done"


async def test_an_action_of_unknown_outcome_uses_the_token_up(world: World) -> None:
    """After an action with an unknown outcome, its token is not accepted again."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token

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
    """A used token is accepted again only for the same request with its Idempotency-Key."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
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
    """A used token stays used, also if the repeated request fails without effect."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token

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
    """While a request is in progress, its repetition with the same token is refused."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
    request = _request(b"a", b"1")

    async def action() -> None:
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, token, action, had_no_effect, request)

    await world.step_up.spend(person, token, action, had_no_effect, request)


async def test_a_wrong_password_is_no_step_up(world: World) -> None:
    """A wrong password gives no token and is recorded, like successful step-ups."""
    person = await world.person()
    with pytest.raises(WrongCodeError):
        await world.step_up.issue(person, PASSWORD + "!", ATTRIBUTION)
    await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    failed, done = list(world.log.recorded.values())[-2:]
    assert (failed.operation, failed.outcome) == ("step-up-failed", "ERR_MFA_001")
    assert (done.operation, done.outcome) == ("step-up", "success")


async def test_a_wrong_code_is_no_step_up(world: World) -> None:
    """With an authenticator, a wrong code and the password alone are refused."""
    person = await world.person()
    totp, _ = await world.enroll(person)
    for wrong in (totp.at(int(world.now) - 3600), PASSWORD):
        with pytest.raises(WrongCodeError):
            await world.step_up.issue(person, wrong, ATTRIBUTION)


async def test_a_token_of_another_kind_is_no_step_up(world: World) -> None:
    """A credential of another kind is refused without a database look-up."""
    person = await world.person()

    async def action() -> None:
        raise AssertionError

    others = set(CredentialKind) - {CredentialKind.STEP_UP}
    for shown in ("", "pqx_", *map(new_credential, others)):
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, shown, action, had_no_effect)


async def test_a_step_up_token_expires(world: World) -> None:
    """A token is valid for 300 seconds, and only for its user."""
    person = await world.person()
    token, other_token = [
        (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token for _ in range(2)
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
    """A token from before a new second factor is refused."""
    person = await world.person()
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
    await world.enroll(person)

    async def action() -> None:
        raise AssertionError

    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, action, had_no_effect)


async def _proof(world: World, person: SessionPrincipal, shown: str = PASSWORD) -> str:
    """Step up for a session; return the proof."""
    given = await world.step_up.issue(person, shown, ATTRIBUTION, for_session=True)
    assert given.proof is not None
    return given.proof


async def test_a_proof_covers_its_session_for_five_minutes(world: World) -> None:
    """A proof is accepted any number of times in 300 seconds, and not afterwards."""
    person = await world.person()
    proof = await _proof(world, person)
    world.now += 300 - MOMENT
    assert [await world.step_up.covers(person, proof) for _ in range(3)] == [True] * 3
    world.now += MOMENT
    assert not await world.step_up.covers(person, proof)


async def test_a_proof_is_given_only_where_it_is_asked_for(world: World) -> None:
    """A step-up for one action creates no proof, and does not end an existing one."""
    person = await world.person()
    assert (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).proof is None
    proof = await _proof(world, person)
    assert (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).proof is None
    assert await world.step_up.covers(person, proof)
    later = await _proof(world, person)
    assert await world.step_up.covers(person, later)
    assert not await world.step_up.covers(person, proof)


async def test_a_proof_is_of_one_session_user_and_role(world: World) -> None:
    """A proof is valid only for its session, user and role."""
    person = await world.person()
    proof = await _proof(world, person)
    elsewhere = await world.principal(
        await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
    )
    await _proof(world, elsewhere)
    for other in (
        elsewhere,
        replace(person, user=UserId(uuid4())),
        replace(person, session=SessionId(uuid4())),
        replace(person, role=Role.ADMIN),
    ):
        assert not await world.step_up.covers(other, proof)
    assert await world.step_up.covers(person, proof)


async def test_nothing_else_is_a_proof(world: World) -> None:
    """Another proof, a part of one, or another kind of credential is not accepted."""
    person = await world.person()
    proof = await _proof(world, person)
    token = (await world.step_up.issue(person, PASSWORD, ATTRIBUTION)).token
    for shown in ("", token, proof[:-1], proof.upper(), *map(new_credential, CredentialKind)):
        assert not await world.step_up.covers(person, shown)


@pytest.mark.parametrize("end", ["sign-out", "password", "factor", "removal"])
async def test_what_ends_a_session_or_its_factors_ends_a_proof(world: World, end: str) -> None:
    """A sign-out, a new password, a new second factor or a removal ends a proof."""
    person = await world.person()
    proof = await _proof(world, person)
    if end == "sign-out":
        await world.sessions.end(person, person.session, ATTRIBUTION, AuditEvent.SIGN_OUT)
    elif end == "password":
        await world.password_change.change(person, PASSWORD + "!", ATTRIBUTION)
    elif end == "factor":
        await world.enroll(person)
    else:
        await world.join(email="grace@example.com")
        await world.members.remove(person.tenant, person.user, person, ATTRIBUTION)
    assert not await world.step_up.covers(person, proof)


async def test_a_session_that_ended_gets_no_proof(world: World) -> None:
    """A step-up that arrives after a sign-out leaves no proof."""
    person = await world.person()
    await world.sessions.end(person, person.session, ATTRIBUTION, AuditEvent.SIGN_OUT)
    with suppress(UserNotFoundError):
        assert not await world.step_up.covers(person, await _proof(world, person))


@pytest.mark.parametrize(
    ("drift", "second", "wait"), [(0, 0, 30), (0, 18, 12), (0, 29, 1), (30, 0, 60), (-30, 10, 20)]
)
async def test_a_used_code_says_when_the_next_one_works(
    world: World, drift: int, second: int, wait: int
) -> None:
    """The reported wait ends with the step after the last accepted one or the current one."""
    world.now = 1_800_000_000.0
    person = await world.person()
    totp, _ = await world.enroll(person)
    world.now += 300
    code = totp.at(int(world.now) + drift)
    await world.step_up.issue(person, code, ATTRIBUTION)
    world.now += second
    with pytest.raises(UsedCodeError) as used:
        await world.step_up.issue(person, code, ATTRIBUTION)
    assert used.value.wait == wait
    world.now += wait
    await world.step_up.issue(person, totp.at(int(world.now)), ATTRIBUTION)


async def test_used_codes_stop_nobody(world: World) -> None:
    """Used codes do not count as failures, up to a limit."""
    world = world.restarted(has_limits=True)
    person = await world.person()
    totp, _ = await world.enroll(person)
    world.now += 300
    used, wrong = totp.at(int(world.now)), totp.at(int(world.now) - 3600)
    await world.step_up.issue(person, used, ATTRIBUTION)
    for _ in range(USED_CODES.events):
        with pytest.raises(UsedCodeError):
            await world.step_up.issue(person, used, ATTRIBUTION)
    for _ in range(ATTEMPTS.events - 1):
        with pytest.raises(WrongCodeError):
            await world.step_up.issue(person, wrong, ATTRIBUTION)
    with pytest.raises(UsedCodeError):
        await world.step_up.issue(person, used, ATTRIBUTION)
    with pytest.raises(TooManyAttemptsError):
        await world.step_up.issue(person, used, ATTRIBUTION)


async def test_a_used_code_stops_no_sign_in(world: World) -> None:
    """A second sign-in within a code's time is told so, and is not a failure."""
    world = world.restarted(has_limits=True)
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    used = totp.at(int(world.now))
    await world.sign_in.answer_challenge(await world.challenge(), used, ATTRIBUTION)
    for _ in range(ATTEMPTS.events + 1):
        with pytest.raises(UsedCodeError):
            await world.sign_in.answer_challenge(await world.challenge(), used, ATTRIBUTION)
    world.now += 30
    await world.sign_in.answer_challenge(
        await world.challenge(), totp.at(int(world.now)), ATTRIBUTION
    )
