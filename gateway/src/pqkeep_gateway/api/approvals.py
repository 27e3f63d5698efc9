"""/api/v1/approvals: requests that a second person approves.

In a tenant that requires approval, the gate stores a person's request instead of executing it. The
endpoints here decide stored requests. The handler of the request's own endpoint executes it in the
requester's name. Checks and records are the same as without an approval.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import Permission, may
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal
from pqkeep_gateway.api.errors import (
    KEY_SERVICE_OUTAGE,
    UNPROCESSABLE_FIELDS,
    answer_to,
    code_of,
    denied_by,
)
from pqkeep_gateway.api.people_fields import (
    AFTER,
    EXAMPLE_TIME,
    USER,
    Identifier,
    InvitationData,
    Next,
    next_of,
    part_of,
)
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Filed, Response, Subject
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import LIST_LIMIT, Field, boolean_field, uuid_field
from pqkeep_gateway.http.pipeline import API, Gate
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.rehearsal import rehearse
from pqkeep_gateway.storage.approvals import (
    AlreadyDecidedError,
    Approval,
    ApprovalId,
    ApprovalNotFoundError,
    ApprovalState,
    NoOtherApproverError,
    TooManyApprovalsError,
)
from pqkeep_gateway.storage.pages import PositionNotFoundError
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.approvals import (
    POLICY,
    Approvals,
    ExecutionRefusedError,
    NewApproval,
    NotAnApproverError,
    NotTheRequesterError,
    OwnRequestError,
    RequestOutdatedError,
    canonical,
    state_digest,
)
from pqkeep_protocol.audit_events import PERSON
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


class ApprovalData(Data, frozen=True, kw_only=True):
    """A request that a second person approves."""

    id: Identifier
    operation: Annotated[str, Meta(description="The operation's name in this reference.")]
    summary: Annotated[str, Meta(description="The requested change, as a part of a sentence.")]
    request: Annotated[
        str,
        Meta(description="Method, path and fields as canonical JSON. Exactly this is executed."),
    ]
    sha256: Annotated[str, Meta(description="SHA-256 of `request`, which the audit log has too.")]
    state: ApprovalState
    permission: Annotated[
        Permission, Meta(description="The permission that the requester and the approver need.")
    ]
    requested_by: Annotated[Identifier, Meta(description="A person, who may have left.")]
    requested_at: Timestamp
    expires_at: Timestamp
    decided_by: Annotated[
        Identifier | None, Meta(description="The person that approved or refused it.")
    ]
    decided_at: Timestamp | None
    error_code: Annotated[str | None, Meta(description="The error code of a failed execution.")]
    invitation_token: Annotated[
        str | UnsetType,
        Meta(description="Shown once: after an approved invitation, if no e-mail is sent."),
    ] = UNSET


class ApprovalsData(Data, frozen=True, kw_only=True):
    """Requests, the newest first."""

    approvals: tuple[ApprovalData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of entries on all pages.")]
    next: Next = UNSET


_REQUEST = '["DELETE","/api/v1/kms/keyrings/{name}",{"name":"payments"}]'
EXAMPLE = ApprovalData(
    id="1f0e7a34-6d5b-4a0e-8f0a-2b9d6c1e4f70",
    operation="delete_keyring",
    summary="Delete the keyring payments, and destroy its private keys after 7 days",
    request=_REQUEST,
    sha256="9c" * 32,
    state=ApprovalState.WAITING,
    permission=Permission.DELETE_KEYRINGS,
    requested_by=USER.id,
    requested_at=EXAMPLE_TIME,
    expires_at=EXAMPLE_TIME,
    decided_by=None,
    decided_at=None,
    error_code=None,
)
_DECIDED = structs.replace(
    EXAMPLE,
    state=ApprovalState.EXECUTED,
    decided_by="5d0f5c0a-2f0e-4f3b-9d0c-7c1f4a0b8e62",
    decided_at=EXAMPLE_TIME,
)
_APPROVAL = cast(
    "Field[ApprovalId]",
    uuid_field("id", "The request's identifier.", EXAMPLE.id, not_found="no such request"),
)
_WAITING = boolean_field(
    "waiting", "Only requests that wait, or only the others. Left out: all.", example=True
).optional()
_DECODER = msgspec.json.Decoder(tuple[str, str, dict[str, object]])


GATE_ERRORS = (NoOtherApproverError, TooManyApprovalsError)
"""The gate's own errors, at every endpoint that needs approval."""


def gate(tenants: SqlTenants, approvals: Approvals) -> Gate:
    """Return the gate of requests that a second person must approve.

    It reads the setting from the database at each request, so that no gateway uses an old value.
    It reports errors in the request itself first. Programs are refused: their API keys say nothing
    about the person, who could approve the request.
    """

    async def file(endpoint: Endpoint, call: ApiCall) -> Filed | None:
        principal = call.principal
        if endpoint.subject_of is None or principal.tenant is None:  # an operator needs no approval
            return None
        if not (await tenants.get(principal.tenant)).requires_approval:
            return None
        subject = await endpoint.subject_of(call)
        if subject is None:
            return None
        if not isinstance(principal, SessionPrincipal):
            hint = (
                "the organization requires the approval of a second person: an owner or admin asks"
                " for it in the portal"
            )
            raise denied_by(POLICY, None, hint)
        await rehearse(lambda: endpoint.handler(call))
        new = NewApproval(
            endpoint.name,
            canonical(endpoint.method, API + endpoint.path, call.values),
            subject.summary,
            subject.state,
            subject.permission,
        )
        return Filed(_data(await approvals.file(new, principal, call.attribution), approvals))

    return file


def endpoints(approvals: Approvals, rows: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Return the endpoints of approvals. ``rows``: the endpoints that need approval."""
    gated = {row.name: row for row in rows if row.subject_of is not None}
    handlers = _Approvals(approvals, gated)
    deciding = (ApprovalNotFoundError, AlreadyDecidedError)
    return (
        Endpoint(
            method="GET",
            path="/approvals",
            name="list_approvals",
            handler=handlers.list_,
            permission=Permission.APPROVE_REQUESTS,
            fields=(_WAITING, LIST_LIMIT, AFTER),
            field_codes=UNPROCESSABLE_FIELDS,
            example=ApprovalsData(approvals=(EXAMPLE,), total=1),
            errors=(PositionNotFoundError,),
        ),
        Endpoint(
            method="GET",
            path="/approvals/{id}",
            name="get_approval",
            handler=handlers.get,
            permission=Permission.APPROVE_REQUESTS,
            fields=(_APPROVAL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=EXAMPLE,
            errors=(ApprovalNotFoundError,),
        ),
        Endpoint(
            method="POST",
            path="/approvals/{id}/approve",
            name="approve_request",
            handler=handlers.approve,
            permission=Permission.APPROVE_REQUESTS,
            needs_step_up=True,
            fields=(_APPROVAL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_DECIDED,
            codes=KEY_SERVICE_OUTAGE,
            errors=(
                *deciding,
                OwnRequestError,
                NotAnApproverError,
                RequestOutdatedError,
                ExecutionRefusedError,
            ),
        ),
        Endpoint(
            method="POST",
            path="/approvals/{id}/refuse",
            name="refuse_request",
            handler=handlers.refuse,
            permission=Permission.APPROVE_REQUESTS,
            fields=(_APPROVAL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=structs.replace(_DECIDED, state=ApprovalState.REFUSED),
            errors=(*deciding, OwnRequestError, NotAnApproverError),
        ),
        Endpoint(
            method="POST",
            path="/approvals/{id}/withdraw",
            name="withdraw_request",
            handler=handlers.withdraw,
            permission=Permission.APPROVE_REQUESTS,
            fields=(_APPROVAL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=structs.replace(EXAMPLE, state=ApprovalState.WITHDRAWN),
            errors=(*deciding, NotTheRequesterError),
        ),
    )


class _Approvals:
    """The handlers."""

    def __init__(self, approvals: Approvals, rows: Mapping[str, Endpoint]) -> None:
        self._approvals = approvals
        self._rows = rows

    async def list_(self, call: ApiCall) -> ApprovalsData:
        """List the requests for approval, the newest first. Ended ones are kept for 90 days."""
        page = await self._approvals.store.list(
            call.person.tenant, self._approvals.now(), part_of(call), waiting=call[_WAITING]
        )
        shown = tuple(_data(entry, self._approvals) for entry in page.entries)
        return ApprovalsData(approvals=shown, total=page.total, next=next_of(page, shown))

    async def get(self, call: ApiCall) -> ApprovalData:
        """Return a request for approval."""
        return _data(await self._get(call), self._approvals)

    async def approve(self, call: ApiCall) -> ApprovalData:
        """Approve a request of another person. The service executes it at once, and only once.

        The approver needs the request's own permission, and was a member before the request. If
        the subject has changed since, nothing is executed, and the request ends. If the outcome of
        the execution stays unknown, the request is `interrupted` and is not executed again: the
        audit log shows what happened.
        """
        approvals, approval = self._approvals, await self._get(call)
        await approvals.require_decider(approval, call.person)
        try:
            row, acting = await self._acting(approval, call)
        except RequestOutdatedError:
            by = call.attribution.by(f"{PERSON}{approval.requester}")
            outcome = code_of(RequestOutdatedError).code
            await approvals.end(approval, ApprovalState.FAILED, by, outcome)
            raise
        begun = await approvals.begin(approval, call.person, call.attribution)
        return await self._execute(begun, row, acting)

    async def refuse(self, call: ApiCall) -> ApprovalData:
        """Refuse a request of another person."""
        approval = await self._get(call)
        refused = await self._approvals.refuse(approval, call.person, call.attribution)
        return _data(refused, self._approvals)

    async def withdraw(self, call: ApiCall) -> ApprovalData:
        """Withdraw your own request."""
        approval = await self._get(call)
        withdrawn = await self._approvals.withdraw(approval, call.person, call.attribution)
        return _data(withdrawn, self._approvals)

    async def _get(self, call: ApiCall) -> Approval:
        return await self._approvals.store.get(call.person.tenant, call[_APPROVAL])

    async def _acting(self, approval: Approval, call: ApiCall) -> tuple[Endpoint, ApiCall]:
        """Return the stored request's endpoint, and the request as a call of its requester.

        The request is rehearsed first, so that errors appear now and not at its approval. Raises
        RequestOutdatedError if the requester's role or the subject has changed, and ApiError.
        """
        requester = await self._approvals.requester(approval)
        _, _, values = _DECODER.decode(approval.request)
        row = self._rows.get(approval.operation)  # None: of an earlier version of the service
        if (
            row is None
            or row.subject_of is None
            or approval.request != canonical(row.method, API + row.path, values)
            or not may(requester.role, row.permission)
        ):
            raise RequestOutdatedError
        principal = replace(
            call.person,
            user=requester.id,
            role=requester.role,
            session=SessionId(approval.id),
            must_enroll=False,
        )
        attribution = call.attribution.by(str(principal))
        acting = ApiCall(principal=principal, attribution=attribution, values=values)
        handler = row.handler
        try:
            subject = await row.subject_of(acting)
            if _is_unchanged(subject, approval):
                await rehearse(lambda: handler(acting))
                return row, acting
        except Exception as error:  # noqa: BLE001 - the error table knows all
            raise _refused(error, row, values) from None
        raise RequestOutdatedError

    async def _execute(self, approval: Approval, row: Endpoint, acting: ApiCall) -> ApprovalData:
        """Execute a request, and store how it ended."""
        by = acting.attribution
        try:
            response = await row.handler(acting)
        except Exception as error:
            answer = _answer(error, row, acting.values)
            if answer is not None and answer.code.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                await self._approvals.end(approval, ApprovalState.FAILED, by, answer.code.code)
                raise _refused(error, row, acting.values) from None
            _LOG.error(
                "the execution of an approved request was interrupted",
                approval=str(approval.id),
                operation=approval.operation,
            )
            await self._approvals.end(approval, ApprovalState.INTERRUPTED, by)
            raise
        ended = await self._approvals.end(approval, ApprovalState.EXECUTED, by)
        return structs.replace(_data(ended, self._approvals), invitation_token=_token_in(response))


def _answer(error: Exception, row: Endpoint, values: Mapping[str, object]) -> ApiError | None:
    return error if isinstance(error, ApiError) else answer_to(error, row, values)


def _refused(error: Exception, row: Endpoint, values: Mapping[str, object]) -> Exception:
    """Return 409 with the reason why a request cannot be executed; a failure unchanged."""
    answer = _answer(error, row, values)
    if answer is None or answer.code.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return error
    return ExecutionRefusedError(answer.message)


def _is_unchanged(subject: Subject | None, approval: Approval) -> bool:
    """Return whether a subject is as it was at the request."""
    return (
        subject is not None
        and subject.permission is approval.permission
        and state_digest(subject.state) == approval.subject
    )


def _token_in(response: Response) -> str | UnsetType:
    """Return the token of an invitation's response; unset in any other."""
    return response.invitation_token if isinstance(response, InvitationData) else UNSET


def _data(approval: Approval, approvals: Approvals) -> ApprovalData:
    decided = approval.decided_at
    return ApprovalData(
        id=str(approval.id),
        operation=approval.operation,
        summary=approval.summary,
        request=approval.request,
        sha256=approval.digest.hex(),
        state=approval.at(approvals.now()),
        permission=approval.permission,
        requested_by=str(approval.requester),
        requested_at=timestamp(approval.requested_at),
        expires_at=timestamp(approval.expires_at),
        decided_by=None if approval.decided_by is None else str(approval.decided_by),
        decided_at=None if decided is None else timestamp(decided),
        error_code=approval.outcome,
    )
