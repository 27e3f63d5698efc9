"""A tenant's rules as a value: which of them warns of a use, denies it, or is weaker than another.

This file does no I/O. A rule ends algorithms for new data and new keys; reading is never asked
about. An exception of an API key delays a rule's denial for it, and the rule still warns.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from hashlib import sha256
from typing import NamedTuple

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import API_KEY
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyringName, TenantId
from pqkeep_protocol.rules import (
    ALL_KEYRINGS,
    MAX_RULES,
    Rule,
    RuleName,
    RuleNotice,
    RuleUse,
    ended_uses,
    rules_text,
)


class Unusable(Enum):
    """Why a tenant's rules cannot be asked."""

    NOT_LOADED = auto()
    DAMAGED = auto()
    """The stored rules are changed or outdated. New data is refused."""


class Assessment(NamedTuple):
    """The strictest rule for an operation."""

    notice: RuleNotice
    is_denied: bool


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules of a tenant."""

    tenant: TenantId
    rules: tuple[Rule, ...] = ()
    """The rules, sorted by name."""
    revision: int = 0
    """Counts the changes. 0: nothing is stored."""
    _of_use: dict[tuple[Algorithm, RuleUse], "tuple[_Prepared, ...]"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def text(self) -> bytes:
        """The rules as JSON."""
        return rules_text(self.rules)

    @property
    def sha256(self) -> bytes:
        """The digest of the rules (32 bytes), which the record of a change has."""
        return sha256(self.text).digest()

    def assess(
        self,
        keyring: KeyringName | None,
        algorithm: Algorithm,
        use: RuleUse,
        principal: str,
        now: datetime,
    ) -> Assessment | None:
        """Return the strictest rule for a use; None if no rule warns of it or denies it.

        None as the keyring means another owner's public key. Among equally strict rules, the
        first by name counts.
        """
        rules = self._of_use.get((algorithm, use))
        if rules is None:
            rules = self._of_use[algorithm, use] = tuple(
                _prepared(rule)
                for rule in self.rules
                if algorithm in rule.algorithms and use in ended_uses(rule.uses)
            )
        caller, _, _ = principal.partition("/")
        strictest: Assessment | None = None
        for rule, names, prefixes, delays in rules:
            if (
                "" in prefixes
                if keyring is None
                else keyring in names or keyring.startswith(prefixes)
            ):
                found = _assess(rule, delays.get(caller), now)
                if found and (strictest is None or _strictness(found) < _strictness(strictest)):
                    strictest = found
        return strictest

    def is_ended(
        self, keyring: KeyringName, algorithm: Algorithm, uses: Iterable[RuleUse], now: datetime
    ) -> bool:
        """Return whether all uses are denied to all callers."""
        return all(
            any(
                algorithm in rule.algorithms
                and use in rule.uses
                and rule.deny_from is not None
                and _matches(rule, keyring)
                and all(at <= now for at in (rule.deny_from, *_delays(rule)))
                for rule in self.rules
            )
            for use in uses
        )

    def find(self, name: RuleName) -> Rule:
        """Return a rule. Raises RULE_NOT_FOUND."""
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise KeyServiceError(ErrorKind.RULE_NOT_FOUND)

    def with_rules(self, rules: Collection[Rule]) -> "RuleSet":
        """Add or replace rules of different names, in one revision.

        Equal rules do not change. Raises RULE_LIMIT_REACHED.
        """
        names = {rule.name for rule in rules}
        others = [other for other in self.rules if other.name not in names]
        if len(others) + len(rules) > MAX_RULES:
            raise KeyServiceError(ErrorKind.RULE_LIMIT_REACHED)
        return self._with(*others, *rules)

    def without_rule(self, name: RuleName) -> "RuleSet":
        """Delete a rule. Raises RULE_NOT_FOUND."""
        gone = self.find(name)
        return self._with(*(rule for rule in self.rules if rule is not gone))

    def with_new_mac(self) -> "RuleSet":
        """Return the next revision, which differs in its MAC only."""
        return replace(self, revision=self.revision + 1)

    def is_weaker_than(self, old: "RuleSet", now: datetime) -> bool:
        """Return whether a rule of ``old`` is not covered by any rule here.

        If this is False, whatever ``old`` denies at any instant from ``now`` on is denied here.
        """
        return any(
            (_has_effect(rule) and not any(covers(new, rule, now) for new in self.rules))
            or any(
                new not in old.rules and _replaces_successor(new, rule, now) for new in self.rules
            )
            for rule in old.rules
        )

    def _with(self, *rules: Rule) -> "RuleSet":
        by_name = tuple(sorted(rules, key=lambda rule: rule.name))
        if by_name == self.rules:
            return self
        return replace(self, rules=by_name, revision=self.revision + 1)


def _has_effect(rule: Rule) -> bool:
    """Return whether a rule ever warns or denies."""
    return rule.warn_from is not None or rule.deny_from is not None


def covers(new: Rule, old: Rule, now: datetime) -> bool:
    """Return whether a rule is at least as strict as another, at every instant and for every caller."""
    return all(_differences(new, old, now))


def _differences(new: Rule, old: Rule, now: datetime) -> Iterator[bool]:
    yield set(old.algorithms) <= set(new.algorithms)
    yield ended_uses(old.uses) <= ended_uses(new.uses)
    yield all(_covers_keyrings(new.keyrings, pattern) for pattern in old.keyrings)
    yield _is_no_later(new.warn_from, old.warn_from)
    yield _is_no_later(new.deny_from, old.deny_from)
    allowed = {exception.api_key: exception.until for exception in old.exceptions}
    yield all(
        exception.api_key in allowed and exception.until <= allowed[exception.api_key]
        for exception in new.exceptions
    )
    yield not _is_settled(old, now) or new.successor is old.successor


def _is_settled(rule: Rule, now: datetime) -> bool:
    """Return whether a rule denies, and its successor can no longer change."""
    return rule.deny_from is not None and rule.deny_from <= now and rule.successor is not None


def _replaces_successor(new: Rule, old: Rule, now: datetime) -> bool:
    """Return whether a new rule denies before a settled one, and names another successor."""
    return (
        _is_settled(old, now)
        and new.successor is not old.successor
        and old.deny_from is not None
        and new.deny_from is not None
        and new.deny_from <= old.deny_from
        and RuleUse.GENERATE_KEY in {*new.uses} & {*old.uses}
        and not set(new.algorithms).isdisjoint(old.algorithms)
        and any(
            _covers_keyrings((one,), other) or _covers_keyrings((other,), one)
            for one in new.keyrings
            for other in old.keyrings
        )
    )


def _is_no_later(new: datetime | None, old: datetime | None) -> bool:
    return old is None or (new is not None and new <= old)


def _covers_keyrings(patterns: tuple[str, ...], pattern: str) -> bool:
    """Return whether one of the patterns matches every name that ``pattern`` matches."""
    if pattern in patterns:
        return True
    name = pattern.removesuffix("*")
    return any(other.endswith("*") and name.startswith(other[:-1]) for other in patterns)


def _matches(rule: Rule, keyring: KeyringName) -> bool:
    return _covers_keyrings(rule.keyrings, keyring)


class _Prepared(NamedTuple):
    """A rule in a form that is cheap to ask, however many keyrings and exceptions it has."""

    rule: Rule
    names: frozenset[str]
    prefixes: tuple[str, ...]
    delays: Mapping[str, datetime]
    """The end of the exception, by the API key's principal without its name."""


def _prepared(rule: Rule) -> _Prepared:
    return _Prepared(
        rule,
        frozenset(name for name in rule.keyrings if not name.endswith(ALL_KEYRINGS)),
        tuple(name[:-1] for name in rule.keyrings if name.endswith(ALL_KEYRINGS)),
        {f"{API_KEY}{exception.api_key}": exception.until for exception in rule.exceptions},
    )


def _assess(rule: Rule, delay: datetime | None, now: datetime) -> Assessment | None:
    """Return the effect of a matching rule on a caller with an exception until ``delay``."""
    denies_from = rule.deny_from
    if denies_from is not None and delay is not None:
        denies_from = max(denies_from, delay)
    begins = [at for at in (rule.warn_from, rule.deny_from) if at is not None]
    if not begins or now < min(begins):
        return None
    notice = RuleNotice(rule.name, min(begins), denies_from, rule.successor)
    return Assessment(notice, denies_from is not None and denies_from <= now)


def _delays(rule: Rule) -> Iterator[datetime]:
    return (exception.until for exception in rule.exceptions)


def _strictness(found: Assessment) -> tuple[object, ...]:
    """Return a sort key: the strictest first."""
    notice = found.notice
    return (
        not found.is_denied,
        notice.sunset is None,
        notice.sunset or notice.deprecation,
        notice.deprecation,
        notice.rule,
    )
