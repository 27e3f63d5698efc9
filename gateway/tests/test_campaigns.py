"""Campaigns in the accounts database, on either database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from gateway.tests.world import ATTRIBUTION, add_tenant, count_successes, new_tenant

from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.audit_outbox import SqlAuditOutbox
from pqkeep_gateway.storage.campaigns import (
    Campaign,
    CampaignExistsError,
    CampaignState,
    Source,
    SqlCampaigns,
    Target,
)
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import AuditEvent

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from pqkeep_gateway.storage.tenants import Tenant
    from pqkeep_protocol.audit import Event

NOW = datetime(2026, 7, 1, tzinfo=UTC)
CREATIONS = 6


def campaign(tenant: Tenant, quiet_days: int) -> Campaign:
    """Return a new campaign."""
    return Campaign(
        tenant=tenant.id,
        name="cards",
        description="",
        sources=(Source("default", Algorithm.ML_KEM_768),),
        target=Target("default", Algorithm.ML_KEM_1024),
        quiet_days=quiet_days,
        state=CampaignState.OPEN,
        created_at=NOW,
        created_by="user:1",
        changed_at=NOW,
    )


def creation(tenant: Tenant) -> Event:
    """Return the event of a creation."""
    return event(ATTRIBUTION, tenant.id, AuditEvent.PUT_CAMPAIGN)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_of_creations_at_once_one_succeeds(engine: AsyncEngine) -> None:
    """The others are refused and change nothing, and a replacement by its name goes on."""
    tenant = await add_tenant(engine, new_tenant())
    stored = SqlCampaigns(engine)
    made = await count_successes(
        [
            stored.put(campaign(tenant, days), creation(tenant), replaces=False)
            for days in range(1, CREATIONS + 1)
        ],
        CampaignExistsError,
    )
    assert made == 1
    assert len(await SqlAuditOutbox(engine).list_oldest(CREATIONS)) == 2  # with the tenant's
    replaced = await stored.put(campaign(tenant, CREATIONS + 1), creation(tenant))
    assert (await stored.get(tenant.id, "cards")).quiet_days == CREATIONS + 1
    assert replaced.created_at == NOW
