"""Tenants in SQL."""

import hashlib
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.entitlements import (
    PLAN_OF,
    WITH_REQUIRED_MFA,
    Entitlements,
    Plan,
    Subscription,
    TenantNotFoundError,
    TenantStatus,
    Tier,
)
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.billing import end_contract
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.idempotency import add_idempotency_key, find_idempotency_key
from pqkeep_gateway.storage.pages import Page, Sorted, order_of, read_sorted
from pqkeep_gateway.storage.schema import TENANTS
from pqkeep_gateway.storage.shards import place
from pqkeep_gateway.storage.tenant_status import REQUIREMENTS, change_under_mac, requirements_of
from pqkeep_protocol.audit import Event
from pqkeep_protocol.documents import is_newer
from pqkeep_protocol.keys import DEFAULT_SHARD, TenantId
from pqkeep_protocol.messages import Idempotency

MAX_NAME = 255
"""Code points in NFC."""
_MAX_GIVEN = 4 * MAX_NAME
"""Code points in any form: at most four become one in NFC. The limit keeps normalisation fast."""
_MAJOR_CATEGORIES = frozenset("LMNPS")
"""Letters, marks, numbers, punctuation, symbols."""
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Formatting characters that some scripts need for spelling."""
_LAST_SPACE = 0x3000
_SPACES = "".join(
    chr(code) for code in range(_LAST_SPACE + 1) if unicodedata.category(chr(code)) == "Zs"
)


def normalized_name(text: str) -> str:
    """Return a name in its stored form: NFC, without spaces and joiners around it.

    Raises ValueError for a text without a visible character, or of more than MAX_NAME code points.
    Only letters, marks, numbers, punctuation, symbols, joiners and spaces are valid.
    """
    given = text.strip(_SPACES + _JOINERS)
    if len(given) > _MAX_GIVEN:
        raise ValueError
    name = unicodedata.normalize("NFC", given).strip(_SPACES + _JOINERS)
    if not (0 < len(name) <= MAX_NAME and all(_may_be_used(character) for character in name)):
        raise ValueError
    return name


def folded_name(name: str) -> str:
    """Return the form for comparing and searching names.

    Names are equal if they differ only in case, composition, joiners, or the kind and number of
    spaces (canonical caseless matching, Unicode 15, D145).
    """
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
    shown = "".join(
        " " if character in _SPACES else character
        for character in folded
        if character not in _JOINERS
    )
    return " ".join(filter(None, shown.split(" ")))


def name_key(name: str) -> bytes:
    """Return the same SHA-256 (32 bytes) for equal names."""
    return hashlib.sha256(folded_name(name).encode()).digest()


def _may_be_used(character: str) -> bool:
    is_visible = unicodedata.category(character)[0] in _MAJOR_CATEGORIES
    is_shown = is_visible or is_newer(character)
    return is_shown or character in _SPACES or character in _JOINERS


@dataclass(frozen=True, slots=True)
class Tenant:
    """One organisation."""

    id: TenantId
    name: str
    """The name in the form of ``normalized_name``."""
    entitlements: Entitlements
    status: TenantStatus
    created_at: datetime
    updated_at: datetime
    deletion_at: datetime | None = None
    """The time of its deletion, planned or past."""
    requires_mfa: bool = False
    """Whether it requires a second factor. This has no effect on plans without the feature."""
    shard: str = DEFAULT_SHARD
    """The shard that has its keys."""
    requires_approval: bool = False
    """Whether a second person must approve its destructive requests."""


@dataclass(frozen=True, slots=True)
class TenantChange:
    """The fields to change; None: unchanged."""

    tier: Tier | None = None
    subscription: Subscription | None = None
    status: TenantStatus | None = None
    requests_per_minute: int | Literal["plan"] | None = None
    """The tenant's own rate limit; "plan": that of the plan."""


@dataclass(frozen=True, slots=True)
class TenantFilter:
    """The requested tenants; None: no condition."""

    name: str | None = None
    """A part of the name, compared by ``folded_name``."""
    status: TenantStatus | None = None
    exact_name: str | None = None
    """The whole name, compared by ``name_key``."""
    statuses: tuple[TenantStatus, ...] = ()
    """The accepted statuses. Empty: every status."""
    plans: tuple[Plan, ...] = ()
    """The accepted plans. Empty: every plan."""
    created_before_us: int | None = None
    created_since_us: int | None = None
    """The earliest creation time in microseconds since 1970."""


EVERY_TENANT = TenantFilter()


@dataclass(frozen=True, slots=True)
class TenantPage:
    """A part of the list of all tenants."""

    tenants: tuple[Tenant, ...]
    total: int
    """The number of tenants."""
    has_more: bool
    """Whether there are tenants after this page."""


class NameTakenError(Exception):
    """Another tenant has the name."""


class DeletionScheduledError(Exception):
    """A tenant's status cannot change while its deletion is scheduled."""


ENTITLEMENTS = (TENANTS.c.tier, TENANTS.c.subscription, TENANTS.c.requests_per_minute)
MFA_REQUIREMENT = (*REQUIREMENTS, TENANTS.c.requests_per_minute)


class SqlTenants:
    """Tenants in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine, shards: Collection[str] = (DEFAULT_SHARD,)) -> None:
        """Take the shards for new tenants."""
        self._engine = engine
        self._shards = shards

    async def add(
        self,
        tenant: Tenant,
        audit_event: Event,
        idempotency: Idempotency | None = None,
        shard: str | None = None,
    ) -> Tenant:
        """Store a new tenant in a shard; None: the one with the fewest tenants.

        A repeated Idempotency-Key returns the first result. Raises NameTakenError,
        IdempotencyKeyReusedError, ShardNotFoundError, ShardFullError.
        """
        earlier = await self._find_earlier(tenant, idempotency)
        if earlier is not None:
            return earlier
        try:
            async with transaction(self._engine) as connection:
                placed = await place(connection, self._shards, shard)
                tenant = replace(tenant, shard=placed)
                await add_tenant(connection, tenant)
                await add_audit_event(connection, audit_event)
                if idempotency is not None:
                    await add_idempotency_key(
                        connection, idempotency, tenant.created_at, tenant_id=tenant.id
                    )
        except sa.exc.IntegrityError:
            # The name is taken, perhaps by a concurrent copy of this request.
            earlier = await self._find_earlier(tenant, idempotency)
            if earlier is None:
                raise NameTakenError from None
            return earlier
        return tenant

    async def get(self, tenant: TenantId) -> Tenant:
        """Return a tenant. Raises TenantNotFoundError."""
        query = sa.select(TENANTS).where(TENANTS.c.id == tenant)
        async with read_transaction(self._engine) as connection:
            row = (await connection.execute(query)).one_or_none()
            if row is None:
                raise TenantNotFoundError
            return tenant_of(connection, row)

    async def list_forged(self) -> Sequence[TenantId]:
        """Return the tenants with a row that no gateway wrote."""
        async with read_transaction(self._engine) as connection:
            rows = await connection.execute(sa.select(*REQUIREMENTS))
            return [
                TenantId(row.id)
                for row in rows
                if not requirements_of(connection, row).is_authentic
            ]

    async def list(
        self,
        limit: int | None = None,
        after: TenantId | None = None,
        only: TenantFilter = EVERY_TENANT,
    ) -> TenantPage:
        """Return tenants, oldest first: at most ``limit``, after one.

        Raises TenantNotFoundError.
        """
        columns = TENANTS.c
        is_asked = tuple(_conditions(only))
        query = sa.select(TENANTS).where(*is_asked).order_by(columns.created_at_us, columns.id)
        created_at = sa.select(columns.created_at_us).where(columns.id == after)
        async with read_transaction(self._engine) as connection:
            if after is not None:
                since = (await connection.execute(created_at)).scalar()
                if since is None:
                    raise TenantNotFoundError
                is_later = sa.and_(columns.created_at_us == since, columns.id > after)
                query = query.where(sa.or_(columns.created_at_us > since, is_later))
            if limit is not None:
                query = query.limit(limit + 1)
            tenants = tuple(tenant_of(connection, row) for row in await connection.execute(query))
            count = sa.select(sa.func.count()).select_from(TENANTS).where(*is_asked)
            total = (await connection.execute(count)).scalar_one()
        return TenantPage(tenants[:limit], total, has_more=len(tenants) > len(tenants[:limit]))

    async def list_sorted(self, only: TenantFilter, part: Sorted) -> Page[Tenant]:
        """Return a part of all tenants that match every condition."""
        query = sa.select(TENANTS).where(*_conditions(only))
        order = order_of(part.sort, TENANT_SORTS, TENANTS.c.id)
        async with read_transaction(self._engine) as connection:
            return await read_sorted(connection, query, order, part, partial(tenant_of, connection))

    async def save_change(
        self,
        tenant: TenantId,
        change: TenantChange,
        now: datetime,
        audit_events: Sequence[Event],
    ) -> Tenant:
        """Change the given fields only. Raises TenantNotFoundError, DeletionScheduledError.

        A change of tier or subscription ends a bought contract.
        """
        is_tenant = TENANTS.c.id == tenant
        values: dict[str, object] = {
            name: value for name, value in asdict(change).items() if value is not None
        }
        if change.requests_per_minute == "plan":
            values["requests_per_minute"] = None
        of_plan: tuple[str, ...] = ("tier", "subscription")
        plan = {name: values.pop(name) for name in of_plan if name in values}
        update = (
            sa.update(TENANTS).where(is_tenant).values(updated_at_us=microseconds(now), **values)
        )
        async with transaction(self._engine) as connection:
            if plan:
                await end_contract(connection, tenant)
                await change_under_mac(connection, tenant, plan)
            if change.status is not None:
                update = update.where(TENANTS.c.deletion_at_us.is_(None))
            changed = await connection.execute(update)
            row = (await connection.execute(sa.select(TENANTS).where(is_tenant))).one_or_none()
            if row is None:
                raise TenantNotFoundError
            if changed.rowcount == 0:
                raise DeletionScheduledError
            await add_audit_event(connection, *audit_events)
            return tenant_of(connection, row)

    async def save_mfa_requirement(
        self, tenant: TenantId, audit_event: Event, *, required: bool
    ) -> None:
        """Store whether a tenant requires a second factor."""
        async with transaction(self._engine) as connection:
            await change_under_mac(connection, tenant, {"requires_mfa": required})
            await add_audit_event(connection, audit_event)

    async def _find_earlier(self, tenant: Tenant, idempotency: Idempotency | None) -> Tenant | None:
        """Return the tenant that the same Idempotency-Key created, or None."""
        if idempotency is None:
            return None
        async with read_transaction(self._engine) as connection:
            earlier = await find_idempotency_key(connection, idempotency, tenant.created_at)
            if earlier is None:
                return None
            query = sa.select(TENANTS.c.created_at_us, TENANTS.c.shard).where(
                TENANTS.c.id == earlier.tenant_id
            )
            row = (await connection.execute(query)).one()
            created_at = time_of(row.created_at_us)
        return replace(
            tenant,
            id=TenantId(earlier.tenant_id),
            created_at=created_at,
            updated_at=created_at,
            shard=row.shard,
        )


def _conditions(only: TenantFilter) -> Iterator[sa.ColumnElement[bool]]:
    if only.name is not None:
        yield TENANTS.c.folded_name.contains(folded_name(only.name), autoescape=True)
    if only.exact_name is not None:
        yield TENANTS.c.name_key == name_key(only.exact_name)
    if only.status is not None:
        yield TENANTS.c.status == only.status
    if only.statuses:
        yield TENANTS.c.status.in_(only.statuses)
    if only.plans:
        has_ended = TENANTS.c.subscription == Subscription.ENDED
        tiers = [tier for tier, plan in PLAN_OF.items() if plan in only.plans]
        is_free = has_ended if PLAN_OF[Tier.FREE] in only.plans else sa.false()
        yield sa.or_(is_free, sa.and_(sa.not_(has_ended), TENANTS.c.tier.in_(tiers)))
    if only.created_before_us is not None:
        yield TENANTS.c.created_at_us < only.created_before_us
    if only.created_since_us is not None:
        yield TENANTS.c.created_at_us >= only.created_since_us


TENANT_SORTS: Mapping[str, sa.ColumnElement[Any]] = {
    "created": TENANTS.c.created_at_us,
    "name": TENANTS.c.folded_name,
    "status": TENANTS.c.status,
    "tier": TENANTS.c.tier,
    "rate": TENANTS.c.requests_per_minute,
}
"""The orders of the list."""


async def add_tenant(connection: AsyncConnection, tenant: Tenant) -> None:
    """Insert a tenant. A taken name raises sqlalchemy.exc.IntegrityError."""
    row = {
        "id": tenant.id,
        "name": tenant.name,
        "name_key": name_key(tenant.name),
        "folded_name": folded_name(tenant.name),
        "tier": tenant.entitlements.tier,
        "subscription": tenant.entitlements.subscription,
        "requests_per_minute": tenant.entitlements.requests_per_minute,
        "status": tenant.status,
        "created_at_us": microseconds(tenant.created_at),
        "updated_at_us": microseconds(tenant.updated_at),
        "shard": tenant.shard,
    }
    await connection.execute(sa.insert(TENANTS), row)


def entitlements_of(row: Any) -> Entitlements:
    """Return the entitlements in a row with the columns ENTITLEMENTS."""
    return Entitlements(Tier(row.tier), Subscription(row.subscription), row.requests_per_minute)


def requires_mfa(connection: AsyncConnection, row: Any) -> bool:
    """Return whether a tenant requires a second factor.

    ``row`` has the columns MFA_REQUIREMENT.
    """
    required = requirements_of(connection, row)
    has_feature = entitlements_of(row).plan in WITH_REQUIRED_MFA
    return required.mfa and (has_feature or not required.is_authentic)


def tenant_of(connection: AsyncConnection, row: Any) -> Tenant:
    """Return the tenant in a row of TENANTS."""
    required = requirements_of(connection, row)
    return Tenant(
        id=TenantId(row.id),
        name=row.name,
        entitlements=entitlements_of(row),
        status=TenantStatus(row.status),
        created_at=time_of(row.created_at_us),
        updated_at=time_of(row.updated_at_us),
        deletion_at=None if row.deletion_at_us is None else time_of(row.deletion_at_us),
        requires_mfa=required.mfa,
        shard=row.shard,
        requires_approval=required.approval,
    )
