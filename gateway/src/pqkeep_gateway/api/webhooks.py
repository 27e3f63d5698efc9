"""/api/v1/webhooks: signed messages about notices, to addresses of the tenant.

Only signed-in people change where messages go. A program may read, test and send again.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.api.key_fields import recorded_name_field
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.delivery.public_addresses import PublicAddresses
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    boolean_field,
    integer_field,
    uuid_field,
)
from pqkeep_gateway.http.field import Problem as FieldProblem
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.notices import TENANT_KINDS
from pqkeep_gateway.storage.webhooks import (
    MAX_KEPT,
    DeliveryNotFoundError,
    SqlWebhooks,
    TooManyWebhooksError,
    WebhookDisabledError,
    WebhookNameTakenError,
    WebhookNotFoundError,
    target_of,
)
from pqkeep_gateway.webhooks import (
    MAX_OVERLAP,
    MAX_URL,
    TEST,
    URL_PATTERN,
    Delivery,
    DeliveryState,
    InvalidUrlError,
    Message,
    Problem,
    Webhook,
    WebhookState,
    host_of,
    new_salt,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent

_DEFAULT_OVERLAP = timedelta(days=1)
_Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
_Optional = Annotated[Timestamp | None, Meta(description="The time; null: never.")]


class WebhookData(Data, frozen=True, kw_only=True):
    """A webhook."""

    id: _Uuid
    name: str
    url: Annotated[
        str, Meta(description="An API key sees it without its path and query, which may be secret.")
    ]
    kinds: Annotated[
        tuple[str, ...],
        Meta(
            description="The kinds of notices that it gets. Empty: all kinds, including future "
            "ones."
        ),
    ]
    state: Annotated[
        WebhookState,
        Meta(
            description="disabled: by a person, by status 410, or after five days without a "
            "success."
        ),
    ]
    created_at: Timestamp
    created_by: Annotated[str, Meta(description="The principal.")]
    last_success_at: _Optional
    failing_since: Annotated[
        Timestamp | None, Meta(description="The first failure since the last success.")
    ]
    previous_secret_until: Annotated[
        Timestamp | None,
        Meta(description="Until then messages have a second signature, with the previous secret."),
    ]


class NewWebhookData(WebhookData, frozen=True, kw_only=True):
    """A webhook with its new secret, which is shown only once."""

    secret: Annotated[
        str, Meta(description="The key of signatures, as Standard Webhooks writes it.")
    ]


class WebhooksData(Data, frozen=True, kw_only=True):
    """A tenant's webhooks, by name."""

    webhooks: tuple[WebhookData, ...]


class DeliveryData(Data, frozen=True, kw_only=True):
    """One message to a webhook. Of a response, only the status is kept."""

    id: Annotated[_Uuid, Meta(description="The header webhook-id, the same in each attempt.")]
    type: Annotated[str, Meta(description="The notice's kind, or webhook-test.")]
    state: DeliveryState
    created_at: Timestamp
    attempts: Annotated[int, Meta(ge=0)]
    attempted_at: _Optional
    next_attempt_at: Annotated[
        Timestamp | None,
        Meta(description="The time of the next attempt; null unless the message waits."),
    ]
    status: Annotated[
        int | None, Meta(description="The HTTP status of the last response; null without one.")
    ]
    problem: Annotated[
        Problem | None, Meta(description="The reason why there is no response, or no more attempt.")
    ]


class DeliveriesData(Data, frozen=True, kw_only=True):
    """A webhook's messages, newest first."""

    deliveries: tuple[DeliveryData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of kept messages.")]
    next: Annotated[
        str | UnsetType,
        Meta(description="The value of after for the next page; missing on the last page."),
    ] = UNSET


class RemovedWebhook(Data, frozen=True, kw_only=True):
    """A webhook was removed."""

    removed: bool


def _parse_url(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError("must be a text")
    try:
        host_of(value)
    except InvalidUrlError as error:
        raise InvalidValueError(str(error)) from None
    return value


def _parse_kinds(value: object) -> tuple[str, ...]:
    """Return kinds in the order of the table."""
    named = value if isinstance(value, list) else [None]
    if any(kind not in TENANT_KINDS for kind in named):
        raise InvalidValueError("must be an array of kinds of notices, such as key-destruction")
    return tuple(kind for kind in TENANT_KINDS if kind in named)


_URL: Field[str] = Field(
    name="url",
    description="The receiver's https:// address. Its host must have public addresses only.",
    schema={"type": "string", "maxLength": MAX_URL, "pattern": URL_PATTERN},
    example="https://hooks.example.com/pqkeep",
    parse=_parse_url,
)
_NEW_URL = _URL.described(_URL.description + " Left out: as before.").optional()
_WEBHOOK = uuid_field(
    "webhook", "The webhook.", "0b5e0f9c-53a5-4b8e-9a63-7b5a2e1d0c44", not_found="no such webhook"
)
_DELIVERY = uuid_field(
    "delivery",
    "The delivery.",
    "5b0c4f6a-4f0e-4c5b-8a3e-8f1a6d2b9c10",
    not_found="no such delivery, or it is no longer kept",
)
_NAME = recorded_name_field("name", "The webhook's name. The audit log shows it.", "on-call")
_NEW_NAME = _NAME.described("The webhook's new name. Left out: as before.").optional()
_KINDS: Field[tuple[str, ...]] = Field(
    name="kinds",
    description="The kinds of notices to send. Empty: all kinds, including future ones.",
    schema={
        "type": "array",
        "items": {"type": "string", "enum": list(TENANT_KINDS)},
        "maxItems": len(TENANT_KINDS),
    },
    example=["key-destruction", "factor-removed"],
    parse=_parse_kinds,
    required=False,
    default=(),
)
_NEW_KINDS = _KINDS.described(_KINDS.description + " Left out: as before.").optional()
_ACTIVE = boolean_field(
    "active", "Whether messages are sent. Left out: as before.", example=True
).optional()
_OVERLAP = integer_field(
    "overlap_seconds",
    "Seconds in which messages have signatures with both secrets. Left out: one day.",
    3600,
    at_least=0,
    at_most=MAX_OVERLAP // timedelta(seconds=1),
).or_default(_DEFAULT_OVERLAP // timedelta(seconds=1))
_LIMIT = integer_field(
    "limit", "The most entries to return.", 50, at_least=1, at_most=MAX_KEPT
).or_default(50)
_AFTER = uuid_field(
    "after", "The id of the last entry of the previous page.", str(_DELIVERY.example)
).optional()
_TIME = timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC))
_EXAMPLE = WebhookData(
    id=str(_WEBHOOK.example),
    name="on-call",
    url="https://hooks.example.com/pqkeep",
    kinds=(),
    state=WebhookState.ACTIVE,
    created_at=_TIME,
    created_by="user:6f5a1c9e-0d3b-4a53-9a55-2c1f9b1d7e10",
    last_success_at=_TIME,
    failing_since=None,
    previous_secret_until=None,
)
_NEW = NewWebhookData(**structs.asdict(_EXAMPLE), secret="whsec_" + "A" * 43 + "=")
_SENT = DeliveryData(
    id=str(_DELIVERY.example),
    type="key-destruction",
    state=DeliveryState.DELIVERED,
    created_at=_TIME,
    attempts=1,
    attempted_at=_TIME,
    next_attempt_at=None,
    status=204,
    problem=None,
)
_QUEUED = structs.replace(
    _SENT,
    state=DeliveryState.WAITING,
    attempts=0,
    attempted_at=None,
    next_attempt_at=_TIME,
    status=None,
)


def endpoints(
    stored: SqlWebhooks,
    pepper: Pepper,
    addresses: PublicAddresses,
    audit_delivery: AuditDelivery,
    clock: Clock,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of webhooks."""
    handlers = _Webhooks(stored, pepper, addresses, audit_delivery, clock)
    return (
        Endpoint(
            method="POST",
            path="/webhooks",
            name="create_webhook",
            handler=handlers.create,
            permission=Permission.MANAGE_WEBHOOKS,
            needs_step_up=True,
            example=_NEW,
            fields=(_NAME, _URL, _KINDS),
            field_codes=BAD_REQUEST_FIELDS,
            status=201,
            errors=(TenantNotFoundError, TooManyWebhooksError, WebhookNameTakenError),
        ),
        Endpoint(
            method="GET",
            path="/webhooks",
            name="list_webhooks",
            handler=handlers.list_,
            permission=Permission.USE_WEBHOOKS,
            example=WebhooksData(webhooks=(_EXAMPLE,)),
            field_codes=BAD_REQUEST_FIELDS,
        ),
        Endpoint(
            method="PATCH",
            path="/webhooks/{webhook}",
            name="change_webhook",
            handler=handlers.change,
            permission=Permission.MANAGE_WEBHOOKS,
            needs_step_up=True,
            example=_EXAMPLE,
            fields=(_WEBHOOK, _NEW_NAME, _NEW_URL, _NEW_KINDS, _ACTIVE),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(TenantNotFoundError, WebhookNotFoundError, WebhookNameTakenError),
        ),
        Endpoint(
            method="POST",
            path="/webhooks/{webhook}/secret",
            name="rotate_webhook_secret",
            handler=handlers.rotate_secret,
            permission=Permission.MANAGE_WEBHOOKS,
            needs_step_up=True,
            example=_NEW,
            fields=(_WEBHOOK, _OVERLAP),
            field_codes=BAD_REQUEST_FIELDS,
            body_optional=True,
            errors=(WebhookNotFoundError,),
        ),
        Endpoint(
            method="DELETE",
            path="/webhooks/{webhook}",
            name="remove_webhook",
            handler=handlers.remove,
            permission=Permission.MANAGE_WEBHOOKS,
            needs_step_up=True,
            example=RemovedWebhook(removed=True),
            fields=(_WEBHOOK,),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(WebhookNotFoundError,),
        ),
        Endpoint(
            method="POST",
            path="/webhooks/{webhook}/test",
            name="test_webhook",
            handler=handlers.test,
            permission=Permission.USE_WEBHOOKS,
            example=_QUEUED,
            fields=(_WEBHOOK,),
            field_codes=BAD_REQUEST_FIELDS,
            status=202,
            body_optional=True,
            errors=(WebhookNotFoundError, WebhookDisabledError),
        ),
        Endpoint(
            method="GET",
            path="/webhooks/{webhook}/deliveries",
            name="list_webhook_deliveries",
            handler=handlers.list_deliveries,
            permission=Permission.USE_WEBHOOKS,
            example=DeliveriesData(deliveries=(_SENT,), total=1),
            fields=(_WEBHOOK, _LIMIT, _AFTER),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(WebhookNotFoundError, DeliveryNotFoundError),
        ),
        Endpoint(
            method="POST",
            path="/webhooks/{webhook}/deliveries/{delivery}/resend",
            name="resend_webhook_delivery",
            handler=handlers.resend,
            permission=Permission.USE_WEBHOOKS,
            example=_QUEUED,
            fields=(_WEBHOOK, _DELIVERY),
            field_codes=BAD_REQUEST_FIELDS,
            status=202,
            body_optional=True,
            errors=(WebhookNotFoundError, DeliveryNotFoundError, WebhookDisabledError),
        ),
    )


class _Webhooks:
    """The handlers."""

    def __init__(
        self,
        stored: SqlWebhooks,
        pepper: Pepper,
        addresses: PublicAddresses,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._stored = stored
        self._pepper = pepper
        self._addresses = addresses
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def create(self, call: ApiCall) -> NewWebhookData:
        """Create a webhook. Its secret is shown only once.

        Each notice that opens, of the wanted kinds, is then sent to the URL, signed as Standard Webhooks defines it:
        webhook-id, webhook-timestamp and webhook-signature. A receiver must verify the signature,
        refuse old timestamps, and remember ids, because a message may arrive more than once.
        """
        webhook = Webhook(
            id=uuid4(),
            tenant=call.tenant.tenant,
            name=call[_NAME],
            url=self._permitted(call[_URL]),
            salt=new_salt(),
            kinds=call[_KINDS],
            created_at=self._now(),
            created_by=str(call.principal),
        )
        await self._stored.add(webhook, _event(call, AuditEvent.CREATE_WEBHOOK, webhook))
        await self._audit_delivery.deliver()
        return self._new(webhook)

    async def list_(self, call: ApiCall) -> WebhooksData:
        """List the webhooks by name, without their secrets."""
        listed = await self._stored.list(call.tenant.tenant)
        return WebhooksData(webhooks=tuple(_webhook(webhook, call) for webhook in listed))

    async def change(self, call: ApiCall) -> WebhookData:
        """Change a webhook's name, URL or kinds of notices, or disable or enable it.

        Messages that wait for a disabled webhook fail. They can be sent again later.
        """
        webhook = await self._stored.get(call.tenant.tenant, call[_WEBHOOK])
        url, active = call[_NEW_URL], call[_ACTIVE]
        state = None
        if active is not None:
            state = WebhookState.ACTIVE if active else WebhookState.DISABLED
        changed = await self._stored.change(
            webhook.tenant,
            webhook.id,
            _event(call, AuditEvent.CHANGE_WEBHOOK, webhook),
            self._now(),
            name=call[_NEW_NAME],
            url=None if url is None else self._permitted(url),
            kinds=call[_NEW_KINDS],
            state=state,
        )
        await self._audit_delivery.deliver()
        return _webhook(changed, call)

    async def rotate_secret(self, call: ApiCall) -> NewWebhookData:
        """Replace a webhook's secret. The new one is shown only once.

        During the overlap, messages have signatures with both secrets, so that the receiver can
        change from one to the other. A leaked secret needs an overlap of 0.
        """
        webhook = await self._stored.get(call.tenant.tenant, call[_WEBHOOK])
        rotated = await self._stored.rotate_secret(
            webhook.tenant,
            webhook.id,
            timedelta(seconds=call[_OVERLAP]),
            self._now(),
            _event(call, AuditEvent.ROTATE_WEBHOOK_SECRET, webhook),
        )
        await self._audit_delivery.deliver()
        return self._new(rotated)

    async def remove(self, call: ApiCall) -> RemovedWebhook:
        """Remove a webhook with its deliveries. Waiting messages are not sent."""
        webhook = await self._stored.get(call.tenant.tenant, call[_WEBHOOK])
        removed = _event(call, AuditEvent.REMOVE_WEBHOOK, webhook)
        await self._stored.remove(webhook.tenant, webhook.id, removed)
        await self._audit_delivery.deliver()
        return RemovedWebhook(removed=True)

    async def test(self, call: ApiCall) -> DeliveryData:
        """Send a signed test message. The list of deliveries shows its result."""
        webhook = await self._stored.get(call.tenant.tenant, call[_WEBHOOK])
        message = Message(TEST, self._now(), {"webhook": webhook.name})
        tested = _event(call, AuditEvent.TEST_WEBHOOK, webhook)
        sent = await self._stored.send(webhook.tenant, webhook.id, message, tested)
        await self._audit_delivery.deliver()
        return _delivery(sent)

    async def list_deliveries(self, call: ApiCall) -> DeliveriesData:
        """List the messages to a webhook, newest first, with the status of the last response.

        Finished messages are kept for 30 days, and at most 1,000 messages.
        """
        limit = call[_LIMIT]
        listed, total = await self._stored.list_deliveries(
            call.tenant.tenant, call[_WEBHOOK], limit + 1, call[_AFTER]
        )
        shown = tuple(map(_delivery, listed[:limit]))
        following = shown[-1].id if len(listed) > limit else UNSET
        return DeliveriesData(deliveries=shown, total=total, next=following)

    async def resend(self, call: ApiCall) -> DeliveryData:
        """Send a message again, with the same webhook-id.

        Receivers ignore a webhook-id that they have already handled.
        """
        webhook = await self._stored.get(call.tenant.tenant, call[_WEBHOOK])
        resent = _event(call, AuditEvent.RESEND_WEBHOOK_DELIVERY, webhook)
        sent = await self._stored.send_again(
            webhook.tenant, webhook.id, call[_DELIVERY], self._now(), resent
        )
        await self._audit_delivery.deliver()
        return _delivery(sent)

    def _permitted(self, url: str) -> str:
        """Return a URL that webhooks may have. Raises FieldError."""
        if self._addresses.may_be(url):
            return url
        raise FieldError(
            _URL.name,
            FieldProblem.MALFORMED,
            "url must be https:// with a public host; an operator can allow networks with"
            " webhook_networks",
        )

    def _new(self, webhook: Webhook) -> NewWebhookData:
        data = structs.asdict(_webhook(webhook, None))
        return NewWebhookData(**data, secret=webhook.secret(self._pepper))

    def _now(self) -> datetime:
        return date_of(self._clock())


def _event(call: ApiCall, operation: AuditEvent, webhook: Webhook) -> Event:
    made = event(call.attribution, call.tenant.tenant, operation)
    return structs.replace(made, target=target_of(webhook))


def _webhook(webhook: Webhook, call: ApiCall | None) -> WebhookData:
    """Return a webhook as a caller sees it; None: a person."""
    is_program = call is not None and call.principal.user is None
    parts = urlsplit(webhook.url)
    return WebhookData(
        id=str(webhook.id),
        name=webhook.name,
        url=f"{parts.scheme}://{parts.netloc}" if is_program else webhook.url,
        kinds=webhook.kinds,
        state=webhook.state,
        created_at=timestamp(webhook.created_at),
        created_by=webhook.created_by,
        last_success_at=_shown(webhook.last_success_at),
        failing_since=_shown(webhook.failing_since),
        previous_secret_until=_shown(webhook.previous_until),
    )


def _delivery(delivery: Delivery) -> DeliveryData:
    return DeliveryData(
        id=str(delivery.id),
        type=delivery.kind,
        state=delivery.state,
        created_at=timestamp(delivery.created_at),
        attempts=delivery.attempts,
        attempted_at=_shown(delivery.attempted_at),
        next_attempt_at=_shown(delivery.next_attempt_at),
        status=delivery.status,
        problem=delivery.problem,
    )


def _shown(when: datetime | None) -> Timestamp | None:
    return None if when is None else timestamp(when)
