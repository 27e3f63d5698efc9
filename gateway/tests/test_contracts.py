"""The rules of a subscription's life, without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from pqkeep_gateway.access.entitlements import Subscription, Tier
from pqkeep_gateway.tenancy.contracts import (
    AlreadySubscribedError,
    BilledElsewhereError,
    Contract,
    ContractStatus,
    Invoice,
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


def test_a_month_ends_on_its_day_or_its_last() -> None:
    """From the 31st on periods end on the last day of short months, and on the 31st again."""
    ends = [NOW]
    for _ in range(13):
        ends.append(month_after(ends[-1], NOW.day))
    assert [(each.month, each.day) for each in ends] == [
        *((1, 31), (2, 28), (3, 31), (4, 30), (5, 31), (6, 30), (7, 31)),
        *((8, 31), (9, 30), (10, 31), (11, 30), (12, 31), (1, 31), (2, 29)),
    ]
    assert {each.time() for each in ends} == {NOW.time()}


def test_the_first_period_is_billed_whole() -> None:
    """A new contract runs from now for a month, and its line is the whole price."""
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
def test_a_dearer_tier_costs_the_difference(
    starter: Contract, left: int, tier: Tier, cents: int
) -> None:
    """The line is the difference of the prices for what is left of the period, rounded down."""
    now = END - (END - NOW) / left
    change = buy(starter, TENANT, tier, PRICES, now)
    assert _line(change.invoice) == (tier, cents, now, END)
    assert (change.new.id, change.new.tier, change.new.period_end) == (starter.id, tier, END)


def test_a_cheaper_tier_gives_back(starter: Contract) -> None:
    """Up and down again at the same moment costs nothing; the difference is given back."""
    half = NOW + (END - NOW) / 2
    up = buy(starter, TENANT, Tier.PROFESSIONAL, PRICES, half)
    down = buy(up.new, TENANT, Tier.STARTER, PRICES, half)
    assert _line(up.invoice)[1] + _line(down.invoice)[1] == 0
    assert _line(down.invoice)[1] == -10000


def test_what_was_paid_is_given_back(starter: Contract) -> None:
    """What is given back depends on the price that was paid, not on a newer one."""
    dearer = PRICES | {Tier.STARTER: 1_000_000, Tier.GROWTH: 0}
    change = buy(starter, TENANT, Tier.GROWTH, dearer, NOW)
    assert _line(change.invoice)[1] == -9900


def test_the_same_tier_is_not_bought_twice(starter: Contract) -> None:
    """The tier that runs already is refused."""
    with pytest.raises(AlreadySubscribedError):
        buy(starter, TENANT, Tier.STARTER, PRICES, NOW + SECOND)


def test_what_was_cancelled_goes_on(starter: Contract) -> None:
    """Bought again before its end, a cancelled contract goes on, and nothing is billed."""
    cancelled = cancel(starter, NOW).new
    assert cancelled.cancel_at_period_end
    assert cancelled.subscription is Subscription.ACTIVE
    change = buy(cancelled, TENANT, Tier.STARTER, PRICES, NOW + SECOND)
    assert (change.new.cancel_at_period_end, change.invoice) == (False, None)
    changed = buy(cancelled, TENANT, Tier.GROWTH, PRICES, NOW + SECOND)
    assert changed.new.cancel_at_period_end is False


def test_the_end_of_a_period_is_the_next_one_s_beginning(starter: Contract) -> None:
    """A contract that was not cancelled is renewed from the end on, at today's price."""
    change = settle(starter, PRICES | {Tier.STARTER: 100}, END)
    third = datetime(2027, 3, 31, 12, tzinfo=UTC)
    assert (change.new.period_start, change.new.period_end) == (END, third)
    assert _line(change.invoice) == (Tier.STARTER, 100, END, third)
    assert change.new.price_cents == 100


def test_periods_that_went_by_are_not_billed(starter: Contract) -> None:
    """After a long silence the period that holds now is billed, and none before it."""
    now = datetime(2027, 6, 15, tzinfo=UTC)
    change = settle(starter, PRICES, now)
    start, end = datetime(2027, 5, 31, 12, tzinfo=UTC), datetime(2027, 6, 30, 12, tzinfo=UTC)
    assert _line(change.invoice) == (Tier.STARTER, 9900, start, end)


def test_a_cancelled_contract_ends(starter: Contract) -> None:
    """After its period a cancelled contract has ended: nothing is billed, the standing is ended."""
    change = settle(cancel(starter, NOW).new, PRICES, END)
    assert (change.new.status, change.invoice) == (ContractStatus.ENDED, None)
    assert change.new.subscription is Subscription.ENDED


@pytest.fixture
def said(starter: Contract) -> Contract:
    """What is said of a contract that is billed elsewhere."""
    return replace(starter, id=uuid4(), external_id="sub_1")


def test_what_is_billed_elsewhere_is_not_changed_here(said: Contract) -> None:
    """Neither bought nor cancelled."""
    with pytest.raises(BilledElsewhereError):
        buy(said, TENANT, Tier.GROWTH, PRICES, NOW)
    with pytest.raises(BilledElsewhereError):
        cancel(said, NOW)


def test_news_are_believed(said: Contract) -> None:
    """What is said later of a known contract is what it is, under its own identity."""
    later = replace(said, id=uuid4(), as_of=NOW + SECOND, tier=Tier.GROWTH)
    change = apply_notice(said, said, later)
    assert change is not None
    assert (change.new.id, change.new.tier) == (said.id, Tier.GROWTH)
    assert (change.old, change.operation) == (said, "subscribe-growth")


def test_old_news_are_none(said: Contract) -> None:
    """What was said before what is known changes nothing."""
    earlier = replace(said, as_of=NOW - SECOND, status=ContractStatus.ENDED)
    assert apply_notice(said, said, earlier) is None


def test_nothing_leads_back_from_the_end(said: Contract) -> None:
    """Whatever is said of a contract that has ended, it has ended."""
    ended = replace(said, status=ContractStatus.ENDED)
    assert apply_notice(ended, None, replace(said, as_of=NOW + 9 * SECOND)) is None


def test_an_end_that_comes_first_is_kept(said: Contract) -> None:
    """The end of a contract that nobody knew is kept, and nothing of the tenant's ends with it."""
    running = replace(said, id=uuid4(), external_id="sub_2")
    change = apply_notice(None, running, replace(said, status=ContractStatus.ENDED))
    assert change is not None
    assert change.old is None


def test_another_tenant_s_contract_is_not_taken(said: Contract) -> None:
    """What is said of a contract in another tenant's name changes nothing."""
    foreign = replace(said, tenant=TenantId(uuid4()), as_of=NOW + SECOND)
    assert apply_notice(said, None, foreign) is None


def test_the_newer_of_two_runs(said: Contract) -> None:
    """A contract that began later takes the place of the running one; an earlier one does not."""
    newer = replace(said, id=uuid4(), external_id="sub_2", started_at=NOW + SECOND)
    change = apply_notice(None, said, newer)
    assert change is not None
    assert (change.old, change.new) == (said, newer)
    assert apply_notice(None, newer, said) is None


def test_what_is_billed_elsewhere_takes_the_place_of_what_was_billed_here(
    starter: Contract, said: Contract
) -> None:
    """A running contract of our own gives way, whenever it began."""
    change = apply_notice(None, replace(starter, started_at=NOW + SECOND), said)
    assert change is not None
    assert change.new is said


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
def test_the_log_says_what_was_changed_elsewhere(
    said: Contract, before: dict[str, object], after: dict[str, object], operation: str
) -> None:
    """Each difference has its name in the audit log."""
    known = replace(said, **before)  # type: ignore[arg-type] # fields of a contract
    change = apply_notice(known, known, replace(said, **after))  # type: ignore[arg-type] # the same
    assert change is not None
    assert change.operation == operation
