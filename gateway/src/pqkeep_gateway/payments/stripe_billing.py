"""Billing through Stripe: requests go to its API, and only signed webhooks change contracts."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError, Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.payments.notices import (
    Notice,
    PaidInvoice,
    Subscription,
    contract_of,
    invoice_of,
    read,
    tenant_of,
)
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.storage.billing import (
    BillingResult,
    Contract,
    ContractChangedError,
    DuplicateNoticeError,
    SqlBilling,
    StoredResult,
)
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.billing import BuiltInBilling, NotSubscribedError
from pqkeep_gateway.tenancy.contracts import AlreadySubscribedError, apply_notice
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

if TYPE_CHECKING:
    from pqkeep_gateway.payments.stripe_account import StripeAccount

_LOG = logger(__name__)

_SUBSCRIPTION = "customer.subscription."


class StripeBilling:
    """A BillingProvider that applies Stripe's notices (webhooks)."""

    def __init__(
        self,
        account: "StripeAccount",
        store: SqlBilling,
        tenants: SqlTenants,
        built_in: BuiltInBilling,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take a Stripe account, and the built-in provider for contracts that it sold earlier."""
        self._account = account
        self._tiers = {price: tier for tier, price in account.prices.items()}
        self._store = store
        self._tenants = tenants
        self._built_in = built_in
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery
        self._clock = clock

    @property
    def sold(self) -> frozenset[Tier]:
        """The tiers with a price at Stripe."""
        return frozenset(self._account.prices)

    async def check_out(
        self, tenant: TenantId, tier: Tier, attribution: Attribution, key: IdempotencyKey | None
    ) -> BillingResult:
        """Begin a checkout, or change the running subscription. A webhook reports the outcome."""
        earlier = await self._earlier(key)
        if earlier is not None:
            return earlier
        await self._audit_delivery.require_open(tenant)
        running = await self._store.find_running(tenant)
        if running is None or running.external_id is None:
            before_change()
            url = await self._account.open_checkout(tenant, tier, key)
            result = BillingResult(running, is_pending=True, checkout_url=url)
        elif running.tier is tier and not running.cancel_at_period_end:
            raise AlreadySubscribedError
        else:
            before_change()
            await self._account.switch(running.external_id, tier, key)
            result = BillingResult(running, is_pending=True)
        return await self._save_result(tenant, result, AuditEvent.BEGIN_CHECKOUT, attribution, key)

    async def cancel(
        self, tenant: TenantId, attribution: Attribution, key: IdempotencyKey | None
    ) -> BillingResult:
        """Cancel the subscription at the end of its period. A webhook reports it."""
        earlier = await self._earlier(key)
        if earlier is not None:
            return earlier
        running = await self._store.find_running(tenant)
        if running is None:
            raise NotSubscribedError
        if running.external_id is None:
            return await self._built_in.cancel(tenant, attribution, key)
        if running.cancel_at_period_end:
            return BillingResult(running)
        await self._audit_delivery.require_open(tenant)
        before_change()
        await self._account.end(running.external_id, key)
        result = BillingResult(running, is_pending=True)
        return await self._save_result(
            tenant, result, AuditEvent.BEGIN_CANCELLATION, attribution, key
        )

    async def receive(self, payload: bytes, signature: str, attribution: Attribution) -> None:
        """Verify a notice's signature and apply the notice once."""
        self._account.verify(payload, signature)
        notice = read(payload, Notice)
        attribution = attribution.by("stripe")
        with suppress(DuplicateNoticeError):
            if notice.type.startswith(_SUBSCRIPTION):
                await self._apply_subscription(notice, attribution)
            elif notice.type == "invoice.paid":
                await self._apply_invoice(notice, attribution)
        await self._audit_delivery.deliver()

    async def _apply_subscription(self, notice: Notice, attribution: Attribution) -> None:
        subscription = read(notice.data.object, Subscription)
        tenant = await self._tenant(subscription.metadata)
        if tenant is None:
            return
        while True:
            known = await self._store.find_by_external_id(subscription.id)
            tier = self._tiers.get(subscription.item.price.id, known.tier if known else None)
            reported = contract_of(subscription, tenant, tier, notice.created)
            if reported is None:
                return
            running = await self._store.find_running(tenant)
            change = apply_notice(known, running, reported)
            if change is None:
                _LOG.info("a Stripe event changes nothing", stripe_event=notice.id)
                return
            with suppress(ContractChangedError):
                changed = event(attribution, tenant, change.operation)
                try:
                    await self._store.save_change(change, changed, notice=notice.id)
                finally:
                    await self._announce_change()
                _warn_of_double_billing(change.old, change.new)
                return

    async def _apply_invoice(self, notice: Notice, attribution: Attribution) -> None:
        paid = read(notice.data.object, PaidInvoice)
        if paid.details is None:
            return
        tenant = await self._tenant(paid.details.metadata)
        if tenant is None:
            return
        known = await self._store.find_by_external_id(paid.details.subscription)
        invoice = invoice_of(paid, tenant, self._tiers, known.tier if known else None)
        recorded = event(attribution, tenant, AuditEvent.RECORD_INVOICE)
        await self._store.add_invoice(invoice, recorded, notice.id)

    async def _tenant(self, metadata: Mapping[str, str] | None) -> TenantId | None:
        """Return our tenant; None for other products of the Stripe account."""
        tenant = tenant_of(metadata)
        if tenant is None:
            return None
        try:
            return (await self._tenants.get(tenant)).id
        except TenantNotFoundError:
            return None

    async def _earlier(self, key: IdempotencyKey | None) -> BillingResult | None:
        earlier = await self._store.find_result(idempotency_of(key), date_of(self._clock()))
        if earlier is not None:
            await self._audit_delivery.deliver()
        return earlier

    async def _save_result(
        self,
        tenant: TenantId,
        result: BillingResult,
        operation: AuditEvent,
        attribution: Attribution,
        key: IdempotencyKey | None,
    ) -> BillingResult:
        idempotency = idempotency_of(key)
        now = date_of(self._clock())
        stored = None if idempotency is None else StoredResult(idempotency, result, now)
        await self._store.save_result(stored, event(attribution, tenant, operation))
        await self._audit_delivery.deliver()
        return result


def _warn_of_double_billing(old: Contract | None, new: Contract) -> None:
    """Warn the operator about a customer who pays twice, which only the operator can correct."""
    if old is not None and old.id != new.id and old.external_id is not None:
        _LOG.warning(
            "Stripe bills a tenant twice: cancel the old subscription there",
            old_subscription=old.external_id,
            new_subscription=new.external_id,
        )
