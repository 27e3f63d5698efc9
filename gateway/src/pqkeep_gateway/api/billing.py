"""/api/v1/billing: plans, subscriptions and invoices."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.entitlements import PLAN_OF, Entitlements, Plan, Tier
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import Identifier
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import choice_field
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.payments.stripe_billing import StripeBilling
from pqkeep_gateway.storage.billing import (
    BilledElsewhereError,
    BillingResult,
    Contract,
    ContractStatus,
    Invoice,
    SqlBilling,
)
from pqkeep_gateway.tenancy.billing import (
    BillingProvider,
    InvalidNoticeError,
    InvalidNoticeSignatureError,
    NotSubscribedError,
    PaymentProviderError,
    PaymentTimeoutError,
)
from pqkeep_gateway.tenancy.contracts import CURRENCY, AlreadySubscribedError
from pqkeep_gateway.tenancy.plans import Plans, PlanTerms, bound
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_protocol.algorithms import Algorithm

_SIGNATURE = "Stripe-Signature"
_NOTHING_SOLD = "this installation sells no plans; the operator sets a tenant's plan"
ANY_NUMBER = "The limit; null: unlimited."
Cents = Annotated[int, Meta(description="An amount in hundredths of the currency.")]
Currency = Annotated[str, Meta(description="The currency's code: three lower-case letters.")]


class PlanData(Data, frozen=True, kw_only=True):
    """A tier and its limits."""

    tier: Tier
    plan: Annotated[Plan, Meta(description="The plan of a tenant on this tier.")]
    monthly_price_cents: Annotated[
        int,
        Meta(
            ge=0, description=("In hundredths of the currency; for enterprise tiers the minimum.")
        ),
    ]
    currency: Currency
    self_service: Annotated[bool, Meta(description="Whether it can be bought at checkout.")]
    requests_per_minute: Annotated[int, Meta(ge=1)]
    operations_per_month: Annotated[int | None, Meta(description=ANY_NUMBER)]
    pqc_keys: Annotated[int | None, Meta(description=ANY_NUMBER)]
    keyrings: Annotated[int, Meta(ge=1)]
    api_keys: Annotated[int, Meta(ge=1)]
    algorithms: Annotated[
        tuple[Algorithm, ...],
        Meta(description="The algorithms for writing. Reading works with every algorithm."),
    ]
    key_wrap: bool


class PlansData(Data, frozen=True, kw_only=True):
    """All tiers."""

    plans: tuple[PlanData, ...]
    total: Annotated[int, Meta(ge=0)]


class SubscriptionData(Data, frozen=True, kw_only=True):
    """A tenant's subscription. Without a period, the operator granted it."""

    tier: Tier
    plan: Annotated[Plan, Meta(description="The plan in force.")]
    status: Annotated[
        ContractStatus, Meta(description="The free plan is in force unless this is active.")
    ]
    period_start: Timestamp | None
    period_end: Timestamp | None
    cancel_at_period_end: bool


class CurrentSubscriptionData(SubscriptionData, frozen=True, kw_only=True):
    """A tenant's subscription, and its usage in this calendar month (UTC)."""

    operations_used: Annotated[
        int | None,
        Meta(
            description="The operations of this month; null without a quota: they are not counted."
        ),
    ]
    operations_per_month: Annotated[int | None, Meta(description=ANY_NUMBER)]


class BillingResponseData(Data, frozen=True, kw_only=True):
    """The result of a checkout or cancellation."""

    pending: Annotated[
        bool, Meta(description="Whether the payment provider still has to confirm it.")
    ]
    checkout_url: Annotated[
        str | None, Meta(description=("The payment page, if a payment is needed."))
    ]
    subscription: Annotated[SubscriptionData | None, Meta(description="The subscription in force.")]


class InvoiceData(Data, frozen=True, kw_only=True):
    """An invoice line. A negative amount is a refund."""

    id: Identifier
    tier: Tier
    amount_cents: Cents
    currency: Currency
    period_start: Timestamp
    period_end: Timestamp
    created_at: Timestamp


class InvoicesData(Data, frozen=True, kw_only=True):
    """Invoice lines, the newest first."""

    invoices: tuple[InvoiceData, ...]
    total: Annotated[int, Meta(ge=0)]


class ReceivedData(Data, frozen=True, kw_only=True):
    """The notice was received, now or earlier."""

    received: bool


_START = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
_END = timestamp(datetime(2026, 2, 28, 12, tzinfo=UTC))
_PLAN = PlanData(
    tier=Tier.FREE,
    plan=Plan.FREE,
    monthly_price_cents=0,
    currency=CURRENCY,
    self_service=False,
    requests_per_minute=100,
    operations_per_month=1000,
    pqc_keys=2,
    keyrings=256,
    api_keys=2,
    algorithms=(Algorithm.ML_KEM_768, Algorithm.ML_DSA_65),
    key_wrap=False,
)
_SUBSCRIPTION = SubscriptionData(
    tier=Tier.STARTER,
    plan=Plan.STARTER,
    status=ContractStatus.ACTIVE,
    period_start=_START,
    period_end=_END,
    cancel_at_period_end=False,
)
_BOUGHT = BillingResponseData(pending=False, checkout_url=None, subscription=_SUBSCRIPTION)
_INVOICE = InvoiceData(
    id="3f6c1b1e-8f0b-4d58-9a7c-6b1f5b0c2d11",
    tier=Tier.STARTER,
    amount_cents=9900,
    currency=CURRENCY,
    period_start=_START,
    period_end=_END,
    created_at=_START,
)
_PAYMENT_ERRORS = (BilledElsewhereError, PaymentProviderError, PaymentTimeoutError)


def endpoints(
    plans: Plans, provider: BillingProvider, store: SqlBilling, quotas: Quotas
) -> tuple[Endpoint, ...]:
    """Return the endpoints of billing."""
    handlers = _Billing(plans, provider, store, quotas)
    return (
        Endpoint(
            method="GET",
            path="/billing/plans",
            name="list_plans",
            handler=handlers.list_plans,
            permission=Permission.PUBLIC,
            field_codes=UNPROCESSABLE_FIELDS,
            example=PlansData(plans=(_PLAN,), total=1),
        ),
        Endpoint(
            method="GET",
            path="/billing/subscription",
            name="get_subscription",
            handler=handlers.get_subscription,
            permission=Permission.VIEW_SUBSCRIPTION,
            field_codes=UNPROCESSABLE_FIELDS,
            example=CurrentSubscriptionData(
                tier=Tier.FREE,
                plan=Plan.FREE,
                status=ContractStatus.ACTIVE,
                period_start=None,
                period_end=None,
                cancel_at_period_end=False,
                operations_used=17,
                operations_per_month=1000,
            ),
        ),
        Endpoint(
            method="GET",
            path="/billing/invoices",
            name="list_invoices",
            handler=handlers.list_invoices,
            permission=Permission.MANAGE_BILLING,
            field_codes=UNPROCESSABLE_FIELDS,
            example=InvoicesData(invoices=(_INVOICE,), total=1),
        ),
        Endpoint(
            method="POST",
            path="/billing/subscriptions/checkout",
            name="check_out",
            handler=handlers.check_out,
            permission=Permission.MANAGE_BILLING,
            idempotent=True,
            needs_step_up=True,
            disabled="" if provider.sold else _NOTHING_SOLD,
            fields=(handlers.tier,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_BOUGHT,
            errors=(AlreadySubscribedError, *_PAYMENT_ERRORS),
        ),
        Endpoint(
            method="POST",
            path="/billing/subscriptions/cancel",
            name="cancel_subscription",
            handler=handlers.cancel,
            permission=Permission.MANAGE_BILLING,
            idempotent=True,
            needs_step_up=True,
            field_codes=UNPROCESSABLE_FIELDS,
            example=_BOUGHT,
            errors=(NotSubscribedError, *_PAYMENT_ERRORS),
        ),
    )


def notices(stripe: StripeBilling) -> tuple[Endpoint, ...]:
    """Return the endpoint of Stripe's webhooks."""

    async def receive(call: ApiCall) -> ReceivedData:
        """Receive a Stripe webhook. Without a valid signature it changes nothing."""
        await stripe.receive(call.signed.body, call.signed.signature, call.attribution)
        return ReceivedData(received=True)

    return (
        Endpoint(
            method="POST",
            path="/billing/webhooks/stripe",
            name="receive_stripe_webhook",
            handler=receive,
            permission=Permission.PUBLIC,
            signature_header=_SIGNATURE,
            field_codes=UNPROCESSABLE_FIELDS,
            example=ReceivedData(received=True),
            errors=(InvalidNoticeSignatureError, InvalidNoticeError),
        ),
    )


class _Billing:
    """The handlers."""

    def __init__(
        self, plans: Plans, provider: BillingProvider, store: SqlBilling, quotas: Quotas
    ) -> None:
        self._provider = provider
        self._store = store
        self._quotas = quotas
        self._plans = PlansData(plans=tuple(_plans(plans, provider.sold)), total=len(plans))
        sold = tuple(tier for tier in Tier if tier in provider.sold) or tuple(Tier)
        self.tier = choice_field(
            "tier", "A tier on sale: see GET /billing/plans.", sold, Tier.STARTER
        )

    async def list_plans(self, call: ApiCall) -> PlansData:
        """List all tiers with prices and limits."""
        return self._plans

    async def get_subscription(self, call: ApiCall) -> CurrentSubscriptionData:
        """Return the tenant's subscription and its usage of the monthly quota."""
        principal = call.tenant
        contract = await self._store.find_running(principal.tenant)
        used, quota = await self._quotas.used(principal.tenant, principal.entitlements) or (
            None,
            None,
        )
        shown = _granted(principal.entitlements) if contract is None else _contract(contract)
        return CurrentSubscriptionData(
            tier=shown.tier,
            plan=shown.plan,
            status=shown.status,
            period_start=shown.period_start,
            period_end=shown.period_end,
            cancel_at_period_end=shown.cancel_at_period_end,
            operations_used=used,
            operations_per_month=quota,
        )

    async def list_invoices(self, call: ApiCall) -> InvoicesData:
        """List the tenant's invoice lines, the newest first."""
        listed = await self._store.list_invoices(call.person.tenant)
        return InvoicesData(
            invoices=tuple(_invoice(invoice) for invoice in listed), total=len(listed)
        )

    async def check_out(self, call: ApiCall) -> BillingResponseData:
        """Subscribe to a tier, change the tier, or resume a cancelled subscription.

        If the installation takes payments, the tier takes effect when the payment is confirmed.
        """
        response = await self._provider.check_out(
            call.person.tenant, call[self.tier], call.attribution, call.idempotency_key
        )
        return _answer(response)

    async def cancel(self, call: ApiCall) -> BillingResponseData:
        """Cancel the subscription at the end of its period. Until then nothing changes.

        Afterwards the plan is free. Existing data can still be read with every algorithm.
        """
        response = await self._provider.cancel(
            call.person.tenant, call.attribution, call.idempotency_key
        )
        return _answer(response)


def _plans(plans: Plans, sold: frozenset[Tier]) -> Iterable[PlanData]:
    return (_plan(tier, plans[tier], is_sold=tier in sold) for tier in Tier)


def _plan(tier: Tier, terms: PlanTerms, *, is_sold: bool) -> PlanData:
    return PlanData(
        tier=tier,
        plan=PLAN_OF[tier],
        monthly_price_cents=100 * terms.monthly_price_usd,
        currency=CURRENCY,
        self_service=is_sold,
        requests_per_minute=terms.requests_per_minute,
        operations_per_month=bound(terms.operations_per_month),
        pqc_keys=bound(terms.pqc_keys),
        keyrings=terms.keyrings,
        api_keys=terms.api_keys,
        algorithms=tuple(algorithm for algorithm in Algorithm if algorithm in terms.algorithms),
        key_wrap=terms.key_wrap,
    )


def _granted(entitlements: Entitlements) -> SubscriptionData:
    """Return a subscription that was granted, or has ended."""
    return SubscriptionData(
        tier=entitlements.tier,
        plan=entitlements.plan,
        status=ContractStatus(entitlements.subscription),
        period_start=None,
        period_end=None,
        cancel_at_period_end=False,
    )


def _contract(contract: Contract) -> SubscriptionData:
    """Return a bought subscription."""
    return SubscriptionData(
        tier=contract.tier,
        plan=Entitlements(contract.tier, contract.subscription).plan,
        status=contract.status,
        period_start=timestamp(contract.period_start),
        period_end=timestamp(contract.period_end),
        cancel_at_period_end=contract.cancel_at_period_end,
    )


def _answer(response: BillingResult) -> BillingResponseData:
    return BillingResponseData(
        pending=response.is_pending,
        checkout_url=response.checkout_url,
        subscription=None if response.contract is None else _contract(response.contract),
    )


def _invoice(invoice: Invoice) -> InvoiceData:
    return InvoiceData(
        id=str(invoice.id),
        tier=invoice.tier,
        amount_cents=invoice.amount_cents,
        currency=invoice.currency,
        period_start=timestamp(invoice.period_start),
        period_end=timestamp(invoice.period_end),
        created_at=timestamp(invoice.created_at),
    )
