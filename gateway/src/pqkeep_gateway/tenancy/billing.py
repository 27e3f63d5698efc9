"""Selling tiers: who takes the money, where contracts are kept, and the provider that is built in.

The built-in one takes no money: it changes the plan at once and keeps a line of what is owed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.tenancy.contracts import (
    Change,
    Contract,
    Invoice,
    Prices,
    buy,
    cancel,
    settle,
)
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Idempotency

SETTLE_SECONDS = 5.0
"""How long after its end a period is settled."""
_OURSELVES = Attribution("", "gateway", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a checkout or a cancellation."""

    contract: Contract | None
    """As it is in force now."""
    is_pending: bool = False
    """Whether it holds only when whoever takes the money says so."""
    checkout_url: str | None = None
    """Where somebody has to pay before."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that is given again to whoever asks again with the same Idempotency-Key."""

    idempotency: Idempotency
    answer: Answer
    at: datetime


class NotSubscribedError(Exception):
    """There is nothing to cancel."""


class ContractChangedError(Exception):
    """The contract is not any more what the change began with. Look again."""


class DuplicateNoticeError(Exception):
    """The notice came before, and was heard then."""


class PaymentTimeoutError(Exception):
    """Whoever takes the money did not answer in time. What was asked may have been done."""


class PaymentProviderError(Exception):
    """Whoever takes the money refused, or answered nonsense."""


class InvalidNoticeSignatureError(Exception):
    """A notice is not from whom it says it is from, or is too old."""


class InvalidNoticeError(Exception):
    """A notice is genuine, and not understood. It should come again when that is mended."""


class BillingStore(Protocol):
    """Where contracts and invoice lines are kept. All raise UnavailableError."""

    async def running(self, tenant: TenantId) -> Contract | None:
        """Return the tenant's contract that has not ended."""
        ...

    async def find(self, external_id: str) -> Contract | None:
        """Return a contract that is billed elsewhere, ended or not."""
        ...

    async def due(self, now: datetime) -> Sequence[Contract]:
        """Return what is billed here and has come to the end of its period.

        A suspended tenant's only if it ends.
        """
        ...

    async def apply(
        self, change: Change, made: Event, kept: Kept | None = None, notice: str | None = None
    ) -> None:
        """Put a contract in its old one's place, its tier in force, and keep the line and the event.

        Raises ContractChangedError; DuplicateNoticeError if the notice came before.
        """
        ...

    async def keep(self, kept: Kept | None, made: Event) -> None:
        """Keep an answer, unless there is one to its key, and the event."""
        ...

    async def earlier(self, idempotency: Idempotency | None, now: datetime) -> Answer | None:
        """Return what was answered to an Idempotency-Key. Raises IdempotencyKeyReusedError."""
        ...

    async def add_invoice(self, invoice: Invoice, made: Event, notice: str) -> None:
        """Keep a line that was billed elsewhere. Raises DuplicateNoticeError if it or the notice came before."""
        ...

    async def invoices(self, tenant: TenantId) -> tuple[Invoice, ...]:
        """Return a tenant's lines, the newest first."""
        ...


class BillingProvider(Protocol):
    """Who takes the money. All raise UnavailableError, PaymentTimeoutError, PaymentProviderError."""

    @property
    def sold(self) -> frozenset[Tier]:
        """The tiers that tenants can subscribe to themselves."""
        ...

    async def check_out(
        self, tenant: TenantId, tier: Tier, attribution: Attribution, key: IdempotencyKey | None
    ) -> Answer:
        """Subscribe to a tier that is sold, change to it, or go on with what was cancelled.

        Raises AlreadySubscribedError, BilledElsewhereError, IdempotencyKeyReusedError.
        """
        ...

    async def cancel(
        self, tenant: TenantId, attribution: Attribution, key: IdempotencyKey | None
    ) -> Answer:
        """Let the subscription end with its period.

        Raises NotSubscribedError, BilledElsewhereError, IdempotencyKeyReusedError.
        """
        ...


class NoticeReceiver(Protocol):
    """Takes what an external provider says by itself."""

    async def receive(self, payload: bytes, signature: str, attribution: Attribution) -> None:
        """Believe a notice with a good signature, once.

        Raises InvalidNoticeSignatureError, InvalidNoticeError, UnavailableError.
        """
        ...


class BuiltInBilling:
    """The BillingProvider that is always there. It ends and renews what it has sold."""

    def __init__(
        self,
        store: BillingStore,
        prices: Prices,
        sold: frozenset[Tier],
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take the prices of all tiers; ``announce_change`` is called after each change."""
        self._store = store
        self._prices = prices
        self._sold = sold
        self._announce_change = announce_change
        self._courier = audit_delivery
        self._clock = clock

    @property
    def sold(self) -> frozenset[Tier]:
        """The tiers that tenants can subscribe to themselves."""
        return self._sold

    async def check_out(
        self, tenant: TenantId, tier: Tier, attribution: Attribution, key: IdempotencyKey | None
    ) -> Answer:
        """Subscribe at once."""

        def change(old: Contract | None, now: datetime) -> Change:
            return buy(old, tenant, tier, self._prices, now)

        return await self._change(tenant, change, attribution, key)

    async def cancel(
        self, tenant: TenantId, attribution: Attribution, key: IdempotencyKey | None
    ) -> Answer:
        """Let the subscription end with its period."""

        def change(old: Contract | None, now: datetime) -> Change | None:
            if old is None:
                raise NotSubscribedError
            return None if old.cancel_at_period_end else cancel(old, now)

        return await self._change(tenant, change, attribution, key)

    async def run(self) -> None:
        """End and renew what is due, until cancelled."""
        while True:
            with suppress(UnavailableError):  # what is away has been logged
                await self.settle_due()
            await asyncio.sleep(SETTLE_SECONDS)

    async def settle_due(self) -> None:
        """End and renew what is due now; what another gateway has settled is left to it."""
        for contract in await self._store.due(self._now()):
            await self._settle(contract)

    async def _change(
        self,
        tenant: TenantId,
        change_of: Callable[[Contract | None, datetime], Change | None],
        attribution: Attribution,
        key: IdempotencyKey | None,
    ) -> Answer:
        """Change a tenant's contract, on whatever it is by then; None: leave it as it is."""
        idempotency = idempotency_of(key)
        while True:
            now = self._now()
            old = await self._store.running(tenant)
            earlier = await self._store.earlier(
                idempotency, now
            )  # after: what made ``old`` is found
            if earlier is not None:
                await self._courier.deliver()
                return earlier
            if old is not None and old.external_id is None and old.period_end <= now:
                await self._settle(old)
                continue
            change = change_of(old, now)
            if change is None:
                return Answer(old)
            answer = Answer(change.new)
            kept = None if idempotency is None else Kept(idempotency, answer, now)
            with suppress(ContractChangedError):
                await self._apply(change, attribution, kept)
                await self._courier.deliver()
                return answer

    async def _settle(self, contract: Contract) -> None:
        change = settle(contract, self._prices, self._now())
        with suppress(ContractChangedError):  # somebody else was first
            await self._apply(change, _OURSELVES)

    async def _apply(
        self, change: Change, attribution: Attribution, kept: Kept | None = None
    ) -> None:
        made = event(attribution, change.new.tenant, change.operation)
        try:
            await self._store.apply(change, made, kept)
        finally:
            await self._announce_change()

    def _now(self) -> datetime:
        return date_of(self._clock())
