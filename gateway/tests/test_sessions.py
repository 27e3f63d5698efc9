"""Sessions, on either database: tokens can be used once, and expire."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from os import urandom
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    HERE,
    MOMENT,
    OTHER_EMAIL,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)
from msgspec.structs import replace

from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.people.challenges import Factor
from pqkeep_gateway.people.sessions import Sessions
from pqkeep_gateway.storage.schema import SESSIONS
from pqkeep_gateway.storage.sessions import (
    EXCHANGES,
    MAX_SESSIONS,
    InvalidRefreshTokenError,
    SqlSessions,
)
from pqkeep_gateway.storage.users import AccountChangedError

BROWSER = b"browser"

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.mark.threat("stolen-refresh-token")
async def test_a_refresh_token_is_exchanged_once(world: World) -> None:
    """Of 32 concurrent exchanges of one token by other clients, one succeeds; the session ends."""
    await world.join()
    account = await world.account()
    for _ in range(ROUNDS):
        tokens = await world.sessions.begin(account, ATTRIBUTION)
        attempts = [
            world.sessions.refresh(tokens.refresh, b"client %d" % number, ATTRIBUTION)
            for number in range(CONCURRENCY)
        ]
        assert await count_successes(attempts, InvalidRefreshTokenError) == 1
        with pytest.raises(InvalidRefreshTokenError):
            await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
    assert world.log.operations.count("refresh-token-reused") == ROUNDS


@pytest.mark.threat("stolen-refresh-token")
async def test_tabs_that_refresh_at_once_get_the_same_tokens(world: World) -> None:
    """32 concurrent exchanges of one token by one client get the same valid tokens."""
    await world.join()
    account = await world.account()
    for _ in range(ROUNDS):
        tokens = await world.sessions.begin(account, ATTRIBUTION)
        responses = await asyncio.gather(
            *(
                world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
                for _ in range(CONCURRENCY)
            )
        )
        (new,) = set(responses)
        assert new != tokens
        assert await world.sessions.find(tokens.access, HERE) is None
        assert await world.sessions.find(new.access, HERE)
        assert await world.sessions.refresh(new.refresh, BROWSER, ATTRIBUTION) != new
    assert "refresh-token-reused" not in world.log.operations


@pytest.mark.parametrize(
    ("seconds", "user_agent", "address", "is_same"),
    [
        (10 - MOMENT, b"browser", "2001:db8:0:1::2", True),
        (10, b"browser", "2001:db8:0:1::1", False),
        (0, b"another", "2001:db8:0:1::1", False),
        (0, b"browser", "2001:db8:0:2::1", False),
    ],
    ids=["the same network", "too late", "another user agent", "another network"],
)
async def test_only_the_same_client_gets_its_answer_again(
    *, world: World, seconds: float, user_agent: bytes, address: str, is_same: bool
) -> None:
    """A used token ends the session, except for the same client within ten seconds."""
    old = await world.join()
    at = replace(ATTRIBUTION, source_address="2001:db8:0:1::1")
    new = await world.sessions.refresh(old.refresh, BROWSER, at)
    world.now += seconds
    at = replace(at, source_address=address)
    if is_same:
        assert await world.sessions.refresh(old.refresh, user_agent, at) == new
        assert await world.sessions.find(new.access, HERE)
        return
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(old.refresh, user_agent, at)
    assert await world.sessions.find(new.access, HERE) is None
    assert world.log.operations[-1] == "refresh-token-reused"


async def test_only_the_latest_exchange_is_answered_again(world: World) -> None:
    """A token with an exchanged successor ends the session, even within ten seconds."""
    first = await world.join()
    second = await world.sessions.refresh(first.refresh, BROWSER, ATTRIBUTION)
    third = await world.sessions.refresh(second.refresh, BROWSER, ATTRIBUTION)
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(first.refresh, BROWSER, ATTRIBUTION)
    assert await world.sessions.find(third.access, HERE) is None


@pytest.mark.threat("stolen-refresh-token")
async def test_a_session_ends_after_thirty_days(world: World) -> None:
    """No token of a session is accepted after 30 days, in spite of refreshes."""
    began, tokens = world.now, await world.join()
    for _ in range(4):
        world.now += 7 * 86_400 - MOMENT
        tokens = await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
    world.now = began + 30 * 86_400 - 60
    tokens = await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
    world.now = began + 30 * 86_400 - MOMENT
    assert await world.sessions.find(tokens.access, HERE)
    world.now = began + 30 * 86_400
    assert await world.sessions.find(tokens.access, HERE) is None
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)


async def test_a_shorter_lifetime_holds_for_sessions_that_have_begun(world: World) -> None:
    """After the setting was lowered, a session that is too old cannot be refreshed."""
    tokens = await world.join()
    world.now += 2 * 86_400
    shorter = Sessions(
        SqlSessions(world.engine),
        CredentialLookups(world.clock),
        world.pepper,
        world.audit_delivery,
        world.clock,
        timedelta(days=1),
    )
    with pytest.raises(InvalidRefreshTokenError):
        await shorter.refresh(tokens.refresh, BROWSER, ATTRIBUTION)


@pytest.mark.parametrize("change", ["enroll", "disable", "email codes"])
async def test_a_change_of_second_factors_ends_other_sessions(world: World, change: str) -> None:
    """Enrolling or removing a second factor ends the account's other sessions, and no others."""
    person = await world.person()
    codes = (await world.enroll(person))[1] if change == "disable" else ()
    others = [await world.sessions.begin(await world.account(), ATTRIBUTION) for _ in range(2)]
    neighbour = await world.join(email=OTHER_EMAIL)
    match change:
        case "enroll":
            await world.enroll(person)
        case "disable":
            await world.factors.disable(person, codes[0], ATTRIBUTION)
        case _:
            await world.codes.choose(person, ATTRIBUTION, wanted=True)
    assert [session.id for session in (await world.sessions.list(person.user)).entries] == [
        person.session
    ]
    for other in others:
        assert await world.sessions.find(other.access, HERE) is None
        with pytest.raises(InvalidRefreshTokenError):
            await world.sessions.refresh(other.refresh, BROWSER, ATTRIBUTION)
    assert await world.sessions.find(neighbour.access, HERE)


@pytest.mark.threat("stolen-access-cookie")
async def test_tokens_expire(world: World) -> None:
    """An access token is valid for exactly 15 minutes, and a refresh token for 7 days."""
    began = world.now
    tokens = await world.join()
    world.now = began + 15 * 60 - MOMENT
    assert await world.sessions.find(tokens.access, HERE)
    world.now = began + 15 * 60
    assert await world.sessions.find(tokens.access, HERE) is None
    world.now = began = began + 7 * 86_400 - MOMENT
    tokens = await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
    world.now = began + 7 * 86_400
    with pytest.raises(InvalidRefreshTokenError):
        await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)


async def test_a_refreshed_access_token_has_its_own_expiry(world: World) -> None:
    """A refreshed access token is valid for 15 minutes; the earlier one is refused."""
    old = await world.join()
    world.now += 10 * 60
    new = await world.sessions.refresh(old.refresh, BROWSER, ATTRIBUTION)
    assert await world.sessions.find(old.access, HERE) is None
    world.now += 15 * 60 - MOMENT
    assert await world.sessions.find(new.access, HERE)
    world.now += MOMENT
    assert await world.sessions.find(new.access, HERE) is None


async def test_a_changed_password_stops_a_sign_in_that_has_begun(world: World) -> None:
    """A sign-in that began before a change of password cannot finish or request a code."""
    tokens = await world.join()
    before = await world.account()
    person = await world.sessions.find(tokens.access, HERE)
    assert person is not None
    await world.password_change.change(person, PASSWORD + "!", ATTRIBUTION)
    with pytest.raises(AccountChangedError):
        await world.sessions.begin(before, ATTRIBUTION)
    with pytest.raises(AccountChangedError):
        await world.challenges.issue(before, Factor.APP, HERE)


@pytest.mark.parametrize("factor", ["app", "email"])
async def test_a_new_second_factor_stops_a_sign_in_that_has_begun(
    world: World, factor: str
) -> None:
    """A sign-in that began before a second factor was added cannot finish without it."""
    person = await world.person()
    before = await world.account()
    if factor == "app":
        await world.enroll(person)
    else:
        await world.codes.choose(person, ATTRIBUTION, wanted=True)
    with pytest.raises(AccountChangedError):
        await world.sessions.begin(before, ATTRIBUTION)


async def _count(world: World) -> int:
    async with world.engine.connect() as connection:
        count = sa.select(sa.func.count()).select_from(SESSIONS)
        return int((await connection.execute(count)).scalar_one())


async def test_one_more_session_than_a_person_may_have_ends_the_least_used(world: World) -> None:
    """A session beyond the limit ends the one with the oldest refresh."""
    first = await world.join()
    account = await world.account()
    world.now += MOMENT
    second = await world.sessions.begin(account, ATTRIBUTION)
    world.now += MOMENT
    first = await world.sessions.refresh(first.refresh, BROWSER, ATTRIBUTION)
    for _ in range(MAX_SESSIONS - 1):
        world.now += MOMENT
        last = await world.sessions.begin(account, ATTRIBUTION)
    assert await world.sessions.find(second.access, HERE) is None
    for tokens in (first, last):
        assert await world.sessions.find(tokens.access, HERE)
    assert await _count(world) == MAX_SESSIONS


async def test_however_many_sessions_there_are_they_end(world: World) -> None:
    """More sessions than an SQL statement may have parameters end at once."""
    await world.join()
    account = await world.account()
    async with world.engine.begin() as connection:
        (row,) = (await connection.execute(sa.select(SESSIONS))).mappings()
        copies = [
            {**row, "id": uuid4(), "access_digest": urandom(32), "refresh_digest": urandom(32)}
            for _ in range(33_000)
        ]
        await connection.execute(sa.insert(SESSIONS), copies)
    await world.sessions.begin(account, ATTRIBUTION)
    assert await _count(world) == MAX_SESSIONS


async def test_a_session_is_refreshed_sixty_times_in_a_quarter_of_an_hour(world: World) -> None:
    """A refresh beyond the limit is refused and changes nothing: the same token works later."""
    tokens = await world.join()
    for _ in range(EXCHANGES.events):
        world.now += MOMENT
        tokens = await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
    with pytest.raises(TooManyAttemptsError) as refused:
        await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
    assert 0 < refused.value.wait <= EXCHANGES.seconds
    assert await world.sessions.find(tokens.access, HERE)
    world.now += refused.value.wait + MOMENT
    await world.sessions.refresh(tokens.refresh, BROWSER, ATTRIBUTION)
