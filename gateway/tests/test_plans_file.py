"""The plans match the specification, and an operator's file changes single values."""

from pathlib import Path

import pytest

from pqkeep_gateway.access.entitlements import PLAN_OF, Entitlements, Plan, Subscription, Tier
from pqkeep_gateway.tenancy import plans
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.startup.settings import ConfigError

BASIC = {"Kyber768", "Dilithium3"}
HYBRID = BASIC | {
    "X-Wing",
    "Composite-ML-DSA",
    "SLH-DSA-SHA2-128s",
    "SLH-DSA-SHA2-128f",
    "SLH-DSA-SHA2-192s",
    "SLH-DSA-SHA2-256s",
}
EVERYTHING = HYBRID | {"ML-KEM-1024", "ML-DSA-87"}
TABLE = [
    # tier, plan, USD a month, requests a minute, PQC keys, operations a month, API keys, wrap, …
    ("free", "free", 0, 100, 2, 1_000, 2, False, BASIC),
    ("starter", "starter", 99, 500, 10, None, 5, True, HYBRID),
    ("growth", "professional", 179, 1_000, 25, None, 20, True, HYBRID),
    ("professional", "professional", 299, 5_000, 100, None, 20, True, HYBRID),
    ("enterprise", "enterprise", 999, 20_000, None, None, 100, True, EVERYTHING),
    ("enterprise_plus", "enterprise_plus", 999, 20_000, None, None, 100, True, EVERYTHING),
]
"""The specification's tables of plans and algorithms, with the settled open points."""


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_plans_are_the_specification_s(
    row: tuple[str, str, int, int, int | None, int | None, int, bool, set[str]],
) -> None:
    """Price, limits and algorithms of each tier match the specification."""
    tier, plan, price, per_minute, pqc_keys, per_month, api_keys, key_wrap, algorithms = row
    terms = plans.read()[Tier(tier)]
    assert (terms.monthly_price_usd, terms.requests_per_minute) == (price, per_minute)
    assert plans.bound(terms.pqc_keys) == pqc_keys
    assert plans.bound(terms.operations_per_month) == per_month
    assert (terms.api_keys, terms.key_wrap) == (api_keys, key_wrap)
    assert {algorithm.value for algorithm in terms.algorithms} == algorithms
    assert PLAN_OF[Tier(tier)] == plan


def test_what_is_bought_without_the_operator() -> None:
    """Tenants can buy the tiers with a fixed price themselves, possibly without free."""
    sold = {tier for tier, terms in plans.read().items() if terms.self_service}
    assert sold == {Tier.STARTER, Tier.GROWTH, Tier.PROFESSIONAL}


def test_every_tier_is_sold() -> None:
    """The plans file, the tiers and the specification's table have the same six names."""
    assert {row[0] for row in TABLE} == set(Tier) == plans.read().keys()
    assert {row[1] for row in TABLE} == set(Plan)


@pytest.mark.parametrize("tier", Tier)
def test_an_ended_subscription_is_the_free_plan(tier: Tier) -> None:
    """A running subscription's tier is in force; after its end free is, and is shown."""
    assert Entitlements(tier).effective_tier is tier
    assert Entitlements(tier).plan is PLAN_OF[tier]
    ended = Entitlements(tier, Subscription.ENDED)
    assert (ended.effective_tier, ended.plan) == (Tier.FREE, Plan.FREE)


def _own(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


OVERRIDES = [
    ("monthly_price_usd", "5", 5),
    ("self_service", "true", True),
    ("requests_per_minute", "7", 7),
    ("operations_per_month", "3", 3),
    ("operations_per_month", '"unlimited"', "unlimited"),
    ("pqc_keys", "4", 4),
    ("pqc_keys", '"unlimited"', "unlimited"),
    ("keyrings", "100_000", 100_000),
    ("api_keys", "1", 1),
    ("algorithms", '["X-Wing"]', frozenset({Algorithm.X_WING})),
    ("algorithms", "[]", frozenset()),
    ("key_wrap", "true", True),
]


@pytest.mark.parametrize(("name", "text", "value"), OVERRIDES)
def test_an_own_file_replaces_what_it_names(
    tmp_path: Path, name: str, text: str, value: object
) -> None:
    """A file with one value of one tier changes only that value."""
    ours = plans.read()
    read = plans.read(_own(tmp_path, f"[free]\n{name} = {text}\n"))
    assert getattr(read[Tier.FREE], name) == value
    for tier in Tier:
        for other in ours[tier].__struct_fields__:
            if (tier, other) != (Tier.FREE, name):
                assert getattr(read[tier], other) == getattr(ours[tier], other)


def test_an_empty_own_file_changes_nothing(tmp_path: Path) -> None:
    """An empty file changes nothing."""
    assert plans.read(_own(tmp_path, "# nothing\n\n[growth]\n")) == plans.read()


MISTAKES = {
    "unknown tier": "[gold]\napi_keys = 1\n",
    "tier in capitals": "[FREE]\napi_keys = 1\n",
    "unknown name": "[free]\nrequests_per_hour = 1\n",
    "unknown algorithm": '[free]\nalgorithms = ["RSA"]\n',
    "algorithm by its standard": '[free]\nalgorithms = ["ML-KEM-768"]\n',
    "one algorithm without a list": '[free]\nalgorithms = "Kyber768"\n',
    "no requests": "[free]\nrequests_per_minute = 0\n",
    "negative requests": "[free]\nrequests_per_minute = -1\n",
    "any number of requests": '[free]\nrequests_per_minute = "unlimited"\n',
    "no operations": "[free]\noperations_per_month = 0\n",
    "another word": '[free]\noperations_per_month = "none"\n',
    "a number as text": '[free]\npqc_keys = "2"\n',
    "no PQC keys": "[free]\npqc_keys = 0\n",
    "no keyrings": "[free]\nkeyrings = 0\n",
    "more keyrings than a tenant can have": "[free]\nkeyrings = 100_001\n",
    "any number of keyrings": '[free]\nkeyrings = "unlimited"\n',
    "no API keys": "[free]\napi_keys = 0\n",
    "a fraction": "[free]\napi_keys = 1.5\n",
    "yes": '[free]\nkey_wrap = "yes"\n',
    "one for true": "[free]\nkey_wrap = 1\n",
    "negative price": "[free]\nmonthly_price_usd = -1\n",
    "no table": "free = 1\n",
    "no TOML": "[free\n",
    "a name twice": "[free]\napi_keys = 1\napi_keys = 2\n",
    "not UTF-8": "[free]\n# \udcff\n",
}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_found_at_start(tmp_path: Path, text: str) -> None:
    """A plans file with an error is refused, and the message names the file."""
    path = tmp_path / "own.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=str(path)):
        plans.read(path)


def test_a_plans_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing plans file is refused, and the message names it."""
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            plans.read(path)
