"""Sign-ups, on either database: a token creates one tenant before it expires."""

from __future__ import annotations

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    FEW_ROUNDS,
    PASSWORD,
    World,
    count_successes,
)

from pqkeep_gateway.people import registration
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError
from pqkeep_gateway.storage.tenants import NameTakenError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_a_registration_is_completed_once(world: World) -> None:
    """Of 32 concurrent confirmations exactly one creates a tenant with its owner."""
    rounds = FEW_ROUNDS
    for number in range(rounds):
        token = await world.registration_token(f"{number}@example.com")
        attempts = [
            world.registration.complete(token, f"tenant {number} {attempt}", PASSWORD, ATTRIBUTION)
            for attempt in range(CONCURRENCY)
        ]
        assert await count_successes(attempts, InvalidRegistrationTokenError) == 1
    assert (await world.stored_tenants.list()).total == 1 + rounds


async def test_a_taken_name_uses_nothing_up(world: World) -> None:
    """A registration with a taken name can be completed with another name within an hour."""
    life = registration.LIFETIME.total_seconds()
    token = await world.registration_token()
    world.now += life - 1
    with pytest.raises(NameTakenError):
        await world.registration.complete(token, world.tenant.name, PASSWORD, ATTRIBUTION)
    await world.registration.complete(token, "free", PASSWORD, ATTRIBUTION)
    token = await world.registration_token("third@example.com")
    world.now += life
    with pytest.raises(InvalidRegistrationTokenError):
        await world.registration.complete(token, "late", PASSWORD, ATTRIBUTION)
