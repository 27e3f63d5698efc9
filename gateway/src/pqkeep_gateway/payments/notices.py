"""Stripe's webhook events as values of this package.

The format is that of API versions from 2025-03-31 on, with the period in the subscription item.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, TypeVar
from uuid import UUID, uuid4

from msgspec import Meta, Raw, Struct

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.storage.billing import Contract, ContractStatus, Invoice
from pqkeep_gateway.tenancy.billing import InvalidNoticeError
from pqkeep_protocol.documents import MalformedDocumentError, decode_json
from pqkeep_protocol.keys import TenantId

T = TypeVar("T", bound=Struct)

TENANT = "pqkeep_tenant"
"""The metadata key of a subscription with our tenant's id."""

STATUSES: Mapping[str, ContractStatus | None] = {
    "incomplete": None,  # not begun yet
    "trialing": ContractStatus.ACTIVE,
    "active": ContractStatus.ACTIVE,
    "past_due": ContractStatus.ACTIVE,  # Stripe retries and reports the outcome
    "unpaid": ContractStatus.UNPAID,
    "paused": ContractStatus.UNPAID,
    "canceled": ContractStatus.ENDED,
    "incomplete_expired": ContractStatus.ENDED,
}
"""Our status for each of Stripe's; None: no contract."""

_Identifier = Annotated[str, Meta(min_length=1, max_length=255)]
_Seconds = Annotated[int, Meta(ge=0, le=253_402_300_799)]  # the year 9999


class _Object(Struct, frozen=True):
    object: Raw


class Notice(Struct, frozen=True):
    """One webhook event."""

    id: _Identifier
    type: str
    created: _Seconds
    data: _Object


class _Price(Struct, frozen=True):
    id: str


class Item(Struct, frozen=True):
    """A subscription's item; ours have exactly one."""

    id: str
    price: _Price
    current_period_start: _Seconds
    current_period_end: _Seconds


class _Items(Struct, frozen=True):
    data: Annotated[tuple[Item, ...], Meta(min_length=1)]


class Subscription(Struct, frozen=True):
    """A subscription at Stripe."""

    id: _Identifier
    status: str
    created: _Seconds
    items: _Items
    metadata: dict[str, str]
    cancel_at_period_end: bool = False
    cancel_at: int | None = None

    @property
    def item(self) -> Item:
        """Its only item."""
        return self.items.data[0]

    @property
    def is_cancelled(self) -> bool:
        """Whether it is set to end."""
        return self.cancel_at_period_end or self.cancel_at is not None


class Details(Struct, frozen=True):
    """The subscription of an invoice."""

    subscription: _Identifier
    metadata: dict[str, str] | None = None


class _Parent(Struct, frozen=True):
    subscription_details: Details | None = None


class _Period(Struct, frozen=True):
    start: _Seconds
    end: _Seconds


class _PriceDetails(Struct, frozen=True):
    price: str


class _Pricing(Struct, frozen=True):
    price_details: _PriceDetails | None = None


class _Line(Struct, frozen=True):
    period: _Period
    pricing: _Pricing | None = None

    @property
    def price(self) -> str:
        details = self.pricing and self.pricing.price_details
        return details.price if details else ""


class _Lines(Struct, frozen=True):
    data: tuple[_Line, ...]


class PaidInvoice(Struct, frozen=True):
    """An invoice at Stripe."""

    id: _Identifier
    amount_paid: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    currency: Annotated[str, Meta(pattern="^[a-z]{3}$")]
    created: _Seconds
    lines: _Lines
    parent: _Parent | None = None

    @property
    def details(self) -> Details | None:
        """The subscription of the invoice, or None."""
        return None if self.parent is None else self.parent.subscription_details


def read(data: bytes | Raw, kind: type[T]) -> T:
    """Decode an event or its object. Raises InvalidNoticeError."""
    try:
        return decode_json(data, kind)
    except MalformedDocumentError:
        raise InvalidNoticeError from None


def tenant_of(metadata: Mapping[str, str] | None) -> TenantId | None:
    """Return our tenant; None for other products of the Stripe account."""
    try:
        return TenantId(UUID((metadata or {})[TENANT]))
    except (KeyError, ValueError):
        return None


def contract_of(
    subscription: Subscription, tenant: TenantId, tier: Tier | None, as_of: int
) -> Contract | None:
    """Return a subscription as a contract; None if it has not begun.

    Raises InvalidNoticeError for an unknown status, and without a tier.
    """
    if tier is None or subscription.status not in STATUSES:
        raise InvalidNoticeError
    status = STATUSES[subscription.status]
    if status is None:
        return None
    return Contract(
        id=uuid4(),
        tenant=tenant,
        tier=tier,
        status=status,
        started_at=_time(subscription.created),
        period_start=_time(subscription.item.current_period_start),
        period_end=_time(subscription.item.current_period_end),
        as_of=_time(as_of),
        cancel_at_period_end=subscription.is_cancelled,
        external_id=subscription.id,
    )


def invoice_of(
    paid: PaidInvoice, tenant: TenantId, tiers: Mapping[str, Tier], known: Tier | None
) -> Invoice:
    """Return an invoice in our form, with the tier and period of its last line.

    A price that is no longer offered counts as the subscription's present tier. Raises
    InvalidNoticeError if there is no tier.
    """
    found = [(tiers.get(line.price, known), line.period) for line in paid.lines.data]
    tier, period = next((term for term in reversed(found) if term[0] is not None), (None, None))
    if tier is None or period is None:
        raise InvalidNoticeError
    return Invoice(
        id=uuid4(),
        tenant=tenant,
        tier=tier,
        amount_cents=paid.amount_paid,
        currency=paid.currency,
        period_start=_time(period.start),
        period_end=_time(period.end),
        created_at=_time(paid.created),
        external_id=paid.id,
    )


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
