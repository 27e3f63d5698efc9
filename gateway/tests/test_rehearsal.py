"""Rehearsals report a request's errors, and change nothing."""

from __future__ import annotations

import asyncio

import pytest
from gateway.tests.world import ATTRIBUTION, EMAIL, OTHER_EMAIL, PASSWORD, World

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_gateway.key_client import KeyClient
from pqkeep_gateway.people.attempt_limits import INVITATIONS_PER_TENANT
from pqkeep_gateway.people.passwords import InvalidPasswordError
from pqkeep_gateway.rehearsal import before_change, is_rehearsal, rehearse
from pqkeep_gateway.storage.team import LastOwnerError
from pqkeep_gateway.storage.users import EmailTakenError
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.messages import GetActiveKey, RotateKey

ON_BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@ON_BOTH
async def test_a_rehearsal_stores_nothing(world: World) -> None:
    """A rehearsed invitation stores nothing, sends no mail, and leaves no record."""
    owner = await world.person()
    recorded = len(world.log.recorded)
    await rehearse(lambda: world.invite(OTHER_EMAIL, Role.VIEWER, owner))
    assert (await world.invitations.list(world.tenant.id)).total == 0
    assert len(world.log.recorded) == recorded
    await world.invite(OTHER_EMAIL, Role.VIEWER, owner)
    assert (await world.invitations.list(world.tenant.id)).total == 1


@ON_BOTH
async def test_a_rehearsal_tells_what_is_wrong(world: World) -> None:
    """A rehearsal raises the request's own error, even an error that only the database detects."""
    owner = await world.person()
    with pytest.raises(EmailTakenError):
        await rehearse(lambda: world.invite(EMAIL, Role.VIEWER, owner))
    with pytest.raises(LastOwnerError):
        await rehearse(lambda: world.members.remove(owner.tenant, owner.user, owner, ATTRIBUTION))
    with pytest.raises(InvalidPasswordError):
        await rehearse(lambda: world.password_change.change(owner, "short", ATTRIBUTION))
    await rehearse(lambda: world.password_change.change(owner, PASSWORD + "!", ATTRIBUTION))
    await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


async def test_a_rehearsal_counts_nothing(world: World) -> None:
    """Rehearsals do not count against the limit of invitations."""
    world = world.restarted(has_limits=True)
    owner = await world.person()
    for _ in range(INVITATIONS_PER_TENANT.events + 1):
        await rehearse(lambda: world.invite(OTHER_EMAIL, Role.VIEWER, owner))
    await world.invite(OTHER_EMAIL, Role.VIEWER, owner)


async def test_a_rehearsal_announces_nothing(world: World) -> None:
    """A rehearsal does not clear the caches of other gateways."""
    limiter = MemoryRateLimiter(world.clock)
    await rehearse(limiter.announce_change)
    assert await limiter.changes() == 0
    await limiter.announce_change()
    assert await limiter.changes() == 1


async def test_the_key_service_is_asked_look_ups_only(world: World) -> None:
    """In a rehearsal only look-ups reach the key service."""
    client = KeyClient()
    rotate = RotateKey(tenant=world.tenant.id, algorithm=Algorithm.ML_KEM_768)
    look_up = GetActiveKey(tenant=world.tenant.id, algorithm=Algorithm.ML_KEM_768)
    await rehearse(lambda: client.execute(rotate, ATTRIBUTION))
    with pytest.raises(KeyServiceError):
        await rehearse(lambda: client.execute(look_up, ATTRIBUTION))


async def test_only_the_task_that_rehearses_rehearses(world: World) -> None:
    """During a rehearsal a concurrent request is executed."""
    owner = await world.person()

    async def slow() -> None:
        await asyncio.sleep(0)
        assert is_rehearsal()
        await world.invite(OTHER_EMAIL, Role.VIEWER, owner)

    await asyncio.gather(rehearse(slow), world.invite("third@example.com", Role.VIEWER, owner))
    assert not is_rehearsal()
    before_change()
    listed = await world.invitations.list(world.tenant.id)
    assert [entry.email for entry in listed.entries] == ["third@example.com"]
