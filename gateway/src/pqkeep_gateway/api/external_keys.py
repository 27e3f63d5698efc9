"""/api/v1/inventory/external: keys outside pqkeep, as the tenant's documents describe them.

The service cannot check these statements. The audit log records two digests: of each document, and
of the stored list.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Literal

from msgspec import Meta, structs

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.api.key_fields import recorded_name_field
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import FieldError, Problem, text_field
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.storage.external_keys import (
    ExternalKey,
    Source,
    SourceNotFoundError,
    SqlExternalKeys,
    TooManySourcesError,
)
from pqkeep_gateway.tenancy.external_keys import (
    MAX_DOCUMENT,
    MAX_KEYS,
    InvalidInventoryError,
    digest_of,
    read_inventory,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent

Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(description="A SHA-256 digest in hexadecimal.")]


class ExternalSource(Data, frozen=True, kw_only=True):
    """A source of keys elsewhere."""

    source: str
    document_sha256: Annotated[
        Sha256, Meta(description="SHA-256 of the imported document, in hexadecimal.")
    ]
    list_sha256: Annotated[
        Sha256,
        Meta(description="SHA-256 of `source` and `keys` as RFC 8785 writes them, in hexadecimal."),
    ]
    imported_at: Timestamp
    imported_by: Annotated[str, Meta(description="The principal that makes the statement.")]
    total: Annotated[Count, Meta(description="The number of its keys.")]
    moved: Annotated[Count, Meta(description="Keys with nothing left to do.")]


class ExternalSources(Data, frozen=True, kw_only=True):
    """All sources, by name."""

    sources: tuple[ExternalSource, ...]
    total: Annotated[Count, Meta(description="The number of keys in all sources.")]
    moved: Annotated[Count, Meta(description="Keys with nothing left to do, in all sources.")]


class ExternalKeyData(Data, frozen=True, kw_only=True):
    """A key elsewhere. A text is empty if the document does not say it."""

    name: str
    kind: Literal["certificate", "private-key", "public-key", "secret-key", "key"]
    algorithm: str
    state: Annotated[str, Meta(description="The state in the terms of SP 800-57, such as active.")]
    place: str
    owner: str
    successor: str
    moved: bool


class ExternalKeys(ExternalSource, frozen=True, kw_only=True):
    """A source with its keys, in the order of the document."""

    keys: tuple[ExternalKeyData, ...]


NEW_SOURCE = recorded_name_field(
    "source", "The source's name. A source that has it is replaced.", "tls-certificates"
)
SOURCE = recorded_name_field(
    "source", "The source's name.", "tls-certificates", not_found="no such source"
)
DOCUMENT = text_field(
    "document",
    f"A bill of materials of CycloneDX (1.6 or 1.7) as JSON text, with at most {MAX_KEYS:,} keys and "
    "certificates. It must not contain private keys.",
    '{"bomFormat":"CycloneDX","specVersion":"1.6","components":[{"type":"cryptographic-asset",'
    '"name":"www.example.com","cryptoProperties":{"assetType":"certificate",'
    '"certificateProperties":{"subjectName":"CN=www.example.com"}}}]}',
    at_most=MAX_DOCUMENT,
    is_valid=None,
)
_EXAMPLE = ExternalSource(
    source="tls-certificates",
    document_sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    list_sha256="60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
    imported_at=timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)),
    imported_by="user:6f5a1c9e-0d3b-4a53-9a55-2c1f9b1d7e10",
    total=1,
    moved=0,
)
_KEY = ExternalKeyData(
    name="www.example.com",
    kind="certificate",
    algorithm="RSA-2048",
    state="active",
    place="web-1:/etc/tls",
    owner="web team",
    successor="ML-DSA-65",
    moved=False,
)


def endpoints(
    stored: SqlExternalKeys, audit_delivery: AuditDelivery, clock: Clock
) -> tuple[Endpoint, ...]:
    """Return the endpoints of keys elsewhere."""
    handlers = _ExternalKeys(stored, audit_delivery, clock)
    return (
        Endpoint(
            method="POST",
            path="/inventory/external",
            name="import_external_keys",
            handler=handlers.put,
            permission=Permission.MANAGE_KEYS,
            example=_EXAMPLE,
            fields=(NEW_SOURCE, DOCUMENT),
            field_codes=BAD_REQUEST_FIELDS,
            status=201,
            errors=(TenantNotFoundError, TooManySourcesError),
        ),
        Endpoint(
            method="GET",
            path="/inventory/external",
            name="list_external_keys",
            handler=handlers.list_,
            permission=Permission.VIEW_KEYS,
            example=ExternalSources(sources=(_EXAMPLE,), total=1, moved=0),
            field_codes=BAD_REQUEST_FIELDS,
        ),
        Endpoint(
            method="GET",
            path="/inventory/external/{source}",
            name="get_external_keys",
            handler=handlers.get,
            permission=Permission.VIEW_KEYS,
            example=ExternalKeys(**structs.asdict(_EXAMPLE), keys=(_KEY,)),
            fields=(SOURCE,),
            field_codes=BAD_REQUEST_FIELDS,
            recorded_as=AuditEvent.LIST_EXTERNAL_KEYS,
            errors=(SourceNotFoundError,),
        ),
        Endpoint(
            method="DELETE",
            path="/inventory/external/{source}",
            name="remove_external_keys",
            handler=handlers.remove,
            permission=Permission.MANAGE_KEYS,
            example=_EXAMPLE,
            fields=(SOURCE,),
            field_codes=BAD_REQUEST_FIELDS,
            errors=(SourceNotFoundError,),
        ),
    )


class _ExternalKeys:
    """The handlers."""

    def __init__(
        self, stored: SqlExternalKeys, audit_delivery: AuditDelivery, clock: Clock
    ) -> None:
        self._stored = stored
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def put(self, call: ApiCall) -> ExternalSource:
        """Import the keys of a source, or replace them.

        A component is a key if it is a certificate, or key material of a private, public or secret
        key. Its properties `pqkeep:place`, `pqkeep:owner`, `pqkeep:successor` and `pqkeep:moved`
        (true or false) say more. The service keeps the list of keys, and not the document.
        """
        name, text = call[NEW_SOURCE], call[DOCUMENT]
        try:
            keys = read_inventory(text)
        except InvalidInventoryError as error:
            raise FieldError(DOCUMENT.name, Problem.MALFORMED, f"{DOCUMENT.name} {error}") from None
        source = Source(
            name=name,
            document=sha256(text.encode()).digest(),
            digest=digest_of(name, keys),
            imported_at=date_of(self._clock()),
            imported_by=str(call.principal),
            total=len(keys),
            moved=sum(key.moved for key in keys),
        )
        imported = _event(call, AuditEvent.IMPORT_EXTERNAL_KEYS, source)
        await self._stored.put(call.tenant.tenant, source, keys, imported)
        await self._audit_delivery.deliver()
        return _source(source)

    async def list_(self, call: ApiCall) -> ExternalSources:
        """List the sources of keys elsewhere."""
        return sources_of(await self._stored.list(call.tenant.tenant))

    async def get(self, call: ApiCall) -> ExternalKeys:
        """Return a source with its keys."""
        source, keys = await self._stored.get(call.tenant.tenant, call[SOURCE])
        return ExternalKeys(**structs.asdict(_source(source)), keys=_keys(keys))

    async def remove(self, call: ApiCall) -> ExternalSource:
        """Remove a source. Its records stay in the audit log."""
        tenant = call.tenant.tenant
        source, _ = await self._stored.get(tenant, call[SOURCE])
        removed = _event(call, AuditEvent.REMOVE_EXTERNAL_KEYS, source)
        await self._stored.remove(tenant, source.name, removed)
        await self._audit_delivery.deliver()
        return _source(source)


def _event(call: ApiCall, operation: AuditEvent, source: Source) -> Event:
    """Return the event of a change: the document's digest, the source's name and its list's digest."""
    policy = f"sha256-{source.document.hex()}"
    made = event(call.attribution, call.tenant.tenant, operation, policy=policy)
    return structs.replace(made, target=f"{source.name}/sha256-{source.digest.hex()}")


def sources_of(listed: Sequence[Source]) -> ExternalSources:
    """Return sources with the sums of their keys."""
    return ExternalSources(
        sources=tuple(map(_source, listed)),
        total=sum(source.total for source in listed),
        moved=sum(source.moved for source in listed),
    )


def _source(source: Source) -> ExternalSource:
    return ExternalSource(
        source=source.name,
        document_sha256=source.document.hex(),
        list_sha256=source.digest.hex(),
        imported_at=timestamp(source.imported_at),
        imported_by=source.imported_by,
        total=source.total,
        moved=source.moved,
    )


def _keys(keys: Sequence[ExternalKey]) -> tuple[ExternalKeyData, ...]:
    return tuple(ExternalKeyData(**structs.asdict(key)) for key in keys)
