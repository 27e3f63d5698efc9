"""The rules of subscriptions, without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from pqkeep_gateway.access.entitlements import Subscription, Tier
from pqkeep_gateway.storage.billing import BilledElsewhereError, Contract, ContractStatus, Invoice
from pqkeep_gateway.tenancy.contracts import (
    AlreadySubscribedError,
    apply_notice,
    buy,
    cancel,
    month_after,
    settle,
)
from pqkeep_protocol.keys import TenantId

TENANT = TenantId(uuid4())
PRICES = {Tier.STARTER: 9900, Tier.GROWTH: 17900, Tier.PROFESSIONAL: 29900}
NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)
END = datetime(2027, 2, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def starter() -> Contract:
    """A contract on starter that began on 31 January."""
    return buy(None, TENANT, Tier.STARTER, PRICES, NOW).new


def _line(invoice: Invoice | None) -> tuple[Tier, int, datetime, datetime]:
    assert invoice is not None
    return invoice.tier, invoice.amount_cents, invoice.period_start, invoice.period_end


def test_periods_end_on_the_same_day_or_the_last() -> None:
    """Periods that began on the 31st end on the last day of each month."""
    ends = [NOW]
    for _ in range(13):
        ends.append(month_after(ends[-1], NOW.day))
    assert [(end.month, end.day) for end in ends] == [
        *((1, 31), (2, 28), (3, 31), (4, 30), (5, 31), (6, 30), (7, 31)),
        *((8, 31), (9, 30), (10, 31), (11, 30), (12, 31), (1, 31), (2, 29)),
    ]
    assert {end.time() for end in ends} == {NOW.time()}


def test_the_first_period_is_invoiced_in_full() -> None:
    """A new contract runs for a month from now, and its invoice is the full price."""
    change = buy(None, TENANT, Tier.STARTER, PRICES, NOW)
    assert (change.old, change.operation) == (None, "subscribe-starter")
    assert (change.new.period_start, change.new.period_end) == (NOW, END)
    assert change.new.subscription is Subscription.ACTIVE
    assert _line(change.invoice) == (Tier.STARTER, 9900, NOW, END)


@pytest.mark.parametrize(
    ("left", "tier", "cents"),
    [
        (1, Tier.PROFESSIONAL, 20000),
        (2, Tier.PROFESSIONAL, 10000),
        (3, Tier.PROFESSIONAL, 6666),
        (4, Tier.GROWTH, 2000),
    ],
)
def test_a_more_expensive_tier_costs_the_difference(
    starter: Contract, left: int, tier: Tier, cents: int
) -> None:
    """The invoice is the price difference for the rest of the period, rounded down."""
    now = END - (END - NOW) / left
    change = buy(starter, TENANT, tier, PRICES, now)
    assert _line(change.invoice) == (tier, cents, now, END)
    assert (change.new.id, change.new.tier, change.new.period_end) == (starter.id, tier, END)


def test_a_cheaper_tier_is_credited(starter: Contract) -> None:
    """A downgrade credits the difference, so an upgrade and a downgrade at once cost nothing."""
    half = NOW + (END - NOW) / 2
    up = buy(starter, TENANT, Tier.PROFESSIONAL, PRICES, half)
    down = buy(up.new, TENANT, Tier.STARTER, PRICES, half)
    assert _line(up.invoice)[1] + _line(down.invoice)[1] == 0
    assert _line(down.invoice)[1] == -10000


def test_a_credit_depends_on_the_price_paid(starter: Contract) -> None:
    """The credit is computed from the price that was paid, not from a newer one."""
    dearer = PRICES | {Tier.STARTER: 1_000_000, Tier.GROWTH: 0}
    change = buy(starter, TENANT, Tier.GROWTH, dearer, NOW)
    assert _line(change.invoice)[1] == -9900


def test_the_same_tier_is_not_bought_twice(starter: Contract) -> None:
    """Buying the tier of the running contract is refused."""
    with pytest.raises(AlreadySubscribedError):
        buy(starter, TENANT, Tier.STARTER, PRICES, NOW + SECOND)


def test_a_cancellation_can_be_undone(starter: Contract) -> None:
    """A cancelled contract that is bought again before its end continues without a new bill."""
    cancelled = cancel(starter, NOW).new
    assert cancelled.cancel_at_period_end
    assert cancelled.subscription is Subscription.ACTIVE
    change = buy(cancelled, TENANT, Tier.STARTER, PRICES, NOW + SECOND)
    assert (change.new.cancel_at_period_end, change.invoice) == (False, None)
    changed = buy(cancelled, TENANT, Tier.GROWTH, PRICES, NOW + SECOND)
    assert changed.new.cancel_at_period_end is False


def test_a_contract_is_renewed_at_the_end_of_its_period(starter: Contract) -> None:
    """A contract that was not cancelled is renewed from the end on, at today's price."""
    change = settle(starter, PRICES | {Tier.STARTER: 100}, END)
    third = datetime(2027, 3, 31, 12, tzinfo=UTC)
    assert (change.new.period_start, change.new.period_end) == (END, third)
    assert _line(change.invoice) == (Tier.STARTER, 100, END, third)
    assert change.new.price_cents == 100


def test_missed_periods_are_not_invoiced(starter: Contract) -> None:
    """After an outage only the current period is invoiced."""
    now = datetime(2027, 6, 15, tzinfo=UTC)
    change = settle(starter, PRICES, now)
    start, end = datetime(2027, 5, 31, 12, tzinfo=UTC), datetime(2027, 6, 30, 12, tzinfo=UTC)
    assert _line(change.invoice) == (Tier.STARTER, 9900, start, end)


def test_a_cancelled_contract_ends(starter: Contract) -> None:
    """After its period a cancelled contract has ended: nothing is invoiced, and the subscription is ended."""
    change = settle(cancel(starter, NOW).new, PRICES, END)
    assert (change.new.status, change.invoice) == (ContractStatus.ENDED, None)
    assert change.new.subscription is Subscription.ENDED


@pytest.fixture
def reported(starter: Contract) -> Contract:
    """An external provider's report of a contract."""
    return replace(starter, id=uuid4(), external_id="sub_1")


def test_what_is_billed_elsewhere_is_not_changed_here(reported: Contract) -> None:
    """A provider's contract cannot be changed or cancelled here."""
    with pytest.raises(BilledElsewhereError):
        buy(reported, TENANT, Tier.GROWTH, PRICES, NOW)
    with pytest.raises(BilledElsewhereError):
        cancel(reported, NOW)


def test_reports_are_applied(reported: Contract) -> None:
    """A later report of a known contract replaces it, under its own identifier."""
    later = replace(reported, id=uuid4(), as_of=NOW + SECOND, tier=Tier.GROWTH)
    change = apply_notice(reported, reported, later)
    assert change is not None
    assert (change.new.id, change.new.tier) == (reported.id, Tier.GROWTH)
    assert (change.old, change.operation) == (reported, "subscribe-growth")


def test_older_reports_are_ignored(reported: Contract) -> None:
    """A report older than the last one changes nothing."""
    earlier = replace(reported, as_of=NOW - SECOND, status=ContractStatus.ENDED)
    assert apply_notice(reported, reported, earlier) is None


def test_an_ended_contract_stays_ended(reported: Contract) -> None:
    """No report restarts a contract that has ended."""
    ended = replace(reported, status=ContractStatus.ENDED)
    assert apply_notice(ended, None, replace(reported, as_of=NOW + 9 * SECOND)) is None


def test_an_end_that_is_reported_first_is_stored(reported: Contract) -> None:
    """The end of an unknown contract is stored, and ends no other contract of the tenant."""
    running = replace(reported, id=uuid4(), external_id="sub_2")
    change = apply_notice(None, running, replace(reported, status=ContractStatus.ENDED))
    assert change is not None
    assert change.old is None


def test_another_tenant_s_contract_is_not_changed(reported: Contract) -> None:
    """A report of a known contract under another tenant changes nothing."""
    foreign = replace(reported, tenant=TenantId(uuid4()), as_of=NOW + SECOND)
    assert apply_notice(reported, None, foreign) is None


def test_the_newer_of_two_runs(reported: Contract) -> None:
    """A contract that began later replaces the running one; an earlier one does not."""
    newer = replace(reported, id=uuid4(), external_id="sub_2", started_at=NOW + SECOND)
    change = apply_notice(None, reported, newer)
    assert change is not None
    assert (change.old, change.new) == (reported, newer)
    assert apply_notice(None, newer, reported) is None


def test_an_external_contract_replaces_our_own(starter: Contract, reported: Contract) -> None:
    """An external contract replaces our own, even a newer one."""
    change = apply_notice(None, replace(starter, started_at=NOW + SECOND), reported)
    assert change is not None
    assert change.new is reported


@pytest.mark.parametrize(
    ("before", "after", "operation"),
    [
        ({}, {"status": ContractStatus.UNPAID}, "suspend-subscription"),
        ({"status": ContractStatus.UNPAID}, {}, "renew-subscription"),
        ({}, {"status": ContractStatus.ENDED}, "end-subscription"),
        ({}, {"cancel_at_period_end": True}, "cancel-subscription"),
        ({"cancel_at_period_end": True}, {}, "resume-subscription"),
        ({}, {"period_end": END + SECOND}, "renew-subscription"),
    ],
)
def test_external_changes_have_audit_events(
    reported: Contract, before: dict[str, object], after: dict[str, object], operation: str
) -> None:
    """Each kind of external change has its own audit event."""
    known = replace(reported, **before)  # type: ignore[arg-type] # fields of a contract
    change = apply_notice(known, known, replace(reported, **after))  # type: ignore[arg-type] # the same
    assert change is not None
    assert change.operation == operation
