"""A tenant's team: invitations, and changes of members and their roles.

Every change of a member is decided under a lock on all members' rows. If two owners remove each
other concurrently, one stays. A member who was just demoted cannot change anything.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import uuid4

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import Principal, UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.languages import ENGLISH
from pqkeep_gateway.outgoing_mail import MailKind, mailed_token, new_mail, of_invitation
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.storage.invitations import (
    EVERY_INVITATION,
    InvalidInvitationTokenError,
    Invitation,
    InvitationFilter,
    InvitationId,
    PendingInvitation,
    SqlInvitations,
)
from pqkeep_gateway.storage.pages import WHOLE, Page, Part, Sorted
from pqkeep_gateway.storage.team import ROLE_IS, Member, SqlTeam
from pqkeep_gateway.storage.users import EmailTakenError, SqlUsers, User
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

LIFETIME = timedelta(days=7)
OPERATOR = "The operator"
"""The inviter's name in the mail, if an operator invites."""

_INVITE: Mapping[Role, AuditEvent] = {
    Role.OWNER: AuditEvent.INVITE_OWNER,
    Role.ADMIN: AuditEvent.INVITE_ADMIN,
    Role.DEVELOPER: AuditEvent.INVITE_DEVELOPER,
    Role.VIEWER: AuditEvent.INVITE_VIEWER,
}


class Invitations:
    """Invites people by mail, and accepts their tokens once."""

    def __init__(  # noqa: PLR0913, PLR0917 - each once, in wiring.py
        self,
        store: SqlInvitations,
        users: SqlUsers,
        sessions: Sessions,
        passwords: Passwords,
        attempts: AttemptLimits,
        lookups: CredentialLookups,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._sessions = sessions
        self._passwords = passwords
        self._attempts = attempts
        self._lookups = lookups
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def invite(
        self,
        tenant: TenantId,
        email: str,
        role: Role,
        by: Principal,
        attribution: Attribution,
        language: str = ENGLISH,
    ) -> Invitation:
        """Invite a person to a role. It replaces an earlier invitation to the same address.

        The mail has the inviter's language; ``language`` if the inviter has none.

        Raises EmailTakenError, TooManyAttemptsError, and the errors of Team.require_authority.
        """
        if by.user is not None:
            await self._attempts.count_invitation(email, tenant)
        account = await self._users.find_by_email(email)
        if account is not None and (by.user is None or account.user.tenant == tenant):
            raise EmailTakenError
        now = date_of(self._clock())
        inviter = None if by.user is None else await self._users.get(by.user)
        name = OPERATOR if inviter is None else inviter.user.email
        if inviter is not None and inviter.language is not None:
            language = inviter.language
        about = of_invitation(await self._store.tenant_name(tenant), role)
        mail = new_mail(MailKind.INVITATION, email, now, LIFETIME, name, about, language)
        token = mailed_token(mail, CredentialKind.INVITATION, self._pepper)
        identifier = InvitationId(uuid4())
        invitation = Invitation(identifier, tenant, email, role, mail.expires_at, token)
        invited = event(attribution, tenant, _INVITE[role])
        digest = self._pepper.digest(token)
        await self._store.add(invitation, digest, mail, by, invited)
        self._lookups.accept(digest)
        await self._audit_delivery.deliver()
        return invitation

    async def accept(
        self, token: str, password: str, attribution: Attribution, user_agent: bytes = b""
    ) -> tuple[User, Tokens]:
        """Create the invited user, and begin a session.

        Raises InvalidInvitationTokenError, TooManyUnknownCredentialsError, EmailTakenError,
        InvalidPasswordError, PasswordsDisabledError.
        """
        if kind_of(token) is not CredentialKind.INVITATION:
            raise InvalidInvitationTokenError
        digest, now = self._pepper.digest(token), date_of(self._clock())
        tenant = await self._lookups.find(
            digest, attribution.source_address, lambda digest: self._store.find(digest, now)
        )
        if tenant is None:
            raise InvalidInvitationTokenError
        self._passwords.require_enabled(tenant)
        new_user = UserId(uuid4())
        password_hash = await self._passwords.hash(
            new_user, password, attribution.source_address, is_stranger=True
        )
        account = await self._store.accept(digest, new_user, password_hash, now, attribution)
        tokens = await self._sessions.begin(account, attribution, user_agent=user_agent)
        return account.user, tokens

    async def list(
        self,
        tenant: TenantId,
        part: Part | Sorted = WHOLE,
        only: InvitationFilter = EVERY_INVITATION,
    ) -> Page[PendingInvitation]:
        """Return the pending invitations that match every condition: a Part of them by expiry.

        Raises PositionNotFoundError.
        """
        return await self._store.list(tenant, date_of(self._clock()), part, only)

    async def withdraw(
        self,
        tenant: TenantId,
        invitation: InvitationId,
        by: Principal,
        attribution: Attribution,
    ) -> None:
        """Make an invitation's token invalid.

        Raises InvitationNotFoundError, and the errors of Team.require_authority.
        """
        withdrawn = event(attribution, tenant, AuditEvent.WITHDRAW_INVITATION)
        await self._store.remove(tenant, invitation, by, withdrawn)
        await self._audit_delivery.deliver()


class TeamMembers:
    """Lists the members of teams and changes them."""

    def __init__(self, store: SqlTeam, audit_delivery: AuditDelivery) -> None:
        self._store = store
        self._audit_delivery = audit_delivery

    async def change_role(
        self,
        tenant: TenantId,
        member: UserId,
        role: Role,
        by: Principal,
        attribution: Attribution,
    ) -> Member:
        """Change a member's role, from their next request on.

        Raises the errors of Team.require_change.
        """
        events = _events(attribution, tenant, member, AuditEvent.CHANGE_ROLE, ROLE_IS[role])
        changed = await self._store.save_role(tenant, member, role, by, events)
        await self._audit_delivery.deliver()
        return changed

    async def remove(
        self, tenant: TenantId, member: UserId, by: Principal, attribution: Attribution
    ) -> None:
        """Remove a member, and end their sessions at once.

        Raises the errors of Team.require_change.
        """
        events = _events(
            attribution, tenant, member, AuditEvent.REMOVE_MEMBER, AuditEvent.MEMBERSHIP_ENDED
        )
        await self._store.remove_member(tenant, member, by, events)
        await self._audit_delivery.deliver()


def _events(
    attribution: Attribution,
    tenant: TenantId,
    member: UserId,
    action: AuditEvent,
    effect: AuditEvent,
) -> Sequence[Event]:
    """Return two events, because a record names one person: the actor, and the affected member."""
    affected = attribution.by(f"user:{member}")
    return event(attribution, tenant, action), event(affected, tenant, effect)
