"""Reads of the accounts database do not wait for writers, and cannot write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, EMAIL, World
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.audit_outbox import SqlAuditOutbox
from pqkeep_gateway.storage.billing import SqlBilling
from pqkeep_gateway.storage.database import read_transaction, transaction
from pqkeep_gateway.storage.invitations import SqlInvitations
from pqkeep_gateway.storage.known_networks import SqlKnownNetworks
from pqkeep_gateway.storage.password_resets import SqlPasswordResets
from pqkeep_gateway.storage.registrations import SqlRegistrations
from pqkeep_gateway.storage.schema import TENANTS
from pqkeep_gateway.storage.second_factors import SqlChallenges
from pqkeep_gateway.storage.sessions import SqlSessions
from pqkeep_gateway.storage.team import SqlTeam
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.storage.usage import SqlUsage
from pqkeep_gateway.storage.users import SqlUsers
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Idempotency

NOW = date_of(1_800_000_000.0)
DIGEST = bytes(32)
USER = UserId(uuid4())
NOBODY = TenantId(uuid4())

READS: dict[str, Callable[[AsyncEngine, TenantId], Awaitable[Any]]] = {
    "API key": lambda engine, _: SqlApiKeys(engine).find(DIGEST),
    "API keys": lambda engine, tenant: SqlApiKeys(engine).list(tenant, NOW),
    "session": lambda engine, _: SqlSessions(engine).find(DIGEST, NOW),
    "sessions": lambda engine, _: SqlSessions(engine).list(USER, NOW),
    "tenant": lambda engine, tenant: SqlTenants(engine).get(tenant),
    "tenants": lambda engine, _: SqlTenants(engine).list(),
    "user": lambda engine, _: SqlUsers(engine).find_by_email(EMAIL),
    "team": lambda engine, tenant: SqlTeam(engine).list_members(tenant),
    "challenge": lambda engine, _: SqlChallenges(engine).find(DIGEST, NOW),
    "reset": lambda engine, _: SqlPasswordResets(engine).find(DIGEST, NOW),
    "known network": lambda engine, _: SqlKnownNetworks(engine).is_known(DIGEST, NOW),
    "registration": lambda engine, _: SqlRegistrations(engine).is_valid(DIGEST, NOW),
    "invitation": lambda engine, _: SqlInvitations(engine).find(DIGEST, NOW),
    "invitations": lambda engine, tenant: SqlInvitations(engine).list(tenant, NOW),
    "usage": lambda engine, tenant: SqlUsage(engine).used(tenant, "2026-03"),
    "contract": lambda engine, tenant: SqlBilling(engine).find_running(tenant),
    "contracts due": lambda engine, _: SqlBilling(engine).list_due(NOW),
    "invoices": lambda engine, tenant: SqlBilling(engine).list_invoices(tenant),
    "billing result": lambda engine, _: SqlBilling(engine).find_result(
        Idempotency(DIGEST, DIGEST), NOW
    ),
    "audit outbox": lambda engine, _: SqlAuditOutbox(engine).list_oldest(1),
    "audit outbox is open": lambda engine, tenant: SqlAuditOutbox(engine).require_open(tenant),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_read_waits_for_no_writer(
    world: World, read: Callable[[AsyncEngine, TenantId], Awaitable[Any]]
) -> None:
    """While a transaction holds SQLite's write lock, reads succeed."""
    async with transaction(world.engine):
        await read(world.engine, world.tenant.id)


def _rename(name: str) -> sa.Update:
    return sa.update(TENANTS).values(name=name)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_a_read_transaction_cannot_write(world: World) -> None:
    """A write in a read transaction is an error, and changes nothing."""
    with pytest.raises(UnavailableError):
        async with read_transaction(world.engine) as connection:
            await connection.execute(_rename("written by accident"))
    (tenant,) = (await SqlTenants(world.engine).list()).tenants
    assert tenant.name == world.tenant.name


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_connections_change_between_reading_and_writing(world: World) -> None:
    """A connection can alternate between reading and writing."""
    outbox = SqlAuditOutbox(world.engine)
    for number in range(3):
        created = event(ATTRIBUTION, NOBODY, AuditEvent.CREATE_TENANT)
        await outbox.add(created)
        assert created in [waiting.event for waiting in await outbox.list_oldest(100)]
        async with transaction(world.engine) as connection:
            await connection.execute(_rename(f"name {number}"))
        with pytest.raises(UnavailableError):
            async with read_transaction(world.engine) as connection:
                await connection.execute(_rename("written by accident"))
