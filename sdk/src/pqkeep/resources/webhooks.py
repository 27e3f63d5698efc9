"""Notices, and webhooks: signed messages about notices, and their deliveries.

Only signed-in people create and change webhooks, in the portal or with their session.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, Page, Pages, Place, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Listing, Operation
from pqkeep.models import Notice, Webhook, WebhookDelivery

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Notices(Generic[T_co]):
    """The tenant's notices; with an operator's credential, those about the installation."""

    _transport: T_co

    @Operation
    def list(self, *, closed: bool = False) -> Call[tuple[Notice, ...]]:
        """Return the open notices, or with ``closed`` those that closed in the last 30 days.

        There are at most 100, the last raised first. An API key needs the scope ``administer``.
        """
        return get("/notices", _notices, {"state": "closed" if closed else "open"})


def _notices(data: Data) -> tuple[Notice, ...]:
    return tuple(
        Notice(
            id=notice.text("id"),
            kind=notice.text("kind"),
            severity=notice.text("severity"),
            text=notice.text("text"),
            action=notice.text("action"),
            path=notice.text("path"),
            count=notice.integer("count"),
            names=notice.texts_or_none("names") or (),
            at=notice.time_or_none("at"),
            opened_at=notice.time("opened_at"),
            raised_at=notice.time("raised_at"),
            closed_at=notice.time_or_none("closed_at"),
        )
        for notice in data.objects("notices")
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Webhooks(Generic[T_co]):
    """The tenant's webhooks."""

    _transport: T_co

    @Operation
    def list(self) -> Call[tuple[Webhook, ...]]:
        """Return all webhooks by name."""
        return get("/webhooks", _webhooks)

    @Listing
    def deliveries(self, webhook: str, *, page_size: int | None = None) -> Pages[WebhookDelivery]:
        """Yield the messages to a webhook, newest first.

        ``webhook`` is its id. Raises NotFoundError.
        """
        path = f"{_path(webhook)}/deliveries"

        def page(at: Place | None) -> Call[Page[WebhookDelivery]]:
            return get(path, _deliveries, {"after": at, "limit": page_size})

        return page

    @Operation
    def test(self, webhook: str) -> Call[WebhookDelivery]:
        """Send a signed test message; return its state before the first attempt.

        Raises NotFoundError, ConflictError.
        """
        return change(f"{_path(webhook)}/test", _delivery)

    @Operation
    def resend(self, webhook: str, delivery: str) -> Call[WebhookDelivery]:
        """Send a message again, with the same webhook-id. Raises NotFoundError, ConflictError."""
        return change(f"{_path(webhook)}/deliveries/{in_path(delivery)}/resend", _delivery)


def _path(webhook: str) -> str:
    return f"/webhooks/{in_path(webhook)}"


def _webhooks(data: Data) -> tuple[Webhook, ...]:
    return tuple(
        Webhook(
            id=webhook.text("id"),
            name=webhook.text("name"),
            url=webhook.text("url"),
            kinds=webhook.texts_or_none("kinds") or (),
            state=webhook.text("state"),
            created_at=webhook.time("created_at"),
            created_by=webhook.text("created_by"),
            last_success_at=webhook.time_or_none("last_success_at"),
            failing_since=webhook.time_or_none("failing_since"),
            previous_secret_until=webhook.time_or_none("previous_secret_until"),
        )
        for webhook in data.objects("webhooks")
    )


def _deliveries(data: Data) -> Page[WebhookDelivery]:
    items = tuple(map(_delivery, data.objects("deliveries")))
    return Page(items=items, next=data.place_or_none("next"))


def _delivery(data: Data) -> WebhookDelivery:
    return WebhookDelivery(
        id=data.text("id"),
        type=data.text("type"),
        state=data.text("state"),
        created_at=data.time("created_at"),
        attempts=data.integer("attempts"),
        attempted_at=data.time_or_none("attempted_at"),
        next_attempt_at=data.time_or_none("next_attempt_at"),
        status=data.integer_or_none("status"),
        problem=data.text_or_none("problem"),
    )
