"""Subscriptions: the interface of billing providers, and the built-in provider.

The built-in provider collects no payments: it changes the tier immediately and adds an invoice.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.background import repeat
from pqkeep_gateway.storage.billing import (
    BillingResult,
    Change,
    Contract,
    ContractChangedError,
    SqlBilling,
    StoredResult,
)
from pqkeep_gateway.tenancy.contracts import Prices, buy, cancel, settle
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

SETTLE_SECONDS = 5.0
"""The period of settling contracts with an expired period."""
_GATEWAY = Attribution("", "gateway", "")


class NotSubscribedError(Exception):
    """The tenant has no contract to cancel."""


class PaymentTimeoutError(Exception):
    """The payment provider did not respond in time; the request may have taken effect."""


class PaymentProviderError(Exception):
    """The payment provider refused, or sent an invalid response."""


class InvalidNoticeSignatureError(Exception):
    """The notice's signature is wrong or too old."""


class InvalidNoticeError(Exception):
    """The notice is authentic but has an unknown format; the provider will repeat it."""


class BillingProvider(Protocol):
    """Sells tiers.

    All methods raise UnavailableError, PaymentTimeoutError, PaymentProviderError.
    """

    @property
    def sold(self) -> frozenset[Tier]:
        """The tiers on sale to tenants."""
        ...

    async def check_out(
        self, tenant: TenantId, tier: Tier, attribution: Attribution, key: IdempotencyKey | None
    ) -> BillingResult:
        """Subscribe to a tier, change the tier, or undo a cancellation.

        Raises AlreadySubscribedError, BilledElsewhereError, IdempotencyKeyReusedError.
        """
        ...

    async def cancel(
        self, tenant: TenantId, attribution: Attribution, key: IdempotencyKey | None
    ) -> BillingResult:
        """Cancel the subscription at the end of its period.

        Raises NotSubscribedError, BilledElsewhereError, IdempotencyKeyReusedError.
        """
        ...


class BuiltInBilling:
    """The BillingProvider of every installation. It ends and renews its own contracts."""

    def __init__(
        self,
        store: SqlBilling,
        prices: Prices,
        sold: frozenset[Tier],
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take the prices of all tiers, and the tiers on sale.

        ``announce_change`` is called after each change.
        """
        self._store = store
        self._prices = prices
        self._sold = sold
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery
        self._clock = clock

    @property
    def sold(self) -> frozenset[Tier]:
        """The tiers on sale to tenants."""
        return self._sold

    async def check_out(
        self, tenant: TenantId, tier: Tier, attribution: Attribution, key: IdempotencyKey | None
    ) -> BillingResult:
        """Subscribe, with immediate effect."""

        def change(old: Contract | None, now: datetime) -> Change:
            return buy(old, tenant, tier, self._prices, now)

        return await self._change(tenant, change, attribution, key)

    async def cancel(
        self, tenant: TenantId, attribution: Attribution, key: IdempotencyKey | None
    ) -> BillingResult:
        """Cancel the subscription at the end of its period."""

        def change(old: Contract | None, now: datetime) -> Change | None:
            if old is None:
                raise NotSubscribedError
            return None if old.cancel_at_period_end else cancel(old, now)

        return await self._change(tenant, change, attribution, key)

    async def run(self) -> None:
        """Settle contracts with an expired period, until cancelled."""
        await repeat(self.settle_due, SETTLE_SECONDS)

    async def settle_due(self) -> None:
        """End or renew every contract with an expired period."""
        for contract in await self._store.list_due(self._now()):
            await self._settle(contract)

    async def _change(
        self,
        tenant: TenantId,
        change_of: Callable[[Contract | None, datetime], Change | None],
        attribution: Attribution,
        key: IdempotencyKey | None,
    ) -> BillingResult:
        """Change a tenant's running contract; try again if another request changes it first.

        ``change_of`` returns None for no change.
        """
        idempotency = idempotency_of(key)
        while True:
            now = self._now()
            old = await self._store.find_running(tenant)
            # Must follow ``old``, to find the request that created it.
            earlier = await self._store.find_result(idempotency, now)
            if earlier is not None:
                await self._audit_delivery.deliver()
                return earlier
            if old is not None and old.external_id is None and old.period_end <= now:
                await self._settle(old)
                continue
            change = change_of(old, now)
            if change is None:
                return BillingResult(old)
            result = BillingResult(change.new)
            stored = None if idempotency is None else StoredResult(idempotency, result, now)
            with suppress(ContractChangedError):
                await self._save(change, attribution, stored)
                await self._audit_delivery.deliver()
                return result

    async def _settle(self, contract: Contract) -> None:
        change = settle(contract, self._prices, self._now())
        with suppress(ContractChangedError):  # another gateway settled it
            await self._save(change, _GATEWAY)

    async def _save(
        self, change: Change, attribution: Attribution, stored: StoredResult | None = None
    ) -> None:
        changed = event(attribution, change.new.tenant, change.operation)
        try:
            await self._store.save_change(change, changed, stored)
        finally:
            await self._announce_change()

    def _now(self) -> datetime:
        return date_of(self._clock())
