"""Stripe takes the money: it is asked for it, and believed only by its signed webhooks."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.idempotency import IdempotencyKey, idempotency_of
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.payments.notices import (
    Notice,
    PaidInvoice,
    Subscription,
    contract_of,
    invoice_of,
    read,
    tenant_of,
)
from pqkeep_gateway.tenancy.billing import (
    Answer,
    BillingStore,
    BuiltInBilling,
    ContractChangedError,
    DuplicateNoticeError,
    Kept,
    NotSubscribedError,
)
from pqkeep_gateway.tenancy.contracts import AlreadySubscribedError, Contract, apply_notice
from pqkeep_gateway.tenancy.tenants import TenantNotFoundError, TenantStore
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution

if TYPE_CHECKING:
    from pqkeep_gateway.payments.stripe_account import StripeAccount

_LOG = logging.getLogger(__name__)

_SUBSCRIPTION = "customer.subscription."


class StripeBilling:
    """A BillingProvider and a NoticeReceiver."""

    def __init__(
        self,
        account: "StripeAccount",
        store: BillingStore,
        tenants: TenantStore,
        here: BuiltInBilling,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Sell by an account at Stripe; what was sold ``here`` before is cancelled there."""
        self._account = account
        self._tiers = {price: tier for tier, price in account.prices.items()}
        self._store = store
        self._tenants = tenants
        self._here = here
        self._announce_change = announce_change
        self._courier = audit_delivery
        self._clock = clock

    @property
    def sold(self) -> frozenset[Tier]:
        """The tiers that have a price at Stripe."""
        return frozenset(self._account.prices)

    async def check_out(
        self, tenant: TenantId, tier: Tier, attribution: Attribution, key: IdempotencyKey | None
    ) -> Answer:
        """Begin a checkout, or have a running subscription changed. A webhook tells what came of it."""
        earlier = await self._earlier(key)
        if earlier is not None:
            return earlier
        running = await self._store.running(tenant)
        if running is None or running.external_id is None:
            url = await self._account.open_checkout(tenant, tier, key)
            answer = Answer(running, is_pending=True, checkout_url=url)
        elif running.tier is tier and not running.cancel_at_period_end:
            raise AlreadySubscribedError
        else:
            await self._account.switch(running.external_id, tier, key)
            answer = Answer(running, is_pending=True)
        return await self._answered(tenant, answer, AuditEvent.BEGIN_CHECKOUT, attribution, key)

    async def cancel(
        self, tenant: TenantId, attribution: Attribution, key: IdempotencyKey | None
    ) -> Answer:
        """Have the subscription end with its period. A webhook says that it will."""
        earlier = await self._earlier(key)
        if earlier is not None:
            return earlier
        running = await self._store.running(tenant)
        if running is None:
            raise NotSubscribedError
        if running.external_id is None:
            return await self._here.cancel(tenant, attribution, key)
        if running.cancel_at_period_end:
            return Answer(running)
        await self._account.end(running.external_id, key)
        answer = Answer(running, is_pending=True)
        return await self._answered(tenant, answer, AuditEvent.BEGIN_CANCELLATION, attribution, key)

    async def receive(self, payload: bytes, signature: str, attribution: Attribution) -> None:
        """Believe a notice with a good signature, once."""
        self._account.verify(payload, signature)
        notice = read(payload, Notice)
        attribution = attribution.by("stripe")
        with suppress(DuplicateNoticeError):
            if notice.type.startswith(_SUBSCRIPTION):
                await self._hear_subscription(notice, attribution)
            elif notice.type == "invoice.paid":
                await self._hear_invoice(notice, attribution)
        await self._courier.deliver()

    async def _hear_subscription(self, notice: Notice, attribution: Attribution) -> None:
        subscription = read(notice.data.object, Subscription)
        tenant = await self._tenant(subscription.metadata)
        if tenant is None:
            return
        while True:
            known = await self._store.find(subscription.id)
            tier = self._tiers.get(subscription.item.price.id, known.tier if known else None)
            said = contract_of(subscription, tenant, tier, notice.created)
            if said is None:
                return
            running = await self._store.running(tenant)
            change = apply_notice(known, running, said)
            if change is None:
                _LOG.info("Stripe's %s changes nothing", notice.id)
                return
            with suppress(ContractChangedError):
                made = event(attribution, tenant, change.operation)
                try:
                    await self._store.apply(change, made, notice=notice.id)
                finally:
                    await self._announce_change()
                _warn_of_two(change.old, change.new)
                return

    async def _hear_invoice(self, notice: Notice, attribution: Attribution) -> None:
        paid = read(notice.data.object, PaidInvoice)
        if paid.details is None:
            return
        tenant = await self._tenant(paid.details.metadata)
        if tenant is None:
            return
        known = await self._store.find(paid.details.subscription)
        line = invoice_of(paid, tenant, self._tiers, known.tier if known else None)
        made = event(attribution, tenant, AuditEvent.RECORD_INVOICE)
        await self._store.add_invoice(line, made, notice.id)

    async def _tenant(self, metadata: Mapping[str, str] | None) -> TenantId | None:
        """Return whose it is; None if that is nobody here."""
        tenant = tenant_of(metadata)
        if tenant is None:
            return None
        try:
            return (await self._tenants.get(tenant)).id
        except TenantNotFoundError:
            return None

    async def _earlier(self, key: IdempotencyKey | None) -> Answer | None:
        earlier = await self._store.earlier(idempotency_of(key), date_of(self._clock()))
        if earlier is not None:
            await self._courier.deliver()
        return earlier

    async def _answered(
        self,
        tenant: TenantId,
        answer: Answer,
        operation: AuditEvent,
        attribution: Attribution,
        key: IdempotencyKey | None,
    ) -> Answer:
        idempotency = idempotency_of(key)
        kept = None if idempotency is None else Kept(idempotency, answer, date_of(self._clock()))
        await self._store.keep(kept, event(attribution, tenant, operation))
        await self._courier.deliver()
        return answer


def _warn_of_two(old: Contract | None, new: Contract) -> None:
    """Tell the operator where a customer pays twice, which only they can mend."""
    if old is not None and old.id != new.id and old.external_id is not None:
        _LOG.warning(
            "Stripe bills a tenant twice: %s has taken the place of %s, which has to be ended there",
            new.external_id,
            old.external_id,
        )
