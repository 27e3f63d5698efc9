"""Password resets, on either database: a token replaces one password before it expires."""

from __future__ import annotations

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    FEW_ROUNDS,
    HERE,
    NEW_PASSWORD,
    OTHER_EMAIL,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)

from pqkeep_gateway.access.credentials import CredentialKind
from pqkeep_gateway.outgoing_mail import MailKind, mailed_token
from pqkeep_gateway.people import password_resets
from pqkeep_gateway.people.challenges import InvalidChallengeError
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError
from pqkeep_gateway.storage.users import AccountChangedError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_a_password_is_reset_once(world: World) -> None:
    """Of 32 concurrent uses of one token, exactly one succeeds; all earlier sessions end."""
    await world.join()
    for number in range(FEW_ROUNDS):
        account = await world.account()
        before = await world.sessions.begin(account, ATTRIBUTION)
        token = await world.reset_token()
        new = [f"{NEW_PASSWORD} {number} {attempt}" for attempt in range(CONCURRENCY)]
        attempts = [world.resets.complete(token, item, ATTRIBUTION) for item in new]
        assert await count_successes(attempts, InvalidPasswordResetTokenError) == 1
        assert await world.sessions.find(before.access, HERE) is None
        with pytest.raises(InvalidRefreshTokenError):
            await world.sessions.refresh(before.refresh, b"", ATTRIBUTION)


async def test_a_reset_does_not_deadlock_with_a_change(world: World) -> None:
    """A concurrent reset and change of one password cause no failure."""
    for number in range(ROUNDS):
        email = f"{number}@example.com"
        person, token = await world.person(email), await world.reset_token(email)
        attempts = [
            world.resets.complete(token, NEW_PASSWORD, ATTRIBUTION),
            world.password_change.change(person, NEW_PASSWORD, ATTRIBUTION),
        ]
        assert await count_successes(attempts, InvalidPasswordResetTokenError) >= 1


async def test_a_sign_in_with_the_old_password_comes_too_late(world: World) -> None:
    """A sign-in with the old password that began before the reset cannot finish after the reset."""
    await world.codes.choose(await world.person(), ATTRIBUTION, wanted=True)
    before = await world.account()
    challenge = await world.challenge()
    code = await world.email_code(challenge)
    await world.resets.complete(await world.reset_token(), NEW_PASSWORD, ATTRIBUTION)
    with pytest.raises(AccountChangedError):
        await world.sessions.begin(before, ATTRIBUTION)
    with pytest.raises(InvalidChallengeError):
        await world.codes.check(challenge, code, ATTRIBUTION)


async def test_a_reset_ends_after_half_an_hour(world: World) -> None:
    """A mailed token is valid for exactly 30 minutes."""
    await world.join()
    life = password_resets.LIFETIME.total_seconds()
    assert life == 1800
    for late, accepted in ((1, True), (0, False)):
        token = await world.reset_token()
        world.now += life - late
        attempts = [world.resets.complete(token, NEW_PASSWORD, ATTRIBUTION)]
        assert await count_successes(attempts, InvalidPasswordResetTokenError) == accepted
    with pytest.raises(WrongPasswordError):
        await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


async def test_an_unknown_address_s_token_opens_nothing(world: World) -> None:
    """The token for an unknown address resets no password."""
    await world.resets.begin(OTHER_EMAIL, ATTRIBUTION)
    mail = await world.mail(MailKind.DISCARDED)
    token = mailed_token(mail, CredentialKind.PASSWORD_RESET, world.pepper)
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(token, NEW_PASSWORD, ATTRIBUTION)
