"""/api/v1/notices: open notices, their readers, and the kinds that a tenant wants."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, cast
from uuid import UUID

from msgspec import Meta, structs

from pqkeep_gateway.access.callers import Permission, Role, may
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.tenants import TENANT
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    boolean_field,
    choice_field,
    integer_field,
    uuid_field,
)
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.notices import (
    ABOUT_PEOPLE,
    KINDS,
    TENANT_KINDS,
    Details,
    Notice,
    NoticeKind,
    Setting,
    Severity,
)
from pqkeep_gateway.storage.notices import (
    NotDismissibleError,
    NoticeNotFoundError,
    NoticePage,
    SqlNotices,
)
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION, TenantId

MAX_LISTED = 100
MAX_DAYS = 3650
Count = Annotated[int, Meta(ge=0)]
Identifier = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]

Settle = Callable[[TenantId], Awaitable[None]]
"""Checks a tenant now if an event has made that necessary."""


class State(StrEnum):
    """The states of a notice."""

    OPEN = "open"
    CLOSED = "closed"


class NoticeData(Data, frozen=True, kw_only=True):
    """A notice: its kind, its text, and the page where a user can end its cause."""

    id: Identifier
    kind: NoticeKind
    severity: Severity
    text: Annotated[str, Meta(description="The notice as a sentence.")]
    action: Annotated[str, Meta(description="The text of the link: what to do about the cause.")]
    path: Annotated[str, Meta(description="The page of the portal for that, beneath /portal.")]
    count: Annotated[int, Meta(ge=1, description="The number of subjects.")]
    names: Annotated[tuple[str, ...], Meta(description="The first subjects.")]
    at: Annotated[
        Timestamp | None,
        Meta(description="The next destruction, expiry or denial; of an event, its time."),
    ]
    source_address: str | None
    opened_at: Timestamp
    raised_at: Annotated[Timestamp, Meta(description="The time at which its cause last grew.")]
    closed_at: Timestamp | None
    new: Annotated[
        bool, Meta(description="Whether the caller has not seen it since it was raised.")
    ]
    seen: Annotated[Count, Meta(description="People who have seen it since it was raised.")]
    seen_by: Annotated[
        tuple[str, ...], Meta(description="The addresses of the first of these people.")
    ]


class NoticesData(Data, frozen=True, kw_only=True):
    """Notices, the last raised first."""

    notices: tuple[NoticeData, ...]
    total: Annotated[Count, Meta(description="The number of notices in this state.")]
    unseen: Annotated[Count, Meta(description="The open notices that are new to the caller.")]


class SeenData(Data, frozen=True, kw_only=True):
    """How many notices were new."""

    seen: Count


class NoticeSettingData(Data, frozen=True, kw_only=True):
    """A tenant's choice about a kind."""

    kind: NoticeKind
    title: Annotated[str, Meta(description="The subject of the kind.")]
    enabled: bool
    days: Annotated[Count | None, Meta(description="The threshold; null: the kind has none.")]
    default_days: Annotated[
        Count | None, Meta(description="The threshold that applies if the tenant chooses none.")
    ]


class NoticeSettingsData(Data, frozen=True, kw_only=True):
    """A tenant's choices about all kinds, and the caller's choice about mail."""

    settings: tuple[NoticeSettingData, ...]
    mail: Annotated[
        bool | None,
        Meta(description="Whether the caller gets mail. null: the caller is no owner or admin."),
    ]


class NoticeMailData(Data, frozen=True, kw_only=True):
    """The caller's choice about mail."""

    mail: bool


def _parse_ids(value: object) -> tuple[UUID, ...]:
    if not (isinstance(value, list) and 1 <= len(value) <= MAX_LISTED):
        raise InvalidValueError(f"must be a list of 1 to {MAX_LISTED} UUIDs")
    try:
        return tuple(UUID(str(entry)) for entry in value)
    except ValueError:
        raise InvalidValueError(f"must be a list of 1 to {MAX_LISTED} UUIDs") from None


_STATE = choice_field("state", "Open or closed notices.", tuple(State), State.OPEN).or_default(
    State.OPEN
)
_LIMIT = integer_field(
    "limit", "The most notices to return.", 20, at_least=1, at_most=MAX_LISTED
).or_default(MAX_LISTED)
_TENANT = cast(
    "Field[TenantId | None]",
    uuid_field(
        TENANT.name,
        "The tenant. Only for operators; left out: the installation. Other callers have one "
        "tenant.",
        str(TENANT.example),
    ).optional(),
)
_AT = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
_ID = "6f5a1c9e-0d3b-4a53-9a55-2c1f9b1d7e10"
_IDS: Field[tuple[UUID, ...] | None] = Field(
    name="ids",
    description="The notices. Left out: all open ones.",
    schema={
        "type": "array",
        "items": {"type": "string", "format": "uuid"},
        "minItems": 1,
        "maxItems": MAX_LISTED,
    },
    example=[_ID],
    parse=_parse_ids,
    required=False,
)
_NOTICE = uuid_field("id", "The notice's identifier.", _ID, not_found="no such notice")
_KIND = choice_field("kind", "The kind.", TENANT_KINDS, NoticeKind.KEY_OLD)
_ENABLED = boolean_field("enabled", "Whether the tenant wants such notices.", example=True)
_DAYS = integer_field(
    "days",
    "The threshold in days, for a kind that has one. Left out: the default.",
    180,
    at_least=1,
    at_most=MAX_DAYS,
).optional()
_MAIL = boolean_field("mail", "Whether the caller wants mail about notices.", example=False)
_EXAMPLE = NoticeData(
    id=_ID,
    kind=NoticeKind.KEY_OLD,
    severity=Severity.WARNING,
    text=KINDS[NoticeKind.KEY_OLD].sentence(Details(names=("payments/Kyber768 v2",))),
    action=KINDS[NoticeKind.KEY_OLD].action,
    path=KINDS[NoticeKind.KEY_OLD].path(Details()),
    count=1,
    names=("payments/Kyber768 v2",),
    at=None,
    source_address=None,
    opened_at=_AT,
    raised_at=_AT,
    closed_at=None,
    new=True,
    seen=1,
    seen_by=("ada@example.com",),
)
_SETTING = NoticeSettingData(
    kind=NoticeKind.KEY_OLD,
    title=KINDS[NoticeKind.KEY_OLD].title,
    enabled=True,
    days=180,
    default_days=365,
)


def endpoints(
    stored: SqlNotices,
    settle: Settle,
    find_installation: Callable[[], Awaitable[NoticePage]],
    tenants: SqlTenants,
    audit_delivery: AuditDelivery,
    clock: Clock,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of notices."""
    handlers = _Notices(stored, settle, find_installation, tenants, audit_delivery, clock)
    return (
        Endpoint(
            method="GET",
            path="/notices",
            name="list_notices",
            handler=handlers.list_,
            permission=Permission.VIEW_TENANT,
            fields=(_STATE, _LIMIT, _TENANT),
            field_codes=UNPROCESSABLE_FIELDS,
            example=NoticesData(notices=(_EXAMPLE,), total=1, unseen=1),
            errors=(TenantNotFoundError,),
        ),
        Endpoint(
            method="POST",
            path="/notices/seen",
            name="see_notices",
            handler=handlers.see,
            permission=Permission.OWN_ACCOUNT,
            fields=(_IDS,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SeenData(seen=1),
            body_optional=True,
        ),
        Endpoint(
            method="POST",
            path="/notices/{id}/dismiss",
            name="dismiss_notice",
            handler=handlers.dismiss,
            permission=Permission.MANAGE_NOTICES,
            fields=(_NOTICE,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_EXAMPLE,
            errors=(NoticeNotFoundError, NotDismissibleError),
            body_optional=True,
        ),
        Endpoint(
            method="GET",
            path="/notices/settings",
            name="list_notice_settings",
            handler=handlers.list_settings,
            permission=Permission.VIEW_SUBSCRIPTION,
            field_codes=UNPROCESSABLE_FIELDS,
            example=NoticeSettingsData(settings=(_SETTING,), mail=True),
        ),
        Endpoint(
            method="PUT",
            path="/notices/settings/{kind}",
            name="change_notice_setting",
            handler=handlers.change_setting,
            permission=Permission.MANAGE_NOTICES,
            needs_step_up=True,
            fields=(_KIND, _ENABLED, _DAYS),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_SETTING,
        ),
        Endpoint(
            method="PUT",
            path="/notices/mail",
            name="change_notice_mail",
            handler=handlers.change_mail,
            permission=Permission.OWN_ACCOUNT,
            fields=(_MAIL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=NoticeMailData(mail=False),
        ),
    )


class _Notices:
    """The handlers."""

    def __init__(
        self,
        stored: SqlNotices,
        settle: Settle,
        find_installation: Callable[[], Awaitable[NoticePage]],
        tenants: SqlTenants,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._stored = stored
        self._settle = settle
        self._find_installation = find_installation
        self._tenants = tenants
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def list_(self, call: ApiCall) -> NoticesData:
        """List what needs attention, the last raised first.

        A notice closes by itself when its cause is gone. `closed` lists those of the last 30 days.
        Only owners, admins and operators see notices about members, and who has seen a notice.
        """
        tenant = await self._tenant_of(call)
        is_closed = call[_STATE] is State.CLOSED
        if tenant == INSTALLATION and not is_closed:
            return _page(await self._find_installation())
        await self._settle(tenant)
        sees_people = may(call.principal.caller, Permission.VIEW_TEAM)
        page = await self._stored.list(
            tenant,
            call.principal.user,
            closed=is_closed,
            limit=call[_LIMIT],
            hidden=() if sees_people else ABOUT_PEOPLE,
        )
        return _page(page, names_people=sees_people)

    async def see(self, call: ApiCall) -> SeenData:
        """Note that the signed-in person has seen open notices. Colleagues are shown this."""
        person = call.person
        seen = await self._stored.see(person.tenant, person.user, self._now(), call[_IDS])
        return SeenData(seen=seen)

    async def dismiss(self, call: ApiCall) -> NoticeData:
        """Hide an open notice for everybody, until its cause grows.

        The notice about requests that wait for approval cannot be dismissed.
        """
        tenant = call.tenant.tenant
        notice = call[_NOTICE]
        dismissed = event(
            call.attribution, tenant, AuditEvent.DISMISS_NOTICE, policy=f"notice-{notice}"
        )
        found = await self._stored.dismiss(tenant, notice, self._now(), dismissed)
        await self._audit_delivery.deliver()
        return _notice(found)

    async def list_settings(self, call: ApiCall) -> NoticeSettingsData:
        """List the kinds of notices, with the tenant's choices."""
        chosen = await self._stored.settings(call.tenant.tenant)
        gets_mail = call.principal.caller in (Role.OWNER, Role.ADMIN)
        user = call.principal.user
        mail = await self._stored.wants_mail(user) if gets_mail and user is not None else None
        settings = (_setting(kind, chosen.of(kind)) for kind in TENANT_KINDS)
        return NoticeSettingsData(settings=tuple(settings), mail=mail)

    async def change_setting(self, call: ApiCall) -> NoticeSettingData:
        """Switch a kind of notices on or off, and set its threshold."""
        tenant, kind, days = call.tenant.tenant, call[_KIND], call[_DAYS]
        default = KINDS[kind].days
        if days is not None and not default:
            raise FieldError(_DAYS.name, Problem.MALFORMED, f"days: {kind} has no threshold")
        setting = Setting(call[_ENABLED], days or default)
        state = "on" if setting.enabled else "off"
        changed = event(
            call.attribution,
            tenant,
            AuditEvent.CHANGE_NOTICE_SETTING,
            policy=f"{kind}-{state}" + (f"-{setting.days}-days" if setting.days else ""),
        )
        await self._stored.choose(tenant, kind, setting, changed)
        await self._audit_delivery.deliver()
        return _setting(kind, setting)

    async def change_mail(self, call: ApiCall) -> NoticeMailData:
        """Choose whether the signed-in person gets mail about notices, as an owner or admin."""
        wanted = call[_MAIL]
        await self._stored.want_mail(call.person.user, wanted=wanted)
        return NoticeMailData(mail=wanted)

    async def _tenant_of(self, call: ApiCall) -> TenantId:
        """Return the caller's own tenant, or the tenant that an operator names."""
        own, named = call.principal.tenant, call[_TENANT]
        if own is not None:
            if named not in (None, own):
                raise TenantNotFoundError
            return own
        if named is not None:
            return (await self._tenants.get(named)).id
        if not may(call.principal.caller, Permission.VIEW_INSTALLATION):
            raise forbidden("your role does not include the installation: send tenant_id")
        return INSTALLATION

    def _now(self) -> datetime:
        return date_of(self._clock())


def _page(page: NoticePage, *, names_people: bool = True) -> NoticesData:
    notices = tuple(map(_notice, page.notices))
    if not names_people:
        notices = tuple(structs.replace(notice, seen_by=()) for notice in notices)
    return NoticesData(notices=notices, total=page.total, unseen=page.unseen)


def _notice(notice: Notice) -> NoticeData:
    row, details = KINDS[notice.kind], notice.details
    return NoticeData(
        id=str(notice.id),
        kind=notice.kind,
        severity=row.severity,
        text=notice.text,
        action=row.action,
        path=notice.path,
        count=details.count,
        names=details.names,
        at=None if details.at is None else timestamp(details.at),
        source_address=details.source_address or None,
        opened_at=timestamp(notice.opened_at),
        raised_at=timestamp(notice.raised_at),
        closed_at=None if notice.closed_at is None else timestamp(notice.closed_at),
        new=notice.is_new,
        seen=notice.seen,
        seen_by=tuple(notice.seen_by),
    )


def _setting(kind: NoticeKind, setting: Setting) -> NoticeSettingData:
    row = KINDS[kind]
    return NoticeSettingData(
        kind=kind,
        title=row.title,
        enabled=setting.enabled,
        days=setting.days or None,
        default_days=row.days or None,
    )
