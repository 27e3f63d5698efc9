"""Who had pqkeep before keeps everything: an old accounts database becomes a new one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.authentication import Found
from pqkeep_gateway.access.entitlements import PLAN_OF, Entitlements, Plan, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.storage.database import microseconds, open_database
from pqkeep_gateway.storage.team import SqlTeam
from pqkeep_gateway.storage.tenancy import SqlApiKeys, SqlTenants
from pqkeep_gateway.tenancy.tenants import Tenant
from pqkeep_protocol.keys import TenantId

if TYPE_CHECKING:
    from gateway.tests.conftest import Location

DIGEST = bytes(range(32))


@pytest.fixture
def tenants(new_tenant: Callable[..., Tenant]) -> list[Tenant]:
    """One tenant on each plan that there was at first, in the order of their making."""
    made = [new_tenant(tier=Tier(plan)) for plan in Plan]
    return sorted(made, key=lambda tenant: (tenant.created_at, tenant.id))


@pytest.fixture
def first_database(database_path: Path, tenants: list[Tenant]) -> Path:
    """A database of the first version, with those tenants, and an API key of the first of them."""
    engine = sa.create_engine(f"sqlite:///{database_path}")
    with engine.begin() as connection:
        _migrate(connection, "0001")
        for tenant in tenants:
            connection.execute(
                sa.text("INSERT INTO tenants VALUES (:id, :name, :plan, 'active', :made, :made)"),
                {
                    "id": tenant.id.hex,
                    "name": tenant.name,
                    "plan": tenant.entitlements.plan.value,
                    "made": microseconds(tenant.created_at),
                },
            )
        connection.execute(
            sa.text("INSERT INTO api_keys VALUES (:id, 3, :d, 'abcd', 'active', 1, NULL, NULL)"),
            {"id": tenants[0].id.hex, "d": DIGEST},
        )
    engine.dispose()
    return database_path


def _migrate(connection: sa.Connection, to: str) -> None:
    config = Config()
    config.set_main_option("script_location", "pqkeep_gateway.storage:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


@pytest.fixture
async def migrated(first_database: Path) -> AsyncEngine:
    """The same database, opened by this version."""
    engine = await open_database(str(first_database))
    await engine.dispose()  # its connections are made again when they are needed
    return engine


async def test_a_plan_becomes_a_running_subscription(
    migrated: AsyncEngine, tenants: list[Tenant]
) -> None:
    """Each tenant of the first version is there, unchanged, on the tier of its plan's name."""
    kept = await SqlTenants(migrated).list()
    await migrated.dispose()
    assert list(kept) == tenants
    assert {tenant.entitlements.plan for tenant in kept} == set(PLAN_OF.values())


async def test_api_keys_are_still_known(migrated: AsyncEngine, tenants: list[Tenant]) -> None:
    """An API key of the first version leads to its tenant."""
    found = await SqlApiKeys(migrated).find(DIGEST)
    await migrated.dispose()
    entitlements = Entitlements(tenants[0].entitlements.tier)
    assert found == Found(ApiKeyPrincipal(tenants[0].id, entitlements, 3, suspended=False))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_waiting_invitations_get_names(location: Location) -> None:
    """Invitations of before there were teams wait on, each with a name of its own."""
    tenant, digests = uuid4(), (bytes(32), DIGEST)
    driver = location.name.replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(driver if "://" in driver else f"sqlite:///{driver}")
    with engine.begin() as connection:
        _migrate(connection, "0006")
        made = sa.text(
            "INSERT INTO tenants (id, name, tier, subscription, status, created_at_us,"
            " updated_at_us) VALUES (:id, 'old', 'free', 'active', 'active', 1, 1)"
        )
        connection.execute(made.bindparams(sa.bindparam("id", tenant, sa.Uuid())))
        waiting = sa.text(
            "INSERT INTO invitations VALUES (:digest, :id, :email, :email, 'viewer', 2)"
        )
        for digest in digests:
            values = {"digest": digest, "email": digest.hex()}
            connection.execute(waiting.bindparams(sa.bindparam("id", tenant, sa.Uuid())), values)
    engine.dispose()
    opened = await open_database(location.name)
    listed = await SqlTeam(opened).invitations(TenantId(tenant), datetime(1970, 1, 1, tzinfo=UTC))
    await opened.dispose()
    assert {each.email for each in listed} == {each.hex() for each in digests}
    assert len({each.id for each in listed}) == len(digests)
