"""Issuers, roles and short-lived API keys of workloads in SQL."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.admission import Found
from pqkeep_gateway.access.api_key_limits import ApiKeyLimits
from pqkeep_gateway.access.entitlements import TenantStatus
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.access.scopes import Scopes, scopes_in, scopes_text
from pqkeep_gateway.signed_tokens import Condition
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, time_of, transaction
from pqkeep_gateway.storage.row_mac import authentic_row, is_authentic, mac_after
from pqkeep_gateway.storage.schema import (
    TENANTS,
    USERS,
    WORKLOAD_ISSUERS,
    WORKLOAD_KEYS,
    WORKLOAD_ROLES,
)
from pqkeep_gateway.storage.shards import PLACEMENT, placement_of
from pqkeep_gateway.storage.tenant_status import lock_tenant_to_add
from pqkeep_gateway.storage.tenants import ENTITLEMENTS, entitlements_of
from pqkeep_protocol.algorithms import GivenKeyAlgorithm
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import TenantId

MAX_ISSUERS = 16
"""Issuers of a tenant."""
MAX_ROLES = 64
"""Roles of a tenant."""
MAX_EXCHANGES = 100
"""Exchanges of one token in its life, at most COUNTED."""
MAX_LIVE = 10_000
"""Valid keys of a role."""
COUNTED = timedelta(days=30)


class IssuerNotFoundError(Exception):
    """The tenant has no such issuer."""


class RoleNotFoundError(Exception):
    """The tenant has no such role."""


class TooManyIssuersError(Exception):
    """The tenant has MAX_ISSUERS issuers."""


class TooManyRolesError(Exception):
    """The tenant has MAX_ROLES roles."""


class TooManyExchangesError(Exception):
    """The token was exchanged MAX_EXCHANGES times, or its role has MAX_LIVE valid keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """An issuer of tokens that a tenant trusts."""

    id: UUID = field(default_factory=uuid4)
    tenant: TenantId
    name: str
    issuer: str
    """The claim ``iss``, which is a URL."""
    audience: str
    """A member of the claim ``aud``."""
    algorithms: tuple[GivenKeyAlgorithm, ...]
    keys: str | None = None
    """A JWK Set; None: it is fetched by the issuer's discovery document."""
    changed_at: datetime
    changed_by: str
    """The principal that changed it last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The permissions that workloads of an issuer get if their tokens fit its conditions."""

    id: UUID = field(default_factory=uuid4)
    tenant: TenantId
    issuer: str
    """The issuer's name."""
    name: str
    conditions: tuple[Condition, ...]
    scopes: Scopes
    lifetime: timedelta
    changed_at: datetime
    changed_by: str
    live: int = 0
    """The number of valid keys."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A key for a workload, and the token that it is issued for."""

    digest: bytes = field(repr=False)
    token: bytes = field(repr=False)
    """SHA-256 of the token's signed bytes."""
    expires_at: datetime
    token_expires_at: datetime


class SqlWorkloads:
    """Workloads in the database. All methods raise UnavailableError.

    A changed issuer or role ends the keys that were issued before. So does a removed one.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def list(self, tenant: TenantId, now: datetime) -> tuple[list[Issuer], list[Role]]:
        """Return a tenant's issuers and roles by name, the roles with their number of keys."""
        issuers = sa.select(WORKLOAD_ISSUERS).where(WORKLOAD_ISSUERS.c.tenant_id == tenant)
        roles = sa.select(WORKLOAD_ROLES).where(WORKLOAD_ROLES.c.tenant_id == tenant)
        counts = (
            sa.select(WORKLOAD_KEYS.c.role_id, sa.func.count().label("live"))
            .where(
                WORKLOAD_KEYS.c.role_id.in_(roles.with_only_columns(WORKLOAD_ROLES.c.id)),
                WORKLOAD_KEYS.c.expires_at_us > microseconds(now),
            )
            .group_by(WORKLOAD_KEYS.c.role_id)
        )
        async with read_transaction(self._engine) as connection:
            listed = {
                row.id: _issuer(row)
                for row in await connection.execute(issuers.order_by(WORKLOAD_ISSUERS.c.name))
                if is_authentic(connection, WORKLOAD_ISSUERS, row)
            }
            found = await connection.execute(roles.order_by(WORKLOAD_ROLES.c.name))
            rows = [row for row in found if is_authentic(connection, WORKLOAD_ROLES, row)]
            live = {row.role_id: row.live for row in await connection.execute(counts)}
        return list(listed.values()), [
            replace(_role(row, listed[row.issuer_id].name), live=live.get(row.id, 0))
            for row in rows
            if row.issuer_id in listed
        ]

    async def put_issuer(self, issuer: Issuer, audit_event: Event) -> bool:
        """Store an issuer, or replace the one with its name; return whether it is new.

        Its roles stay. Raises TenantNotFoundError, TooManyIssuersError.
        """
        values = {
            "issuer": issuer.issuer,
            "audience": issuer.audience,
            "algorithms": msgspec.json.encode(issuer.algorithms).decode(),
            "keys": issuer.keys,
            "changed_at_us": microseconds(issuer.changed_at),
            "changed_by": issuer.changed_by,
        }
        identity = {"id": issuer.id, "tenant_id": issuer.tenant, "name": issuer.name}
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, issuer.tenant)
            earlier = await _row_of(connection, WORKLOAD_ISSUERS, issuer.tenant, issuer.name)
            if earlier is None:
                if await _count(connection, WORKLOAD_ISSUERS, issuer.tenant) >= MAX_ISSUERS:
                    raise TooManyIssuersError
                await connection.execute(sa.insert(WORKLOAD_ISSUERS), identity | values)
            else:
                await _update(connection, WORKLOAD_ISSUERS, earlier, values)
                await _end_keys(connection, WORKLOAD_ROLES.c.issuer_id == earlier.id)
            await add_audit_event(connection, audit_event)
        return earlier is None

    async def remove_issuer(self, tenant: TenantId, name: str, audit_event: Event) -> None:
        """Remove an issuer with its roles and their keys. Raises IssuerNotFoundError."""
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            row = await _row_of(connection, WORKLOAD_ISSUERS, tenant, name)
            if row is None:
                raise IssuerNotFoundError
            of_issuer = WORKLOAD_ROLES.c.issuer_id == row.id
            await _end_keys(connection, of_issuer)
            await connection.execute(sa.delete(WORKLOAD_ROLES).where(of_issuer))
            is_this = WORKLOAD_ISSUERS.c.id == row.id
            await connection.execute(sa.delete(WORKLOAD_ISSUERS).where(is_this))
            await add_audit_event(connection, audit_event)

    async def put_role(self, role: Role, audit_event: Event) -> bool:
        """Store a role, or replace the one with its name; return whether it is new.

        Raises TenantNotFoundError, IssuerNotFoundError, TooManyRolesError.
        """
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, role.tenant)
            issuer = await _row_of(connection, WORKLOAD_ISSUERS, role.tenant, role.issuer)
            if issuer is None:
                raise IssuerNotFoundError
            values = {
                "issuer_id": issuer.id,
                "conditions": msgspec.json.encode(role.conditions).decode(),
                "scopes": scopes_text(role.scopes.stated),
                "lifetime_seconds": int(role.lifetime.total_seconds()),
                "changed_at_us": microseconds(role.changed_at),
                "changed_by": role.changed_by,
            }
            earlier = await _row_of(connection, WORKLOAD_ROLES, role.tenant, role.name)
            if earlier is None:
                if await _count(connection, WORKLOAD_ROLES, role.tenant) >= MAX_ROLES:
                    raise TooManyRolesError
                identity = {"id": role.id, "tenant_id": role.tenant, "name": role.name}
                await connection.execute(sa.insert(WORKLOAD_ROLES), identity | values)
            else:
                await _update(connection, WORKLOAD_ROLES, earlier, values)
                await _end_keys(connection, WORKLOAD_ROLES.c.id == earlier.id)
            await add_audit_event(connection, audit_event)
        return earlier is None

    async def remove_role(self, tenant: TenantId, name: str, audit_event: Event) -> None:
        """Remove a role with its keys. Raises RoleNotFoundError."""
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, tenant)
            row = await _row_of(connection, WORKLOAD_ROLES, tenant, name)
            if row is None:
                raise RoleNotFoundError
            is_this = WORKLOAD_ROLES.c.id == row.id
            await _end_keys(connection, is_this)
            await connection.execute(sa.delete(WORKLOAD_ROLES).where(is_this))
            await add_audit_event(connection, audit_event)

    async def find_role(self, tenant: TenantId, name: str) -> tuple[Issuer, Role]:
        """Return a role of an active tenant with its issuer. Raises RoleNotFoundError."""
        status = sa.select(TENANTS.c.status).where(TENANTS.c.id == tenant)
        async with read_transaction(self._engine) as connection:
            if (await connection.execute(status)).scalar_one_or_none() != TenantStatus.ACTIVE:
                raise RoleNotFoundError
            return await _find_role(connection, tenant, name)

    async def add_key(
        self, issuer: Issuer, role: Role, exchange: Exchange, now: datetime, audit_event: Event
    ) -> None:
        """Store an API key for a workload. Raises TooManyExchangesError.

        Raises RoleNotFoundError if the role or its issuer changed after it was read.
        """
        of_role = WORKLOAD_KEYS.c.role_id == role.id
        is_counted = WORKLOAD_KEYS.c.kept_until_us > microseconds(now)
        kept_until = max(exchange.expires_at, min(exchange.token_expires_at, now + COUNTED))
        async with transaction(self._engine) as connection:
            await lock_tenant_to_add(connection, role.tenant)
            if await _find_role(connection, role.tenant, role.name) != (issuer, role):
                raise RoleNotFoundError
            await connection.execute(sa.delete(WORKLOAD_KEYS).where(of_role, ~is_counted))
            live = sa.and_(of_role, WORKLOAD_KEYS.c.expires_at_us > microseconds(now))
            for condition, most in (
                (WORKLOAD_KEYS.c.token == exchange.token, MAX_EXCHANGES),
                (live, MAX_LIVE),
            ):
                count = sa.select(sa.func.count()).select_from(WORKLOAD_KEYS).where(condition)
                if (await connection.execute(count)).scalar_one() >= most:
                    raise TooManyExchangesError
            await connection.execute(
                sa.insert(WORKLOAD_KEYS),
                {
                    "digest": exchange.digest,
                    "role_id": role.id,
                    "token": exchange.token,
                    "expires_at_us": microseconds(exchange.expires_at),
                    "kept_until_us": microseconds(kept_until),
                },
            )
            await add_audit_event(connection, audit_event)

    async def find(self, digest: bytes) -> Found | None:
        """Return the workload with this key's digest; None if there is no such key."""
        of_key = sa.select(WORKLOAD_KEYS).where(WORKLOAD_KEYS.c.digest == digest)
        async with read_transaction(self._engine) as connection:
            key = await authentic_row(connection, WORKLOAD_KEYS, of_key)
            if key is None:
                return None
            query = (
                sa.select(
                    WORKLOAD_ROLES,
                    *ENTITLEMENTS,
                    *PLACEMENT,
                    TENANTS.c.status.label("tenant_status"),
                    sa.exists().where(USERS.c.tenant_id == TENANTS.c.id).label("has_people"),
                )
                .join(TENANTS, TENANTS.c.id == WORKLOAD_ROLES.c.tenant_id)
                .where(WORKLOAD_ROLES.c.id == key.role_id)
            )
            row = await authentic_row(connection, WORKLOAD_ROLES, query)
            if row is None:
                return None
        expires_at = time_of(key.expires_at_us)
        principal = ApiKeyPrincipal(
            tenant=TenantId(row.tenant_id),
            entitlements=entitlements_of(row),
            api_key_version=0,
            suspended=row.tenant_status != TenantStatus.ACTIVE,
            workload=row.name,
            limits=ApiKeyLimits(scopes=scopes_in(row.scopes), expires_at=expires_at),
            placement=placement_of(row),
            has_people=bool(row.has_people),
        )
        return Found(principal, expires_at.timestamp())


async def delete_workloads(connection: AsyncConnection, tenant: TenantId) -> None:
    """Delete a tenant's issuers and roles with their keys."""
    await _end_keys(connection, WORKLOAD_ROLES.c.tenant_id == tenant)
    for table in (WORKLOAD_ROLES, WORKLOAD_ISSUERS):
        await connection.execute(sa.delete(table).where(table.c.tenant_id == tenant))


async def _find_role(
    connection: AsyncConnection, tenant: TenantId, name: str
) -> tuple[Issuer, Role]:
    role = await _row_of(connection, WORKLOAD_ROLES, tenant, name)
    if role is None:
        raise RoleNotFoundError
    query = sa.select(WORKLOAD_ISSUERS).where(WORKLOAD_ISSUERS.c.id == role.issuer_id)
    issuer = await authentic_row(connection, WORKLOAD_ISSUERS, query)
    if issuer is None or issuer.tenant_id != tenant:
        raise RoleNotFoundError
    return _issuer(issuer), _role(role, issuer.name)


async def _row_of(
    connection: AsyncConnection, table: sa.Table, tenant: TenantId, name: str
) -> sa.Row[Any] | None:
    query = sa.select(table).where(table.c.tenant_id == tenant, table.c.name == name)
    return await authentic_row(connection, table, query)


async def _count(connection: AsyncConnection, table: sa.Table, tenant: TenantId) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(table.c.tenant_id == tenant)
    return int((await connection.execute(query)).scalar_one())


async def _update(
    connection: AsyncConnection, table: sa.Table, row: sa.Row[Any], values: Mapping[str, object]
) -> None:
    mac = mac_after(connection, table, row, values)
    update = sa.update(table).where(table.c.id == row.id)
    await connection.execute(update.values({**values, "mac": mac}))


async def _end_keys(connection: AsyncConnection, of_roles: sa.ColumnElement[bool]) -> None:
    roles = sa.select(WORKLOAD_ROLES.c.id).where(of_roles)
    await connection.execute(sa.delete(WORKLOAD_KEYS).where(WORKLOAD_KEYS.c.role_id.in_(roles)))


def _issuer(row: sa.Row[Any]) -> Issuer:
    return Issuer(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        name=row.name,
        issuer=row.issuer,
        audience=row.audience,
        algorithms=msgspec.json.decode(row.algorithms, type=tuple[GivenKeyAlgorithm, ...]),
        keys=row.keys,
        changed_at=time_of(row.changed_at_us),
        changed_by=row.changed_by,
    )


def _role(row: sa.Row[Any], issuer: str) -> Role:
    return Role(
        id=row.id,
        tenant=TenantId(row.tenant_id),
        issuer=issuer,
        name=row.name,
        conditions=msgspec.json.decode(row.conditions, type=tuple[Condition, ...]),
        scopes=scopes_in(row.scopes),
        lifetime=timedelta(seconds=row.lifetime_seconds),
        changed_at=time_of(row.changed_at_us),
        changed_by=row.changed_by,
    )
