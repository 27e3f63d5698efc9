"""The rules of a tenant's notices: functions of facts, without I/O.

A rule returns what it found, or None. It runs only if its facts are known. So a key service that
does not respond closes no notice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pqkeep_gateway.access.rate_limit import NEAR
from pqkeep_gateway.access.scopes import GROUPS, Group, Scopes
from pqkeep_gateway.notices import MAX_NAMED, Details, Finding, NoticeKind, Settings
from pqkeep_gateway.storage.database import microseconds, time_of
from pqkeep_gateway.storage.notices import Accounts, ApiKeyFacts
from pqkeep_protocol.audit import KeySurvey, NotableKey, NotableKeys

FEW_REFUSALS = 9
"""So many refusals in four hours are never a rise."""
NEWEST_HOURS = 4
"""The hours that are compared with the others of a day."""
BEYOND_USE = (
    GROUPS[Group.MANAGE_KEYS] | GROUPS[Group.ADMINISTER] | GROUPS[Group.DELETE_KEYRINGS]
) - GROUPS[Group.USE]
"""Operations of API keys that a program does not need to use keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a tenant. None: unknown now."""

    now: datetime
    settings: Settings
    accounts: Accounts
    keys: KeySurvey | None
    refusals: Sequence[int] | None
    """Refusals by hour, of the last 24 hours."""
    quota: tuple[int, int] | None
    """The used part of the monthly quota, and the quota; None without a quota."""

    def days(self, kind: NoticeKind) -> timedelta:
        """Return the threshold of a kind."""
        return timedelta(days=self.settings.of(kind).days)


def findings(facts: Facts) -> Iterator[tuple[NoticeKind, Finding | None]]:
    """Yield what the rules find, by kind. Kinds that the tenant switched off find nothing."""
    for kind, rule in RULES.items():
        yield kind, rule(facts) if facts.settings.enables(kind) else None
    if facts.keys is not None:
        for kind, of_keys in _OF_KEYS.items():
            yield kind, of_keys(facts, facts.keys) if facts.settings.enables(kind) else None
    if facts.refusals is not None:
        kind = NoticeKind.REFUSALS_RISING
        yield kind, _refusals(facts.refusals) if facts.settings.enables(kind) else None


def _destroyed(_: Facts, keys: KeySurvey) -> Finding | None:
    found = keys.scheduled
    return _of_keys(found, at=time_of(found.first[0].at_us)) if found.count else None


def _old(_: Facts, keys: KeySurvey) -> Finding | None:
    return _of_keys(keys.old)


def _unused(facts: Facts, keys: KeySurvey) -> Finding | None:
    return _of_keys(keys.unused, limit=facts.settings.of(NoticeKind.KEY_UNUSED).days)


def _denied(_: Facts, keys: KeySurvey) -> Finding | None:
    if not keys.denied:
        return None
    first = keys.denied[0]
    details = Details(
        count=len(keys.denied),
        names=tuple(denied.rule for denied in keys.denied[:MAX_NAMED]),
        at=first.deny_from,
        used=sum(denied.uses for denied in keys.denied),
    )
    return Finding(details)


def _of_keys(found: NotableKeys, *, at: datetime | None = None, limit: int = 0) -> Finding | None:
    if not found.count:
        return None
    names = tuple(map(_key_name, found.first[:MAX_NAMED]))
    details = Details(count=found.count, names=names, at=at, limit=limit)
    return Finding(details, found.newest_us)


def _key_name(key: NotableKey) -> str:
    if key.algorithm is None:
        return f"every key of the keyring {key.keyring}"
    return f"{key.keyring}/{key.algorithm} v{key.version}"


def _refusals(hours: Sequence[int]) -> Finding | None:
    newest, before = sum(hours[-NEWEST_HOURS:]), sum(hours[:-NEWEST_HOURS])
    if newest <= max(before, FEW_REFUSALS):
        return None
    return Finding(Details(used=newest, limit=before))


def _expiring(facts: Facts) -> Finding | None:
    soon = facts.days(NoticeKind.API_KEY_EXPIRING)
    found = [
        (key, key.expires_at)
        for key in facts.accounts.api_keys
        if key.expires_at is not None and key.expires_at <= facts.now + soon
    ]
    found.sort(key=lambda pair: (pair[1], pair[0].version))
    since = [max(expires_at - soon, key.created_at) for key, expires_at in found]
    at = found[0][1] if found else None
    return _of_api_keys([key for key, _ in found], since, Details(at=at))


def _api_key_unused(facts: Facts) -> Finding | None:
    kind = NoticeKind.API_KEY_UNUSED
    longest = facts.days(kind)
    found = [key for key in facts.accounts.api_keys if key.last_active_at + longest <= facts.now]
    found.sort(key=lambda key: (key.last_active_at, key.version))
    since = [key.last_active_at + longest for key in found]
    return _of_api_keys(found, since, Details(limit=facts.settings.of(kind).days))


def _too_powerful(facts: Facts) -> Finding | None:
    longest = facts.days(NoticeKind.API_KEY_TOO_POWERFUL)
    reasons = [
        (key, reason)
        for key in facts.accounts.api_keys
        if (reason := _excess(key, facts.now, longest))
    ]
    reason = reasons[0][1] if reasons else ""
    found = [key for key, _ in reasons]
    return _of_api_keys(found, [key.created_at for key in found], Details(reason=reason))


def _excess(key: ApiKeyFacts, now: datetime, longest: timedelta) -> str:
    """Return the reason why an API key's rights are too wide, empty if they are not."""
    if key.scopes is None:
        return "has no scopes"
    is_observed = key.created_at + longest <= now < key.last_active_at + longest
    administered_at = key.last_administered_at or key.created_at
    if is_observed and administered_at + longest <= now and _may_go_beyond_use(key.scopes):
        return "may administer, and only uses keys"
    return ""


def _may_go_beyond_use(scopes: Scopes) -> bool:
    return any(map(scopes.may_call, BEYOND_USE))


def _of_api_keys(
    found: Sequence[ApiKeyFacts], since: Sequence[datetime], details: Details
) -> Finding | None:
    if not found:
        return None
    names = tuple(key.shown_name for key in found[:MAX_NAMED])
    full = Details(
        count=len(found), names=names, at=details.at, limit=details.limit, reason=details.reason
    )
    return Finding(full, microseconds(max(since)))


def _quota(facts: Facts) -> Finding | None:
    if facts.quota is None:
        return None
    used, quota = facts.quota
    if not quota or used < NEAR * quota:
        return None
    return Finding(Details(used=used, limit=quota), level=10 * used // quota)


def _members(facts: Facts) -> Finding | None:
    members = facts.accounts.without_factor
    if not members.count:
        return None
    return Finding(
        Details(count=members.count, names=members.first), microseconds(members.newest_at)
    )


def _approvals(facts: Facts) -> Finding | None:
    waiting = facts.accounts.approvals
    return Finding(Details(count=waiting.count), waiting.newest_us) if waiting.count else None


def _disabled_webhooks(facts: Facts) -> Finding | None:
    disabled = facts.accounts.disabled_webhooks
    if not disabled:
        return None
    return Finding(Details(count=len(disabled), names=disabled[:MAX_NAMED]))


RULES: Mapping[NoticeKind, Callable[[Facts], Finding | None]] = {
    NoticeKind.API_KEY_EXPIRING: _expiring,
    NoticeKind.API_KEY_UNUSED: _api_key_unused,
    NoticeKind.API_KEY_TOO_POWERFUL: _too_powerful,
    NoticeKind.QUOTA_NEARLY_USED: _quota,
    NoticeKind.MEMBER_WITHOUT_FACTOR: _members,
    NoticeKind.APPROVAL_WAITING: _approvals,
    NoticeKind.WEBHOOK_DISABLED: _disabled_webhooks,
}
_OF_KEYS: Mapping[NoticeKind, Callable[[Facts, KeySurvey], Finding | None]] = {
    NoticeKind.KEY_DESTRUCTION: _destroyed,
    NoticeKind.KEY_OLD: _old,
    NoticeKind.KEY_UNUSED: _unused,
    NoticeKind.RULE_DENIES: _denied,
}
