"""Invitations, on either database: accepted once, in time, or withdrawn."""

from __future__ import annotations

import asyncio

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)

from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.people.invitations import InvalidInvitationTokenError, InvitationNotFoundError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_an_invitation_is_accepted_once(world: World) -> None:
    """Of 32 acceptances of one invitation at once exactly one creates a user."""
    invited = await world.invitations.invite(world.tenant.id, EMAIL, Role.VIEWER, ATTRIBUTION)
    attempts = [
        world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION) for _ in range(CONCURRENCY)
    ]
    assert await count_successes(attempts, InvalidInvitationTokenError) == 1


async def test_an_invitation_expires_after_a_week(world: World) -> None:
    """What was not accepted in a week cannot be."""
    invited = await world.invitations.invite(world.tenant.id, EMAIL, Role.VIEWER, ATTRIBUTION)
    world.now += 7 * 86_400
    with pytest.raises(InvalidInvitationTokenError):
        await world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION)


async def test_a_withdrawn_invitation_is_not_accepted(world: World) -> None:
    """Of an acceptance and a withdrawal at once exactly one succeeds."""
    for number in range(ROUNDS):
        invited = await world.invitations.invite(
            world.tenant.id, f"{number}@example.com", Role.VIEWER, ATTRIBUTION
        )
        accepted, withdrawn = await asyncio.gather(
            world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION),
            world.invitations.withdraw(
                world.tenant.id, invited.id, OperatorPrincipal(), ATTRIBUTION
            ),
            return_exceptions=True,
        )
        if withdrawn is None:
            assert isinstance(accepted, InvalidInvitationTokenError)
        else:
            assert isinstance(withdrawn, InvitationNotFoundError)
            assert not isinstance(accepted, BaseException)
        assert await world.invitations.list(world.tenant.id) == ()
