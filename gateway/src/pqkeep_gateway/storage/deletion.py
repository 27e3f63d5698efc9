"""Scheduled deletions of tenants in SQL. Each step is one conditional UPDATE of a tenant's row."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.entitlements import TenantNotFoundError, TenantStatus
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import of_tenant
from pqkeep_gateway.storage.api_keys import ApiKeyStatus
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.billing import IS_RUNNING, BilledElsewhereError, end_contract
from pqkeep_gateway.storage.database import (
    microseconds,
    read_transaction,
    time_of,
    transaction,
)
from pqkeep_gateway.storage.notices import remove_notices
from pqkeep_gateway.storage.outgoing_mail import add_mail_to_owners
from pqkeep_gateway.storage.schema import (
    API_KEY_NETWORKS,
    API_KEYS,
    APPROVALS,
    CAMPAIGN_SCANS,
    CAMPAIGNS,
    CONTRACTS,
    EXTERNAL_KEYS,
    INVITATIONS,
    SESSIONS,
    TABLES_OF_USER,
    TENANTS,
    USERS,
)
from pqkeep_gateway.storage.tenant_status import lock_tenant
from pqkeep_gateway.storage.tenants import Tenant, tenant_of
from pqkeep_gateway.storage.users import end_sessions
from pqkeep_gateway.storage.webhooks import delete_webhooks
from pqkeep_gateway.storage.workloads import delete_workloads
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


class NotSuspendedError(Exception):
    """Only a suspended tenant can be deleted."""


class NoDeletionError(Exception):
    """No deletion is scheduled, or it has already begun."""


@dataclass(frozen=True, slots=True)
class ScheduledDeletion:
    """A scheduled deletion of a tenant, from its row."""

    tenant: TenantId
    at: datetime
    told_at: datetime | None
    """The time that its owners were told, or None."""
    has_begun: bool


_IS_SUSPENDED = TENANTS.c.status == TenantStatus.SUSPENDED
_IS_SCHEDULED = sa.and_(
    TENANTS.c.status.in_((TenantStatus.SUSPENDED, TenantStatus.DELETING)),
    TENANTS.c.deletion_at_us.is_not(None),
)
"""The state in the row. Only the key service knows whether the deletion has begun."""


class SqlDeletions:
    """Scheduled deletions of tenants in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def schedule(self, tenant: TenantId, at: datetime, audit_event: Event) -> Tenant:
        """Store the deletion time of a suspended tenant, unless it has one.

        Raises NotSuspendedError, TenantNotFoundError, BilledElsewhereError.
        """
        is_new = sa.and_(_IS_SUSPENDED, TENANTS.c.deletion_at_us.is_(None))
        async with transaction(self._engine) as connection:
            await lock_tenant(connection, tenant)
            await _require_billed_here(connection, tenant)
            values = {"deletion_at_us": microseconds(at)}
            changed = await _change(connection, tenant, is_new, values)
            row = await _row(connection, tenant)
            if changed:
                await add_audit_event(connection, audit_event)
            elif row.deletion_at_us is None:
                raise NotSuspendedError
            return tenant_of(connection, row)

    async def cancel(self, tenant: TenantId, audit_event: Event) -> Tenant:
        """Cancel a deletion; the tenant remains suspended.

        Raises NoDeletionError, TenantNotFoundError.
        """
        values = {
            "deletion_at_us": None,
            "told_deletion_at_us": None,
            "status": TenantStatus.SUSPENDED,
        }
        async with transaction(self._engine) as connection:
            changed = await _change(connection, tenant, _IS_SCHEDULED, values)
            row = await _row(connection, tenant)
            if not changed:
                raise NoDeletionError
            await add_audit_event(connection, audit_event)
            return tenant_of(connection, row)

    async def require_scheduled(self, tenant: TenantId) -> None:
        """Check that a deletion is scheduled. Raises NoDeletionError, TenantNotFoundError."""
        query = sa.select(_IS_SCHEDULED).where(TENANTS.c.id == tenant)
        async with read_transaction(self._engine) as connection:
            is_scheduled = (await connection.execute(query)).scalar()
        if is_scheduled is None:
            raise TenantNotFoundError
        if not is_scheduled:
            raise NoDeletionError

    async def follow(
        self, tenant: TenantId, at: datetime, now: datetime, *, has_begun: bool
    ) -> Tenant:
        """Store the key service's state of a scheduled deletion; return the tenant.

        Its owners are told once about each time at which the destruction begins.
        """
        at_us = microseconds(at)
        status = TenantStatus.DELETING if has_begun else TenantStatus.SUSPENDED
        is_untold = sa.and_(_IS_SCHEDULED, TENANTS.c.told_deletion_at_us.is_distinct_from(at_us))
        values = {"deletion_at_us": at_us, "status": status}
        async with transaction(self._engine) as connection:
            await lock_tenant(connection, tenant)
            await _change(connection, tenant, _IS_SCHEDULED, values)
            is_news = await _change(connection, tenant, is_untold, {"told_deletion_at_us": at_us})
            if is_news and not has_begun:
                await add_mail_to_owners(connection, tenant, of_tenant(at), now)
            return tenant_of(connection, await _row(connection, tenant))

    async def list_scheduled(self, limit: int) -> Sequence[ScheduledDeletion]:
        """Return scheduled deletions: all, or a random part of this size."""
        query = (
            sa.select(
                TENANTS.c.id,
                TENANTS.c.deletion_at_us,
                TENANTS.c.told_deletion_at_us,
                TENANTS.c.status,
            )
            .where(_IS_SCHEDULED)
            .order_by(sa.func.random())  # repeated failures must not delay others
            .limit(limit)
        )
        async with read_transaction(self._engine) as connection:
            found = (await connection.execute(query)).all()
        return [
            ScheduledDeletion(
                TenantId(row.id),
                time_of(row.deletion_at_us),
                None if row.told_deletion_at_us is None else time_of(row.told_deletion_at_us),
                row.status == TenantStatus.DELETING,
            )
            for row in found
        ]

    async def list_kept(self, tenants: Collection[TenantId]) -> Sequence[TenantId]:
        """Return those of the given tenants that are not deleted and not scheduled for deletion."""
        is_one = TENANTS.c.id.in_(tenants)
        is_gone = sa.or_(_IS_SCHEDULED, TENANTS.c.status == TenantStatus.DELETED)
        async with read_transaction(self._engine) as connection:
            query = sa.select(TENANTS.c.id).where(is_one, is_gone)
            gone = set((await connection.execute(query)).scalars())
        return [tenant for tenant in tenants if tenant not in gone]

    async def finish(self, tenant: TenantId, now: datetime, by: Attribution) -> bool:
        """Delete all data of a tenant without private keys; return False if it was already deleted."""
        async with transaction(self._engine) as connection:
            await lock_tenant(connection, tenant)
            values = {"status": TenantStatus.DELETED, "updated_at_us": microseconds(now)}
            if not await _change(connection, tenant, _IS_SCHEDULED, values):
                return False
            await end_contract(connection, tenant)
            await remove_notices(connection, tenant)
            for table in (
                INVITATIONS,
                APPROVALS,
                CAMPAIGN_SCANS,
                CAMPAIGNS,
                EXTERNAL_KEYS,
                API_KEY_NETWORKS,
            ):
                await connection.execute(sa.delete(table).where(table.c.tenant_id == tenant))
            await delete_webhooks(connection, tenant)
            await delete_workloads(connection, tenant)
            versions = await _revoke_api_keys(connection, tenant, now)
            people = await _remove_people(connection, tenant)
            await add_audit_event(connection, *_events(by, tenant, versions, people))
        return True


def _events(
    by: Attribution, tenant: TenantId, versions: Sequence[int], people: Sequence[UUID]
) -> Iterator[Event]:
    """Yield the events for the end of API keys, memberships, and the tenant."""
    for version in versions:
        yield event(by, tenant, AuditEvent.REVOKE_API_KEY, policy=by.policy, key_version=version)
    for user in people:
        yield event(by.by(f"user:{user}"), tenant, AuditEvent.MEMBERSHIP_ENDED, policy=by.policy)
    yield event(by, tenant, AuditEvent.TENANT_DELETED, policy=by.policy)


async def _change(
    connection: AsyncConnection,
    tenant: TenantId,
    condition: sa.ColumnElement[bool],
    values: dict[str, Any],
) -> bool:
    update = sa.update(TENANTS).where(TENANTS.c.id == tenant, condition).values(values)
    return (await connection.execute(update)).rowcount == 1


async def _row(connection: AsyncConnection, tenant: TenantId) -> sa.Row[Any]:
    query = sa.select(TENANTS).where(TENANTS.c.id == tenant)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise TenantNotFoundError
    return row


async def _require_billed_here(connection: AsyncConnection, tenant: TenantId) -> None:
    """Raise BilledElsewhereError if a payment provider would continue to charge."""
    query = sa.select(CONTRACTS.c.id).where(
        CONTRACTS.c.tenant_id == tenant, IS_RUNNING, CONTRACTS.c.external_id.is_not(None)
    )
    if (await connection.execute(query)).first() is not None:
        raise BilledElsewhereError


async def _revoke_api_keys(
    connection: AsyncConnection, tenant: TenantId, now: datetime
) -> Sequence[int]:
    """Revoke all API keys, overlaps included; return the versions that were active."""
    of_tenant = API_KEYS.c.tenant_id == tenant
    is_active = API_KEYS.c.status == ApiKeyStatus.ACTIVE
    query = sa.select(API_KEYS.c.version).where(of_tenant, is_active).order_by(API_KEYS.c.version)
    versions = (await connection.execute(query)).scalars().all()
    values = {"status": ApiKeyStatus.REVOKED, "revoked_at_us": microseconds(now)}
    await connection.execute(sa.update(API_KEYS).where(of_tenant, is_active).values(values))
    await connection.execute(sa.update(API_KEYS).where(of_tenant).values(accepted_until_us=None))
    return versions


async def _remove_people(connection: AsyncConnection, tenant: TenantId) -> Sequence[UUID]:
    """Delete a tenant's users with all of their data; return their ids."""
    of_tenant = USERS.c.tenant_id == tenant
    query = sa.select(USERS.c.id).where(of_tenant).order_by(USERS.c.id).with_for_update()
    people = (await connection.execute(query)).scalars().all()
    ids = sa.select(USERS.c.id).where(of_tenant)
    await end_sessions(connection, SESSIONS.c.user_id.in_(ids))
    for table in TABLES_OF_USER:
        await connection.execute(sa.delete(table).where(table.c.user_id.in_(ids)))
    await connection.execute(sa.delete(USERS).where(of_tenant))
    return people
