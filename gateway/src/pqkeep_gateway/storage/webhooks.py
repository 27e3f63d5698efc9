"""Webhooks of tenants in SQL, and their messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    commits_of,
    microseconds,
    read_transaction,
    time_of,
    transaction,
)
from pqkeep_gateway.storage.outgoing_mail import add_mail_to_owners
from pqkeep_gateway.storage.row_mac import is_authentic, mac_after
from pqkeep_gateway.storage.schema import WEBHOOK_DELIVERIES, WEBHOOKS
from pqkeep_gateway.storage.tenant_status import lock_tenant_to_add
from pqkeep_gateway.webhooks import (
    LIFETIME,
    Delivery,
    DeliveryState,
    Message,
    Problem,
    Webhook,
    WebhookState,
    new_salt,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

MAX_WEBHOOKS = 10
"""Webhooks of a tenant. Each has at most one attempt at a time."""
MAX_KEPT = 1_000
"""Messages of a webhook that are kept: waiting ones first, then the newest."""
KEPT = timedelta(days=30)
"""The time for which a finished message is kept."""
DISABLED_AFTER = timedelta(days=5)
"""The time without a success after which a failing webhook is disabled."""
_GATEWAY = Attribution("", "gateway", "")


class WebhookNotFoundError(Exception):
    """The tenant has no such webhook."""


class WebhookNameTakenError(Exception):
    """Another webhook of the tenant has the name."""


class TooManyWebhooksError(Exception):
    """The tenant has MAX_WEBHOOKS webhooks."""


class DeliveryNotFoundError(Exception):
    """The webhook has no such message, or the message was deleted."""


class WebhookDisabledError(Exception):
    """The webhook is disabled."""


@dataclass(frozen=True, slots=True)
class Due:
    """A message to send now, and the lease of the gateway that sends it."""

    webhook: Webhook
    delivery: Delivery
    held_until: datetime


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an attempt: the status of a response, or a problem."""

    status: int | None = None
    problem: Problem | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver has the message."""
        return self.status is not None and self.status // 100 == 2  # noqa: PLR2004 - successful

    @property
    def is_gone(self) -> bool:
        """Whether the receiver asks for no more messages (410)."""
        return self.status == 410  # noqa: PLR2004 - Gone


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses after a failed attempt."""

    delivery: timedelta
    """The pause before the message is tried again."""
    webhook: timedelta
    """The pause before any message of the webhook is tried."""


class SqlWebhooks:
    """Webhooks in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.commits = commits_of(engine)

    async def add(self, webhook: Webhook, audit_event: Event) -> None:
        """Store a new webhook.

        Raises TenantNotFoundError, TooManyWebhooksError, WebhookNameTakenError.
        """
        of_tenant = WEBHOOKS.c.tenant_id == webhook.tenant
        count = sa.select(sa.func.count()).select_from(WEBHOOKS).where(of_tenant)
        row = {
            "id": webhook.id,
            "tenant_id": webhook.tenant,
            "name": webhook.name,
            "url": webhook.url,
            "salt": webhook.salt,
            "kinds": _kinds_text(webhook.kinds),
            "state": webhook.state,
            "created_at_us": microseconds(webhook.created_at),
            "created_by": webhook.created_by,
        }
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, webhook.tenant)
            if (await connection.execute(count)).scalar_one() >= MAX_WEBHOOKS:
                raise TooManyWebhooksError
            await _require_free_name(connection, webhook.tenant, webhook.name, webhook.id)
            await connection.execute(sa.insert(WEBHOOKS), row)
            await add_audit_event(connection, audit_event)

    async def list(self, tenant: TenantId) -> Sequence[Webhook]:
        """Return a tenant's webhooks by name."""
        query = sa.select(WEBHOOKS).where(WEBHOOKS.c.tenant_id == tenant).order_by(WEBHOOKS.c.name)
        async with read_transaction(self._engine) as connection:
            rows = await connection.execute(query)
            return [_webhook(row) for row in rows if is_authentic(connection, WEBHOOKS, row)]

    async def get(self, tenant: TenantId, webhook: UUID) -> Webhook:
        """Return a webhook. Raises WebhookNotFoundError."""
        async with read_transaction(self._engine) as connection:
            return _webhook(await _find(connection, tenant, webhook))

    async def change(
        self,
        tenant: TenantId,
        webhook: UUID,
        audit_event: Event,
        now: datetime,
        *,
        name: str | None = None,
        url: str | None = None,
        kinds: tuple[str, ...] | None = None,
        state: WebhookState | None = None,
    ) -> Webhook:
        """Change a webhook; return it. Activation or another URL ends its pause.

        Messages that wait for a disabled webhook fail. Raises WebhookNotFoundError,
        WebhookNameTakenError.
        """
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            row = await _find(connection, tenant, webhook, locks=True)
            if name is not None:
                await _require_free_name(connection, tenant, name, webhook)
            changes: dict[str, object] = {
                column: value
                for column, value in (("name", name), ("url", url), ("state", state))
                if value is not None
            }
            if kinds is not None:
                changes["kinds"] = _kinds_text(kinds)
            if state is WebhookState.DISABLED:
                await _fail_waiting(connection, webhook)
                changes |= {"next_attempt_at_us": None, "failures": 0, "failing_since_us": None}
            elif state is not None or url is not None:
                changes |= {"failures": 0, "failing_since_us": None, "paused_until_us": 0}
                changes["next_attempt_at_us"] = microseconds(now)
            changes["mac"] = mac_after(connection, WEBHOOKS, row, changes)
            await connection.execute(_update(webhook).values(changes))
            await add_audit_event(connection, audit_event)
            return _webhook(await _find(connection, tenant, webhook))

    async def rotate_secret(
        self,
        tenant: TenantId,
        webhook: UUID,
        overlap: timedelta,
        now: datetime,
        audit_event: Event,
    ) -> Webhook:
        """Give a webhook a new secret; return it. During the overlap both secrets sign.

        Raises WebhookNotFoundError.
        """
        async with transaction(self._engine) as connection:
            row = await _find(connection, tenant, webhook, locks=True)
            changes: dict[str, object] = {
                "salt": new_salt(),
                "previous_salt": row.salt if overlap else None,
                "previous_until_us": microseconds(now + overlap) if overlap else None,
            }
            changes["mac"] = mac_after(connection, WEBHOOKS, row, changes)
            await connection.execute(_update(webhook).values(changes))
            await add_audit_event(connection, audit_event)
            return _webhook(await _find(connection, tenant, webhook))

    async def remove(self, tenant: TenantId, webhook: UUID, audit_event: Event) -> None:
        """Remove a webhook with its messages. Raises WebhookNotFoundError."""
        of_webhook = WEBHOOK_DELIVERIES.c.webhook_id == webhook
        async with transaction(self._engine) as connection:
            await _find(connection, tenant, webhook, locks=True)
            await connection.execute(sa.delete(WEBHOOK_DELIVERIES).where(of_webhook))
            await connection.execute(sa.delete(WEBHOOKS).where(WEBHOOKS.c.id == webhook))
            await add_audit_event(connection, audit_event)

    async def list_deliveries(
        self, tenant: TenantId, webhook: UUID, limit: int, before: UUID | None = None
    ) -> tuple[Sequence[Delivery], int]:
        """Return messages of a webhook, newest first, without their bodies; and their number.

        ``before``: only those after this one in the list. Raises WebhookNotFoundError,
        DeliveryNotFoundError.
        """
        columns = WEBHOOK_DELIVERIES.c
        of_webhook = columns.webhook_id == webhook
        place = sa.tuple_(columns.created_at_us, columns.id)
        query = sa.select(*(column for column in columns if column is not columns.body))
        query = query.where(of_webhook).order_by(columns.created_at_us.desc(), columns.id.desc())
        async with read_transaction(self._engine) as connection:
            await _find(connection, tenant, webhook)
            if before is not None:
                at = await _find_delivery(connection, webhook, before)
                query = query.where(place < sa.tuple_(at.created_at_us, sa.literal(at.id, sa.Uuid)))
            count = sa.select(sa.func.count()).select_from(WEBHOOK_DELIVERIES).where(of_webhook)
            total = (await connection.execute(count)).scalar_one()
            rows = (await connection.execute(query.limit(limit))).all()
        return [_delivery(row) for row in rows], total

    async def send(
        self, tenant: TenantId, webhook: UUID, message: Message, audit_event: Event
    ) -> Delivery:
        """Store a message to one webhook; return it.

        Raises WebhookNotFoundError, WebhookDisabledError.
        """
        async with transaction(self._engine) as connection:
            _require_active(await _find(connection, tenant, webhook, locks=True))
            (added,) = await _add(connection, [webhook], message)
            await add_audit_event(connection, audit_event)
            return _delivery(await _find_delivery(connection, webhook, added))

    async def send_again(
        self,
        tenant: TenantId,
        webhook: UUID,
        delivery: UUID,
        now: datetime,
        audit_event: Event,
    ) -> Delivery:
        """Let a message be sent again, with the same webhook-id; return it.

        Raises WebhookNotFoundError, DeliveryNotFoundError, WebhookDisabledError.
        """
        values = {
            "state": DeliveryState.WAITING,
            "attempts": 0,
            "expires_at_us": microseconds(now + LIFETIME),
            "next_attempt_at_us": microseconds(now),
        }
        update = sa.update(WEBHOOK_DELIVERIES).where(WEBHOOK_DELIVERIES.c.id == delivery)
        async with transaction(self._engine) as connection:
            _require_active(await _find(connection, tenant, webhook, locks=True))
            await _find_delivery(connection, webhook, delivery)
            await connection.execute(update.values(values))
            await connection.execute(_update(webhook).values(**_wake(now), paused_until_us=0))
            await add_audit_event(connection, audit_event)
            return _delivery(await _find_delivery(connection, webhook, delivery))

    async def claim(
        self, healthy: int, others: int, now: datetime, held_until: datetime
    ) -> Sequence[Due]:
        """Return due messages, at most one of each webhook, and hold their webhooks.

        ``healthy``: the most messages to webhooks; ``others``: the most of these to webhooks
        without a success since the last failure. Each return counts as an attempt. No two callers
        get messages of the same webhook before ``held_until``.
        """
        async with read_transaction(self._engine) as connection:
            if not (await connection.execute(sa.select(sa.exists().where(_is_due(now))))).scalar():
                return []
        async with transaction(self._engine) as connection:
            rows = await _hold(connection, _IS_HEALTHY, healthy, now, held_until)
            left = min(others, healthy - len(rows))
            rows += await _hold(connection, ~_IS_HEALTHY, left, now, held_until)
            found = [await _next(connection, row, now, held_until) for row in rows]
        return [due for due in found if due is not None]

    async def settle(self, due: Due, result: Result, pauses: Pauses, now: datetime) -> bool:
        """Store the result of an attempt, and let the webhook's next message be sent.

        Returns False without a change if the webhook was removed, or if its lease has ended and
        another gateway has it.
        """
        webhook, delivery = due.webhook, due.delivery
        query = sa.select(WEBHOOKS).where(WEBHOOKS.c.id == webhook.id).with_for_update()
        is_this = sa.and_(
            WEBHOOK_DELIVERIES.c.id == delivery.id,
            WEBHOOK_DELIVERIES.c.state == DeliveryState.WAITING,
        )
        until = None if result.is_success else microseconds(now + pauses.delivery)
        outcome = {
            "status": result.status,
            "problem": result.problem,
            "next_attempt_at_us": until,
            "state": DeliveryState.DELIVERED if result.is_success else DeliveryState.WAITING,
        }
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None or row.held_until_us != microseconds(due.held_until):
                return False
            await connection.execute(sa.update(WEBHOOK_DELIVERIES).where(is_this).values(outcome))
            changes = _after(row, result, pauses, now)
            if changes.get("state") is WebhookState.DISABLED:
                await _fail_waiting(connection, webhook.id)
                await _tell(connection, webhook, now)
            changes["next_attempt_at_us"] = await _next_time(
                connection, webhook.id, int(changes["paused_until_us"])
            )
            await connection.execute(_update(webhook.id).values(changes))
        return True

    async def forget(self, now: datetime) -> None:
        """Remove finished messages older than KEPT."""
        columns = WEBHOOK_DELIVERIES.c
        is_old = sa.and_(
            columns.created_at_us < microseconds(now - KEPT),
            columns.state != DeliveryState.WAITING,
        )
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(WEBHOOK_DELIVERIES).where(is_old))


async def publish(connection: AsyncConnection, tenant: TenantId, message: Message) -> None:
    """Store a message for each active webhook of a tenant that wants it.

    The caller's transaction is that of its cause.
    """
    active = (
        sa.select(WEBHOOKS.c.id, WEBHOOKS.c.kinds)
        .where(WEBHOOKS.c.tenant_id == tenant, WEBHOOKS.c.state == WebhookState.ACTIVE)
        .order_by(WEBHOOKS.c.id)  # one order for all callers, so that none waits for another
        .with_for_update()
    )
    rows = await connection.execute(active)
    webhooks = [row.id for row in rows if not row.kinds or message.kind in row.kinds.split()]
    if webhooks:
        await _add(connection, webhooks, message)


async def delete_webhooks(connection: AsyncConnection, tenant: TenantId) -> None:
    """Delete the webhooks of a tenant with their messages."""
    of_tenant = WEBHOOKS.c.tenant_id == tenant
    webhooks = sa.select(WEBHOOKS.c.id).where(of_tenant)
    await connection.execute(
        sa.delete(WEBHOOK_DELIVERIES).where(WEBHOOK_DELIVERIES.c.webhook_id.in_(webhooks))
    )
    await connection.execute(sa.delete(WEBHOOKS).where(of_tenant))


_IS_HEALTHY = sa.and_(WEBHOOKS.c.failures == 0, WEBHOOKS.c.last_success_at_us.is_not(None))
"""Selects webhooks with a success since the last failure."""


def _is_due(now: datetime) -> sa.ColumnElement[bool]:
    at = microseconds(now)
    return sa.and_(
        WEBHOOKS.c.state == WebhookState.ACTIVE,
        WEBHOOKS.c.next_attempt_at_us <= at,
        WEBHOOKS.c.held_until_us <= at,
    )


async def _hold(
    connection: AsyncConnection,
    condition: sa.ColumnElement[bool],
    limit: int,
    now: datetime,
    held_until: datetime,
) -> list[sa.Row[Any]]:
    """Hold due webhooks until a time, the longest waiting first; return their rows."""
    if limit <= 0:
        return []
    is_due = sa.and_(_is_due(now), condition)
    first = sa.select(WEBHOOKS.c.id).where(is_due)
    first = first.order_by(WEBHOOKS.c.next_attempt_at_us).limit(limit)
    hold = (
        sa.update(WEBHOOKS)
        .where(WEBHOOKS.c.id.in_(first), is_due)
        .values(held_until_us=microseconds(held_until))
        .returning(WEBHOOKS)
    )
    return list((await connection.execute(hold)).all())


async def _next(
    connection: AsyncConnection, row: sa.Row[Any], now: datetime, held_until: datetime
) -> Due | None:
    """Return the next message of a webhook. Without one, the webhook is no longer held."""
    columns = WEBHOOK_DELIVERIES.c
    at = microseconds(now)
    waits = sa.and_(columns.webhook_id == row.id, columns.state == DeliveryState.WAITING)
    expire = sa.update(WEBHOOK_DELIVERIES).where(waits, columns.expires_at_us <= at)
    expired = {
        "state": DeliveryState.FAILED,
        "problem": Problem.EXPIRED,
        "next_attempt_at_us": None,
    }
    await connection.execute(expire.values(expired))
    if is_authentic(connection, WEBHOOKS, row):
        oldest = sa.select(columns.id).where(waits, columns.next_attempt_at_us <= at)
        oldest = oldest.order_by(columns.next_attempt_at_us, columns.created_at_us).limit(1)
        attempt = (
            sa.update(WEBHOOK_DELIVERIES)
            .where(columns.id.in_(oldest))
            .values(attempts=columns.attempts + 1, attempted_at_us=at)
            .returning(WEBHOOK_DELIVERIES)
        )
        while (found := (await connection.execute(attempt)).one_or_none()) is not None:
            if is_authentic(connection, WEBHOOK_DELIVERIES, found):
                return Due(_webhook(row), _delivery(found, body=found.body), held_until)
            forged = sa.delete(WEBHOOK_DELIVERIES).where(columns.id == found.id)
            await connection.execute(forged)  # the gateway would sign it
    next_time = await _next_time(connection, row.id, row.paused_until_us)
    if next_time is not None and next_time <= at:
        next_time = None  # the row is not authentic
    values = {"held_until_us": 0, "next_attempt_at_us": next_time}
    await connection.execute(_update(row.id).values(values))
    return None


async def _next_time(
    connection: AsyncConnection, webhook: UUID, paused_until_us: int
) -> int | None:
    """Return the time of a webhook's next attempt; None if no message waits."""
    columns = WEBHOOK_DELIVERIES.c
    query = sa.select(sa.func.min(columns.next_attempt_at_us)).where(
        columns.webhook_id == webhook, columns.state == DeliveryState.WAITING
    )
    first = (await connection.execute(query)).scalar()
    return None if first is None else max(int(first), paused_until_us)


def _after(row: sa.Row[Any], result: Result, pauses: Pauses, now: datetime) -> dict[str, Any]:
    """Return the changes of a webhook after an attempt."""
    at = microseconds(now)
    if result.is_success:
        return {
            "held_until_us": 0,
            "paused_until_us": 0,
            "failures": 0,
            "failing_since_us": None,
            "last_success_at_us": at,
        }
    since = row.failing_since_us or at
    changes: dict[str, Any] = {
        "held_until_us": 0,
        "paused_until_us": microseconds(now + pauses.webhook),
        "failures": row.failures + 1,
        "failing_since_us": since,
    }
    if result.is_gone or since <= microseconds(now - DISABLED_AFTER):
        changes["state"] = WebhookState.DISABLED
    return changes


async def _tell(connection: AsyncConnection, webhook: Webhook, now: datetime) -> None:
    """Record that a webhook is disabled, and tell the owners."""
    disabled = event(_GATEWAY, webhook.tenant, AuditEvent.DISABLE_WEBHOOK)
    disabled = structs.replace(disabled, target=target_of(webhook))
    await add_audit_event(connection, disabled)
    await add_mail_to_owners(
        connection, webhook.tenant, webhook.name, now, MailKind.WEBHOOK_DISABLED
    )


def target_of(webhook: Webhook) -> str:
    """Return a webhook's name in the audit log: its name and its id."""
    return f"{webhook.name}/{webhook.id}"


async def _add(
    connection: AsyncConnection, webhooks: Sequence[UUID], message: Message
) -> Sequence[UUID]:
    """Store a message for each webhook, and let it be sent; return the messages' ids."""
    at = microseconds(message.at)
    added = [uuid4() for _ in webhooks]
    rows = [
        {
            "id": delivery,
            "webhook_id": webhook,
            "kind": message.kind,
            "body": message.body,
            "created_at_us": at,
            "expires_at_us": microseconds(message.at + LIFETIME),
            "state": DeliveryState.WAITING,
            "next_attempt_at_us": at,
        }
        for delivery, webhook in zip(added, webhooks, strict=True)
    ]
    wake = sa.update(WEBHOOKS).where(WEBHOOKS.c.id.in_(webhooks)).values(_wake(message.at))
    await connection.execute(sa.insert(WEBHOOK_DELIVERIES), rows)
    await connection.execute(wake)
    for webhook in webhooks:
        await _forget_oldest(connection, webhook)
    return added


def _wake(now: datetime) -> dict[str, Any]:
    """Return the change of a webhook for which a message waits: it is due when its pause ends."""
    at, next_at, paused = (
        microseconds(now),
        WEBHOOKS.c.next_attempt_at_us,
        WEBHOOKS.c.paused_until_us,
    )
    wanted = sa.case((paused > at, paused), else_=at)
    is_later = sa.or_(next_at.is_(None), next_at > wanted)
    return {"next_attempt_at_us": sa.case((is_later, wanted), else_=next_at)}


async def _forget_oldest(connection: AsyncConnection, webhook: UUID) -> None:
    columns = WEBHOOK_DELIVERIES.c
    is_waiting = sa.case((columns.state == DeliveryState.WAITING, 1), else_=0)
    beyond = (
        sa.select(columns.id)
        .where(columns.webhook_id == webhook)
        .order_by(is_waiting.desc(), columns.created_at_us.desc(), columns.id.desc())
        .offset(MAX_KEPT)
        .limit(MAX_KEPT)
    )
    await connection.execute(sa.delete(WEBHOOK_DELIVERIES).where(columns.id.in_(beyond)))


async def _fail_waiting(connection: AsyncConnection, webhook: UUID) -> None:
    columns = WEBHOOK_DELIVERIES.c
    waiting = sa.update(WEBHOOK_DELIVERIES).where(
        columns.webhook_id == webhook, columns.state == DeliveryState.WAITING
    )
    failed = {
        "state": DeliveryState.FAILED,
        "problem": Problem.DISABLED,
        "next_attempt_at_us": None,
    }
    await connection.execute(waiting.values(failed))


def _update(webhook: UUID) -> sa.Update:
    return sa.update(WEBHOOKS).where(WEBHOOKS.c.id == webhook)


async def _require_free_name(
    connection: AsyncConnection, tenant: TenantId, name: str, webhook: UUID
) -> None:
    """Raise WebhookNameTakenError if another webhook has the name. The tenant is locked."""
    query = sa.select(WEBHOOKS.c.id).where(
        WEBHOOKS.c.tenant_id == tenant, WEBHOOKS.c.name == name, WEBHOOKS.c.id != webhook
    )
    if (await connection.execute(query)).first() is not None:
        raise WebhookNameTakenError


async def _find(
    connection: AsyncConnection, tenant: TenantId, webhook: UUID, *, locks: bool = False
) -> sa.Row[Any]:
    query = sa.select(WEBHOOKS).where(WEBHOOKS.c.tenant_id == tenant, WEBHOOKS.c.id == webhook)
    row = (await connection.execute(query.with_for_update() if locks else query)).one_or_none()
    if row is None or not is_authentic(connection, WEBHOOKS, row):
        raise WebhookNotFoundError
    return row


async def _find_delivery(connection: AsyncConnection, webhook: UUID, delivery: UUID) -> sa.Row[Any]:
    columns = WEBHOOK_DELIVERIES.c
    query = sa.select(WEBHOOK_DELIVERIES).where(
        columns.webhook_id == webhook, columns.id == delivery
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise DeliveryNotFoundError
    return row


def _require_active(row: sa.Row[Any]) -> None:
    if row.state != WebhookState.ACTIVE:
        raise WebhookDisabledError


def _kinds_text(kinds: tuple[str, ...]) -> str | None:
    return " ".join(kinds) or None


def _time_or_none(stored: int | None) -> datetime | None:
    return None if stored is None else time_of(stored)


def _webhook(row: sa.Row[Any]) -> Webhook:
    return Webhook(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        name=row.name,
        url=row.url,
        salt=row.salt,
        kinds=tuple((row.kinds or "").split()),
        previous_salt=row.previous_salt,
        previous_until=_time_or_none(row.previous_until_us),
        state=WebhookState(row.state),
        created_at=time_of(row.created_at_us),
        created_by=row.created_by,
        failures=row.failures,
        failing_since=_time_or_none(row.failing_since_us),
        last_success_at=_time_or_none(row.last_success_at_us),
    )


def _delivery(row: sa.Row[Any], body: str = "") -> Delivery:
    return Delivery(
        id=row.id,
        kind=row.kind,
        created_at=time_of(row.created_at_us),
        state=DeliveryState(row.state),
        attempts=row.attempts,
        attempted_at=_time_or_none(row.attempted_at_us),
        next_attempt_at=_time_or_none(row.next_attempt_at_us),
        status=row.status,
        problem=None if row.problem is None else Problem(row.problem),
        body=body,
    )
