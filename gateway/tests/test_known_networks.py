"""Networks of earlier sign-ins are stored, on either database."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, EMAIL, NEW_PASSWORD, OTHER_EMAIL, PASSWORD, World
from msgspec import structs

from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.people.attempt_limits import ATTEMPTS
from pqkeep_gateway.people.challenges import InvalidChallengeError, SecondFactorRequiredError
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.storage.known_networks import LIFETIME, MAX_NETWORKS
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.schema import CHALLENGES, KNOWN_NETWORKS
from pqkeep_gateway.storage.second_factors import MAX_CHALLENGES

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

HOME, OFFICE, ELSEWHERE = "192.0.2.7", "2001:db8:1:2::7", "203.0.113.9"


async def sign_in(world: World, source_address: str, password: str = PASSWORD) -> None:
    """Sign in from an address."""
    attribution = structs.replace(ATTRIBUTION, source_address=source_address)
    await world.sign_in.with_password(EMAIL, password, attribution)


async def test_a_sign_in_makes_a_network_known(world: World) -> None:
    """A sign-in makes its address (for IPv6 its /64) known, for this account only."""
    await world.join()
    await world.join(email=OTHER_EMAIL)
    await sign_in(world, OFFICE)
    is_known = world.known_networks.is_known
    assert await is_known(EMAIL.upper(), "2001:db8:1:2:ffff::1")
    assert not await is_known(EMAIL, "2001:db8:1:3::7")
    assert not await is_known(OTHER_EMAIL, OFFICE)
    assert not await is_known("nobody@example.com", OFFICE)


@pytest.mark.threat("stranger")
@pytest.mark.parametrize("networks", [1, MAX_CHALLENGES + 1])
async def test_whoever_knows_the_password_ends_no_sign_in_at_home(
    world: World, networks: int
) -> None:
    """Sign-ins from elsewhere do not end a pending sign-in from a known network."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    challenge = await world.challenge()
    for number in range(networks):
        with pytest.raises(SecondFactorRequiredError):
            await sign_in(world, f"203.0.113.{number}")
    async with world.engine.connect() as connection:
        count = sa.select(sa.func.count()).select_from(CHALLENGES)
        assert (await connection.execute(count)).scalar_one() <= MAX_CHALLENGES
    await world.sign_in.answer_challenge(challenge, totp.at(int(world.now)), ATTRIBUTION)


async def test_a_sign_in_ends_an_earlier_one_from_there(world: World) -> None:
    """A sign-in ends an earlier pending sign-in from the same network."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    earlier, _ = await world.challenge(), await world.challenge()
    with pytest.raises(InvalidChallengeError):
        await world.sign_in.answer_challenge(earlier, totp.at(int(world.now)), ATTRIBUTION)


async def test_a_wrong_password_makes_no_network_known(world: World) -> None:
    """Only a successful sign-in makes a network known."""
    await world.join()
    with pytest.raises(WrongPasswordError):
        await sign_in(world, ELSEWHERE, NEW_PASSWORD)
    assert not await world.known_networks.is_known(EMAIL, ELSEWHERE)


async def test_a_network_is_known_for_90_days(world: World) -> None:
    """Each sign-in from a network extends its 90 days."""
    await world.join()
    life = LIFETIME.total_seconds()
    for _ in range(2):
        world.now += life - 1
        assert await world.known_networks.is_known(EMAIL, HOME)
        await sign_in(world, HOME)
    world.now += life
    assert not await world.known_networks.is_known(EMAIL, HOME)


async def test_known_networks_are_bounded_and_hashed(world: World) -> None:
    """The last 20 networks are stored as digests. A digest reveals no address and no account."""
    await world.join()
    for number in range(MAX_NETWORKS + 5):
        world.now += 1
        await sign_in(world, f"198.51.100.{number}")
    async with world.engine.connect() as connection:
        rows = (await connection.execute(sa.select(KNOWN_NETWORKS.c.digest))).scalars().all()
    assert {len(row) for row in rows} == {32}
    assert len(rows) == MAX_NETWORKS
    assert not await world.known_networks.is_known(EMAIL, "198.51.100.4")
    assert await world.known_networks.is_known(EMAIL, "198.51.100.5")


async def test_a_password_reset_makes_a_network_known(world: World) -> None:
    """A completed reset makes the network known, so attackers cannot block the sign-in."""
    await world.join()
    world = world.restarted(has_limits=True)
    for number in range(60):
        with pytest.raises((WrongPasswordError, TooManyAttemptsError)):
            await sign_in(world, f"203.0.113.{number}", "a stranger's guess")
    with pytest.raises(TooManyAttemptsError):
        await sign_in(world, OFFICE)
    attribution = structs.replace(ATTRIBUTION, source_address=OFFICE)
    await world.resets.complete(await world.reset_token(), NEW_PASSWORD, attribution)
    await sign_in(world, OFFICE, NEW_PASSWORD)


@pytest.mark.threat("stranger")
async def test_a_stranger_s_failures_stop_nobody_at_home(world: World) -> None:
    """From a known network a sign-in succeeds after any number of failures from elsewhere."""
    await world.join()
    world = world.restarted(has_limits=True)
    for number in range(10 * ATTEMPTS.events):
        with pytest.raises((WrongPasswordError, TooManyAttemptsError)):
            await sign_in(world, f"203.0.113.{number}", "a stranger's guess")
    await sign_in(world, HOME)


async def test_a_stranger_s_letter_leaves_the_owner_s_valid(world: World) -> None:
    """A second requested reset does not end a pending one; using one ends all."""
    await world.join()
    first = await world.reset_token()
    second = await world.reset_token()
    await world.resets.complete(first, NEW_PASSWORD, ATTRIBUTION)
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(second, PASSWORD, ATTRIBUTION)
