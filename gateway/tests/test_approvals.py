"""Approval by a second person, on either database: one decision, one execution, and its record."""

from __future__ import annotations

import random  # noqa: TID251 - the choices of a test, the same in each run
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import (
    ATTRIBUTION,
    CONCURRENCY,
    FEW_ROUNDS,
    OPERATOR,
    World,
    count_successes,
)

from pqkeep_gateway.access.callers import Permission, Role
from pqkeep_gateway.access.principals import (
    ApiKeyPrincipal,
    OperatorPrincipal,
    Principal,
    SessionId,
    SessionPrincipal,
)
from pqkeep_gateway.api.approvals import ApprovalData, endpoints, gate
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Filed, Subject
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, unavailable
from pqkeep_gateway.http.field import text_field
from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.storage.approvals import (
    MAX_A_DAY,
    TRANSITIONS,
    AlreadyDecidedError,
    Approval,
    ApprovalId,
    ApprovalNotFoundError,
    ApprovalState,
    NoOtherApproverError,
    SqlApprovals,
    TooManyApprovalsError,
)
from pqkeep_gateway.storage.schema import APPROVALS
from pqkeep_gateway.storage.team import (
    MemberNotFoundError,
    NotPermittedError,
    SqlTeam,
    TooFewOwnersError,
)
from pqkeep_gateway.tenancy.approvals import (
    EXECUTION,
    Approvals,
    ExecutionRefusedError,
    NotAnApproverError,
    NotTheRequesterError,
    OwnRequestError,
    RequestOutdatedError,
)
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

DAYS = 7
THING = text_field("thing", "What to destroy.", "a key", at_most=64)


class Destroyed(Data, frozen=True, kw_only=True):
    """The response of the tests' endpoint."""

    destroyed: bool = True


class Desk:
    """An endpoint that needs approval, in a tenant with two owners and an admin."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.approvals = Approvals(
            SqlApprovals(world.engine),
            world.users,
            world.audit_delivery,
            world.clock,
            timedelta(days=DAYS),
        )
        self.executions: list[ApiCall] = []
        self.state = "as it was"
        self.permission = Permission.ARCHIVE_KEYS
        self.fails: Exception | None = None
        self.row = Endpoint(
            method="POST",
            path="/things/destroy",
            name="archive_key",
            recorded_as=Operation.ARCHIVE_KEY,
            handler=self._destroy,
            permission=Permission.ARCHIVE_KEYS,
            example=Destroyed(),
            field_codes=BAD_REQUEST_FIELDS,
            fields=(THING,),
            subject_of=self._subject,
        )
        self._gate = gate(world.stored_tenants, self.approvals)
        self._rows = {row.name: row for row in endpoints(self.approvals, [self.row])}
        self.ada: SessionPrincipal
        self.bob: SessionPrincipal
        self.eve: SessionPrincipal

    async def open(self) -> Desk:
        """Let three people join, and require approval."""
        world = self.world
        self.ada = await world.person("ada@example.com")
        self.bob = await world.person("bob@example.com")
        self.eve = await world.principal(await world.join(Role.ADMIN, "eve@example.com"))
        await self.approvals.require(world.tenant.id, ATTRIBUTION, required=True)
        return self

    async def _destroy(self, call: ApiCall) -> Destroyed:
        """Destroy a thing."""
        _ = call[THING]
        before_change()
        if self.fails is not None:
            raise self.fails
        self.executions.append(call)
        return Destroyed()

    async def _subject(self, call: ApiCall) -> Subject:
        return Subject(f"Destroy {call[THING]}", [self.state], self.permission)

    def _call(self, by: Principal, **values: object) -> ApiCall:
        return ApiCall(principal=by, attribution=ATTRIBUTION.by(str(by)), values=values)

    async def gate(self, by: Principal, thing: object = "a key") -> Filed | None:
        """Send the request through the gate."""
        return await self._gate(self.row, self._call(by, thing=thing))

    async def ask(self, by: SessionPrincipal, thing: str = "a key") -> str:
        """Make a request; return its id."""
        filed = await self.gate(by, thing)
        assert filed is not None
        assert isinstance(filed.data, ApprovalData)
        return filed.data.id

    async def do(self, action: str, by: SessionPrincipal, approval: str) -> ApprovalData:
        """Approve, refuse, withdraw or get a request."""
        name = "get_approval" if action == "get" else f"{action}_request"
        found = await self._rows[name].handler(self._call(by, id=approval))
        assert isinstance(found, ApprovalData)
        return found

    async def stored(self, approval: str) -> Approval:
        """Return a stored request."""
        store = self.approvals.store
        return await store.get(self.world.tenant.id, ApprovalId(UUID(approval)))

    def pass_days(self, days: float) -> None:
        """Let time pass."""
        self.world.now += days * 86_400

    def records(self, approval: str) -> list[tuple[str, str, str]]:
        """Return operation, principal and outcome of each record about a request."""
        return [
            (logged.operation, logged.principal, logged.outcome)
            for logged in self.world.log.recorded.values()
            if approval in logged.policy
        ]


@pytest.fixture
async def desk(world: World) -> Desk:
    """A tenant that requires approval."""
    return await Desk(world).open()


async def test_asked_by_one_and_approved_by_another(desk: Desk) -> None:
    """An approved request is executed as its requester, and the log names both persons."""
    approval = await desk.ask(desk.ada)
    assert desk.executions == []
    done = await desk.do("approve", desk.eve, approval)
    assert (done.state, done.decided_by) == (ApprovalState.EXECUTED, str(desk.eve.user))
    (executed,) = desk.executions
    assert executed.principal.user == desk.ada.user
    assert executed.values == {"thing": "a key"}
    assert desk.records(approval) == [
        ("request-approval", str(desk.ada), "success"),
        ("approve-request", str(desk.eve), "success"),
        ("execute-request", str(desk.ada), "success"),
    ]
    (logged, *_) = [item for item in desk.world.log.recorded.values() if approval in item.policy]
    assert done.sha256 in logged.policy


async def test_nobody_decides_their_own_request(desk: Desk) -> None:
    """The requester cannot approve: not in another session, not with another role or address."""
    approval = await desk.ask(desk.ada)
    again = await desk.world.principal(
        await desk.world.sessions.begin(await desk.world.account("ada@example.com"), ATTRIBUTION)
    )
    for person in (desk.ada, again, replace(desk.ada, session=SessionId(uuid4()))):
        for action in ("approve", "refuse"):
            with pytest.raises(OwnRequestError):
                await desk.do(action, person, approval)
    tenant = desk.world.tenant.id
    await desk.world.members.change_role(tenant, desk.ada.user, Role.ADMIN, OPERATOR, ATTRIBUTION)
    with pytest.raises(OwnRequestError):
        await desk.do("approve", replace(desk.ada, role=Role.ADMIN), approval)
    assert desk.executions == []


async def test_who_joined_later_cannot_approve(desk: Desk) -> None:
    """A requester that leaves and joins again, under any address, cannot approve the request."""
    approval = await desk.ask(desk.ada)
    desk.pass_days(1)
    await desk.world.members.remove(desk.world.tenant.id, desk.ada.user, OPERATOR, ATTRIBUTION)
    for email in ("ada@example.com", "ada@example.org"):
        back = await desk.world.person(email)
        with pytest.raises(NotAnApproverError):
            await desk.do("approve", back, approval)
    assert desk.executions == []


async def test_an_approver_needs_the_permission(desk: Desk) -> None:
    """An admin cannot approve a request that only owners may approve.

    A developer can approve nothing.
    """
    desk.permission = Permission.MANAGE_OWNERS
    approval = await desk.ask(desk.ada)
    with pytest.raises(NotAnApproverError):
        await desk.do("approve", desk.eve, approval)
    tenant = desk.world.tenant.id
    await desk.world.members.change_role(
        tenant, desk.bob.user, Role.DEVELOPER, OPERATOR, ATTRIBUTION
    )
    with pytest.raises(NotAnApproverError):
        await desk.do("approve", desk.bob, approval)  # his session still says owner
    assert desk.executions == []


@pytest.mark.parametrize("action", ["refuse", "withdraw"])
async def test_a_request_that_ended_is_not_executed(desk: Desk, action: str) -> None:
    """A refused or withdrawn request cannot be approved; only its requester withdraws it."""
    approval = await desk.ask(desk.ada)
    by = desk.ada if action == "withdraw" else desk.bob
    if action == "withdraw":
        with pytest.raises(NotTheRequesterError):
            await desk.do("withdraw", desk.bob, approval)
    ended = await desk.do(action, by, approval)
    assert ended.state == ("withdrawn" if action == "withdraw" else "refused")
    with pytest.raises(AlreadyDecidedError):
        await desk.do("approve", desk.bob, approval)
    assert desk.executions == []
    assert desk.records(approval)[1:] == [(f"{action}-request", str(by), "success")]


async def test_a_request_expires(desk: Desk) -> None:
    """After seven days a request cannot be decided, and the log says once that it expired."""
    approval = await desk.ask(desk.ada)
    desk.pass_days(DAYS)
    assert (await desk.do("get", desk.bob, approval)).state == "expired"
    for action, person in (("approve", desk.bob), ("refuse", desk.bob), ("withdraw", desk.ada)):
        with pytest.raises(AlreadyDecidedError):
            await desk.do(action, person, approval)
    await desk.approvals.sweep()
    await desk.approvals.sweep()
    assert desk.records(approval)[1:] == [("request-expired", "gateway", "success")]
    assert desk.executions == []


async def test_a_changed_subject_ends_the_request(desk: Desk) -> None:
    """If a request's subject has changed since, nothing is executed."""
    approval = await desk.ask(desk.ada)
    desk.state = "changed meanwhile"
    with pytest.raises(RequestOutdatedError):
        await desk.do("approve", desk.bob, approval)
    desk.state = "as it was"
    with pytest.raises(AlreadyDecidedError):
        await desk.do("approve", desk.bob, approval)
    assert desk.executions == []
    assert desk.records(approval)[1:] == [("execute-request", str(desk.ada), "ERR_CONFLICT_001")]


async def test_a_requester_without_the_permission(desk: Desk) -> None:
    """A request of a person that lost the permission, or left, is not executed."""
    tenant, members = desk.world.tenant.id, desk.world.members
    first, second = await desk.ask(desk.ada), await desk.ask(desk.eve, "another")
    await members.change_role(tenant, desk.ada.user, Role.VIEWER, OPERATOR, ATTRIBUTION)
    await members.remove(tenant, desk.eve.user, OPERATOR, ATTRIBUTION)
    for approval in (first, second):
        with pytest.raises(RequestOutdatedError):
            await desk.do("approve", desk.bob, approval)
    assert desk.executions == []


async def test_concurrent_approvals_execute_once(desk: Desk) -> None:
    """Of many concurrent approvals, refusals and withdrawals, one decides."""
    for number in range(FEW_ROUNDS):
        before = len(desk.executions)
        approval = await desk.ask(desk.ada, f"key {number}")
        attempts = [desk.do("approve", desk.bob, approval) for _ in range(CONCURRENCY)]
        if number % 2:
            attempts += [desk.do("refuse", desk.eve, approval) for _ in range(4)]
            attempts += [desk.do("withdraw", desk.ada, approval) for _ in range(4)]
        assert await count_successes(attempts, AlreadyDecidedError) == 1
        state = (await desk.stored(approval)).state
        assert len(desk.executions) - before == (state is ApprovalState.EXECUTED)


async def test_an_unknown_outcome_is_not_repeated(desk: Desk) -> None:
    """An execution with an unknown outcome ends as interrupted, and no approval repeats it."""
    for failure in (UnavailableError(), unavailable(), RuntimeError("a defect")):
        approval = await desk.ask(desk.ada, str(type(failure)))
        desk.fails = failure
        with pytest.raises(type(failure)):
            await desk.do("approve", desk.bob, approval)
        desk.fails = None
        assert (await desk.do("get", desk.bob, approval)).state == "interrupted"
        with pytest.raises(AlreadyDecidedError):
            await desk.do("approve", desk.bob, approval)
        assert desk.records(approval)[2:] == [("request-interrupted", str(desk.ada), "success")]
    assert desk.executions == []


async def test_a_gateway_that_stops_between_approval_and_execution(desk: Desk) -> None:
    """Another gateway says that the execution was interrupted, and does not repeat it."""
    approval = await desk.ask(desk.ada)
    await desk.approvals.begin(await desk.stored(approval), desk.bob, ATTRIBUTION)
    await desk.approvals.sweep()
    assert (await desk.stored(approval)).state is ApprovalState.EXECUTING
    desk.world.now += EXECUTION.total_seconds() + 1
    await desk.approvals.sweep()
    assert (await desk.stored(approval)).state is ApprovalState.INTERRUPTED
    assert desk.records(approval)[-1] == ("request-interrupted", "gateway", "success")
    assert desk.executions == []


async def test_a_refused_execution_fails(desk: Desk) -> None:
    """An execution that its handler refuses fails with its code."""
    approval = await desk.ask(desk.ada)
    desk.fails = NoOtherApproverError()  # any error of the table
    with pytest.raises(ExecutionRefusedError, match="no other member may"):
        await desk.do("approve", desk.bob, approval)
    stored = await desk.stored(approval)
    assert (stored.state, stored.outcome) == (ApprovalState.FAILED, "ERR_CONFLICT_001")


async def test_a_wrong_request_is_not_stored(desk: Desk) -> None:
    """A request with a fault gets its own error and needs no approval."""
    with pytest.raises(Exception, match="thing"):
        await desk.gate(desk.ada, 7)
    page = await desk.approvals.store.list(desk.world.tenant.id, desk.approvals.now())
    assert page.total == 0


async def test_programs_cannot_ask(desk: Desk) -> None:
    """An API key is refused, and an operator needs no approval."""
    program = ApiKeyPrincipal(
        desk.world.tenant.id, desk.world.tenant.entitlements, 1, suspended=False
    )
    with pytest.raises(ApiError) as refused:
        await desk.gate(program)
    assert (refused.value.code.code, refused.value.policy) == ("ERR_POLICY_001", "second-person")
    assert await desk.gate(OperatorPrincipal()) is None


async def test_without_the_requirement_nothing_is_asked(desk: Desk) -> None:
    """In a tenant that does not require approval the gate lets every request pass."""
    await desk.approvals.require(desk.world.tenant.id, ATTRIBUTION, required=False)
    assert await desk.gate(desk.ada) is None


async def test_an_equal_request_waits_once(desk: Desk) -> None:
    """A repeated request is the same request. Each person who may approve gets one mail."""
    first, second = await desk.ask(desk.ada), await desk.ask(desk.eve)
    assert first == second
    now = desk.approvals.now()
    mails = await desk.world.mail_outbox.claim(100, now, now)
    asked = [mail for mail in mails if mail.kind is MailKind.APPROVAL_REQUESTED]
    assert sorted(mail.to for mail in asked) == ["bob@example.com", "eve@example.com"]
    assert {(mail.inviter, mail.about) for mail in asked} == {("ada@example.com", "Destroy a key")}
    assert await desk.ask(desk.ada, "another") != first


async def test_requests_have_a_limit(desk: Desk) -> None:
    """A tenant makes a limited number of requests a day, withdrawn ones included."""
    first = await desk.stored(await desk.ask(desk.ada))
    row = {column.name: getattr(first, column.name, None) for column in APPROVALS.columns}
    row |= {"tenant_id": first.tenant, "state": ApprovalState.WITHDRAWN}
    row |= {"requested_at_us": int(desk.world.now * 1e6), "expires_at_us": 0}
    del row["mac"]
    async with desk.world.engine.begin() as connection:
        for _ in range(MAX_A_DAY - 1):
            await connection.execute(sa.insert(APPROVALS), {**row, "id": uuid4()})
    with pytest.raises(TooManyApprovalsError):
        await desk.ask(desk.ada, "one more")
    desk.pass_days(1.01)
    await desk.ask(desk.ada, "the next day")
    desk.pass_days(91)
    await desk.approvals.sweep()
    kept = await desk.ask(desk.ada, "later")
    page = await desk.approvals.store.list(desk.world.tenant.id, desk.approvals.now())
    assert str(page.entries[0].id) == kept
    assert page.total == 1


async def test_who_is_alone_is_told(world: World) -> None:
    """A tenant with one owner cannot require approval, and a person alone cannot ask."""
    desk = Desk(world)
    desk.ada = await world.person("ada@example.com")
    with pytest.raises(TooFewOwnersError):
        await desk.approvals.require(world.tenant.id, ATTRIBUTION, required=True)
    bob = await world.person("bob@example.com")
    await desk.approvals.require(world.tenant.id, ATTRIBUTION, required=True)
    await world.members.remove(world.tenant.id, bob.user, OPERATOR, ATTRIBUTION)
    with pytest.raises(NoOtherApproverError):
        await desk.ask(desk.ada)


async def test_a_team_keeps_two_owners(desk: Desk) -> None:
    """Of concurrent removals of owners, by different persons, two owners are left."""
    world = desk.world
    owners = [await world.person(f"{number}@example.com") for number in range(3)]
    people = [desk.ada, desk.bob, *owners]
    removals = [
        world.members.remove(world.tenant.id, whom.user, by, ATTRIBUTION)
        for by, whom in zip(people, people[1:] + people[:1], strict=True)
    ]
    refusals = (TooFewOwnersError, NotPermittedError, MemberNotFoundError)
    assert await count_successes(removals, *refusals) <= 3
    left = (await SqlTeam(world.engine).list_members(world.tenant.id)).entries
    assert [member.user.role for member in left].count(Role.OWNER) >= 2


async def test_other_tenants_see_nothing(desk: Desk) -> None:
    """A request of another tenant is not found."""
    approval = await desk.ask(desk.ada)
    stranger = replace(desk.bob, tenant=TenantId(UUID(int=7)))
    with pytest.raises(ApprovalNotFoundError):
        await desk.do("approve", stranger, approval)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "waiting"),
        ("request", '["POST","/api/v1/things/destroy",{"thing":"all keys"}]'),
        ("summary", "Destroy nothing"),
        ("permission", "view-keys"),
        ("expires_at_us", 2**60),
        ("requester", uuid4()),
    ],
)
async def test_a_changed_row_is_ignored(desk: Desk, column: str, value: object) -> None:
    """A row that was changed in the database cannot be approved."""
    approval = await desk.ask(desk.ada)
    if column == "state":
        await desk.do("withdraw", desk.ada, approval)
    async with desk.world.engine.begin() as connection:
        await connection.execute(sa.update(APPROVALS).values({column: value}))
    with pytest.raises(ApprovalNotFoundError):
        await desk.do("approve", desk.bob, approval)
    assert desk.executions == []


STEPS: tuple[str, ...] = ("approve", "refuse", "withdraw", "sweep", "day", "begin", "end")


@pytest.mark.parametrize("seed", range(2))
async def test_random_lives(desk: Desk, seed: int) -> None:
    """In any order, only permitted steps happen, and a request is executed at most once."""
    choose = random.Random(seed)  # noqa: S311 - a test's choices
    for number in range(6):
        before = len(desk.executions)
        approval = await desk.ask(desk.ada, f"{seed} {number}")
        seen = [ApprovalState.WAITING]
        for _ in range(12):
            step = choose.choice(STEPS)
            await _take(desk, step, approval, choose.choice)
            state = (await desk.stored(approval)).at(desk.approvals.now())
            if state is not seen[-1]:
                assert _leads(seen[-1], state), (seen, state)
                seen.append(state)
            executed = len(desk.executions) - before
            assert executed <= 1
            assert executed == 0 or ApprovalState.EXECUTED in seen
        actions = [action for action, _, _ in desk.records(approval)]
        assert actions.count(AuditEvent.APPROVE_REQUEST) <= 1
        assert len(actions) <= 4


def _leads(before: ApprovalState, after: ApprovalState) -> bool:
    """Return whether one or two permitted steps lead from a state to another."""
    following = TRANSITIONS.get(before, frozenset())
    return after in following or any(after in TRANSITIONS.get(one, ()) for one in following)


async def _take(desk: Desk, step: str, approval: str, choose: Callable[[Any], Any]) -> None:
    """Take a step by a random person; a refusal changes nothing."""
    refusals = (AlreadyDecidedError, OwnRequestError, NotTheRequesterError)
    person = choose((desk.ada, desk.bob, desk.eve))
    try:
        match step:
            case "sweep":
                await desk.approvals.sweep()
            case "day":
                desk.pass_days(choose((0.01, 1, 5)))
            case "begin":
                stored = await desk.stored(approval)
                await desk.approvals.require_decider(stored, person)
                await desk.approvals.begin(stored, person, ATTRIBUTION)
            case "end":
                to = choose((ApprovalState.FAILED, ApprovalState.INTERRUPTED))
                await desk.approvals.end(await desk.stored(approval), to, ATTRIBUTION)
            case _:
                await desk.do(step, person, approval)
    except refusals:
        pass
