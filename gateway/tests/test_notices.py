"""Notices: opened by events and rules, raised, closed, seen, dismissed and mailed once."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    EMAIL,
    OTHER_EMAIL,
    FakeAuditLog,
    World,
    add_tenant,
    new_tenant,
)

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.notices import (
    KINDS,
    MAX_NAMED,
    OPERATOR_KINDS,
    TENANT_KINDS,
    Details,
    Finding,
    Notice,
    NoticeKind,
    Setting,
)
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.notices import (
    KEPT,
    LEASE,
    MAIL_PAUSE,
    MAX_SUBJECTS,
    PERIOD,
    NoticeNotFoundError,
    SqlNotices,
    open_notice,
)
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION

OLD = NoticeKind.KEY_OLD
ON_EITHER = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def notices(world: World) -> SqlNotices:
    """The stored notices."""
    return SqlNotices(world.engine)


async def opened(
    world: World, kind: NoticeKind, subject: str = "", details: Details | None = None
) -> None:
    """Open a notice of an event."""
    async with transaction(world.engine) as connection:
        now = date_of(world.now)
        await open_notice(connection, world.tenant.id, kind, subject, details or Details(), now)


async def listed(world: World, *, closed: bool = False) -> list[Notice]:
    """Return the tenant's notices."""
    page = await SqlNotices(world.engine).list(world.tenant.id, None, closed=closed)
    assert page.total == len(page.notices)
    return list(page.notices)


def found(count: int = 1, level: int = 0) -> dict[tuple[NoticeKind, str], Finding | None]:
    """Return what the rule of old keys found."""
    names = tuple(f"payments/Kyber768 v{n + 1}" for n in range(min(count, MAX_NAMED)))
    return {(OLD, ""): Finding(Details(count=count, names=names), level)}


async def mails(world: World) -> list[OutgoingMail]:
    """Take all mail about notices."""
    now = date_of(world.now)
    claimed = await world.mail_outbox.claim(1000, now, now)
    for mail in claimed:
        await world.mail_outbox.remove(mail)
    return [mail for mail in claimed if mail.kind is MailKind.NOTICES]


def test_each_kind_has_a_row_and_a_sentence() -> None:
    """Each kind says something about one subject and about many, and leads to a page."""
    assert set(KINDS) == set(NoticeKind)
    assert set(TENANT_KINDS) | set(OPERATOR_KINDS) == set(NoticeKind)
    for kind, row in KINDS.items():
        for details in (Details(), Details(count=7, names=("a", "b"), limit=90, reason="is old")):
            assert row.sentence(details).endswith((".", ".\n")), kind
            assert row.path(details).startswith("/")
        assert len(kind) <= 32


@ON_EITHER
async def test_a_notice_is_raised_when_its_cause_grows(world: World, notices: SqlNotices) -> None:
    """The same cause changes nothing.

    A newer or larger cause raises the notice. No cause closes it.
    """
    tenant, now = world.tenant.id, date_of(world.now)
    later = now + timedelta(minutes=1)
    await notices.reconcile(tenant, found(level=5), now)
    (first,) = await listed(world)
    assert (first.kind, first.raised_at, first.details.count) == (OLD, now, 1)
    await notices.reconcile(tenant, found(level=5), later)
    await notices.reconcile(tenant, found(level=4), later)
    assert [notice.raised_at for notice in await listed(world)] == [now]
    for number, (count, level) in enumerate([(2, 4), (2, 9)], 1):
        at = later + timedelta(minutes=number)
        await notices.reconcile(tenant, found(count, level), at)
        (raised,) = await listed(world)
        assert (raised.id, raised.raised_at, raised.opened_at) == (first.id, at, now)
    await notices.reconcile(tenant, {}, later)
    assert len(await listed(world)) == 1, "an unknown kind stays"
    await notices.reconcile(tenant, {(OLD, ""): None}, later)
    assert await listed(world) == []
    (closed,) = await listed(world, closed=True)
    assert closed.closed_at == later
    await notices.reconcile(tenant, found(), later)
    (again,) = await listed(world)
    assert again.id != first.id
    await notices.reconcile(tenant, found(), later + KEPT)
    assert await listed(world, closed=True) == []


@ON_EITHER
async def test_who_has_seen_a_notice_is_known(world: World, notices: SqlNotices) -> None:
    """Each person has own unread notices; a raised one is unread again; colleagues are named."""
    ada = await world.person()
    grace = await world.principal(await world.join(Role.ADMIN, OTHER_EMAIL))
    tenant, now = world.tenant.id, date_of(world.now)
    await notices.reconcile(tenant, found(), now)
    await opened(world, NoticeKind.FACTOR_REMOVED, "user:1")

    async def unseen(user: object) -> int:
        return (await notices.list(tenant, user)).unseen  # type: ignore[arg-type]

    assert await unseen(ada.user) == await unseen(grace.user) == 2
    assert await notices.see(tenant, ada.user, now) == 2
    assert await notices.see(tenant, ada.user, now) == 0
    assert (await unseen(ada.user), await unseen(grace.user)) == (0, 2)
    page = await notices.list(tenant, grace.user)
    assert {notice.seen_by for notice in page.notices} == {(EMAIL,)}
    assert all(notice.is_new for notice in page.notices)
    (one,) = (notice.id for notice in page.notices if notice.kind is OLD)
    assert await notices.see(tenant, grace.user, now, {one, uuid4()}) == 1
    later = now + timedelta(seconds=1)
    await notices.reconcile(tenant, found(2), later)
    assert (await unseen(ada.user), await unseen(grace.user)) == (1, 2)
    (raised,) = (n for n in (await notices.list(tenant, ada.user)).notices if n.kind is OLD)
    assert (raised.seen, raised.is_new) == (0, True)
    assert await notices.see(tenant, ada.user, later) == 1
    await world.members.remove(tenant, grace.user, ada, ATTRIBUTION)
    assert len((await notices.list(tenant, ada.user)).notices) == 2


@ON_EITHER
async def test_another_tenant_sees_and_changes_nothing(
    world: World, notices: SqlNotices, log: FakeAuditLog
) -> None:
    """A notice is listed, seen and dismissed only by its own tenant."""
    other = await add_tenant(world.engine, new_tenant())
    person = await world.person()
    now = date_of(world.now)
    await notices.reconcile(other.id, found(), now)
    (theirs,) = (await notices.list(other.id, None)).notices
    assert await listed(world) == []
    assert await notices.see(world.tenant.id, person.user, now, {theirs.id}) == 0
    dismissed = event(ATTRIBUTION, world.tenant.id, AuditEvent.DISMISS_NOTICE)
    with pytest.raises(NoticeNotFoundError):
        await notices.dismiss(world.tenant.id, theirs.id, now, dismissed)
    await world.audit_delivery.deliver()
    assert AuditEvent.DISMISS_NOTICE not in log.operations
    assert (await notices.list(other.id, None)).total == 1


@pytest.mark.threat("hidden-notice")
async def test_a_dismissed_notice_returns_when_it_grows(world: World, notices: SqlNotices) -> None:
    """A dismissed notice is shown to no person and is in no mail, until its cause grows."""
    await world.person()
    await mails(world)
    tenant, now = world.tenant.id, date_of(world.now)
    await notices.reconcile(tenant, found(), now)
    (notice,) = await listed(world)
    dismissed = event(ATTRIBUTION, tenant, AuditEvent.DISMISS_NOTICE)
    await notices.dismiss(tenant, notice.id, now, dismissed)
    await notices.reconcile(tenant, found(), now)
    assert await listed(world) == []
    await notices.claim([tenant], now)
    assert await notices.mail_digest(tenant, now) == 0
    await notices.reconcile(tenant, found(2), now + timedelta(seconds=1))
    assert [entry.id for entry in await listed(world)] == [notice.id]


async def test_a_kind_that_is_switched_off_opens_nothing(world: World, notices: SqlNotices) -> None:
    """An event of the kind opens no notice, and the choice is the tenant's own."""
    tenant = world.tenant.id
    kind = NoticeKind.FACTOR_REMOVED
    for enabled in (False, True):
        chosen = event(ATTRIBUTION, tenant, AuditEvent.CHANGE_NOTICE_SETTING)
        await notices.choose(tenant, kind, Setting(enabled=enabled), chosen)
        await opened(world, kind, "user:1")
        assert len(await listed(world)) == int(enabled)
    other = await add_tenant(world.engine, new_tenant())
    assert (await notices.settings(other.id)).enables(kind)


async def test_notices_of_events_are_bounded_and_close_by_themselves(
    world: World, notices: SqlNotices
) -> None:
    """The newest subjects of a kind are kept, and each closes after its time."""
    for number in range(MAX_SUBJECTS + 3):
        world.now += 1
        await opened(world, NoticeKind.FACTOR_REMOVED, f"user:{number}")
    subjects = {notice.subject for notice in await listed(world)}
    assert subjects == {f"user:{number}" for number in range(3, MAX_SUBJECTS + 3)}
    lasts = KINDS[NoticeKind.FACTOR_REMOVED].lasts
    assert lasts is not None
    await notices.reconcile(world.tenant.id, {}, date_of(world.now) + lasts)
    assert await listed(world) == []


async def test_a_used_up_rate_limit_is_one_notice_while_it_goes_on(
    world: World, notices: SqlNotices
) -> None:
    """Refusals keep it open and do not make it new; it closes fifteen minutes after the last."""
    await notices.report_rate_limit(world.tenant.id, None, date_of(world.now))
    (first,) = await listed(world)
    for _ in range(3):
        world.now += 600
        await notices.report_rate_limit(world.tenant.id, None, date_of(world.now))
        await notices.reconcile(world.tenant.id, {}, date_of(world.now))
    (still,) = await listed(world)
    assert (still.id, still.raised_at) == (first.id, first.raised_at)
    await notices.reconcile(world.tenant.id, {}, date_of(world.now + 900))
    assert await listed(world) == []


@ON_EITHER
async def test_a_thousand_notices_are_one_mail_to_each(world: World, notices: SqlNotices) -> None:
    """Owners and admins who want it get one digest; the next one waits for an hour."""
    owner = await world.person()
    await world.join(Role.ADMIN, "admin@example.com")
    unwilling = await world.principal(await world.join(Role.ADMIN, "quiet@example.com"))
    await world.join(Role.DEVELOPER, "dev@example.com")
    await notices.want_mail(unwilling.user, wanted=False)
    assert not await notices.wants_mail(unwilling.user)
    assert await notices.wants_mail(owner.user)
    await mails(world)
    tenant, now = world.tenant.id, date_of(world.now)
    await notices.claim([tenant], now)
    many = {
        (OLD, str(n)): Finding(Details(names=(f"payments/Kyber768 v{n}",))) for n in range(1000)
    }
    await notices.reconcile(tenant, many, now)
    assert await notices.mail_digest(tenant, now) == 2
    assert await notices.mail_digest(tenant, now) == 0
    sent = await mails(world)
    assert {mail.to for mail in sent} == {EMAIL, "admin@example.com"}
    assert sent[0].about.count("\n") == 20
    assert "And 980 more notices." in sent[0].about
    later = now + MAIL_PAUSE - timedelta(seconds=1)
    await notices.reconcile(tenant, {(NoticeKind.KEY_UNUSED, ""): Finding(Details())}, later)
    assert await notices.mail_digest(tenant, later) == 0
    assert await notices.mail_digest(tenant, now + MAIL_PAUSE) == 2
    await notices.want_mail(unwilling.user, wanted=True)
    assert await notices.wants_mail(unwilling.user)


@ON_EITHER
async def test_a_tenant_is_checked_by_one_gateway_at_a_time(
    world: World, notices: SqlNotices
) -> None:
    """A claim ends with its check, or with its lease if the gateway was killed."""
    now, tenant = date_of(world.now), world.tenant.id
    assert await notices.claim_due(10, now) == []
    assert await notices.add_missing_checks(10) == 1
    assert await notices.add_missing_checks(10) == 0
    assert await notices.claim_due(10, now) == [tenant]
    assert await notices.claim_due(10, now) == await notices.claim([tenant], now) == []
    assert await notices.claim_due(10, now + LEASE) == [tenant]
    await notices.finish([tenant], now + LEASE + PERIOD)
    assert await notices.claim_due(10, now + LEASE) == []
    assert await notices.claim([tenant], now + LEASE) == [tenant]


async def test_the_longest_due_tenant_is_next(world: World, notices: SqlNotices) -> None:
    """A tenant with many events does not delay the others for ever."""
    tenants = [world.tenant, *[await add_tenant(world.engine, new_tenant()) for _ in range(4)]]
    await notices.add_missing_checks(100)
    now = date_of(world.now)
    checked = []
    for number in range(10):
        (tenant,) = await notices.claim_due(1, now)
        await notices.finish([tenant], now - timedelta(seconds=100 - number))
        checked.append(tenant)
    assert set(checked[:5]) == {tenant.id for tenant in tenants}
    assert checked[:5] == checked[5:]


async def test_people_open_notices_about_their_factors_and_sessions(
    world: World, notices: SqlNotices
) -> None:
    """A removed factor names the person until a new one; a token used twice names the address."""
    person = await world.person()
    totp, _ = await world.enroll(person)
    world.now += 60
    await world.factors.disable(person, totp.at(int(world.now)), ATTRIBUTION)
    (removed,) = await listed(world)
    assert removed.kind is NoticeKind.FACTOR_REMOVED
    assert EMAIL in removed.text
    await world.enroll(person)
    assert await listed(world) == []


async def test_the_installation_has_notices_of_its_own(world: World, notices: SqlNotices) -> None:
    """A tenant does not see what operators are told."""
    now = date_of(world.now)
    await notices.reconcile(INSTALLATION, {(NoticeKind.ROOT_KEY_OLD, ""): Finding(Details())}, now)
    assert await listed(world) == []
    assert (await notices.list(INSTALLATION, None)).unseen == 1
