"""Sessions, on either database: tokens are single-use and expire."""

from __future__ import annotations

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    HERE,
    MOMENT,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)

from pqkeep_gateway.people.sessions import AccountChangedError, InvalidRefreshTokenError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_a_refresh_token_is_exchanged_once(world: World) -> None:
    """Of 32 exchanges of one token at once exactly one succeeds, and the session is ended."""
    await world.join()
    account = await world.account()
    for _ in range(ROUNDS):
        tokens = await world.sessions.begin(account, ATTRIBUTION)
        attempts = [world.sessions.refresh(tokens.refresh, ATTRIBUTION) for _ in range(CONCURRENCY)]
        assert await count_successes(attempts, InvalidRefreshTokenError) == 1
        with pytest.raises(InvalidRefreshTokenError):
            await world.sessions.refresh(tokens.refresh, ATTRIBUTION)
    assert world.log.operations.count("refresh-token-reused") == ROUNDS


async def test_tokens_expire(world: World) -> None:
    """An access token is accepted for 15 minutes, a refresh token for 7 days: not a moment more."""
    began = world.now
    tokens = await world.join()
    world.now = began + 15 * 60 - MOMENT
    assert await world.sessions.find(tokens.access, HERE)
    world.now = began + 15 * 60
    assert await world.sessions.find(tokens.access, HERE) is None
    world.now = began = began + 7 * 86_400 - MOMENT
    tokens = await world.sessions.refresh(tokens.refresh, ATTRIBUTION)
    world.now = began + 7 * 86_400
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(tokens.refresh, ATTRIBUTION)


async def test_a_refreshed_access_token_has_its_own_expiry(world: World) -> None:
    """A refreshed access token is accepted for 15 minutes, and the earlier one no more."""
    old = await world.join()
    world.now += 10 * 60
    new = await world.sessions.refresh(old.refresh, ATTRIBUTION)
    assert await world.sessions.find(old.access, HERE) is None
    world.now += 15 * 60 - MOMENT
    assert await world.sessions.find(new.access, HERE)
    world.now += MOMENT
    assert await world.sessions.find(new.access, HERE) is None


async def test_a_changed_password_stops_a_sign_in_that_has_begun(world: World) -> None:
    """A sign-in that began before a change of password begins no session after it."""
    tokens = await world.join()
    before = await world.account()
    person = await world.sessions.find(tokens.access, HERE)
    assert person is not None
    await world.password_change.change(person, PASSWORD + "!", ATTRIBUTION)
    with pytest.raises(AccountChangedError):
        await world.sessions.begin(before, ATTRIBUTION)
