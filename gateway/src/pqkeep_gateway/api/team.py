"""/api/v1/team and /tenants/{tenant_id}/invitations: the members of a tenant, and invitations."""

from typing import Annotated, cast

from msgspec import UNSET, Meta

from pqkeep_gateway.access.callers import Permission, Role, may
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    AFTER,
    EMAIL,
    EXAMPLE_TIME,
    INVITATION,
    ROLE,
    USER,
    Email,
    Identifier,
    InvitationData,
    Next,
    next_of,
    part_of,
)
from pqkeep_gateway.api.tenants import TENANT, visible_tenant
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Subject, WithCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    LIST_LIMIT,
    OFFSET,
    Field,
    FieldError,
    Problem,
    boolean_field,
    several_field,
    sort_field,
    text_field,
    time_field,
    uuid_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.outgoing_mail import MAX_EMAIL
from pqkeep_gateway.people.invitations import Invitations, TeamMembers
from pqkeep_gateway.storage.invitations import (
    INVITATION_SORTS,
    InvitationFilter,
    InvitationId,
    InvitationNotFoundError,
    PendingInvitation,
)
from pqkeep_gateway.storage.pages import Part, PositionNotFoundError, Sorted
from pqkeep_gateway.storage.team import (
    MEMBER_SORTS,
    LastOwnerError,
    Member,
    MemberFilter,
    MemberNotFoundError,
    MemberStatus,
    NotPermittedError,
    OwnersOnlyError,
    SqlTeam,
    TooFewOwnersError,
)
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.storage.users import EmailTakenError, User
from pqkeep_protocol.keys import TenantId


class MemberData(Data, frozen=True, kw_only=True):
    """A member of a team."""

    id: Identifier
    email: Email
    role: Role
    status: Annotated[
        MemberStatus,
        Meta(
            description=(
                "must_enroll: the tenant requires a second factor that "
                "the member does not have yet."
            )
        ),
    ]
    mfa_enabled: Annotated[bool, Meta(description="Whether the member has a second factor.")]
    last_sign_in_at: Timestamp | None
    created_at: Timestamp


class MembersData(Data, frozen=True, kw_only=True):
    """A team, ordered by joining date."""

    members: tuple[MemberData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of entries on all pages.")]
    next: Next = UNSET


class PendingInvitationData(Data, frozen=True, kw_only=True):
    """An invitation that was not accepted yet."""

    id: Identifier
    email: Email
    role: Role
    expires_at: Timestamp


class PendingInvitationsData(Data, frozen=True, kw_only=True):
    """Valid invitations."""

    invitations: tuple[PendingInvitationData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of entries on all pages.")]
    next: Next = UNSET


class RemovedData(Data, frozen=True, kw_only=True):
    """A member or an invitation was removed."""

    removed: bool


_TENANT = cast(
    "Field[TenantId | None]",
    uuid_field(
        TENANT.name,
        "The tenant of the team. Only for operators; other callers have one team.",
        str(TENANT.example),
    ).optional(),
)
_PART_OF_EMAIL = text_field(
    "email",
    "Only people with this text in their address, case-insensitive.",
    "ada",
    at_most=MAX_EMAIL,
).optional()
_TIME = "2026-01-31T12:00:00Z"
_ROLES = several_field("role", "Only people with these roles", tuple(Role), Role.OWNER).optional()
_HAS_MFA = boolean_field(
    "mfa", "Whether the member has a second factor. Left out: both.", example=False
).optional()
_SIGNED_IN_SINCE = time_field(
    "signed_in_since", "Signed in at this time or later.", _TIME
).optional()
_NOT_SIGNED_IN_SINCE = time_field(
    "not_signed_in_since", "Without a sign-in at this time or later, or at any time.", _TIME
).optional()
_JOINED_BEFORE = time_field("joined_before", "Joined before this time.", _TIME).optional()
_JOINED_SINCE = time_field("joined_since", "Joined at this time or later.", _TIME).optional()
_SORT = sort_field(tuple(MEMBER_SORTS), "joined")
_EXPIRES_BEFORE = time_field("expires_before", "Expires before this time.", _TIME).optional()
_INVITATION_SORT = sort_field(tuple(INVITATION_SORTS), "expires")
_MEMBER = cast(
    "Field[UserId]",
    uuid_field("id", "The person's identifier.", USER.id, not_found="no such member"),
)
_INVITATION = cast(
    "Field[InvitationId]",
    uuid_field("id", "The invitation's identifier.", INVITATION.id, not_found="no such invitation"),
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
_PENDING = PendingInvitationData(
    id=INVITATION.id,
    email=INVITATION.email,
    role=INVITATION.role,
    expires_at=INVITATION.expires_at,
)
_REMOVED = RemovedData(removed=True)


def endpoints(
    members: TeamMembers,
    stored: SqlTeam,
    invitations: Invitations,
    tenants: SqlTenants,
    cookies: Cookies,
    *,
    sends_mail: bool,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of teams and invitations."""
    handlers = _Team(members, stored, invitations, tenants, cookies, sends_mail=sends_mail)
    return (
        Endpoint(
            method="GET",
            path="/team/members",
            name="list_members",
            handler=handlers.list_members,
            permission=Permission.VIEW_TEAM,
            fields=(
                *(_TENANT, LIST_LIMIT, AFTER, _PART_OF_EMAIL, _ROLES, _HAS_MFA, _SIGNED_IN_SINCE),
                *(_NOT_SIGNED_IN_SINCE, _JOINED_BEFORE, _JOINED_SINCE, _SORT, OFFSET),
            ),
            field_codes=UNPROCESSABLE_FIELDS,
            example=MembersData(members=(_EXAMPLE,), total=1),
            errors=(TenantNotFoundError, PositionNotFoundError),
        ),
        Endpoint(
            method="PATCH",
            path="/team/members/{id}",
            name="change_role",
            handler=handlers.change_role,
            permission=Permission.MANAGE_TEAM,
            needs_step_up=True,
            subject_of=handlers.subject_of_role,
            fields=(_MEMBER, ROLE, _TENANT),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_EXAMPLE,
            errors=(
                TenantNotFoundError,
                MemberNotFoundError,
                NotPermittedError,
                OwnersOnlyError,
                LastOwnerError,
                TooFewOwnersError,
            ),
        ),
        Endpoint(
            method="DELETE",
            path="/team/members/{id}",
            name="remove_member",
            handler=handlers.remove,
            permission=Permission.LEAVE_TEAM,
            needs_step_up=True,
            subject_of=handlers.subject_of_removal,
            fields=(_MEMBER, _TENANT),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_REMOVED,
            errors=(
                TenantNotFoundError,
                MemberNotFoundError,
                NotPermittedError,
                OwnersOnlyError,
                LastOwnerError,
                TooFewOwnersError,
            ),
        ),
        Endpoint(
            method="GET",
            path="/team/invitations",
            name="list_invitations",
            handler=handlers.list_invitations,
            permission=Permission.VIEW_TEAM,
            fields=(
                *(_TENANT, LIST_LIMIT, AFTER, _PART_OF_EMAIL, _ROLES, _EXPIRES_BEFORE),
                *(_INVITATION_SORT, OFFSET),
            ),
            field_codes=UNPROCESSABLE_FIELDS,
            example=PendingInvitationsData(invitations=(_PENDING,), total=1),
            errors=(TenantNotFoundError, PositionNotFoundError),
        ),
        Endpoint(
            method="POST",
            path="/tenants/{tenant_id}/invitations",
            name="invite",
            handler=handlers.invite,
            permission=Permission.MANAGE_TEAM,
            needs_step_up=True,
            subject_of=handlers.subject_of_invitation,
            fields=(TENANT, EMAIL, ROLE),
            field_codes=UNPROCESSABLE_FIELDS,
            example=INVITATION,
            status=201,
            errors=(
                TenantNotFoundError,
                NotPermittedError,
                OwnersOnlyError,
                EmailTakenError,
                TooManyAttemptsError,
            ),
        ),
        Endpoint(
            method="DELETE",
            path="/team/invitations/{id}",
            name="withdraw_invitation",
            handler=handlers.withdraw,
            permission=Permission.MANAGE_TEAM,
            fields=(_INVITATION, _TENANT),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_REMOVED,
            errors=(
                TenantNotFoundError,
                InvitationNotFoundError,
                NotPermittedError,
                OwnersOnlyError,
            ),
        ),
    )


class _Team:
    """The handlers."""

    def __init__(
        self,
        members: TeamMembers,
        stored: SqlTeam,
        invitations: Invitations,
        tenants: SqlTenants,
        cookies: Cookies,
        *,
        sends_mail: bool,
    ) -> None:
        self._sends_mail = sends_mail
        self._members = members
        self._stored = stored
        self._invitations = invitations
        self._tenants = tenants
        self._cookies = cookies

    async def list_members(self, call: ApiCall) -> MembersData:
        """List the members of the team that match every filter.

        A page begins at `offset`, or in the order of joining `after` a member.
        """
        tenant = await self._tenant_of(call)
        roles = call[_ROLES]
        only = MemberFilter(
            email=call[_PART_OF_EMAIL],
            roles=roles or (),
            has_mfa=call[_HAS_MFA],
            signed_in_since_us=call[_SIGNED_IN_SINCE],
            not_signed_in_since_us=call[_NOT_SIGNED_IN_SINCE],
            joined_before_us=call[_JOINED_BEFORE],
            joined_since_us=call[_JOINED_SINCE],
        )
        part = _sorted_or_part(call, _SORT, "joining")
        if isinstance(part, Sorted):
            sorted_page = await self._stored.list_sorted(tenant, only, part)
            members = tuple(map(_member, sorted_page.entries))
            return MembersData(members=members, total=sorted_page.total)
        page = await self._stored.list_members(tenant, part, only)
        shown = tuple(_member(entry) for entry in page.entries)
        return MembersData(members=shown, total=page.total, next=next_of(page, shown))

    async def change_role(self, call: ApiCall) -> MemberData:
        """Change a member's role, from the member's next request on.

        Only owners can change owners, and the last owner remains an owner.
        """
        tenant = await self._tenant_of(call)
        changed = await self._members.change_role(
            tenant, call[_MEMBER], call[ROLE], call.principal, call.attribution
        )
        return _member(changed)

    async def remove(self, call: ApiCall) -> RemovedData | WithCookies:
        """Remove a member, or leave the team. All sessions of the member end immediately.

        Everybody except the last owner may leave. Only owners can remove owners.
        """
        tenant, member = await self._tenant_of(call), call[_MEMBER]
        await self._members.remove(tenant, member, call.principal, call.attribution)
        if call.principal.user == member:
            return WithCookies(_REMOVED, self._cookies.gone())
        return _REMOVED

    async def list_invitations(self, call: ApiCall) -> PendingInvitationsData:
        """List the valid invitations that match every filter. Their tokens are not shown again.

        A page begins at `offset`, or in the order of expiry `after` an invitation.
        """
        tenant = await self._tenant_of(call)
        roles = call[_ROLES]
        only = InvitationFilter(
            email=call[_PART_OF_EMAIL],
            roles=roles or (),
            expires_before_us=call[_EXPIRES_BEFORE],
        )
        part = _sorted_or_part(call, _INVITATION_SORT, "expiry")
        page = await self._invitations.list(tenant, part, only)
        shown = tuple(_invitation(entry) for entry in page.entries)
        return PendingInvitationsData(
            invitations=shown,
            total=page.total,
            next=UNSET if isinstance(part, Sorted) else next_of(page, shown),
        )

    async def invite(self, call: ApiCall) -> InvitationData:
        """Invite a person by e-mail address. The token in the message is valid for a week.

        If e-mail is not configured, the token is in the response: pass it on. An operator always
        gets it in the response. A new invitation replaces an earlier one to the same address. Only
        owners and operators can invite owners, or replace an owner's invitation.
        """
        tenant = await visible_tenant(call, self._tenants)
        invited = await self._invitations.invite(
            tenant.id,
            call[EMAIL],
            call[ROLE],
            call.principal,
            call.attribution,
            self._cookies.language_of(call.cookies, call.accept_language),
        )
        is_by_mail_only = self._sends_mail and call.principal.user is not None
        return InvitationData(
            id=str(invited.id),
            invitation_token=UNSET if is_by_mail_only else invited.token,
            email=invited.email,
            role=invited.role,
            expires_at=timestamp(invited.expires_at),
        )

    async def withdraw(self, call: ApiCall) -> RemovedData:
        """Withdraw an invitation. Its link stops working.

        Only owners can withdraw an owner's invitation.
        """
        tenant = await self._tenant_of(call)
        await self._invitations.withdraw(
            tenant, call[_INVITATION], call.principal, call.attribution
        )
        return _REMOVED

    async def subject_of_role(self, call: ApiCall) -> Subject | None:
        """Return a member that becomes or is an owner, or becomes an admin; None for others."""
        member, role = call[_MEMBER], call[ROLE]
        user = await self._stored.get(call.tenant.tenant, member)
        if user is None or (user.role is not Role.OWNER and role not in APPROVERS):
            return None
        return _subject(f"Make {user.email} {role} instead of {user.role}", user, user.role, role)

    async def subject_of_removal(self, call: ApiCall) -> Subject | None:
        """Return the owner to remove; None for other members."""
        user = await self._stored.get(call.tenant.tenant, call[_MEMBER])
        if user is None or user.role is not Role.OWNER:
            return None
        return _subject(f"Remove the owner {user.email}", user, user.role)

    async def subject_of_invitation(self, call: ApiCall) -> Subject | None:
        """Return the invitation of a person that could approve; None for others.

        Otherwise an admin could invite a second account of their own and approve with it.
        """
        email, role = call[EMAIL], call[ROLE]
        if role not in APPROVERS:
            return None
        return _subject(f"Invite {email} as {role}", None, role)

    async def _tenant_of(self, call: ApiCall) -> TenantId:
        """Return the caller's own tenant, or the tenant that an operator names."""
        own, named = call.principal.tenant, call[_TENANT]
        if own is not None:
            return own
        if named is None:
            raise FieldError(_TENANT.name, Problem.MISSING, "tenant_id is required")
        return (await self._tenants.get(named)).id


APPROVERS = frozenset(role for role in Role if may(role, Permission.APPROVE_REQUESTS))
"""The roles that can approve requests."""


def _subject(summary: str, user: User | None, *roles: Role) -> Subject:
    permission = Permission.MANAGE_OWNERS if Role.OWNER in roles else Permission.MANAGE_TEAM
    return Subject(summary, None if user is None else [user.id, user.role], permission)


def _sorted_or_part(call: ApiCall, sort: Field[str], usual: str) -> Part | Sorted:
    """Return the requested part of a list. ``usual``: the order in which ``after`` works."""
    if call[sort] == sort.default and not call[OFFSET]:
        return part_of(call)
    if call[AFTER] is not None:
        message = f"after works only in the order of {usual}, without offset"
        raise FieldError(AFTER.name, Problem.MALFORMED, message)
    return Sorted(call[sort], call[OFFSET], call[LIST_LIMIT])


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


def _invitation(invitation: PendingInvitation) -> PendingInvitationData:
    return PendingInvitationData(
        id=str(invitation.id),
        email=invitation.email,
        role=invitation.role,
        expires_at=timestamp(invitation.expires_at),
    )
