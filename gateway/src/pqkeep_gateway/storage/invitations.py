"""Invitations in SQL."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NewType
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.access.principals import Principal, UserId
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import OutgoingMail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.pages import (
    WHOLE,
    Order,
    Page,
    Part,
    Sorted,
    order_of,
    read_page,
    read_sorted,
)
from pqkeep_gateway.storage.row_mac import authentic_row
from pqkeep_gateway.storage.schema import INVITATIONS, TENANTS
from pqkeep_gateway.storage.team import ROLE_ORDER, lock_team
from pqkeep_gateway.storage.tenant_status import lock_tenant_to_add
from pqkeep_gateway.storage.users import Account, EmailTakenError, User, add_user, email_key
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

InvitationId = NewType("InvitationId", UUID)


class InvitationNotFoundError(Exception):
    """The tenant has no such pending invitation."""


class InvalidInvitationTokenError(Exception):
    """The invitation of the token is unknown, expired, used or withdrawn."""


@dataclass(frozen=True, slots=True)
class PendingInvitation:
    """An invitation that was not accepted yet, without its token."""

    id: InvitationId
    email: str
    role: Role
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitationFilter:
    """The requested invitations. None: no condition."""

    email: str | None = None
    """A part of the address, in any case."""
    roles: tuple[Role, ...] = ()
    """The accepted roles. Empty: every role."""
    expires_before_us: int | None = None
    """The time before which an invitation expires, in microseconds since 1970."""


EVERY_INVITATION = InvitationFilter()


@dataclass(frozen=True, slots=True)
class Invitation:
    """A new invitation with its token, of which only a digest is stored."""

    id: InvitationId
    tenant: TenantId
    email: str
    role: Role
    expires_at: datetime
    token: str = field(repr=False)


class SqlInvitations:
    """Pending invitations in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(
        self,
        invitation: Invitation,
        digest: bytes,
        mail: OutgoingMail,
        by: Principal,
        audit_event: Event,
    ) -> None:
        """Store an invitation with its mail, replacing an earlier one to the same address.

        The locks of the tenant and its team ensure one invitation per address. Raises the errors of
        Team.require_authority, for the role and for that of a pending earlier invitation.
        """
        key = email_key(invitation.email)
        row = {
            "digest": digest,
            "tenant_id": invitation.tenant,
            "email": invitation.email,
            "email_key": key,
            "role": invitation.role,
            "expires_at_us": microseconds(invitation.expires_at),
            "id": invitation.id,
        }
        replace = (
            sa.delete(INVITATIONS)
            .where(INVITATIONS.c.email_key == key, INVITATIONS.c.tenant_id == invitation.tenant)
            .returning(INVITATIONS.c.role, INVITATIONS.c.expires_at_us)
        )
        now = microseconds(mail.created_at)
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, invitation.tenant)
            team = await lock_team(connection, invitation.tenant)
            replaced = (await connection.execute(replace)).all()
            pending = (
                Role(invitation.role) for invitation in replaced if invitation.expires_at_us > now
            )
            team.require_authority(by, invitation.role, *pending)
            await connection.execute(sa.insert(INVITATIONS), row)
            await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)

    async def tenant_name(self, tenant: TenantId) -> str:
        """Return the name of a tenant. Raises TenantNotFoundError."""
        query = sa.select(TENANTS.c.name).where(TENANTS.c.id == tenant)
        async with read_transaction(self._engine) as connection:
            name = (await connection.execute(query)).scalar_one_or_none()
        if name is None:
            raise TenantNotFoundError
        return str(name)

    async def find(self, digest: bytes, now: datetime) -> TenantId | None:
        """Return the tenant of the pending invitation with a token digest, or None."""
        query = sa.select(INVITATIONS).where(_is_pending(digest, now))
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, INVITATIONS, query)
        return None if row is None else TenantId(row.tenant_id)

    async def accept(
        self,
        digest: bytes,
        new_user: UserId,
        password_hash: str,
        now: datetime,
        attribution: Attribution,
    ) -> Account:
        """Use an invitation once and add the user, in one transaction.

        Raises InvalidInvitationTokenError, EmailTakenError.
        """
        use_up = sa.delete(INVITATIONS).where(_is_pending(digest, now)).returning(INVITATIONS)
        try:
            async with transaction(self._engine) as connection:
                row = await authentic_row(connection, INVITATIONS, use_up)
                if row is None:
                    raise InvalidInvitationTokenError
                tenant, role = TenantId(row.tenant_id), Role(row.role)
                user = User(new_user, tenant, row.email, role, now)
                await add_user(connection, user, password_hash)
                joined = event(attribution.by(str(user)), tenant, AuditEvent.ACCEPT_INVITATION)
                await add_audit_event(connection, joined)
        except sa.exc.IntegrityError:
            raise EmailTakenError from None
        return Account(user, password_hash)

    async def list(
        self,
        tenant: TenantId,
        now: datetime,
        part: Part | Sorted = WHOLE,
        only: InvitationFilter = EVERY_INVITATION,
    ) -> Page[PendingInvitation]:
        """Return the pending invitations that match every condition: a Part of them by expiry.

        Raises PositionNotFoundError.
        """
        of = INVITATIONS.c
        query = sa.select(INVITATIONS).where(
            of.tenant_id == tenant, of.expires_at_us > microseconds(now), *_conditions(only)
        )
        async with read_transaction(self._engine) as connection:
            if isinstance(part, Sorted):
                order = order_of(part.sort, INVITATION_SORTS, of.id)
                return await read_sorted(connection, query, order, part, _pending)
            by_expiry = Order(of.expires_at_us, of.id)
            return await read_page(connection, query, by_expiry, part, _pending)

    async def remove(
        self, tenant: TenantId, invitation: InvitationId, by: Principal, audit_event: Event
    ) -> None:
        """Remove an invitation, under the team's lock.

        Raises InvitationNotFoundError, and the errors of Team.require_authority.
        """
        delete = (
            sa.delete(INVITATIONS)
            .where(INVITATIONS.c.tenant_id == tenant, INVITATIONS.c.id == invitation)
            .returning(INVITATIONS.c.role)
        )
        async with transaction(self._engine) as connection:
            team = await lock_team(connection, tenant)
            role = (await connection.execute(delete)).scalar()
            if role is None:
                raise InvitationNotFoundError
            team.require_authority(by, Role(role))
            await add_audit_event(connection, audit_event)


INVITATION_SORTS: Mapping[str, sa.ColumnElement[Any]] = {
    "expires": INVITATIONS.c.expires_at_us,
    "email": INVITATIONS.c.email_key,
    "role": sa.case(ROLE_ORDER, value=INVITATIONS.c.role),
}
"""The orders of the list; by role, owners come first."""


def _conditions(only: InvitationFilter) -> Iterator[sa.ColumnElement[bool]]:
    of = INVITATIONS.c
    if only.email is not None:
        yield of.email_key.contains(email_key(only.email), autoescape=True)
    if only.roles:
        yield of.role.in_(only.roles)
    if only.expires_before_us is not None:
        yield of.expires_at_us < only.expires_before_us


def _is_pending(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = INVITATIONS.c.expires_at_us > microseconds(now)
    return sa.and_(INVITATIONS.c.digest == digest, is_valid)


def _pending(row: sa.Row[Any]) -> PendingInvitation:
    return PendingInvitation(
        InvitationId(row.id), row.email, Role(row.role), time_of(row.expires_at_us)
    )
