"""A real accounts database, and tenants to put into it."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.credentials import PEPPER_SIZE, Pepper
from pqkeep_gateway.access.standing import Standing, Tier
from pqkeep_gateway.storage.database import open_database
from pqkeep_gateway.tenancy.tenants import Tenant, TenantStatus
from pqkeep_protocol.keys import TenantId


@pytest.fixture
def pepper() -> Pepper:
    """Some pepper."""
    return Pepper(bytes(range(PEPPER_SIZE)))


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    """Where the accounts database is."""
    return tmp_path / "accounts.sqlite3"


@pytest.fixture
async def engine(database_path: Path) -> AsyncIterator[AsyncEngine]:
    """An open accounts database, migrated."""
    opened = await open_database(str(database_path))
    yield opened
    await opened.dispose()


@pytest.fixture
def new_tenant() -> Callable[..., Tenant]:
    """Make tenants that are in no database yet."""

    def make(name: str = "", tier: Tier = Tier.FREE) -> Tenant:
        now = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
        tenant = TenantId(uuid4())
        return Tenant(tenant, name or str(tenant), Standing(tier), TenantStatus.ACTIVE, now, now)

    return make
