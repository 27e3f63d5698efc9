"""Rules end algorithms for new data and new keys at their instant, and for nothing else."""

from __future__ import annotations

import timeit
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Kind, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.rules import (
    MAX_RULES,
    SIGN_HASH_USES,
    USE_OF,
    WHOLE_USES,
    Rule,
    RuleException,
    RuleUse,
    rules_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TENANT = TenantId(uuid4())
KEM, OTHER = Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024
MIDNIGHT = datetime(2027, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
PROGRAM, PERSON = "api-key:3/billing", "user:1"


def rule(name: str = "end", **fields: Any) -> Rule:
    """Return a rule that ends one algorithm."""
    return Rule(name, **{"algorithms": (KEM,), **fields})


def rules(*members: Rule) -> RuleSet:
    """Return a tenant's rules."""
    found = RuleSet(TENANT)
    for member in members:
        found = found.with_rules([member])
    return found


def level(
    found: RuleSet,
    at: datetime,
    principal: str = PERSON,
    use: RuleUse = RuleUse.ENCRYPT,
    keyring: str | None = "default",
    algorithm: Algorithm = KEM,
) -> str:
    """Return "none", "warned" or "denied"."""
    assessed = found.assess(keyring, algorithm, use, principal, at)
    if assessed is None:
        return "none"
    return "denied" if assessed.is_denied else "warned"


def test_a_rule_ends_sign_hash_with_one_hash_function() -> None:
    """Other hash functions and other forms of signing go on; `sign` covers each of its parts."""
    key = Algorithm.ML_DSA_87
    part = rule(algorithms=(key,), uses=(RuleUse.SIGN_SHA_256,), deny_from=MIDNIGHT)
    found = rules(part)
    for use in RuleUse:
        expected = "denied" if use is RuleUse.SIGN_SHA_256 else "none"
        assert level(found, MIDNIGHT, use=use, algorithm=key) == expected
    assert not found.is_ended("default", key, {RuleUse.SIGN}, MIDNIGHT)
    whole = rules(rule(algorithms=(key,), uses=(RuleUse.SIGN,), deny_from=MIDNIGHT))
    for use in SIGN_HASH_USES.values():
        assert level(whole, MIDNIGHT, use=use, algorithm=key) == "denied"
    assert not whole.is_weaker_than(found, MIDNIGHT)
    assert found.is_weaker_than(whole, MIDNIGHT)


def test_a_rule_ends_its_algorithms_and_uses_and_no_others() -> None:
    """Of all pairs, only the rule's own algorithm and use are denied."""
    found = rules(rule(uses=(RuleUse.WRAP,), deny_from=MIDNIGHT))
    for algorithm, use in product(Algorithm, RuleUse):
        expected = "denied" if (algorithm, use) == (KEM, RuleUse.WRAP) else "none"
        assert level(found, MIDNIGHT, use=use, algorithm=algorithm) == expected


def test_every_operation_that_makes_data_or_keys_has_a_use() -> None:
    """Each operation that is not reading, listing or a change of existing keys is covered."""
    changes = {
        *("retire-key", "disable-key", "enable-key", "schedule-archive", "cancel-archive"),
        *("archive-key", "list-keys", "list-public-keys", "get-key", "get-active-key"),
    }
    reading = {
        *("decrypt", "decapsulate", "unwrap", "re-encrypt"),
        *("verify", "verify-hash", "verify-mu", "verify-mac"),
    }
    of_algorithms = {operation for spec in ALGORITHMS.values() for operation in spec.operations}
    assert USE_OF.keys() == of_algorithms - {Operation(name) for name in changes | reading}
    assert set(USE_OF.values()) == set(WHOLE_USES)
    assert SIGN_HASH_USES.keys() == set(HashAlgorithm)


def test_dates_hold_to_the_instant() -> None:
    """A rule warns from its first instant and denies from its second, not a microsecond before."""
    found = rules(rule(warn_from=MIDNIGHT, deny_from=MIDNIGHT + DAY))
    moment = timedelta(microseconds=1)
    assert level(found, MIDNIGHT - moment) == "none"
    assert level(found, MIDNIGHT) == "warned"
    assert level(found, MIDNIGHT + DAY - moment) == "warned"
    assert level(found, MIDNIGHT + DAY) == "denied"


def test_an_exception_delays_the_denial_of_its_api_key() -> None:
    """The excepted API key is warned until its date; its name and similar numbers change nothing."""
    excepted = RuleException(3, MIDNIGHT + DAY)
    found = rules(rule(deny_from=MIDNIGHT, exceptions=(excepted,)))
    for principal in (PROGRAM, "api-key:3"):
        assert level(found, MIDNIGHT - SECOND, principal) == "none"
        assert level(found, MIDNIGHT, principal) == "warned"
        assert level(found, MIDNIGHT + DAY - SECOND, principal) == "warned"
        assert level(found, MIDNIGHT + DAY, principal) == "denied"
    for principal in (PERSON, "api-key:33", "api-key:30/3", "user:api-key:3", "schedule"):
        assert level(found, MIDNIGHT, principal) == "denied"
    warned = found.assess("default", KEM, RuleUse.ENCRYPT, PROGRAM, MIDNIGHT)
    assert warned is not None
    assert warned.notice.sunset == MIDNIGHT + DAY


@pytest.mark.parametrize(
    ("patterns", "matching"),
    [
        (("*",), {"default", "cards", "cards.eu", None}),
        (("cards",), {"cards"}),
        (("cards*",), {"cards", "cards.eu"}),
        (("cards.*", "default"), {"cards.eu", "default"}),
    ],
)
def test_keyrings_match_by_name_and_prefix(
    patterns: tuple[str, ...], matching: set[str | None]
) -> None:
    """Only ``*`` covers a public key of another owner, which is in no keyring."""
    found = rules(rule(keyrings=patterns, deny_from=MIDNIGHT))
    keyrings: list[str | None] = ["default", "cards", "cards.eu", None]
    denied = {name for name in keyrings if level(found, MIDNIGHT, keyring=name) == "denied"}
    assert denied == matching


def test_keyrings_and_exceptions_of_a_rule_cost_an_operation_nothing() -> None:
    """An operation under rules of the largest size costs little more than under small rules."""

    def seconds(keyrings: int, exceptions: int) -> float:
        found = rules(
            *(
                rule(
                    f"end-{number:02}",
                    keyrings=(*(f"k{other}*" for other in range(keyrings - 1)), "*"),
                    deny_from=MIDNIGHT,
                    exceptions=tuple(RuleException(1 + key, MIDNIGHT) for key in range(exceptions)),
                )
                for number in range(MAX_RULES)
            )
        )
        ask = partial(found.assess, "cards", KEM, RuleUse.ENCRYPT, "api-key:100/name", MIDNIGHT)
        return min(timeit.repeat(ask, number=5, repeat=9))

    assert seconds(50, 100) < 5 * seconds(1, 1)  # one after another: 50 times


def test_the_strictest_rule_counts() -> None:
    """A denial outweighs a warning, the earlier date the later one, and then the name decides."""
    early = rule("z", warn_from=MIDNIGHT, deny_from=MIDNIGHT + DAY)
    late = rule("a", warn_from=MIDNIGHT, deny_from=MIDNIGHT + 2 * DAY)
    found = rules(late, early)

    def strictest(of: RuleSet, at: datetime) -> str:
        assessed = of.assess("default", KEM, RuleUse.ENCRYPT, PERSON, at)
        assert assessed is not None
        return assessed.notice.rule

    assert strictest(found, MIDNIGHT) == "z"
    assert strictest(found, MIDNIGHT + DAY) == "z"
    assert strictest(found, MIDNIGHT + 2 * DAY) == "z"
    same = rule("b", warn_from=MIDNIGHT, deny_from=MIDNIGHT + DAY)
    assert strictest(rules(early, same), MIDNIGHT) == "b"


BASE: dict[str, Any] = {
    "algorithms": (KEM, OTHER),
    "keyrings": ("cards", "eu.*"),
    "uses": (RuleUse.ENCRYPT, RuleUse.WRAP),
    "successor": Algorithm.X_WING,
    "warn_from": MIDNIGHT,
    "deny_from": MIDNIGHT + DAY,
    "exceptions": (RuleException(3, MIDNIGHT + 2 * DAY),),
}
CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"algorithms": (OTHER,)}, True),
    ({"algorithms": (KEM, OTHER, Algorithm.ML_DSA_65), "successor": None}, False),
    ({"keyrings": ("cards",)}, True),
    ({"keyrings": ("cards", "eu.de*")}, True),
    ({"keyrings": ("cards", "eu*")}, False),
    ({"keyrings": ("*",)}, False),
    ({"uses": (RuleUse.ENCRYPT,)}, True),
    ({"uses": tuple(RuleUse)}, False),
    ({"warn_from": None}, True),
    ({"warn_from": MIDNIGHT + SECOND}, True),
    ({"warn_from": MIDNIGHT - SECOND}, False),
    ({"deny_from": None}, True),
    ({"deny_from": MIDNIGHT + DAY + SECOND}, True),
    ({"deny_from": MIDNIGHT}, False),
    ({"exceptions": ()}, False),
    ({"exceptions": (RuleException(3, MIDNIGHT + 2 * DAY + SECOND),)}, True),
    ({"exceptions": (RuleException(3, MIDNIGHT + DAY),)}, False),
    ({"exceptions": (RuleException(4, MIDNIGHT + DAY),)}, True),
    ({"successor": None}, False),
    ({"name": "other"}, False),
]


@pytest.mark.threat("compromised-gateway")
@pytest.mark.parametrize(("change", "weaker"), CHANGES)
def test_what_is_weaker(change: dict[str, Any], *, weaker: bool) -> None:
    """Each field of a rule can be made stricter, and is refused when it becomes weaker."""
    old = rules(Rule(**{"name": "end", **BASE}))
    new = rules(Rule(**{"name": "end", **BASE, **change}))
    assert new.is_weaker_than(old, MIDNIGHT) is weaker
    assert (
        rules(Rule(**{"name": "second", **BASE}), *new.rules).is_weaker_than(old, MIDNIGHT) is False
    )


def test_the_successor_is_settled_once_a_rule_denies() -> None:
    """After ``deny_from`` a successor can be added, but not changed or removed."""
    old = rules(Rule(**{"name": "end", **BASE, "algorithms": (KEM,)}))
    denied = MIDNIGHT + DAY
    for successor in (None, OTHER):
        new = rules(Rule(**{"name": "end", **BASE, "algorithms": (KEM,), "successor": successor}))
        assert not new.is_weaker_than(old, denied - SECOND)
        assert new.is_weaker_than(old, denied)
    without = rules(Rule(**{"name": "end", **BASE, "algorithms": (KEM,), "successor": None}))
    assert not old.is_weaker_than(without, denied)


@pytest.mark.threat("compromised-gateway")
def test_an_earlier_rule_does_not_replace_a_settled_successor() -> None:
    """A new rule for the same keys that denies earlier must name the successor in force."""
    settled = rule("z", deny_from=MIDNIGHT, keyrings=("cards",), successor=OTHER)
    for other, weaker in (
        ({"successor": Algorithm.X_WING}, True),
        ({"successor": None}, True),
        ({"successor": OTHER}, False),
        ({"successor": Algorithm.X_WING, "deny_from": MIDNIGHT + SECOND}, False),
        ({"successor": Algorithm.X_WING, "keyrings": ("card*",)}, True),
        ({"successor": Algorithm.X_WING, "keyrings": ("mail",)}, False),
        ({"successor": Algorithm.X_WING, "uses": (RuleUse.ENCRYPT,)}, False),
    ):
        earlier = rule("a", **{"deny_from": MIDNIGHT - DAY, **other})
        assert rules(settled, earlier).is_weaker_than(rules(settled), MIDNIGHT) is weaker, other
        assert not rules(settled, earlier).is_weaker_than(rules(settled), MIDNIGHT - SECOND)


def test_a_rule_without_dates_can_be_deleted() -> None:
    """Deletion weakens a rule with a date, unless another rule covers it."""
    assert not rules().is_weaker_than(rules(rule()), MIDNIGHT)
    dated = rule(deny_from=MIDNIGHT)
    assert rules().is_weaker_than(rules(dated), MIDNIGHT)
    broader = rule("broader", deny_from=MIDNIGHT - DAY)
    assert not rules(broader).is_weaker_than(rules(dated, broader), MIDNIGHT)


_instants = st.integers(0, 6).map(lambda days: MIDNIGHT + days * DAY)


@st.composite
def _any_rule(draw: Callable[..., Any]) -> Rule:
    dates = sorted(draw(st.lists(_instants, min_size=2, max_size=2)))
    has = draw(st.tuples(st.booleans(), st.booleans()))
    keys = draw(st.lists(st.sampled_from([3, 4]), unique=True, max_size=2))
    return Rule(
        draw(st.sampled_from("abc")),
        tuple(draw(st.lists(st.sampled_from([KEM, OTHER]), min_size=1, unique=True))),
        tuple(draw(st.lists(st.sampled_from(["*", "a", "a*", "ab*"]), min_size=1, unique=True))),
        tuple(draw(st.lists(st.sampled_from(list(RuleUse)[:2]), min_size=1, unique=True))),
        draw(st.sampled_from([None, Algorithm.X_WING])),
        dates[0] if has[0] else None,
        dates[1] if has[1] else None,
        tuple(RuleException(key, draw(_instants)) for key in keys),
    )


_sets = st.lists(_any_rule(), max_size=3).map(lambda members: rules(*members))
_several = st.lists(_any_rule(), min_size=1, max_size=3, unique_by=lambda rule: rule.name)


@pytest.mark.threat("compromised-gateway")
@settings(max_examples=300)
@given(old=_sets, change=_several | st.sampled_from("abc"), now=_instants)
def test_a_change_that_is_not_weaker_denies_at_least_as_much(
    old: RuleSet, change: list[Rule] | str, now: datetime
) -> None:
    """At every later instant, for every caller, keyring and use, nothing becomes more permitted."""
    try:
        new = old.without_rule(change) if isinstance(change, str) else old.with_rules(change)
    except KeyServiceError:
        return
    if new.is_weaker_than(old, now):
        return
    levels = ["none", "warned", "denied"]
    for at, principal, algorithm, use, keyring in product(
        [MIDNIGHT + days * DAY for days in range(-1, 8)],
        (PERSON, "api-key:3", "api-key:4"),
        (KEM, OTHER),
        list(RuleUse)[:2],
        ("a", "ab", "b", None),
    ):
        before = level(old, at, principal, use, keyring, algorithm)
        after = level(new, at, principal, use, keyring, algorithm)
        assert levels.index(after) >= levels.index(before)


@given(_sets)
@settings(max_examples=50)
def test_the_stored_text_holds_everything(found: RuleSet) -> None:
    """Encoding and decoding keep rules and their digest unchanged."""
    assert rules_of(found.text) == found.rules


def test_a_tenant_has_a_maximum_number_of_rules() -> None:
    """One rule more than the limit is refused. Replacing a rule is always possible."""
    full = rules(*(rule(f"rule-{number:02}") for number in range(MAX_RULES)))
    assert full.with_rules([rule("rule-00", deny_from=MIDNIGHT)]).revision == MAX_RULES + 1
    with pytest.raises(KeyServiceError) as refused:
        full.with_rules([rule("one-more")])
    assert refused.value.kind is ErrorKind.RULE_LIMIT_REACHED


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithms": (KEM, KEM)},
        {"keyrings": ("cards", "cards")},
        {"uses": (RuleUse.WRAP, RuleUse.WRAP)},
        {"exceptions": (RuleException(3, MIDNIGHT), RuleException(3, MIDNIGHT + DAY))},
        {"warn_from": MIDNIGHT + SECOND, "deny_from": MIDNIGHT},
        {"warn_from": MIDNIGHT + timedelta(microseconds=1)},
        {"deny_from": MIDNIGHT.astimezone().replace(tzinfo=None)},
        {"successor": KEM},
        {"successor": Algorithm.ML_DSA_65},
        {"algorithms": (KEM, Algorithm.ML_DSA_65), "successor": OTHER},
    ],
)
def test_contradictory_rules_are_refused(fields: dict[str, Any]) -> None:
    """No rule has duplicate names, denies before it warns, or has a successor of another kind."""
    with pytest.raises(ValueError, match=next(iter(fields)).split("_")[0]):
        rule(**fields)


def test_kinds_have_successors() -> None:
    """Every kind with two current algorithms has a successor. It is never a legacy algorithm."""
    for kind in Kind:
        members = [name for name, spec in ALGORITHMS.items() if spec.kind is kind]
        current = [
            name for name in members if Operation.GENERATE_KEY in ALGORITHMS[name].operations
        ]
        if len(current) > 1:
            rule(algorithms=(current[0],), successor=current[1])
        elif len(members) > 1:
            with pytest.raises(ValueError, match="legacy"):
                rule(algorithms=(members[0],), successor=members[1])
