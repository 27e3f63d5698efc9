"""Notices: what needs attention, and the action that ends it.

One table has all kinds. A *rule* is a function of facts: it opens a notice, and the notice closes
when the rule finds nothing more. An *event* opens a notice in its own transaction, and the notice
closes after some days. Both have one open notice for each kind and subject, with a count. A notice
is *raised* again when its cause grows. It is then unread again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from msgspec import Struct

from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import TenantId

DAY = timedelta(days=1)
MAX_NAMED = 5
"""Subjects that a notice names. The others are counted."""
MAX_DETAIL = 200
"""Characters of a text in the details."""


class NoticeKind(StrEnum):
    """The kinds of notices."""

    KEY_DESTRUCTION = "key-destruction"
    KEY_OLD = "key-old"
    KEY_UNUSED = "key-unused"
    RULE_DENIES = "rule-denies"
    API_KEY_EXPIRING = "api-key-expiring"
    API_KEY_UNUSED = "api-key-unused"
    API_KEY_NEW_NETWORK = "api-key-new-network"
    API_KEY_TOO_POWERFUL = "api-key-too-powerful"
    REFUSALS_RISING = "refusals-rising"
    RATE_LIMIT_USED_UP = "rate-limit-used-up"
    QUOTA_NEARLY_USED = "quota-nearly-used"
    MEMBER_WITHOUT_FACTOR = "member-without-factor"
    APPROVAL_WAITING = "approval-waiting"
    WEBHOOK_DISABLED = "webhook-disabled"
    FACTOR_REMOVED = "factor-removed"
    PASSKEY_COPIED = "passkey-copied"
    REFRESH_TOKEN_REUSED = "refresh-token-reused"  # noqa: S105 - a name
    BACKUP_OVERDUE = "backup-overdue"
    EVENTS_REFUSED = "events-refused"
    EVENTS_WAITING = "events-waiting"
    WITNESS_CONFLICT = "witness-conflict"
    TENANT_DELETION = "tenant-deletion"
    PART_NOT_READY = "part-not-ready"
    SHARD_NOT_READY = "shard-not-ready"
    CERTIFICATE_EXPIRING = "certificate-expiring"
    ROOT_KEY_OLD = "root-key-old"
    MAIL_WAITING = "mail-waiting"
    OPERATORS_UNNAMED = "operators-unnamed"


class Details(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of a notice. Kinds use different fields."""

    count: int = 1
    names: tuple[str, ...] = ()
    """The first subjects: keys, API keys, addresses, parts. At most MAX_NAMED."""
    at: datetime | None = None
    """The time of the next destruction, expiry or denial; of an event, its own."""
    used: int = 0
    limit: int = 0
    """The used part of a limit, and the limit; or days."""
    source_address: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found."""

    details: Details
    level: int = 0
    """A number that grows with the cause, for example a time.

    If it grows, the notice is raised again.
    """


@dataclass(frozen=True, slots=True)
class Notice:
    """A stored notice."""

    id: UUID
    tenant: TenantId
    """INSTALLATION for notices to operators."""
    kind: NoticeKind
    subject: str
    """Empty if the kind has one notice for all subjects."""
    details: Details
    opened_at: datetime
    raised_at: datetime
    """The time at which its cause last grew."""
    dismissed_at: datetime | None = None
    closed_at: datetime | None = None
    seen_by: Sequence[str] = ()
    """The addresses of the first people who have read it since it was raised."""
    seen: int = 0
    """The number of these people."""
    is_new: bool = True
    """Whether the reader has not read it since it was raised."""

    @property
    def text(self) -> str:
        """The notice as a sentence."""
        return KINDS[self.kind].sentence(self.details)

    @property
    def path(self) -> str:
        """The portal's page that lists the subjects, beneath /portal."""
        return KINDS[self.kind].path(self.details)


class Severity(StrEnum):
    """How bad a notice is."""

    INFO = "info"
    WARNING = "warning"
    DANGER = "danger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One row of the table of kinds."""

    title: str
    """What the kind is about, for lists of settings."""
    sentence: Callable[[Details], str]
    path: Callable[[Details], str]
    action: str
    """The link's text: what to do."""
    severity: Severity = Severity.WARNING
    days: int = 0
    """The default threshold in days; 0: the kind has none."""
    lasts: timedelta | None = None
    """For an event: how long its notice stays open. None: a rule closes it."""
    raises_again: bool = True
    """Whether a grown cause makes an open notice new again."""
    for_operators: bool = False
    may_be_dismissed: bool = True


def _at(path: str) -> Callable[[Details], str]:
    return lambda _: path


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _named(details: Details) -> str:
    """Return the names and the number of the others: ``a, b and 3 more``."""
    others = details.count - len(details.names)
    if others > 0 and details.names:
        return f"{', '.join(details.names)} and {others:,} more"
    *first, last = details.names or ("",)
    return f"{', '.join(first)} and {last}" if first else last


def _when(details: Details) -> str:
    return "" if details.at is None else f"{details.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _destruction(details: Details) -> str:
    if details.count == 1:
        return f"{_named(details)} will be destroyed at {_when(details)}."
    what = _many(details.count, "key version")
    return f"{what} will be destroyed, the first at {_when(details)}: {_named(details)}."


def _old(details: Details) -> str:
    if details.count == 1:
        return f"The active key {_named(details)} is older than its keyring's schedule, or a year."
    what = _many(details.count, "active key")
    return f"{what} are older than their keyrings' schedule, or a year: {_named(details)}."


def _unused(details: Details) -> str:
    days = _many(details.limit, "day")
    if details.count == 1:
        return f"The active key {_named(details)} was not used for {days}."
    return f"{_many(details.count, 'active key')} were not used for {days}: {_named(details)}."


def _denies(details: Details) -> str:
    uses = _many(details.used, "use")
    return (
        f"The rule {_named(details)} denies from {_when(details)}, and it would have refused"
        f" {uses} in the last 30 days."
    )


def _expiring(details: Details) -> str:
    if details.count == 1:
        return f"The API key {_named(details)} expires at {_when(details)}."
    what = _many(details.count, "API key")
    return f"{what} expire soon, the first at {_when(details)}: {_named(details)}."


def _api_key_unused(details: Details) -> str:
    days = _many(details.limit, "day")
    if details.count == 1:
        return f"The API key {_named(details)} was not used for {days}."
    return f"{_many(details.count, 'API key')} were not used for {days}: {_named(details)}."


def _too_powerful(details: Details) -> str:
    if details.count == 1:
        return f"The API key {_named(details)} may do more than it needs: {details.reason}."
    what = _many(details.count, "API key")
    return f"{what} may do more than they need: {_named(details)}. The first {details.reason}."


def _members(details: Details) -> str:
    if details.count == 1:
        return f"{_named(details)} has no second factor."
    return f"{_many(details.count, 'member')} have no second factor: {_named(details)}."


def _rate(details: Details) -> str:
    if not details.names:
        return "The rate limit is used up: requests were refused."
    return (
        f"The rate limit is used up: API key {_named(details)} sent"
        f" {_many(details.used, 'request')} in two minutes."
    )


def _parts(details: Details) -> str:
    return f"{_named(details)}: {details.reason}."


KINDS: Mapping[NoticeKind, Kind] = {
    NoticeKind.KEY_DESTRUCTION: Kind(
        title="Key versions are scheduled for destruction",
        sentence=_destruction,
        path=_at("/keys?q=is%3Ascheduled&sort=destruction"),
        action="See the keys, or cancel",
        severity=Severity.DANGER,
    ),
    NoticeKind.KEY_OLD: Kind(
        title="Active keys are older than their schedule",
        sentence=_old,
        path=_at("/keys?q=status%3Aactive&sort=created"),
        action="Rotate them",
        days=365,
    ),
    NoticeKind.KEY_UNUSED: Kind(
        title="Active keys are not used",
        sentence=_unused,
        path=lambda details: f"/keys?q=status%3Aactive+unused%3A{details.limit or 90}d",
        action="Retire them",
        severity=Severity.INFO,
        days=90,
    ),
    NoticeKind.RULE_DENIES: Kind(
        title="A migration rule is about to deny operations that are still used",
        sentence=_denies,
        path=_at("/migration"),
        action="See who uses them",
        days=30,
    ),
    NoticeKind.API_KEY_EXPIRING: Kind(
        title="API keys expire soon",
        sentence=_expiring,
        path=_at("/api-keys"),
        action="Rotate them",
        days=14,
    ),
    NoticeKind.API_KEY_UNUSED: Kind(
        title="API keys are not used",
        sentence=_api_key_unused,
        path=_at("/api-keys"),
        action="Revoke them",
        severity=Severity.INFO,
        days=90,
    ),
    NoticeKind.API_KEY_NEW_NETWORK: Kind(
        title="An API key is used from a new network",
        sentence=lambda details: (
            f"The API key {_named(details)} was used from a new network:"
            f" {details.source_address}, at {_when(details)}."
        ),
        path=_at("/api-keys"),
        action="Revoke it, or allow only its networks",
        lasts=7 * DAY,
    ),
    NoticeKind.API_KEY_TOO_POWERFUL: Kind(
        title="API keys may do more than they need",
        sentence=_too_powerful,
        path=_at("/api-keys"),
        action="Rotate them with scopes",
        severity=Severity.INFO,
        days=30,
    ),
    NoticeKind.REFUSALS_RISING: Kind(
        title="Refusals increase",
        sentence=lambda details: (
            f"Refusals increase: {details.used:,} in the last 4 hours, and {details.limit:,} in"
            " the 20 hours before."
        ),
        path=_at("/audit?outcome=refused"),
        action="See refusals",
    ),
    NoticeKind.RATE_LIMIT_USED_UP: Kind(
        title="The rate limit is used up",
        sentence=_rate,
        path=_at("/api-keys"),
        action="See API keys",
        lasts=timedelta(minutes=15),
        raises_again=False,
    ),
    NoticeKind.QUOTA_NEARLY_USED: Kind(
        title="The month's quota is nearly used",
        sentence=lambda details: (
            f"{details.used:,} of this month's {details.limit:,} operations are used."
        ),
        path=_at("/billing"),
        action="See plans",
    ),
    NoticeKind.MEMBER_WITHOUT_FACTOR: Kind(
        title="Members have no second factor",
        sentence=_members,
        path=_at("/team"),
        action="See members",
    ),
    NoticeKind.APPROVAL_WAITING: Kind(
        title="Requests wait for the approval of a second person",
        sentence=lambda details: (
            "A request waits for the approval of a second person."
            if details.count == 1
            else f"{details.count:,} requests wait for the approval of a second person."
        ),
        path=_at("/approvals"),
        action="See approvals",
        may_be_dismissed=False,  # the person that asked could hide it from those who decide
    ),
    NoticeKind.WEBHOOK_DISABLED: Kind(
        title="Webhooks were disabled after failures",
        sentence=lambda details: (
            f"The webhook {_named(details)} was disabled: its receiver took no messages."
            if details.count == 1
            else f"{details.count:,} webhooks were disabled, because their receivers took no messages:"
            f" {_named(details)}."
        ),
        path=_at("/webhooks"),
        action="Enable it, or remove it",
    ),
    NoticeKind.FACTOR_REMOVED: Kind(
        title="A member removed a second factor",
        sentence=lambda details: (
            f"{_named(details)} removed the second factor at {_when(details)}."
        ),
        path=_at("/audit?operation=disable-mfa"),
        action="Check that this was intended",
        severity=Severity.DANGER,
        lasts=7 * DAY,
    ),
    NoticeKind.PASSKEY_COPIED: Kind(
        title="A passkey may have been copied",
        sentence=lambda details: (
            f"A passkey of {_named(details)} was used with an old counter, from"
            f" {details.source_address} at {_when(details)}. It was refused: a copy may exist."
        ),
        path=_at("/audit?operation=passkey-cloned"),
        action="Ask the person to remove it",
        severity=Severity.DANGER,
        lasts=7 * DAY,
    ),
    NoticeKind.REFRESH_TOKEN_REUSED: Kind(
        title="A copied session was used",
        sentence=lambda details: (
            f"A refresh token of {_named(details)} was used twice, from"
            f" {details.source_address} at {_when(details)}. The session has ended."
        ),
        path=_at("/audit?operation=refresh-token-reused"),
        action="Find out who copied it",
        severity=Severity.DANGER,
        lasts=7 * DAY,
    ),
    NoticeKind.BACKUP_OVERDUE: Kind(
        title="No backup, or an old one",
        sentence=lambda details: (
            "No backup was made yet. Run pqkeepd backup."
            if details.at is None
            else f"The newest backup is of {_when(details)}. Run pqkeepd backup."
        ),
        path=_at("/operator"),
        action="See the installation",
        severity=Severity.DANGER,
        for_operators=True,
    ),
    NoticeKind.EVENTS_REFUSED: Kind(
        title="The audit log refused events",
        sentence=lambda details: (
            f"Refused by the audit log: {_many(details.count, 'event')}. See the runbook."
        ),
        path=_at("/operator"),
        action="See the installation",
        severity=Severity.DANGER,
        for_operators=True,
    ),
    NoticeKind.EVENTS_WAITING: Kind(
        title="Events wait for the audit log",
        sentence=lambda details: (
            f"Events wait more than {_many(details.limit, 'minute')} for the audit log."
        ),
        path=_at("/operator"),
        action="See the installation",
        for_operators=True,
    ),
    NoticeKind.WITNESS_CONFLICT: Kind(
        title="A witness has another history of the audit log",
        sentence=lambda details: (
            f"Another history of the audit log was cosigned by: {_named(details)}. See the runbook."
        ),
        path=_at("/operator"),
        action="See the installation",
        severity=Severity.DANGER,
        for_operators=True,
    ),
    NoticeKind.TENANT_DELETION: Kind(
        title="Tenants will be deleted",
        sentence=lambda details: f"To be deleted, with all keys: {_many(details.count, 'tenant')}.",
        path=_at("/operator/tenants?status=suspended"),
        action="See Tenants",
        severity=Severity.DANGER,
        for_operators=True,
    ),
    NoticeKind.PART_NOT_READY: Kind(
        title="A part of the installation is not ready",
        sentence=_parts,
        path=_at("/operator"),
        action="See the installation",
        severity=Severity.DANGER,
        for_operators=True,
    ),
    NoticeKind.SHARD_NOT_READY: Kind(
        title="A shard is not ready",
        sentence=lambda details: f"Shard {_parts(details)}",
        path=_at("/operator"),
        action="See the installation",
        severity=Severity.DANGER,
        for_operators=True,
    ),
    NoticeKind.CERTIFICATE_EXPIRING: Kind(
        title="A certificate expires",
        sentence=lambda details: (
            f"The certificate {_named(details)} expires, or has expired, at {_when(details)}."
        ),
        path=_at("/operator"),
        action="See the installation",
        for_operators=True,
    ),
    NoticeKind.ROOT_KEY_OLD: Kind(
        title="The root key is old",
        sentence=lambda _: "The root key is more than a year old. Run pqkeepd root-key rotate.",
        path=_at("/operator"),
        action="See the installation",
        for_operators=True,
    ),
    NoticeKind.MAIL_WAITING: Kind(
        title="Messages wait for delivery",
        sentence=lambda details: f"Messages wait more than {_many(details.limit, 'minute')}.",
        path=_at("/operator"),
        action="See the installation",
        for_operators=True,
    ),
    NoticeKind.OPERATORS_UNNAMED: Kind(
        title="No operator has a name",
        sentence=lambda _: "No operator has a name, so the audit log cannot tell operators apart.",
        path=_at("/operator"),
        action="See the installation",
        severity=Severity.INFO,
        for_operators=True,
    ),
}
"""Every kind. Tests check that each enum member has a row."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A tenant's choice about one kind."""

    enabled: bool = True
    days: int = 0
    """The threshold in days; 0 for kinds without one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A tenant's choices about all kinds; a missing one is the default."""

    chosen: Mapping[NoticeKind, Setting] = field(default_factory=dict)

    def of(self, kind: NoticeKind) -> Setting:
        """Return the choice about a kind, or the default."""
        chosen = self.chosen.get(kind)
        return Setting(days=KINDS[kind].days) if chosen is None else chosen

    def enables(self, kind: NoticeKind) -> bool:
        """Return whether a tenant wants notices of a kind."""
        return self.of(kind).enabled


TENANT_KINDS = tuple(kind for kind, row in KINDS.items() if not row.for_operators)
OPERATOR_KINDS = tuple(kind for kind, row in KINDS.items() if row.for_operators)
EVENT_KINDS = tuple(kind for kind, row in KINDS.items() if row.lasts is not None)
"""Kinds that an event opens, and that close after a time."""


ABOUT_PEOPLE = frozenset(
    {
        NoticeKind.MEMBER_WITHOUT_FACTOR,
        NoticeKind.FACTOR_REMOVED,
        NoticeKind.PASSKEY_COPIED,
        NoticeKind.REFRESH_TOKEN_REUSED,
    }
)
"""Kinds that name members. Only callers who may list members see these notices."""

CAUSES: frozenset[GatewayOperation] = frozenset(
    {
        Operation.GENERATE_KEY,
        Operation.IMPORT_KEY,
        Operation.ROTATE_KEY,
        Operation.RETIRE_KEY,
        Operation.DISABLE_KEY,
        Operation.ENABLE_KEY,
        Operation.SCHEDULE_ARCHIVE,
        Operation.CANCEL_ARCHIVE,
        Operation.ARCHIVE_KEY,
        Operation.CREATE_KEYRING,
        Operation.UPDATE_KEYRING,
        Operation.DELETE_KEYRING,
        Operation.RESTORE_KEYRING,
        Operation.PUT_RULE,
        Operation.DELETE_RULE,
        AuditEvent.CREATE_API_KEY,
        AuditEvent.ROTATE_API_KEY,
        AuditEvent.REVOKE_API_KEY,
        AuditEvent.CONFIRM_MFA,
        AuditEvent.DISABLE_MFA,
        AuditEvent.ACCEPT_INVITATION,
        AuditEvent.REMOVE_MEMBER,
        AuditEvent.CHANGE_ROLE,
        AuditEvent.INVITE,
        AuditEvent.CHANGE_ORGANIZATION,
        AuditEvent.BEGIN_CANARY,
        AuditEvent.APPROVE_REQUEST,
        AuditEvent.REFUSE_REQUEST,
        AuditEvent.WITHDRAW_REQUEST,
        AuditEvent.CHECK_OUT,
        AuditEvent.CHANGE_NOTICE_SETTING,
        AuditEvent.CHANGE_WEBHOOK,
        AuditEvent.REMOVE_WEBHOOK,
        AuditEvent.ADD_PASSKEY,
        AuditEvent.REMOVE_PASSKEY,
    }
)
"""Requests after which a tenant's notices are checked at once."""


def digest_text(notices: Sequence[Notice], most: int = 20) -> str:
    """Return notices as lines of one mail: at most ``most``, and the number of the others."""
    lines = [notice.text for notice in notices[:most]]
    if len(notices) > most:
        lines.append(f"And {_many(len(notices) - most, 'more notice')}.")
    return "\n".join(f"- {line}" for line in lines)
