"""Keys outside pqkeep, in SQL: the list of each source, from its newest document."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from msgspec import Meta, Struct
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.schema import EXTERNAL_KEYS
from pqkeep_gateway.storage.tenant_status import lock_tenant_to_add
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import PRINTABLE, TenantId

MAX_SOURCES = 50
"""Sources of a tenant."""
MAX_TEXT = 200
"""Characters of a name, an algorithm, a place, an owner or a successor."""

Text = Annotated[str, Meta(max_length=MAX_TEXT, pattern=PRINTABLE)]


class ExternalKey(Struct, frozen=True, kw_only=True):
    """A key or certificate elsewhere. A text is empty if the document does not say it."""

    name: Text
    kind: Literal["certificate", "private-key", "public-key", "secret-key", "key"]
    algorithm: Text
    state: Text
    """The state in the terms of SP 800-57, such as ``active``."""
    place: Text
    owner: Text
    successor: Text
    moved: bool
    """Whether nothing is left to do: the document says so, the key is destroyed, or its algorithm
    has a security category of NIST."""


class SourceNotFoundError(Exception):
    """The tenant has no such source."""


class TooManySourcesError(Exception):
    """The tenant has MAX_SOURCES sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of keys elsewhere. Digests are SHA-256 (32 bytes)."""

    name: str
    document: bytes
    """The digest of the imported document."""
    digest: bytes
    """The digest of the source's name and keys."""
    imported_at: datetime
    imported_by: str
    """The principal that imported it."""
    total: int
    moved: int


_KEYS = msgspec.json.Decoder(tuple[ExternalKey, ...])


class SqlExternalKeys:
    """Sources in the database, with an audit event for each change.

    All methods raise UnavailableError.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def put(
        self, tenant: TenantId, source: Source, keys: Sequence[ExternalKey], audit_event: Event
    ) -> None:
        """Store a source, or replace the one with its name.

        Raises TenantNotFoundError, TooManySourcesError.
        """
        values = {
            "document": source.document,
            "digest": source.digest,
            "imported_at_us": microseconds(source.imported_at),
            "imported_by": source.imported_by,
            "total": source.total,
            "moved": source.moved,
            "keys": msgspec.json.encode(keys).decode(),
        }
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            update = sa.update(EXTERNAL_KEYS).where(_is_named(tenant, source.name)).values(values)
            if (await connection.execute(update)).rowcount == 0:
                of_tenant = EXTERNAL_KEYS.c.tenant_id == tenant
                count = sa.select(sa.func.count()).select_from(EXTERNAL_KEYS).where(of_tenant)
                if (await connection.execute(count)).scalar_one() >= MAX_SOURCES:
                    raise TooManySourcesError
                row = {"tenant_id": tenant, "source": source.name, **values}
                await connection.execute(sa.insert(EXTERNAL_KEYS), row)
            await add_audit_event(connection, audit_event)

    async def list(self, tenant: TenantId) -> Sequence[Source]:
        """Return a tenant's sources by name."""
        query = sa.select(*_OF_SOURCE).where(EXTERNAL_KEYS.c.tenant_id == tenant)
        async with read_transaction(self._engine) as connection:
            rows = await connection.execute(query.order_by(EXTERNAL_KEYS.c.source))
            return [_source(row) for row in rows]

    async def get(self, tenant: TenantId, name: str) -> tuple[Source, tuple[ExternalKey, ...]]:
        """Return a source with its keys. Raises SourceNotFoundError."""
        query = sa.select(EXTERNAL_KEYS).where(_is_named(tenant, name))
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise SourceNotFoundError
        return _source(row), _KEYS.decode(row.keys)

    async def remove(self, tenant: TenantId, name: str, audit_event: Event) -> None:
        """Remove a source. Raises SourceNotFoundError."""
        delete = sa.delete(EXTERNAL_KEYS).where(_is_named(tenant, name))
        async with transaction(self._engine) as connection:
            if not (await connection.execute(delete)).rowcount:
                raise SourceNotFoundError
            await add_audit_event(connection, audit_event)


_OF_SOURCE = tuple(column for column in EXTERNAL_KEYS.c if column.name != "keys")


def _is_named(tenant: TenantId, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(EXTERNAL_KEYS.c.tenant_id == tenant, EXTERNAL_KEYS.c.source == name)


def _source(row: sa.Row[Any]) -> Source:
    return Source(
        name=row.source,
        document=row.document,
        digest=row.digest,
        imported_at=time_of(row.imported_at_us),
        imported_by=row.imported_by,
        total=row.total,
        moved=row.moved,
    )
