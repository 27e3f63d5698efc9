"""Migration: the algorithms in use, the rules that end them, and campaigns that move data."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.campaign_data import CampaignData, CanaryState
from pqkeep_gateway.api.inventory import InventoryData, InventoryKeyData, RuleAssessment
from pqkeep_gateway.api.rules import PROFILES, PreviewData, Profile, RuleData
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_gateway.portal.rendering import instant
from pqkeep_gateway.portal.views.algorithms import ABOUT, About
from pqkeep_gateway.portal.views.migration_report import report
from pqkeep_gateway.portal.views.people import addresses
from pqkeep_protocol.algorithms import CURRENT, Algorithm
from pqkeep_protocol.audit import MAX_INVENTORY_LISTED
from pqkeep_protocol.rules import WHOLE_USES, RuleUse

DAYS = 30
"""The days in which uses are counted, as in the preview of a rule."""
MOST_READ = 10
"""Pages of the inventory that one visit reads, at most."""
SHOWN = 5
"""Rules and campaigns on one page. Each costs one more request."""
NAMED = 10
"""Principals of a rule or canary that are named. The others are counted."""
_MAX_DIGITS = 3
_STATES = ("denies", "warns", "announced")
"""The states of a rule, the strictest first."""


@dataclass(slots=True)
class InUse:
    """An algorithm with the keys and uses of a tenant."""

    about: About
    versions: int = 0
    destroyed: int = 0
    keyrings: set[str] = field(default_factory=set)
    uses: int = 0
    last_used_at: str | None = None
    rules: dict[str, RuleAssessment] = field(default_factory=dict)
    are_rules_known: bool = True
    confidential_longer: set[str] = field(default_factory=set)
    """The keyrings with data that stay confidential after a rule's date."""

    def add(self, key: InventoryKeyData) -> None:
        """Count a key version."""
        self.versions += 1
        self.destroyed += key.private_key == "destroyed"
        self.keyrings.add(key.keyring)
        self.uses += key.uses
        self.last_used_at = max(filter(None, (self.last_used_at, key.last_used_at)), default=None)
        self.are_rules_known &= key.rules is not None
        for rule in key.rules or ():
            self.rules[rule.rule] = rule
            if rule.confidential_longer:
                self.confidential_longer.add(key.keyring)


class Inventory(NamedTuple):
    """The first pages of an inventory, by algorithm."""

    algorithms: tuple[InUse, ...]
    first: InventoryData | None
    """The first page: what the tenant's keys have in common."""
    read: int
    """The number of key versions on the read pages."""


@dataclass(slots=True)
class Refused:
    """The uses by one principal that a rule would have refused."""

    principal: str
    uses: int = 0
    last_used_at: str = ""
    keys: set[str] = field(default_factory=set)
    """The used keyrings, each with the algorithm."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its present state and its preview."""

    data: RuleData
    state: str
    """The present state. Empty: the rule has no dates."""
    preview: Section
    refused: tuple[Refused, ...]


async def _inventory(reader: Reader, since: datetime) -> tuple[Section, Inventory]:
    """Return the first error, and what was read."""
    found: dict[Algorithm, InUse] = {}
    first: InventoryData | None = None
    section, after, read = Section(), None, 0
    for _ in range(MOST_READ):
        section = await reader.section(
            "list_inventory", since=timestamp(since), after=after, limit=MAX_INVENTORY_LISTED
        )
        page: InventoryData | None = section.data
        if page is None:
            break
        first = first or page
        read += len(page.keys)
        for key in page.keys:
            found.setdefault(key.algorithm, InUse(ABOUT[key.algorithm])).add(key)
        if not (after := page.next or None):
            break
    ordered = tuple(found[algorithm] for algorithm in Algorithm if algorithm in found)
    return section, Inventory(ordered, first, read)


def refused(preview: PreviewData | None) -> tuple[Refused, ...]:
    """Return the principals of a preview, most uses first."""
    found: dict[str, Refused] = {}
    for use in preview.refused if preview else ():
        entry = found.setdefault(use.principal, Refused(use.principal))
        entry.uses += use.uses
        entry.last_used_at = max(entry.last_used_at, use.last_used_at)
        entry.keys.add(f"{use.keyring or 'a supplied public key'}: {use.algorithm}")
    return tuple(sorted(found.values(), key=lambda entry: -entry.uses))


def state_of(rule: RuleData, now: datetime) -> str:
    """Return the state of a rule; empty if it has no dates."""
    times = (rule.deny_from, rule.warn_from)
    for state, time in zip(_STATES, times, strict=False):
        if time is not None and instant(time) <= now:
            return state
    return _STATES[-1] if any(times) else ""


async def _rules(reader: Reader, rules: Iterable[RuleData], now: datetime) -> tuple[Rule, ...]:
    shown = tuple(rules)
    previews = await asyncio.gather(
        *(
            # Without the rule's name, which would be one more read of all rules.
            reader.section(
                "preview_rules",
                algorithms=",".join(rule.algorithms),
                keyrings=",".join(rule.keyrings),
                uses=",".join(rule.uses),
            )
            for rule in shown
        )
    )
    return tuple(
        Rule(rule, state_of(rule, now), preview, refused(preview.data))
        for rule, preview in zip(shown, previews, strict=True)
    )


def _place(query: Mapping[str, str], name: str) -> int:
    """Return where a part of a list begins."""
    text = query.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else 0


def _next(listed: Sequence[object], place: int) -> int | None:
    return place + SHOWN if len(listed) > place + SHOWN else None


async def _api_keys(reader: Reader, rules: Iterable[RuleData]) -> Mapping[int, str]:
    """Return the names of excepted API keys by version: "" for an absent one, and no entry if unknown."""
    tenant = str(reader.principal.tenant)
    listed = (exception.api_key for rule in rules for exception in rule.exceptions[:NAMED])
    versions = sorted(set(listed))[:NAMED]
    found = await asyncio.gather(
        *(
            reader.section(
                "list_api_keys", tenant_id=tenant, details=True, version=version, limit=1
            )
            for version in versions
        )
    )
    return {
        version: section.data.api_keys[0].name or f"…{section.data.api_keys[0].key_last4}"
        if section.data.api_keys
        else ""
        for version, section in zip(versions, found, strict=True)
        if section.data
    }


async def _tried(reader: Reader, choice: str) -> Section:
    """Return the preview of a new rule that the form names: a profile or an algorithm."""
    if not choice:
        return Section()
    name = "profile" if choice in tuple(Profile) else "algorithms"
    values: dict[str, Any] = {name: choice}
    return await reader.section("preview_rules", **values)


def _is_closed(campaign: CampaignData) -> bool:
    return campaign.state == "closed"


async def _read(visit: Visit) -> Content:
    reader, query = visit.reader, visit.query
    now = datetime.now(UTC)
    choice = query.get("end", "").strip()
    (
        (inventory_section, inventory),
        listed,
        tried,
        campaigns,
        elsewhere,
        names,
    ) = await asyncio.gather(
        _inventory(reader, now - timedelta(days=DAYS)),
        reader.section("list_rules"),
        _tried(reader, choice),
        reader.section("list_campaigns"),
        reader.section("list_external_keys"),
        addresses(reader),
    )
    rules = listed.data.rules if listed.data else ()
    ordered = sorted(campaigns.data.campaigns, key=_is_closed) if campaigns.data else []
    at_rule, at_campaign = _place(query, "rules"), _place(query, "campaigns")
    in_sight = ordered[at_campaign : at_campaign + SHOWN]
    seen = rules[at_rule : at_rule + SHOWN]
    shown_rules, api_keys, *progress = await asyncio.gather(
        _rules(reader, seen, now),
        _api_keys(reader, seen),
        *(reader.section("get_campaign", name=campaign.name) for campaign in in_sight),
    )
    return {
        "inventory": inventory,
        "inventory_error": inventory_section.error,
        "days": DAYS,
        "year_begin": f"{now:%Y}-01-01",
        "listed": listed,
        "rules": shown_rules,
        "api_keys": api_keys,
        "next_rules": _next(rules, at_rule),
        "tried": tried,
        "tried_refused": refused(tried.data),
        "choice": choice,
        "campaigns": campaigns,
        "shown_campaigns": list(zip(in_sight, progress, strict=True)),
        "next_campaigns": _next(ordered, at_campaign),
        "running": CanaryState.RUNNING,
        "elsewhere": elsewhere,
        "names": names,
        "most_named": NAMED,
        "profiles": [(name.value, text) for name, (text, _) in PROFILES.items()],
        "algorithms": [algorithm.value for algorithm in CURRENT],
        "uses": [use.value for use in RuleUse],
        "whole_uses": [use.value for use in WHOLE_USES],
    }


PAGES: tuple[Page, ...] = (
    Page(
        path="/migration",
        title="Migration",
        template="migration/overview.html",
        permission=Permission.VIEW_KEYS,
        read=_read,
        download=report,
        icon="migration",
    ),
)
