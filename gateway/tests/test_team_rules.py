"""The rules for changes of members in a team: every combination, without a database."""

from uuid import uuid4

import pytest

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import OperatorPrincipal, SessionId, SessionPrincipal, UserId
from pqkeep_gateway.storage.team import (
    LastOwnerError,
    MemberNotFoundError,
    NotPermittedError,
    OwnersOnlyError,
    Team,
)
from pqkeep_protocol.keys import TenantId

NEW = (*Role, None)
"""The new roles of a member; None: removed from the team."""


def _person(role: Role = Role.OWNER) -> SessionPrincipal:
    """Return a person whose session began with a role."""
    user, session = UserId(uuid4()), SessionId(uuid4())
    entitlements = Entitlements(Tier.FREE)
    return SessionPrincipal(TenantId(uuid4()), entitlements, user, role, session, suspended=False)


def _expected(by: Role, now: Role, to: Role | None) -> type[Exception] | None:
    """Return the expected result in a team of three owners, when one member changes another."""
    if by not in (Role.OWNER, Role.ADMIN):
        return NotPermittedError
    return OwnersOnlyError if by is Role.ADMIN and Role.OWNER in (now, to) else None


@pytest.mark.parametrize("by", Role)
@pytest.mark.parametrize("now", Role)
@pytest.mark.parametrize("to", NEW)
def test_every_cell(by: Role, now: Role, to: Role | None) -> None:
    """Owners can change every member, admins every member except owners, others none."""
    asks, member, others = _person(), UserId(uuid4()), [UserId(uuid4()) for _ in range(2)]
    team = Team({asks.user: by, member: now, **dict.fromkeys(others, Role.OWNER)})
    expected = _expected(by, now, to)
    if expected is None:
        team.require_change(asks, member, to)
    else:
        with pytest.raises(expected):
            team.require_change(asks, member, to)


@pytest.mark.parametrize("role", Role)
def test_leaving(role: Role) -> None:
    """A member of any role can leave."""
    asks = _person()
    Team({asks.user: role, UserId(uuid4()): Role.OWNER}).require_change(asks, asks.user, None)


@pytest.mark.parametrize("to", [request for request in NEW if request is not Role.OWNER])
def test_the_last_owner_stays(to: Role | None) -> None:
    """The last owner's role cannot be changed by any principal."""
    asks = _person()
    team = Team({asks.user: Role.OWNER, UserId(uuid4()): Role.ADMIN})
    for principal in (asks, OperatorPrincipal()):
        with pytest.raises(LastOwnerError):
            team.require_change(principal, asks.user, to)
        team.require_change(principal, asks.user, Role.OWNER)


@pytest.mark.parametrize("to", NEW)
def test_the_operator_decides_about_everybody_but_strangers(to: Role | None) -> None:
    """An operator can change any member of the team, and no other person."""
    member = UserId(uuid4())
    team = Team({member: Role.OWNER, UserId(uuid4()): Role.OWNER})
    team.require_change(OperatorPrincipal(), member, to)
    with pytest.raises(MemberNotFoundError):
        team.require_change(OperatorPrincipal(), UserId(uuid4()), to)


@pytest.mark.parametrize("to", NEW)
def test_what_counts_is_the_role_of_now(to: Role | None) -> None:
    """A removed member can change nothing, in spite of the session's role."""
    member, gone = UserId(uuid4()), _person(Role.OWNER)
    team = Team({member: Role.VIEWER, UserId(uuid4()): Role.OWNER})
    with pytest.raises(NotPermittedError):
        team.require_change(gone, member, to)
    with pytest.raises(NotPermittedError if to else MemberNotFoundError):
        team.require_change(gone, gone.user, to)
