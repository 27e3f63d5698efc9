"""Requests that a second person approves, in SQL.

A request and the state of its subject are stored once, under the row's MAC, and never change. Each
change of state is one conditional UPDATE, so one of several decisions counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NewType
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import Permission, Role, may
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.outgoing_mail import MailKind, new_mail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.pages import WHOLE, Order, Page, Part, read_page
from pqkeep_gateway.storage.row_mac import MAC, authentic_row, is_authentic, mac_after
from pqkeep_gateway.storage.schema import APPROVALS, USERS
from pqkeep_gateway.storage.team import MIN_OWNERS, TooFewOwnersError, lock_team
from pqkeep_gateway.storage.tenant_status import change_under_mac, lock_tenant, lock_tenant_to_add
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId

ApprovalId = NewType("ApprovalId", UUID)

MAX_A_DAY = 100
"""New requests of a tenant in 24 hours, withdrawn ones included."""
KEPT = timedelta(days=90)
"""The time after which an ended request is deleted. Its records stay in the audit log."""
MAX_ABOUT = 200
"""Characters of a request's summary in a mail."""


class ApprovalState(StrEnum):
    """The states of a request."""

    WAITING = "waiting"
    EXECUTING = "executing"
    EXECUTED = "executed"
    FAILED = "failed"
    """The execution was refused, or the subject had changed. Nothing was done, or
    ``outcome`` has the error code."""
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    INTERRUPTED = "interrupted"
    """The outcome of the execution is unknown. It is not repeated."""


TRANSITIONS: Mapping[ApprovalState, frozenset[ApprovalState]] = MappingProxyType(
    {
        ApprovalState.WAITING: frozenset(
            {
                ApprovalState.EXECUTING,
                ApprovalState.FAILED,
                ApprovalState.REFUSED,
                ApprovalState.WITHDRAWN,
                ApprovalState.EXPIRED,
            }
        ),
        ApprovalState.EXECUTING: frozenset(
            {ApprovalState.EXECUTED, ApprovalState.FAILED, ApprovalState.INTERRUPTED}
        ),
        # A slow execution can end after it was taken for interrupted.
        ApprovalState.INTERRUPTED: frozenset({ApprovalState.EXECUTED, ApprovalState.FAILED}),
    }
)
"""The next states of each state; the others are final. A waiting request expires at its time; every
other step must come before."""


class ApprovalNotFoundError(Exception):
    """The tenant has no such request."""


class AlreadyDecidedError(Exception):
    """The request no longer waits: it was decided or withdrawn, or has expired."""


class NoOtherApproverError(Exception):
    """The team has no other member who may approve the request."""


class TooManyApprovalsError(Exception):
    """The tenant has made MAX_A_DAY requests in 24 hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A request that a second person approves."""

    id: ApprovalId
    tenant: TenantId
    operation: str
    """The name of the endpoint."""
    request: str
    """The canonical request, as JSON."""
    digest: bytes
    """SHA-256 of ``request`` (32 bytes)."""
    summary: str
    """The change, as a part of a sentence."""
    subject: bytes
    """SHA-256 of the state of what it changes (32 bytes)."""
    permission: Permission
    """The permission that requester and approver need."""
    requester: UserId
    requested_at: datetime
    expires_at: datetime
    state: ApprovalState = ApprovalState.WAITING
    decided_by: UserId | None = None
    decided_at: datetime | None = None
    outcome: str | None = None
    """The error code of a failed execution."""

    def at(self, now: datetime) -> ApprovalState:
        """Return the state at a time: a waiting request expires without a change of its row."""
        is_late = self.state is ApprovalState.WAITING and self.expires_at <= now
        return ApprovalState.EXPIRED if is_late else self.state


class SqlApprovals:
    """Requests in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(self, new: Approval, inviter: str, audit_event: Event) -> Approval:
        """Store a request, with a mail to each other person who may approve it.

        If an equal request already waits, return that request. ``inviter``: the requester's
        address. Raises NoOtherApproverError, TooManyApprovalsError, TenantNotFoundError.
        """
        now = microseconds(new.requested_at)
        of_tenant = APPROVALS.c.tenant_id == new.tenant
        is_equal = sa.and_(
            of_tenant,
            APPROVALS.c.digest == new.digest,
            APPROVALS.c.subject == new.subject,
            APPROVALS.c.state == ApprovalState.WAITING,
            APPROVALS.c.expires_at_us > now,
        )
        open_states = (ApprovalState.WAITING, ApprovalState.EXECUTING)
        is_old = sa.and_(
            of_tenant,
            APPROVALS.c.state.not_in(open_states),
            APPROVALS.c.requested_at_us < microseconds(new.requested_at - KEPT),
        )
        of_today = APPROVALS.c.requested_at_us > microseconds(new.requested_at - timedelta(days=1))
        count = sa.select(sa.func.count()).select_from(APPROVALS).where(of_tenant, of_today)
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, new.tenant)
            for row in await connection.execute(sa.select(APPROVALS).where(is_equal)):
                if is_authentic(connection, APPROVALS, row):
                    return _approval(row)
            await connection.execute(sa.delete(APPROVALS).where(is_old))
            if (await connection.execute(count)).scalar_one() >= MAX_A_DAY:
                raise TooManyApprovalsError
            addresses = await _approvers(connection, new, now)
            if not addresses:
                raise NoOtherApproverError
            await connection.execute(sa.insert(APPROVALS), _row(new))
            for address in addresses:
                mail = new_mail(
                    MailKind.APPROVAL_REQUESTED,
                    address,
                    new.requested_at,
                    new.expires_at - new.requested_at,
                    inviter,
                    new.summary[:MAX_ABOUT],
                )
                await add_mail(connection, mail)
            await add_audit_event(connection, audit_event)
        return new

    async def get(self, tenant: TenantId, approval: ApprovalId) -> Approval:
        """Return a request. Raises ApprovalNotFoundError."""
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, APPROVALS, _one(approval, tenant))
        if row is None:
            raise ApprovalNotFoundError
        return _approval(row)

    async def list(
        self, tenant: TenantId, now: datetime, part: Part = WHOLE, *, waiting: bool | None = None
    ) -> Page[Approval]:
        """Return a tenant's requests, newest first.

        ``waiting``: True for waiting requests only, False for all others, None for both.

        Raises PositionNotFoundError.
        """
        query = sa.select(APPROVALS).where(APPROVALS.c.tenant_id == tenant)
        waits = sa.and_(
            APPROVALS.c.state == ApprovalState.WAITING,
            APPROVALS.c.expires_at_us > microseconds(now),
        )
        if waiting is not None:
            query = query.where(waits if waiting else sa.not_(waits))
        order = Order(APPROVALS.c.requested_at_us, APPROVALS.c.id, newest_first=True)
        async with read_transaction(self._engine) as connection:
            return await read_page(connection, query, order, part, _approval)

    async def change(
        self,
        approval: Approval,
        to: ApprovalState,
        now: datetime,
        audit_event: Event,
        *,
        by: UserId | None = None,
        outcome: str | None = None,
    ) -> Approval:
        """Change a request's state by one conditional UPDATE; return the request.

        ``by``: the person that decides. Raises ApprovalNotFoundError, AlreadyDecidedError.
        """
        async with transaction(self._engine) as connection:
            row = await authentic_row(connection, APPROVALS, _one(approval.id, approval.tenant))
            if row is None:
                raise ApprovalNotFoundError
            before = _approval(row)
            must_be_late = to is ApprovalState.EXPIRED
            is_late = before.at(now) is ApprovalState.EXPIRED
            is_next = to in TRANSITIONS.get(before.state, frozenset())
            if not is_next or (before.state is ApprovalState.WAITING and is_late != must_be_late):
                raise AlreadyDecidedError
            values: dict[str, object] = {"state": to}
            if by is not None:
                values |= {"decided_by": by, "decided_at_us": microseconds(now)}
            values[MAC] = mac_after(connection, APPROVALS, row, values)
            is_unchanged = sa.and_(APPROVALS.c.id == approval.id, APPROVALS.c.state == before.state)
            update = sa.update(APPROVALS).where(is_unchanged).values(outcome=outcome, **values)
            if (await connection.execute(update)).rowcount != 1:
                raise AlreadyDecidedError
            await add_audit_event(connection, audit_event)
            changed = await connection.execute(_one(approval.id, approval.tenant))
            return _approval(changed.one())

    async def list_due(
        self, now: datetime, executing_since: datetime, limit: int
    ) -> Sequence[Approval]:
        """Return waiting requests that have expired, and executions that began long ago."""
        columns = APPROVALS.c
        has_expired = sa.and_(
            columns.state == ApprovalState.WAITING, columns.expires_at_us <= microseconds(now)
        )
        is_interrupted = sa.and_(
            columns.state == ApprovalState.EXECUTING,
            columns.decided_at_us < microseconds(executing_since),
        )
        query = (
            sa.select(APPROVALS)
            .where(sa.or_(has_expired, is_interrupted))
            .order_by(sa.func.random())  # a row that no gateway wrote must not delay others
            .limit(limit)
        )
        async with read_transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
            return [_approval(row) for row in rows if is_authentic(connection, APPROVALS, row)]

    async def save_requirement(
        self, tenant: TenantId, audit_event: Event, *, required: bool
    ) -> None:
        """Store whether a tenant requires approval. Raises TooFewOwnersError."""
        async with transaction(self._engine) as connection:
            await lock_tenant(connection, tenant)
            team = await lock_team(connection, tenant)
            if required and team.count_owners() < MIN_OWNERS:
                raise TooFewOwnersError
            await change_under_mac(connection, tenant, {"requires_approval": required})
            await add_audit_event(connection, audit_event)


def _one(approval: ApprovalId, tenant: TenantId) -> sa.Select[Any]:
    is_it = sa.and_(APPROVALS.c.id == approval, APPROVALS.c.tenant_id == tenant)
    return sa.select(APPROVALS).where(is_it)


async def _approvers(connection: AsyncConnection, new: Approval, now: int) -> Sequence[str]:
    """Return the addresses of the other people that may approve a new request."""
    roles = [role for role in Role if may(role, new.permission)]
    query = sa.select(USERS.c.email).where(
        USERS.c.tenant_id == new.tenant,
        USERS.c.role.in_(roles),
        USERS.c.id != new.requester,
        USERS.c.created_at_us <= now,
    )
    return (await connection.execute(query.order_by(USERS.c.id))).scalars().all()


def _row(new: Approval) -> dict[str, object]:
    return {
        "id": new.id,
        "tenant_id": new.tenant,
        "operation": new.operation,
        "request": new.request,
        "digest": new.digest,
        "summary": new.summary,
        "subject": new.subject,
        "permission": new.permission,
        "requester": new.requester,
        "requested_at_us": microseconds(new.requested_at),
        "expires_at_us": microseconds(new.expires_at),
        "state": new.state,
        "decided_by": None,
        "decided_at_us": None,
        "outcome": None,
    }


def _approval(row: sa.Row[Any]) -> Approval:
    decided = row.decided_at_us
    return Approval(
        id=ApprovalId(row.id),
        tenant=TenantId(row.tenant_id),
        operation=row.operation,
        request=row.request,
        digest=row.digest,
        summary=row.summary,
        subject=row.subject,
        permission=Permission(row.permission),
        requester=UserId(row.requester),
        requested_at=time_of(row.requested_at_us),
        expires_at=time_of(row.expires_at_us),
        state=ApprovalState(row.state),
        decided_by=None if row.decided_by is None else UserId(row.decided_by),
        decided_at=None if decided is None else time_of(decided),
        outcome=row.outcome,
    )
