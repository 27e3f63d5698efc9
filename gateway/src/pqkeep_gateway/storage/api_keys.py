"""API keys in SQL."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.admission import Found
from pqkeep_gateway.access.api_key_limits import UNLIMITED, ApiKeyLimits
from pqkeep_gateway.access.entitlements import TenantStatus
from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.access.scopes import UsableKey, scopes_in, scopes_text
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.idempotency import add_idempotency_key, find_idempotency_key
from pqkeep_gateway.storage.notices import close_notices
from pqkeep_gateway.storage.pages import Page, Sorted, order_of, read_sorted
from pqkeep_gateway.storage.row_mac import authentic_row, is_authentic
from pqkeep_gateway.storage.schema import API_KEYS, TENANTS, USERS
from pqkeep_gateway.storage.shards import PLACEMENT, placement_of
from pqkeep_gateway.storage.tenant_status import lock_tenant, lock_tenant_to_add
from pqkeep_gateway.storage.tenants import ENTITLEMENTS, entitlements_of
from pqkeep_protocol.audit_events import API_KEY, AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Idempotency


class ApiKeyStatus(StrEnum):
    """The status of an API key. Revocation is final."""

    ACTIVE = "active"
    REVOKED = "revoked"


class ApiKeyState(StrEnum):
    """The states by which API keys are listed. An expired API key is not active and not revoked."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyFilter:
    """The requested API keys. Times are in microseconds since 1970; None: no condition."""

    version: int | None = None
    states: tuple[ApiKeyState, ...] = ()
    """The accepted states. Empty: every state."""
    words: tuple[str, ...] = ()
    """Texts in the name, in any case, or the last four characters."""
    scope: str | None = None
    """The beginning of an operation, group, keyring or algorithm in its scopes. API keys without
    scopes have all."""
    created_before_us: int | None = None
    created_since_us: int | None = None
    used_since_us: int | None = None
    unused_since_us: int | None = None
    """Without a use since then, or at any time."""
    expires_before_us: int | None = None
    """Active ones that expire before."""
    may_use: UsableKey | None = None
    """Their scopes allow at least one use of this key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The metadata of an API key."""

    version: int
    last4: str
    status: ApiKeyStatus
    created_at: datetime
    revoked_at: datetime | None = None
    accepted_until: datetime | None = None
    """The end of its overlap, if it was rotated."""
    last_used_at: datetime | None = None
    last_used_from: str | None = None
    """The source address of the last use."""
    name: str | None = None
    limits: ApiKeyLimits = UNLIMITED


MAX_LISTED = 1_000
"""A limit is needed because an API key may rotate itself often, and all versions are kept."""


MAX_SEARCHED = 10_000
_VERSION_DIGITS = 9


class QuotaReachedError(Exception):
    """The plan allows no more active API keys."""


class ApiKeyNotFoundError(Exception):
    """The tenant has no API key of this version."""


class AlreadyRotatedError(Exception):
    """The API key is no longer valid: it was rotated or revoked, or has expired."""


@dataclass(frozen=True, slots=True)
class ApiKeyDraft:
    """An API key that is not stored yet."""

    digest: bytes = field(repr=False)
    last4: str
    salt: bytes = field(repr=False)
    """16 bytes that derive the plaintext again for a repeated Idempotency-Key."""
    created_at: datetime
    name: str | None = None
    limits: ApiKeyLimits = UNLIMITED
    """In a rotation, None keeps the limit of the replaced API key."""


@dataclass(frozen=True, slots=True)
class StoredApiKey:
    """An API key as it was first stored, and the version that the rotation replaced."""

    metadata: ApiKey
    salt: bytes = field(repr=False)
    revoked: int | None = None


class SqlApiKeys:
    """API keys in the database, with an audit event for each change.

    A repeated Idempotency-Key returns the first result. All methods raise UnavailableError.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def add(
        self,
        tenant: TenantId,
        draft: ApiKeyDraft,
        quota: int,
        attribution: Attribution,
        idempotency: Idempotency | None = None,
    ) -> StoredApiKey:
        """Store an API key as the next version.

        Raises QuotaReachedError, IdempotencyKeyReusedError, TenantNotFoundError.
        """
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            earlier = await _find_earlier(connection, idempotency, draft)
            if earlier is not None:
                return earlier
            count = sa.select(sa.func.count()).where(_of(tenant), _is_valid(draft.created_at))
            if (await connection.execute(count)).scalar_one() >= quota:
                raise QuotaReachedError
            added = await _add(connection, tenant, draft, None, idempotency)
            version = added.metadata.version
            await _record(connection, attribution, tenant, AuditEvent.CREATE_API_KEY, version)
            return added

    async def list(self, tenant: TenantId, now: datetime) -> tuple[ApiKey, ...]:
        """Return a tenant's API keys by version: at most MAX_LISTED, valid and new ones first."""
        order = (_is_valid(now).desc(), API_KEYS.c.version.desc())
        query = sa.select(API_KEYS).where(_of(tenant)).order_by(*order).limit(MAX_LISTED)
        async with read_transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        return tuple(_api_key(row) for row in sorted(rows, key=lambda row: row.version))

    async def list_sorted(
        self, tenant: TenantId, only: ApiKeyFilter, part: Sorted, now: datetime
    ) -> Page[ApiKey]:
        """Return a part of a tenant's API keys that match every condition."""
        order = order_of(part.sort, _sorts(now), API_KEYS.c.version.desc())
        query = sa.select(API_KEYS).where(_of(tenant), *_conditions(only, now))
        async with read_transaction(self._engine) as connection:
            if only.may_use is not None:
                stored = sa.select(API_KEYS.c.scopes).where(_of(tenant)).distinct()
                texts = (await connection.execute(stored)).scalars()
                wide = [text for text in texts if text and only.may_use.is_open_to(scopes_in(text))]
                query = query.where(
                    sa.or_(API_KEYS.c.scopes.is_(None), API_KEYS.c.scopes.in_(wide))
                )
            return await read_sorted(connection, query, order, part, _api_key)

    async def count_scopes(self, tenant: TenantId, now: datetime) -> dict[str | None, int]:
        """Return the different stored scopes of a tenant's valid API keys, with their numbers."""
        query = (
            sa.select(API_KEYS.c.scopes, sa.func.count().label("number"))
            .where(_of(tenant), _is_valid(now))
            .group_by(API_KEYS.c.scopes)
        )
        async with read_transaction(self._engine) as connection:
            return {row.scopes: row.number for row in await connection.execute(query)}

    async def search(self, tenant: TenantId, text: str, limit: int) -> tuple[ApiKey, ...]:
        """Return API keys with a text in their name, or with this version or these last characters.

        Active and new API keys come first. Only the newest MAX_SEARCHED are read.
        """
        newest = sa.select(sa.func.max(API_KEYS.c.version)).where(_of(tenant)).scalar_subquery()
        is_wanted = [
            sa.func.lower(API_KEYS.c.name).contains(text.lower(), autoescape=True),
            API_KEYS.c.last4 == text.removeprefix("…"),
        ]
        if text.isascii() and text.isdecimal() and len(text) <= _VERSION_DIGITS:
            is_wanted.append(API_KEYS.c.version == int(text))
        query = (
            sa.select(API_KEYS)
            .where(_of(tenant), API_KEYS.c.version > newest - MAX_SEARCHED, sa.or_(*is_wanted))
            .order_by(_IS_ACTIVE.desc(), API_KEYS.c.version.desc())
            .limit(limit)
        )
        async with read_transaction(self._engine) as connection:
            return tuple(map(_api_key, (await connection.execute(query)).all()))

    async def count(self, tenant: TenantId, valid_at: datetime | None = None) -> int:
        """Return the number of a tenant's API keys: of all of them, or only of the valid ones."""
        is_counted = sa.true() if valid_at is None else _is_valid(valid_at)
        return await self._count(_of(tenant), is_counted)

    async def has(self, tenant: TenantId, version: int) -> bool:
        """Return whether a tenant has or had an API key of a version."""
        return await self._count(_of(tenant), API_KEYS.c.version == version) > 0

    async def _count(self, *conditions: sa.ColumnElement[bool]) -> int:
        query = sa.select(sa.func.count()).select_from(API_KEYS).where(*conditions)
        async with read_transaction(self._engine) as connection:
            return int((await connection.execute(query)).scalar_one())

    async def rotate(
        self,
        tenant: TenantId,
        version: int | None,
        draft: ApiKeyDraft,
        accepted_until: datetime,
        attribution: Attribution,
        idempotency: Idempotency | None = None,
    ) -> StoredApiKey:
        """Revoke a version (None: the newest active one) and store an API key that replaces it.

        Name and limits are those of the version, except for those in the draft. Raises
        AlreadyRotatedError if the named version is no longer valid; IdempotencyKeyReusedError.
        """
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            earlier = await _find_earlier(connection, idempotency, draft)
            if earlier is not None:
                if version not in (None, earlier.revoked):  # the rotation of another API key
                    raise IdempotencyKeyReusedError
                return earlier
            if version is None:
                newest = sa.select(sa.func.max(API_KEYS.c.version)).where(
                    _of(tenant), _is_valid(draft.created_at)
                )
                version = (await connection.execute(newest)).scalar()
            if version is not None:
                draft = await _kept(connection, tenant, version, draft)
                revoke = sa.update(API_KEYS).where(
                    _of(tenant), API_KEYS.c.version == version, _is_valid(draft.created_at)
                )
                values = {
                    "status": ApiKeyStatus.REVOKED,
                    "revoked_at_us": microseconds(draft.created_at),
                    "accepted_until_us": microseconds(accepted_until),
                }
                if (await connection.execute(revoke.values(values))).rowcount == 0:
                    raise AlreadyRotatedError
            added = await _add(connection, tenant, draft, version, idempotency)
            new_version = added.metadata.version
            await _record(connection, attribution, tenant, AuditEvent.ROTATE_API_KEY, new_version)
            return added

    async def revoke(
        self, tenant: TenantId, version: int, now: datetime, attribution: Attribution
    ) -> ApiKey:
        """Revoke a version, including its overlap. Raises ApiKeyNotFoundError."""
        is_version = sa.and_(_of(tenant), API_KEYS.c.version == version)
        update = sa.update(API_KEYS).where(is_version)
        values = {"status": ApiKeyStatus.REVOKED, "revoked_at_us": microseconds(now)}
        async with transaction(self._engine) as connection:
            await lock_tenant(connection, tenant)
            await connection.execute(update.where(_IS_ACTIVE).values(values))
            await connection.execute(update.values(accepted_until_us=None))
            row = (await connection.execute(sa.select(API_KEYS).where(is_version))).one_or_none()
            if row is None:
                raise ApiKeyNotFoundError
            await _record(connection, attribution, tenant, AuditEvent.REVOKE_API_KEY, version)
            await close_notices(connection, tenant, now, subject=f"{API_KEY}{version}")
        return _api_key(row)

    async def find(self, digest: bytes) -> Found | None:
        """Return the API key with this digest; None for an unknown or revoked one."""
        query = (
            sa.select(
                API_KEYS,
                *ENTITLEMENTS,
                *PLACEMENT,
                TENANTS.c.status.label("tenant_status"),
                sa.exists().where(USERS.c.tenant_id == TENANTS.c.id).label("has_people"),
            )
            .join(TENANTS, TENANTS.c.id == API_KEYS.c.tenant_id)
            .where(
                API_KEYS.c.digest == digest,
                sa.or_(_IS_ACTIVE, API_KEYS.c.accepted_until_us.is_not(None)),
            )
        )
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, API_KEYS, query)
            if row is None:
                return None
        limits = _limits(row)
        principal = ApiKeyPrincipal(
            tenant=TenantId(row.tenant_id),
            entitlements=entitlements_of(row),
            api_key_version=row.version,
            suspended=row.tenant_status != TenantStatus.ACTIVE,
            is_rotated=row.accepted_until_us is not None,
            name=row.name,
            limits=limits,
            placement=placement_of(row),
            has_people=bool(row.has_people),
        )
        ends = [end for end in (row.accepted_until_us, row.expires_at_us) if end is not None]
        return Found(principal, time_of(min(ends)).timestamp() if ends else None)


_IS_ACTIVE = API_KEYS.c.status == ApiKeyStatus.ACTIVE


def _is_valid(now: datetime) -> sa.ColumnElement[bool]:
    expires_at = API_KEYS.c.expires_at_us
    return sa.and_(_IS_ACTIVE, sa.or_(expires_at.is_(None), expires_at > microseconds(now)))


API_KEY_SORTS = ("status", "name", "version", "created", "last-used", "expires")
"""The orders of the list, ``status`` with active and new ones first."""


def _sorts(now: datetime) -> Mapping[str, sa.ColumnElement[Any]]:
    columns = (
        sa.not_(_is_valid(now)),
        sa.func.lower(API_KEYS.c.name),
        API_KEYS.c.version,
        API_KEYS.c.created_at_us,
        API_KEYS.c.last_used_at_us,
        API_KEYS.c.expires_at_us,
    )
    return dict(zip(API_KEY_SORTS, columns, strict=True))


def _conditions(only: ApiKeyFilter, now: datetime) -> Iterator[sa.ColumnElement[bool]]:
    of = API_KEYS.c
    if only.version is not None:
        yield of.version == only.version
    if only.states:
        is_in_state = {
            ApiKeyState.ACTIVE: _is_valid(now),
            ApiKeyState.EXPIRED: sa.and_(_IS_ACTIVE, of.expires_at_us <= microseconds(now)),
            ApiKeyState.REVOKED: sa.not_(_IS_ACTIVE),
        }
        yield sa.or_(*(is_in_state[state] for state in only.states))
    for word in only.words:
        in_name = sa.func.lower(of.name).contains(word.lower(), autoescape=True)
        yield sa.or_(in_name, of.last4 == word.removeprefix("…"))
    if only.scope is not None:
        text = msgspec.json.encode(only.scope).decode()[:-1]
        yield sa.or_(of.scopes.is_(None), of.scopes.contains(text, autoescape=True))
    if only.created_before_us is not None:
        yield of.created_at_us < only.created_before_us
    if only.created_since_us is not None:
        yield of.created_at_us >= only.created_since_us
    if only.used_since_us is not None:
        yield of.last_used_at_us >= only.used_since_us
    if only.unused_since_us is not None:
        yield sa.or_(of.last_used_at_us.is_(None), of.last_used_at_us < only.unused_since_us)
    if only.expires_before_us is not None:
        yield sa.and_(_is_valid(now), of.expires_at_us < only.expires_before_us)


def _of(tenant: TenantId) -> sa.ColumnElement[bool]:
    return API_KEYS.c.tenant_id == tenant


async def _record(
    connection: AsyncConnection,
    attribution: Attribution,
    tenant: TenantId,
    operation: AuditEvent,
    version: int,
) -> None:
    await add_audit_event(connection, event(attribution, tenant, operation, key_version=version))


async def _add(
    connection: AsyncConnection,
    tenant: TenantId,
    draft: ApiKeyDraft,
    revoked: int | None,
    idempotency: Idempotency | None,
) -> StoredApiKey:
    newest = sa.select(sa.func.max(API_KEYS.c.version)).where(_of(tenant))
    version = ((await connection.execute(newest)).scalar() or 0) + 1
    row = {
        "tenant_id": tenant,
        "version": version,
        "digest": draft.digest,
        "last4": draft.last4,
        "status": ApiKeyStatus.ACTIVE,
        "created_at_us": microseconds(draft.created_at),
        "name": draft.name,
        **_limit_columns(draft.limits),
    }
    await connection.execute(sa.insert(API_KEYS), row)
    if idempotency is not None:
        try:
            await add_idempotency_key(
                connection,
                idempotency,
                draft.created_at,
                tenant_id=tenant,
                api_key_version=version,
                revoked_version=revoked,
                salt=draft.salt,
            )
        except sa.exc.IntegrityError:  # an operator used it for another tenant: this one is locked
            raise IdempotencyKeyReusedError from None
    metadata = ApiKey(
        version=version,
        last4=draft.last4,
        status=ApiKeyStatus.ACTIVE,
        created_at=draft.created_at,
        name=draft.name,
        limits=draft.limits,
    )
    return StoredApiKey(metadata, draft.salt, revoked)


async def _kept(
    connection: AsyncConnection, tenant: TenantId, version: int, draft: ApiKeyDraft
) -> ApiKeyDraft:
    """Return a draft completed with the version's name and limits."""
    query = sa.select(API_KEYS).where(_of(tenant), API_KEYS.c.version == version)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return draft
    if not is_authentic(connection, API_KEYS, row):  # a forged row must not pass its limits on
        raise AlreadyRotatedError
    limits = _limits(row).with_changes(draft.limits)
    return replace(draft, name=draft.name or row.name, limits=limits)


def _limits(row: sa.Row[Any]) -> ApiKeyLimits:
    addresses = row.allowed_addresses
    return ApiKeyLimits(
        scopes=None if row.scopes is None else scopes_in(row.scopes),
        expires_at=_time_or_none(row.expires_at_us),
        addresses=None if addresses is None else Networks(addresses.split()),
    )


def _limit_columns(limits: ApiKeyLimits) -> dict[str, object]:
    expires_at = limits.expires_at
    return {
        "scopes": None if limits.scopes is None else scopes_text(limits.scopes.stated),
        "expires_at_us": None if expires_at is None else microseconds(expires_at),
        "allowed_addresses": None if limits.addresses is None else str(limits.addresses),
    }


async def _find_earlier(
    connection: AsyncConnection, idempotency: Idempotency | None, draft: ApiKeyDraft
) -> StoredApiKey | None:
    """Return the API key that the same Idempotency-Key created, in its original state."""
    if idempotency is None:
        return None
    earlier = await find_idempotency_key(connection, idempotency, draft.created_at)
    if earlier is None:
        return None
    query = sa.select(API_KEYS).where(
        _of(earlier.tenant_id), API_KEYS.c.version == earlier.api_key_version
    )
    row = (await connection.execute(query)).one()
    metadata = ApiKey(
        version=row.version,
        last4=row.last4,
        status=ApiKeyStatus.ACTIVE,
        created_at=time_of(row.created_at_us),
        name=row.name,
        limits=_limits(row),
    )
    return StoredApiKey(metadata, earlier.salt, earlier.revoked_version)


def _api_key(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(
        version=row.version,
        last4=row.last4,
        status=ApiKeyStatus(row.status),
        created_at=time_of(row.created_at_us),
        revoked_at=_time_or_none(row.revoked_at_us),
        accepted_until=_time_or_none(row.accepted_until_us),
        last_used_at=_time_or_none(row.last_used_at_us),
        last_used_from=row.last_used_from,
        name=row.name,
        limits=_limits(row),
    )


def _time_or_none(stored: int | None) -> datetime | None:
    return None if stored is None else time_of(stored)
