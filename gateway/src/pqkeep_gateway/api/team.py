"""/api/v1/team: the people of a tenant, and those who are invited."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta

from pqkeep_gateway.access.principals import OperatorPrincipal, SessionPrincipal, UserId
from pqkeep_gateway.access.roles import Permission, Role
from pqkeep_gateway.api.person_data import (
    EXAMPLE_TIME,
    INVITATION,
    ROLE,
    USER,
    Email,
    Identifier,
    invalid_field,
    role_in,
)
from pqkeep_gateway.api.tenants import TENANT
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.people.team import (
    Administrator,
    InvitationId,
    InvitationNotFoundError,
    LastOwnerError,
    Member,
    MemberNotFoundError,
    MemberStatus,
    NotPermittedError,
    OwnersOnlyError,
    PendingInvitation,
    TeamMembers,
)
from pqkeep_gateway.tenancy.tenants import TenantNotFoundError, Tenants
from pqkeep_protocol.keys import TenantId


class MemberData(Data, frozen=True, kw_only=True):
    """One person of a team."""

    id: Identifier
    email: Email
    role: Role
    status: Annotated[
        MemberStatus, Meta(description="must_enroll: they owe their tenant a second factor.")
    ]
    mfa_enabled: Annotated[bool, Meta(description="Whether there is a second factor.")]
    last_sign_in_at: Timestamp | None
    created_at: Timestamp


class MembersData(Data, frozen=True, kw_only=True):
    """A team, whoever came first first."""

    members: tuple[MemberData, ...]
    total: Annotated[int, Meta(ge=0, description="How many there are.")]


class WaitingInvitationData(Data, frozen=True, kw_only=True):
    """An invitation that nobody has accepted yet."""

    id: Identifier
    email: Email
    role: Role
    expires_at: Timestamp


class WaitingInvitationsData(Data, frozen=True, kw_only=True):
    """Invitations that can be accepted, the one that ends first first."""

    invitations: tuple[WaitingInvitationData, ...]
    total: Annotated[int, Meta(ge=0, description="How many there are.")]


class RemovedData(Data, frozen=True, kw_only=True):
    """Somebody, or an invitation, is there no longer."""

    removed: bool


_TENANT = Parameter(
    TENANT.name,
    "Whose team it is: for the operator. Everybody else has one.",
    TENANT.schema,
    TENANT.example,
    required=False,
    codes=(Code.UNPROCESSABLE, Code.NOT_FOUND_001),
)
_MEMBER = Parameter(
    "id",
    "The person's identifier.",
    {"type": "string", "format": "uuid"},
    USER.id,
    codes=(Code.NOT_FOUND_001,),
)
_INVITATION = Parameter(
    "id",
    "The invitation's identifier.",
    {"type": "string", "format": "uuid"},
    INVITATION.id,
    codes=(Code.NOT_FOUND_001,),
)
_EXAMPLE = MemberData(
    id=USER.id,
    email=USER.email,
    role=USER.role,
    status=MemberStatus.ACTIVE,
    mfa_enabled=True,
    last_sign_in_at=EXAMPLE_TIME,
    created_at=EXAMPLE_TIME,
)
_WAITING = WaitingInvitationData(
    id=INVITATION.id,
    email=INVITATION.email,
    role=INVITATION.role,
    expires_at=INVITATION.expires_at,
)
_REMOVED = RemovedData(removed=True)
_REFUSALS: Mapping[type[Exception], tuple[Code, str, str | None]] = {
    NotPermittedError: (Code.FORBIDDEN_001, "your role does not allow this", None),
    OwnersOnlyError: (Code.FORBIDDEN_001, "only owners decide about owners", None),
    MemberNotFoundError: (Code.NOT_FOUND_001, "no such member", "id"),
    InvitationNotFoundError: (Code.NOT_FOUND_001, "no such invitation", "id"),
    LastOwnerError: (Code.CONFLICT_001, "a team keeps its last owner", None),
}
_CHANGES = frozenset({Code.CONFLICT_001})


def endpoints(teams: TeamMembers, tenants: Tenants, cookies: Cookies) -> tuple[Endpoint, ...]:
    """Return the endpoints of teams."""
    team = _Team(teams, tenants, cookies)
    return (
        Endpoint(
            "GET",
            "/team/members",
            team.members,
            permission=Permission.TEAM,
            about=About(
                name="list_members",
                caller=Caller.PEOPLE,
                parameters=(_TENANT,),
                example=MembersData(members=(_EXAMPLE,), total=1),
            ),
        ),
        Endpoint(
            "PATCH",
            "/team/members/{id}",
            team.change_role,
            takes_body=True,
            permission=Permission.TEAM,
            about=About(
                name="change_role",
                caller=Caller.PEOPLE,
                parameters=(_MEMBER, ROLE, _TENANT),
                example=_EXAMPLE,
                codes=_CHANGES,
            ),
        ),
        Endpoint(
            "DELETE",
            "/team/members/{id}",
            team.remove,
            needs_step_up=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="remove_member",
                caller=Caller.PEOPLE,
                parameters=(_MEMBER, _TENANT),
                example=_REMOVED,
                codes=_CHANGES,
            ),
        ),
        Endpoint(
            "GET",
            "/team/invitations",
            team.invitations,
            permission=Permission.TEAM,
            about=About(
                name="list_invitations",
                caller=Caller.PEOPLE,
                parameters=(_TENANT,),
                example=WaitingInvitationsData(invitations=(_WAITING,), total=1),
            ),
        ),
        Endpoint(
            "DELETE",
            "/team/invitations/{id}",
            team.withdraw,
            permission=Permission.TEAM,
            about=About(
                name="withdraw_invitation",
                caller=Caller.PEOPLE,
                parameters=(_INVITATION, _TENANT),
                example=_REMOVED,
            ),
        ),
    )


class _Team:
    """What the endpoints do."""

    def __init__(self, teams: TeamMembers, tenants: Tenants, cookies: Cookies) -> None:
        self._teams = teams
        self._tenants = tenants
        self._cookies = cookies

    async def members(self, call: ApiCall) -> MembersData:
        """List who is in the team, whoever came first first."""
        _, tenant = await self._team_of(call)
        listed = await self._teams.members(tenant)
        return MembersData(members=tuple(_member(each) for each in listed), total=len(listed))

    async def change_role(self, call: ApiCall) -> MemberData:
        """Give somebody another role. It holds from their next request on.

        Owners decide about owners, and the last owner stays one.
        """
        by, tenant = await self._team_of(call)
        member, role = UserId(_identifier(call.path, MemberNotFoundError)), role_in(call.body)
        with _answered():
            return _member(
                await self._teams.change_role(tenant, member, role, by, call.attribution)
            )

    async def remove(self, call: ApiCall) -> RemovedData | WithCookies:
        """Remove somebody, or leave. All their sessions are over at once.

        Everybody may leave but the last owner; owners decide about owners.
        """
        by, tenant = await self._team_of(call)
        member = UserId(_identifier(call.path, MemberNotFoundError))
        with _answered():
            await self._teams.remove(tenant, member, by, call.attribution)
        if isinstance(by, SessionPrincipal) and by.user == member:
            return WithCookies(_REMOVED, self._cookies.gone())
        return _REMOVED

    async def invitations(self, call: ApiCall) -> WaitingInvitationsData:
        """List the invitations that can be accepted. Their tokens are not shown again."""
        _, tenant = await self._team_of(call)
        listed = await self._teams.invitations(tenant)
        shown = tuple(_invitation(each) for each in listed)
        return WaitingInvitationsData(invitations=shown, total=len(shown))

    async def withdraw(self, call: ApiCall) -> RemovedData:
        """Withdraw an invitation. Its link is good for nothing then.

        Owners decide about owners.
        """
        by, tenant = await self._team_of(call)
        invitation = InvitationId(_identifier(call.path, InvitationNotFoundError))
        with _answered():
            await self._teams.withdraw(tenant, invitation, by, call.attribution)
        return _REMOVED

    async def _team_of(self, call: ApiCall) -> tuple[Administrator, TenantId]:
        """Return who asks, and whose team is meant: one's own, or what the operator names."""
        match call.principal:
            case SessionPrincipal() as person:
                return person, person.tenant
            case OperatorPrincipal() as operator:
                return operator, await self._named({**call.query, **call.body}.get(TENANT.name))
            case _:
                raise ApiError(Code.FORBIDDEN_001, "programs have no say about people")

    async def _named(self, text: object) -> TenantId:
        try:
            return (await self._tenants.get(TenantId(uuid.UUID(str(text))))).id
        except ValueError:
            raise invalid_field(TENANT.name, "must be a tenant's identifier") from None
        except TenantNotFoundError:
            raise ApiError(Code.NOT_FOUND_001, "no such tenant", TENANT.name) from None


@contextmanager
def _answered() -> Iterator[None]:
    """Answer what a team refuses."""
    try:
        yield
    except tuple(_REFUSALS) as refusal:
        raise ApiError(*_REFUSALS[type(refusal)]) from None


def _identifier(path: Mapping[str, str], missing: type[Exception]) -> uuid.UUID:
    try:
        return uuid.UUID(path["id"])
    except ValueError:
        raise ApiError(*_REFUSALS[missing]) from None


def _member(member: Member) -> MemberData:
    user, signed_in = member.user, member.last_sign_in_at
    return MemberData(
        id=str(user.id),
        email=user.email,
        role=user.role,
        status=member.status,
        mfa_enabled=member.has_mfa,
        last_sign_in_at=None if signed_in is None else timestamp(signed_in),
        created_at=timestamp(user.created_at),
    )


def _invitation(invitation: PendingInvitation) -> WaitingInvitationData:
    return WaitingInvitationData(
        id=str(invitation.id),
        email=invitation.email,
        role=invitation.role,
        expires_at=timestamp(invitation.expires_at),
    )
