"""Notices in SQL: open, closed, their readers, and the mails that named them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.admission import Busy
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.scopes import Scopes, scopes_in
from pqkeep_gateway.notices import (
    KINDS,
    MAX_DETAIL,
    MAX_NAMED,
    Details,
    Finding,
    Notice,
    NoticeKind,
    Setting,
    Settings,
    digest_text,
)
from pqkeep_gateway.outgoing_mail import MailKind, new_mail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    insert_if_absent,
    microseconds,
    read_transaction,
    time_of,
    transaction,
)
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.schema import (
    API_KEYS,
    APPROVALS,
    NOTICE_CHECKS,
    NOTICE_MAIL_REFUSALS,
    NOTICE_SETTINGS,
    NOTICE_VIEWS,
    NOTICES,
    TENANTS,
    USERS,
    WEBHOOKS,
)
from pqkeep_gateway.storage.webhooks import publish
from pqkeep_gateway.webhooks import Message, WebhookState
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

MAX_SUBJECTS = 20
"""Open notices of one kind of event and tenant. The oldest one makes way for a new one."""
KEPT = timedelta(days=30)
"""The time for which closed notices are kept."""
MAX_CLOSED = 1_000
"""Closed notices that one check removes."""
SHOWN_VIEWERS = 5
"""Readers that a notice names."""
MAIL_PAUSE = timedelta(hours=1)
"""The shortest time between two mails about a tenant's notices to one person."""
LEASE = timedelta(seconds=60)
"""The time for which a gateway checks a tenant alone: longer than any check."""
PERIOD = timedelta(minutes=5)
"""The time between two checks of a tenant without an event."""

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Details)


MAX_API_KEYS = 10_000
"""API keys of a tenant that one check reads."""


@dataclass(frozen=True, slots=True)
class ApiKeyFacts:
    """A valid API key, as the rules of notices see it."""

    version: int
    name: str | None
    scopes: Scopes | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    last_administered_at: datetime | None

    @property
    def shown_name(self) -> str:
        """The version, with the name if there is one."""
        return api_key_name(self.version, self.name)

    @property
    def last_active_at(self) -> datetime:
        """The last use; before the first, the creation."""
        return self.created_at if self.last_used_at is None else self.last_used_at


@dataclass(frozen=True, slots=True)
class Members:
    """Members without a second factor."""

    count: int
    newest_at: datetime
    """The time at which the last of them joined."""
    first: tuple[str, ...]
    """The addresses of the first ones, at most MAX_NAMED."""


@dataclass(frozen=True, slots=True)
class WaitingApprovals:
    """Requests that wait for the approval of a second person."""

    count: int
    newest_us: int
    """When the last of them was made, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What the accounts database has about a tenant."""

    api_keys: tuple[ApiKeyFacts, ...]
    without_factor: Members
    approvals: WaitingApprovals
    disabled_webhooks: tuple[str, ...]
    """The names of webhooks that the service disabled after failures."""


class NoticeNotFoundError(Exception):
    """The tenant has no such open notice."""


class NotDismissibleError(Exception):
    """A notice of this kind cannot be dismissed."""


@dataclass(frozen=True, slots=True)
class NoticePage:
    """Notices, the last raised first."""

    notices: tuple[Notice, ...]
    total: int
    unseen: int
    """The open notices that the reader has not read since they were raised."""


class SqlNotices:
    """Notices in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    # --- Reading ------------------------------------------------------------------------------

    async def list(
        self,
        tenant: TenantId,
        reader: UserId | None,
        *,
        closed: bool = False,
        limit: int = 100,
        hidden: Collection[NoticeKind] = (),
    ) -> NoticePage:
        """Return a tenant's open or closed notices, without hidden kinds.

        ``reader``: the person who reads.
        """
        state = NOTICES.c.closed_at_us.is_not(None) if closed else _IS_SHOWN
        matches = sa.and_(
            NOTICES.c.tenant_id == tenant,
            state,
            NOTICES.c.kind.in_([kind for kind in NoticeKind if kind not in hidden]),
        )
        newest = NOTICES.c.closed_at_us if closed else NOTICES.c.raised_at_us
        query = sa.select(NOTICES).where(matches).order_by(newest.desc(), NOTICES.c.id).limit(limit)
        async with read_transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
            total = sa.select(sa.func.count()).select_from(NOTICES).where(matches)
            count = (await connection.execute(total)).scalar_one()
            unseen = await _count_unseen(connection, tenant, reader, hidden)
            views = await _views(connection, [row.id for row in rows])
        notices = (_notice(row) for row in rows)
        shown = tuple(_seen(notice, views.get(notice.id, ()), reader) for notice in notices)
        return NoticePage(shown, count, unseen)

    async def settings(self, tenant: TenantId) -> Settings:
        """Return a tenant's choices."""
        async with read_transaction(self._engine) as connection:
            return await _settings(connection, tenant)

    async def wants_mail(self, user: UserId) -> bool:
        """Return whether a person wants mail about notices."""
        query = sa.select(NOTICE_MAIL_REFUSALS).where(NOTICE_MAIL_REFUSALS.c.user_id == user)
        async with read_transaction(self._engine) as connection:
            return (await connection.execute(query)).first() is None

    # --- People's changes ---------------------------------------------------------------------

    async def see(
        self, tenant: TenantId, reader: UserId, now: datetime, ids: Collection[UUID] | None = None
    ) -> int:
        """Note that a person has seen open notices, or all; return how many were new to them."""
        seen_us = microseconds(now)
        async with transaction(self._engine) as connection:
            query = _unseen(sa.select(NOTICES.c.id), tenant, reader)
            if ids is not None:
                query = query.where(NOTICES.c.id.in_(ids))
            new = (await connection.execute(query)).scalars().all()
            for notice in new:
                row = {"notice_id": notice, "user_id": reader, "seen_at_us": seen_us}
                if not await insert_if_absent(connection, NOTICE_VIEWS, row):
                    of_both = sa.and_(
                        NOTICE_VIEWS.c.notice_id == notice, NOTICE_VIEWS.c.user_id == reader
                    )
                    again = sa.update(NOTICE_VIEWS).where(of_both).values(seen_at_us=seen_us)
                    await connection.execute(again)
        return len(new)

    async def dismiss(
        self, tenant: TenantId, notice: UUID, now: datetime, audit_event: Event
    ) -> Notice:
        """Hide an open notice until its cause grows.

        Raises NoticeNotFoundError, NotDismissibleError.
        """
        is_one = sa.and_(NOTICES.c.tenant_id == tenant, NOTICES.c.id == notice)
        dismiss = (
            sa.update(NOTICES)
            .where(is_one, NOTICES.c.closed_at_us.is_(None))
            .values(dismissed_at_us=microseconds(now))
            .returning(NOTICES)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(dismiss)).one_or_none()
            if row is None:
                raise NoticeNotFoundError
            if not KINDS[NoticeKind(row.kind)].may_be_dismissed:
                raise NotDismissibleError
            await add_audit_event(connection, audit_event)
        return _notice(row)

    async def choose(
        self, tenant: TenantId, kind: NoticeKind, setting: Setting, audit_event: Event
    ) -> None:
        """Store a tenant's choice about a kind."""
        of_kind = sa.and_(NOTICE_SETTINGS.c.tenant_id == tenant, NOTICE_SETTINGS.c.kind == kind)
        row = {
            "tenant_id": tenant,
            "kind": kind,
            "enabled": setting.enabled,
            "days": setting.days,
        }
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(NOTICE_SETTINGS).where(of_kind))
            await connection.execute(sa.insert(NOTICE_SETTINGS), row)
            await add_audit_event(connection, audit_event)

    async def want_mail(self, user: UserId, *, wanted: bool) -> None:
        """Store whether a person wants mail about notices."""
        async with transaction(self._engine) as connection:
            if wanted:
                is_user = NOTICE_MAIL_REFUSALS.c.user_id == user
                await connection.execute(sa.delete(NOTICE_MAIL_REFUSALS).where(is_user))
            else:
                await insert_if_absent(connection, NOTICE_MAIL_REFUSALS, {"user_id": user})

    # --- Checks -------------------------------------------------------------------------------

    async def claim_due(self, limit: int, now: datetime) -> Sequence[TenantId]:
        """Claim due checks, the longest due first. No two gateways claim the same tenant.

        A claim expires after LEASE, so that the checks of a stopped gateway go on elsewhere.
        """
        columns, now_us = NOTICE_CHECKS.c, microseconds(now)
        is_due = sa.and_(columns.due_at_us <= now_us, columns.held_until_us <= now_us)
        due = sa.select(columns.tenant_id).where(is_due).order_by(columns.due_at_us).limit(limit)
        async with read_transaction(self._engine) as connection:  # most often there are none
            found = (await connection.execute(due)).scalars().all()
        return await self.claim([TenantId(tenant) for tenant in found], now) if found else []

    async def claim(self, tenants: Collection[TenantId], now: datetime) -> Sequence[TenantId]:
        """Claim the checks of these tenants, due or not; return those that no gateway makes."""
        columns, now_us = NOTICE_CHECKS.c, microseconds(now)
        claim = (
            sa.update(NOTICE_CHECKS)
            .where(columns.tenant_id.in_(tenants), columns.held_until_us <= now_us)
            .values(held_until_us=microseconds(now + LEASE))
            .returning(columns.tenant_id)
        )
        async with transaction(self._engine) as connection:
            for tenant in sorted(tenants):  # one order avoids deadlocks
                row = {"tenant_id": tenant, "due_at_us": now_us, "held_until_us": 0}
                await insert_if_absent(connection, NOTICE_CHECKS, row)
            return [TenantId(tenant) for tenant in (await connection.execute(claim)).scalars()]

    async def finish(self, tenants: Collection[TenantId], next_at: datetime) -> None:
        """Release claimed checks, and store when they are due again."""
        values = {"held_until_us": 0, "due_at_us": microseconds(next_at)}
        finish = sa.update(NOTICE_CHECKS).where(NOTICE_CHECKS.c.tenant_id.in_(tenants))
        async with transaction(self._engine) as connection:
            await connection.execute(finish.values(values))

    async def add_missing_checks(self, limit: int) -> int:
        """Add checks of tenants without one, at most ``limit``; return how many."""
        is_missing = sa.and_(
            TENANTS.c.status.in_(("active", "suspended")),
            ~sa.exists().where(NOTICE_CHECKS.c.tenant_id == TENANTS.c.id),
        )
        query = sa.select(TENANTS.c.id).where(is_missing).limit(limit)
        async with read_transaction(self._engine) as connection:
            missing = (await connection.execute(query)).scalars().all()
        if missing:
            async with transaction(self._engine) as connection:
                for tenant in missing:
                    row = {"tenant_id": tenant, "due_at_us": 0, "held_until_us": 0}
                    await insert_if_absent(connection, NOTICE_CHECKS, row)
        return len(missing)

    async def find_accounts(self, tenant: TenantId, now: datetime) -> Accounts:
        """Return what the accounts database has about a tenant's API keys and members."""
        columns, now_us = API_KEYS.c, microseconds(now)
        api_keys = (
            sa.select(*_OF_API_KEY)
            .where(
                columns.tenant_id == tenant,
                columns.status == "active",
                sa.or_(columns.expires_at_us.is_(None), columns.expires_at_us > now_us),
            )
            .order_by(columns.version)
            .limit(MAX_API_KEYS)
        )
        without = sa.and_(
            USERS.c.tenant_id == tenant, USERS.c.has_mfa.is_(False), USERS.c.passkeys == 0
        )
        count = sa.select(sa.func.count(), sa.func.max(USERS.c.created_at_us)).where(without)
        first = sa.select(USERS.c.email).where(without).order_by(USERS.c.created_at_us, USERS.c.id)
        waits = sa.and_(
            APPROVALS.c.tenant_id == tenant,
            APPROVALS.c.state == "waiting",
            APPROVALS.c.expires_at_us > now_us,
        )
        newest = sa.func.max(APPROVALS.c.requested_at_us)
        waiting = sa.select(sa.func.count(), newest).where(waits)
        disabled = (
            sa.select(WEBHOOKS.c.name)
            .where(
                WEBHOOKS.c.tenant_id == tenant,
                WEBHOOKS.c.state == WebhookState.DISABLED,
                WEBHOOKS.c.failing_since_us.is_not(None),  # a person ends it
            )
            .order_by(WEBHOOKS.c.name)
        )
        async with read_transaction(self._engine) as connection:
            webhooks = (await connection.execute(disabled)).scalars().all()
            approvals, asked_us = (await connection.execute(waiting)).one()
            keys = tuple(map(_api_key_facts, await connection.execute(api_keys)))
            number, newest_us = (await connection.execute(count)).one()
            emails = (await connection.execute(first.limit(MAX_NAMED))).scalars().all()
        return Accounts(
            keys,
            Members(number, time_of(newest_us or 0), tuple(emails)),
            WaitingApprovals(approvals, asked_us or 0),
            tuple(webhooks),
        )

    async def report_rate_limit(
        self, tenant: TenantId, busiest: Busy | None, now: datetime
    ) -> None:
        """Open the notice about a used-up rate limit, or keep it open."""
        kind, details = NoticeKind.RATE_LIMIT_USED_UP, Details()
        if busiest is not None:
            version, name = busiest.api_key_version, busiest.name
            name = api_key_name(version, name) if version else f"role {name}"
            details = Details(names=(name,), used=busiest.requests)
        async with transaction(self._engine) as connection:
            await open_notice(connection, tenant, kind, "", details, now)

    async def reconcile(
        self,
        tenant: TenantId,
        found: Mapping[tuple[NoticeKind, str], Finding | None],
        now: datetime,
    ) -> None:
        """Open, raise and close notices to match what rules found, by kind and subject.

        None closes. A kind that is not in ``found`` is unknown, and its notice stays. Notices of
        events close after their time.
        """
        async with read_transaction(self._engine) as connection:
            rows = await _open_rows(connection, tenant)
            old = await _old(connection, tenant, now)
        if not (_changes(rows, found, now) or old):
            return
        async with transaction(self._engine) as connection:
            rows = await _open_rows(connection, tenant)
            for kind, subject, finding in _changes(rows, found, now):
                if finding is None:
                    await close_notices(connection, tenant, now, subject=subject, kind=kind)
                else:
                    await _put(connection, tenant, kind, subject, finding, now)
            await _remove(connection, old)

    async def mail_digest(
        self, tenant: TenantId, now: datetime, operators: Sequence[str] = ()
    ) -> int:
        """Store one mail to each owner and admin about all new notices; return how many mails.

        Each person gets at most one in MAIL_PAUSE, so many notices become one mail.
        ``operators``: the recipients of notices about the installation.
        """
        is_new = sa.or_(
            NOTICES.c.mailed_at_us.is_(None), NOTICES.c.mailed_at_us < NOTICES.c.raised_at_us
        )
        new = sa.select(NOTICES).where(NOTICES.c.tenant_id == tenant, _IS_SHOWN, is_new)
        async with read_transaction(self._engine) as connection:
            if (await connection.execute(new.limit(1))).first() is None:
                return 0
        columns, now_us = NOTICE_CHECKS.c, microseconds(now)
        may_mail = sa.and_(
            columns.tenant_id == tenant,
            sa.or_(
                columns.mailed_at_us.is_(None),
                columns.mailed_at_us <= microseconds(now - MAIL_PAUSE),
            ),
        )
        claim = sa.update(NOTICE_CHECKS).where(may_mail).values(mailed_at_us=now_us)
        readers = (
            sa.select(USERS.c.email)
            .where(
                USERS.c.tenant_id == tenant,
                USERS.c.role.in_((Role.OWNER, Role.ADMIN)),
                ~sa.exists().where(NOTICE_MAIL_REFUSALS.c.user_id == USERS.c.id),
            )
            .order_by(USERS.c.id)
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(claim)).rowcount == 0:
                return 0
            rows = (await connection.execute(new.order_by(NOTICES.c.raised_at_us))).all()
            text = digest_text([_notice(row) for row in rows])
            ids = [row.id for row in rows]
            mailed = sa.update(NOTICES).where(NOTICES.c.id.in_(ids)).values(mailed_at_us=now_us)
            await connection.execute(mailed)
            emails, kind = operators, MailKind.OPERATOR_NOTICES
            if tenant != INSTALLATION:
                emails = (await connection.execute(readers)).scalars().all()
                kind = MailKind.NOTICES
            for email in emails:
                await add_mail(connection, new_mail(kind, email, now, about=text))
        return len(emails)


async def open_notice(
    connection: AsyncConnection,
    tenant: TenantId,
    kind: NoticeKind,
    subject: str,
    details: Details,
    now: datetime,
) -> None:
    """Open a notice of an event in the event's transaction, or raise the open one again.

    Nothing happens where the tenant has switched the kind off.
    """
    if tenant != INSTALLATION and not (await _settings(connection, tenant)).enables(kind):
        return
    await _put(connection, tenant, kind, subject, Finding(details, microseconds(now)), now)
    of_kind = sa.and_(
        NOTICES.c.tenant_id == tenant, NOTICES.c.kind == kind, NOTICES.c.closed_at_us.is_(None)
    )
    newest = (
        sa.select(NOTICES.c.id)
        .where(of_kind)
        .order_by(NOTICES.c.raised_at_us.desc(), NOTICES.c.id)
        .limit(MAX_SUBJECTS)
    )
    close = sa.update(NOTICES).where(of_kind, NOTICES.c.id.not_in(newest))
    await connection.execute(close.values(closed_at_us=microseconds(now)))


async def close_notices(
    connection: AsyncConnection,
    tenant: TenantId,
    now: datetime,
    *,
    subject: str,
    kind: NoticeKind | None = None,
) -> None:
    """Close the open notices about a subject, of one kind or of all."""
    is_one = sa.and_(
        NOTICES.c.tenant_id == tenant,
        NOTICES.c.subject == subject,
        NOTICES.c.closed_at_us.is_(None),
    )
    if kind is not None:
        is_one = sa.and_(is_one, NOTICES.c.kind == kind)
    close = sa.update(NOTICES).where(is_one).values(closed_at_us=microseconds(now))
    await connection.execute(close)


async def remove_notices(connection: AsyncConnection, tenant: TenantId) -> None:
    """Remove everything about a tenant's notices. Its people must be removed afterwards."""
    of_tenant = sa.select(NOTICES.c.id).where(NOTICES.c.tenant_id == tenant)
    await connection.execute(sa.delete(NOTICE_VIEWS).where(NOTICE_VIEWS.c.notice_id.in_(of_tenant)))
    for table in (NOTICES, NOTICE_SETTINGS, NOTICE_CHECKS):
        await connection.execute(sa.delete(table).where(table.c.tenant_id == tenant))


async def _announce(connection: AsyncConnection, notice: Notice) -> None:
    """Announce a notice that was opened or raised, in the same transaction.

    Webhooks get it at once. Mail follows in the next digest: see ``SqlNotices.mail_digest``.
    """
    data = {
        "notice": notice.id,
        "severity": KINDS[notice.kind].severity,
        "text": notice.text,
        "page": f"/portal{notice.path}",
        "details": notice.details,
    }
    await publish(connection, notice.tenant, Message(notice.kind, notice.raised_at, data))


async def _put(
    connection: AsyncConnection,
    tenant: TenantId,
    kind: NoticeKind,
    subject: str,
    finding: Finding,
    now: datetime,
) -> None:
    """Open a notice, or update the open one. A grown cause raises it."""
    now_us, details = microseconds(now), _bounded(finding.details)
    values = {"details": _ENCODER.encode(details).decode(), "level": finding.level}
    id_ = uuid4()
    row = {
        "id": id_,
        "tenant_id": tenant,
        "kind": kind,
        "subject": subject,
        "opened_at_us": now_us,
        "raised_at_us": now_us,
        **values,
    }
    is_open = sa.and_(
        NOTICES.c.tenant_id == tenant,
        NOTICES.c.kind == kind,
        NOTICES.c.subject == subject,
        NOTICES.c.closed_at_us.is_(None),
    )
    found = (await connection.execute(sa.select(NOTICES).where(is_open))).one_or_none()
    if found is None:
        if await insert_if_absent(connection, NOTICES, row):
            notice = Notice(id_, tenant, kind, subject, details, now, now)
            await _announce(connection, notice)
        return
    grows = _grows(found, finding)
    if grows:
        values["raised_at_us"] = now_us
    await connection.execute(sa.update(NOTICES).where(NOTICES.c.id == found.id).values(values))
    if grows:
        raised = replace(_notice(found), details=details, raised_at=now)
        await _announce(connection, raised)


Change = tuple[NoticeKind, str, Finding | None]


def _changes(
    rows: Sequence[sa.Row[Any]],
    found: Mapping[tuple[NoticeKind, str], Finding | None],
    now: datetime,
) -> list[Change]:
    """Return the changes to open notices; None closes a notice."""
    stored = {(NoticeKind(row.kind), row.subject): row for row in rows}
    changes: list[Change] = []
    for place, finding in found.items():
        row = stored.get(place)
        if finding is None:
            if row is not None:
                changes.append((*place, None))
        elif (
            row is None or row.level != finding.level or _details(row) != _bounded(finding.details)
        ):
            changes.append((*place, finding))
    for place, row in stored.items():
        lasts = KINDS[place[0]].lasts
        if place not in found and lasts is not None and time_of(row.level) + lasts <= now:
            changes.append((*place, None))
    return changes


def _grows(row: sa.Row[Any], finding: Finding) -> bool:
    if not KINDS[NoticeKind(row.kind)].raises_again:
        return False
    return bool(finding.level > row.level or finding.details.count > _details(row).count)


def _bounded(details: Details) -> Details:
    """Return details with texts of a bounded length: they come from names and addresses."""
    return msgspec.structs.replace(
        details,
        names=tuple(name[:MAX_DETAIL] for name in details.names),
        source_address=details.source_address[:MAX_DETAIL],
        reason=details.reason[:MAX_DETAIL],
    )


_IS_SHOWN = sa.and_(
    NOTICES.c.closed_at_us.is_(None),
    sa.or_(NOTICES.c.dismissed_at_us.is_(None), NOTICES.c.dismissed_at_us < NOTICES.c.raised_at_us),
)
"""Selects open notices without dismissed ones."""


async def _open_rows(connection: AsyncConnection, tenant: TenantId) -> Sequence[sa.Row[Any]]:
    """Return the open notices of known kinds: others belong to a later version."""
    query = sa.select(NOTICES).where(
        NOTICES.c.tenant_id == tenant,
        NOTICES.c.closed_at_us.is_(None),
        NOTICES.c.kind.in_(NoticeKind),
    )
    return (await connection.execute(query)).all()


async def _old(connection: AsyncConnection, tenant: TenantId, now: datetime) -> Sequence[UUID]:
    closed = NOTICES.c.closed_at_us
    query = sa.select(NOTICES.c.id).where(
        NOTICES.c.tenant_id == tenant, closed <= microseconds(now - KEPT)
    )
    return (await connection.execute(query.limit(MAX_CLOSED))).scalars().all()


async def _remove(connection: AsyncConnection, ids: Sequence[UUID]) -> None:
    if ids:
        views = sa.delete(NOTICE_VIEWS).where(NOTICE_VIEWS.c.notice_id.in_(ids))
        await connection.execute(views)
        await connection.execute(sa.delete(NOTICES).where(NOTICES.c.id.in_(ids)))


async def _settings(connection: AsyncConnection, tenant: TenantId) -> Settings:
    query = sa.select(NOTICE_SETTINGS).where(
        NOTICE_SETTINGS.c.tenant_id == tenant, NOTICE_SETTINGS.c.kind.in_(NoticeKind)
    )
    rows = await connection.execute(query)
    return Settings({NoticeKind(row.kind): Setting(bool(row.enabled), row.days) for row in rows})


def _unseen(query: sa.Select[Any], tenant: TenantId, reader: UserId) -> sa.Select[Any]:
    """Restrict a query to a tenant's open notices that a person has not read since their rise."""
    has_seen = sa.exists().where(
        NOTICE_VIEWS.c.notice_id == NOTICES.c.id,
        NOTICE_VIEWS.c.user_id == reader,
        NOTICE_VIEWS.c.seen_at_us >= NOTICES.c.raised_at_us,
    )
    return query.where(NOTICES.c.tenant_id == tenant, _IS_SHOWN, ~has_seen)


async def _count_unseen(
    connection: AsyncConnection,
    tenant: TenantId,
    reader: UserId | None,
    hidden: Collection[NoticeKind],
) -> int:
    """Return the number of open notices that a person has not seen; without a person, of all."""
    count = sa.select(sa.func.count()).select_from(NOTICES)
    if hidden:
        count = count.where(NOTICES.c.kind.not_in(hidden))
    if reader is None:
        query = count.where(NOTICES.c.tenant_id == tenant, _IS_SHOWN)
    else:
        query = _unseen(count, tenant, reader)
    return int((await connection.execute(query)).scalar_one())


View = tuple[UUID, str, int]
"""User, e-mail address, and when they have seen the notice."""


async def _views(
    connection: AsyncConnection, notices: Sequence[UUID]
) -> Mapping[UUID, Sequence[View]]:
    """Return the readers of each notice, by time."""
    query = (
        sa.select(
            NOTICE_VIEWS.c.notice_id,
            NOTICE_VIEWS.c.user_id,
            USERS.c.email,
            NOTICE_VIEWS.c.seen_at_us,
        )
        .join(USERS, USERS.c.id == NOTICE_VIEWS.c.user_id)
        .where(NOTICE_VIEWS.c.notice_id.in_(notices))
        .order_by(NOTICE_VIEWS.c.seen_at_us, NOTICE_VIEWS.c.user_id)
    )
    views: defaultdict[UUID, list[View]] = defaultdict(list)
    for row in await connection.execute(query):
        views[row.notice_id].append((row.user_id, row.email, row.seen_at_us))
    return views


def _seen(notice: Notice, views: Iterable[View], reader: UserId | None) -> Notice:
    """Return a notice with its readers since it was raised."""
    raised_us = microseconds(notice.raised_at)
    current = [view for view in views if view[2] >= raised_us]
    return replace(
        notice,
        seen_by=tuple(email for _, email, _ in current[:SHOWN_VIEWERS]),
        seen=len(current),
        is_new=all(user != reader for user, _, _ in current),
    )


def api_key_name(version: int, name: str | None) -> str:
    """Return the text that names an API key in a notice."""
    return str(version) if name is None else f"{version} ({name})"


_OF_API_KEY: tuple[sa.Column[Any], ...] = (
    API_KEYS.c.version,
    API_KEYS.c.name,
    API_KEYS.c.scopes,
    API_KEYS.c.created_at_us,
    API_KEYS.c.expires_at_us,
    API_KEYS.c.last_used_at_us,
    API_KEYS.c.last_administered_at_us,
)


def _api_key_facts(row: sa.Row[Any]) -> ApiKeyFacts:
    return ApiKeyFacts(
        row.version,
        row.name,
        None if row.scopes is None else scopes_in(row.scopes),
        time_of(row.created_at_us),
        _time_or_none(row.expires_at_us),
        _time_or_none(row.last_used_at_us),
        _time_or_none(row.last_administered_at_us),
    )


def _time_or_none(stored: int | None) -> datetime | None:
    return None if stored is None else time_of(stored)


def _details(row: sa.Row[Any]) -> Details:
    try:
        return _DECODER.decode(row.details)
    except msgspec.MsgspecError:
        _LOG.error("the details of a notice cannot be read", notice=str(row.id))
        return Details()


def _notice(row: sa.Row[Any]) -> Notice:
    return Notice(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        kind=NoticeKind(row.kind),
        subject=row.subject,
        details=_details(row),
        opened_at=time_of(row.opened_at_us),
        raised_at=time_of(row.raised_at_us),
        dismissed_at=None if row.dismissed_at_us is None else time_of(row.dismissed_at_us),
        closed_at=None if row.closed_at_us is None else time_of(row.closed_at_us),
    )
