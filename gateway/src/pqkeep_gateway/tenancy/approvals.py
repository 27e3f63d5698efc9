"""Approval by a second person: who may decide a request, and how it ends.

A tenant can require that a second person approves requests that destroy keys, change owners or
change rules. Such a request is stored instead of executed. It is bound to its fields, its
requester and the state of its subject. The service executes it when another person approves it.

An execution is never repeated. If its outcome is unknown, the request is ``interrupted``: the audit
log shows whether it had an effect.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec
from msgspec import Struct

from pqkeep_gateway.access.callers import Permission, may
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.background import repeat
from pqkeep_gateway.storage.approvals import (
    AlreadyDecidedError,
    Approval,
    ApprovalId,
    ApprovalNotFoundError,
    ApprovalState,
    SqlApprovals,
)
from pqkeep_gateway.storage.users import SqlUsers, User, UserNotFoundError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent, Outcome
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

POLICY = "second-person"
"""The policy in records of look-ups for a request, and of refusals of programs."""
SWEEP_SECONDS = 30.0
EXECUTION = timedelta(minutes=2)
"""The time after which an execution without an outcome is taken for interrupted."""
AT_ONCE = 100
GATEWAY = Attribution("", "gateway", "", POLICY)
_ENCODER = msgspec.json.Encoder(order="sorted")


class OwnRequestError(Exception):
    """The requester cannot decide their own request."""


class NotAnApproverError(Exception):
    """The person may not approve this request."""


class NotTheRequesterError(Exception):
    """Only the requester can withdraw a request."""


class RequestOutdatedError(Exception):
    """The subject or the requester has changed since the request."""


class ExecutionRefusedError(Exception):
    """The request cannot be executed. The message is the reason."""


def canonical(method: str, path: str, values: Mapping[str, object]) -> str:
    """Return the canonical form of a request: JSON with sorted names."""
    return _ENCODER.encode([method, path, values]).decode()


def state_digest(state: object) -> bytes:
    """Return the SHA-256 (32 bytes) of a state that can be encoded as JSON."""
    return hashlib.sha256(_ENCODER.encode(state)).digest()


class NewApproval(Struct, frozen=True):
    """A request that needs approval."""

    operation: str
    request: str
    """The request in its canonical form."""
    summary: str
    state: object
    permission: Permission


class Approvals:
    """Stores requests for approval, checks who may decide them, and ends expired requests."""

    def __init__(
        self,
        store: SqlApprovals,
        users: SqlUsers,
        audit_delivery: AuditDelivery,
        clock: Clock,
        lifetime: timedelta,
    ) -> None:
        self.store = store
        self._users = users
        self._audit_delivery = audit_delivery
        self._clock = clock
        self._lifetime = lifetime

    def now(self) -> datetime:
        """Return the time."""
        return date_of(self._clock())

    async def file(self, new: NewApproval, by: SessionPrincipal, who: Attribution) -> Approval:
        """Store a request, and mail everyone who may approve it.

        If an equal request already waits, return that request. Raises NoOtherApproverError,
        TooManyApprovalsError.
        """
        now = self.now()
        account = await self._users.get(by.user)
        approval = Approval(
            id=ApprovalId(uuid4()),
            tenant=by.tenant,
            operation=new.operation,
            request=new.request,
            digest=hashlib.sha256(new.request.encode()).digest(),
            summary=new.summary,
            subject=state_digest(new.state),
            permission=new.permission,
            requester=by.user,
            requested_at=now,
            expires_at=now + self._lifetime,
        )
        asked = _event(who, approval, AuditEvent.REQUEST_APPROVAL)
        stored = await self.store.add(approval, account.user.email, asked)
        await self._audit_delivery.deliver()
        return stored

    async def require_decider(self, approval: Approval, by: SessionPrincipal) -> None:
        """Check that a person may decide a request.

        It must be another person, with the request's permission, who was a member before the
        request. So requesters cannot leave, join again and decide their own requests. Raises
        AlreadyDecidedError, OwnRequestError, NotAnApproverError.
        """
        if approval.at(self.now()) is not ApprovalState.WAITING:
            raise AlreadyDecidedError
        if by.user == approval.requester:
            raise OwnRequestError
        user = (await self._users.get(by.user)).user
        if not may(user.role, approval.permission) or user.created_at > approval.requested_at:
            raise NotAnApproverError

    async def requester(self, approval: Approval) -> User:
        """Return the requester, who must still have the permission.

        Raises RequestOutdatedError.
        """
        with suppress(UserNotFoundError):
            user = (await self._users.get(approval.requester)).user
            if user.tenant == approval.tenant and may(user.role, approval.permission):
                return user
        raise RequestOutdatedError

    async def begin(self, approval: Approval, by: SessionPrincipal, who: Attribution) -> Approval:
        """Take the only execution of a request. Raises AlreadyDecidedError."""
        return await self._change(
            approval, ApprovalState.EXECUTING, who, AuditEvent.APPROVE_REQUEST, by=by
        )

    async def end(
        self, approval: Approval, to: ApprovalState, who: Attribution, outcome: str | None = None
    ) -> Approval:
        """Store the end of an execution. ``outcome``: the error code, if it failed."""
        action = (
            AuditEvent.REQUEST_INTERRUPTED
            if to is ApprovalState.INTERRUPTED
            else AuditEvent.EXECUTE_REQUEST
        )
        return await self._change(approval, to, who, action, outcome=outcome)

    async def refuse(self, approval: Approval, by: SessionPrincipal, who: Attribution) -> Approval:
        """Refuse a request. Raises the errors of ``require_decider``."""
        await self.require_decider(approval, by)
        return await self._change(
            approval, ApprovalState.REFUSED, who, AuditEvent.REFUSE_REQUEST, by=by
        )

    async def withdraw(
        self, approval: Approval, by: SessionPrincipal, who: Attribution
    ) -> Approval:
        """Withdraw a request as its requester. Raises AlreadyDecidedError, NotTheRequesterError."""
        if by.user != approval.requester:
            raise NotTheRequesterError
        return await self._change(
            approval, ApprovalState.WITHDRAWN, who, AuditEvent.WITHDRAW_REQUEST
        )

    async def require(self, tenant: TenantId, who: Attribution, *, required: bool) -> None:
        """Require approval in a tenant, or stop requiring it. Raises TooFewOwnersError."""
        action = AuditEvent.REQUIRE_APPROVAL if required else AuditEvent.DO_NOT_REQUIRE_APPROVAL
        await self.store.save_requirement(tenant, event(who, tenant, action), required=required)
        await self._audit_delivery.deliver()

    async def run(self) -> None:
        """End requests that have expired or were interrupted, until cancelled."""
        await repeat(self.sweep, SWEEP_SECONDS)

    async def sweep(self) -> None:
        """End requests that have expired, and executions without an outcome."""
        now = self.now()
        for approval in await self.store.list_due(now, now - EXECUTION, AT_ONCE):
            with suppress(AlreadyDecidedError, ApprovalNotFoundError):  # by another gateway
                if approval.state is ApprovalState.WAITING:
                    await self._change(
                        approval, ApprovalState.EXPIRED, GATEWAY, AuditEvent.REQUEST_EXPIRED
                    )
                else:
                    await self.end(approval, ApprovalState.INTERRUPTED, GATEWAY)

    async def _change(
        self,
        approval: Approval,
        to: ApprovalState,
        who: Attribution,
        action: AuditEvent,
        *,
        by: SessionPrincipal | None = None,
        outcome: str | None = None,
    ) -> Approval:
        changed = await self.store.change(
            approval,
            to,
            self.now(),
            _event(who, approval, action, outcome or Outcome.SUCCESS),
            by=None if by is None else by.user,
            outcome=outcome,
        )
        await self._audit_delivery.deliver()
        return changed


def _event(
    who: Attribution, approval: Approval, action: AuditEvent, outcome: str = Outcome.SUCCESS
) -> Event:
    """Return the event of a request: its policy names the operation, the id and the digest."""
    policy = f"{approval.operation} {approval.id} {approval.digest.hex()}"
    return event(who, approval.tenant, action, outcome=outcome, policy=policy)
