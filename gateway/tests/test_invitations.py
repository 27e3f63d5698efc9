"""Invitations, on either database: accepted once before their expiry, or withdrawn."""

from __future__ import annotations

import asyncio

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    EMAIL,
    FEW_ROUNDS,
    OTHER_EMAIL,
    PASSWORD,
    ROUNDS,
    World,
    count_successes,
)

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.storage.invitations import InvalidInvitationTokenError, InvitationNotFoundError
from pqkeep_gateway.storage.team import NotPermittedError, OwnersOnlyError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_an_invitation_is_accepted_once(world: World) -> None:
    """Of 32 concurrent acceptances of one invitation, exactly one creates a user."""
    invited = await world.invite(EMAIL, Role.VIEWER)
    attempts = [
        world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION) for _ in range(CONCURRENCY)
    ]
    assert await count_successes(attempts, InvalidInvitationTokenError) == 1


async def test_an_invitation_expires_after_a_week(world: World) -> None:
    """An invitation cannot be accepted after a week."""
    invited = await world.invite(EMAIL, Role.VIEWER)
    world.now += 7 * 86_400
    with pytest.raises(InvalidInvitationTokenError):
        await world.invitations.accept(invited.token, PASSWORD, ATTRIBUTION)


async def test_a_withdrawn_invitation_is_not_accepted(world: World) -> None:
    """Of a concurrent acceptance and withdrawal exactly one succeeds."""
    for number in range(ROUNDS):
        invited = await world.invite(f"{number}@example.com", Role.VIEWER)
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
        assert (await world.invitations.list(world.tenant.id)).entries == ()


async def test_an_address_has_one_invitation_to_a_tenant(world: World) -> None:
    """Of eight concurrent invitations of one address, one remains valid."""
    by = await world.person()
    for number in range(FEW_ROUNDS):
        email = f"{number}@example.com"
        attempts = [world.invite(email, Role.VIEWER, by) for _ in range(8)]
        invited = await asyncio.gather(*attempts)
        (pending,) = (await world.invitations.list(world.tenant.id)).entries
        assert pending.id in [invitation.id for invitation in invited]
        accepted = [
            world.invitations.accept(invitation.token, PASSWORD, ATTRIBUTION)
            for invitation in invited
        ]
        assert await count_successes(accepted, InvalidInvitationTokenError) == 1


async def test_only_owners_replace_an_invitation_of_an_owner(world: World) -> None:
    """Of concurrent invitations by an owner and an administrator, the owner's remains."""
    owner = await world.person()
    admin = await world.principal(await world.join(Role.ADMIN, OTHER_EMAIL))
    for number in range(ROUNDS):
        email = f"{number}@example.com"
        attempts = [
            world.invite(email, Role.OWNER, owner),
            world.invite(email, Role.VIEWER, admin),
        ]
        assert await count_successes(attempts, OwnersOnlyError) >= 1
        pending = [
            invitation
            for invitation in (await world.invitations.list(world.tenant.id)).entries
            if invitation.email == email
        ]
        assert [item.role for item in pending] == [Role.OWNER]


async def test_an_inviter_needs_authority_when_the_invitation_is_stored(world: World) -> None:
    """A member who is demoted or removed during the request cannot invite."""
    owner = await world.person()
    admin = await world.principal(await world.join(Role.ADMIN, OTHER_EMAIL))
    await world.members.change_role(world.tenant.id, admin.user, Role.DEVELOPER, owner, ATTRIBUTION)
    with pytest.raises(NotPermittedError):
        await world.invite("somebody@example.com", Role.VIEWER, admin)
    assert (await world.invitations.list(world.tenant.id)).entries == ()
