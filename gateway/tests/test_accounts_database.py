"""Tenants and API keys on a real SQLite file."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.principals import ApiKeyPrincipal, Plan
from pqkeep_gateway.config import ConfigError
from pqkeep_gateway.storage.database import open_database
from pqkeep_gateway.storage.schema import METADATA
from pqkeep_gateway.storage.tenancy import SqlApiKeys, SqlTenants
from pqkeep_gateway.tenancy.api_keys import ApiKey, ApiKeyStatus, QuotaReachedError
from pqkeep_gateway.tenancy.tenants import NameTakenError, Tenant, TenantNotFoundError
from pqkeep_protocol.keys import TenantId


async def test_migrations_make_the_schema(engine: AsyncEngine) -> None:
    """The migrated database has exactly the tables, columns and constraints of the schema."""

    def difference(connection: sa.Connection) -> object:
        return compare_metadata(MigrationContext.configure(connection), METADATA)

    async with engine.begin() as connection:
        assert await connection.run_sync(difference) == []


async def test_a_commit_survives_a_power_cut(engine: AsyncEngine) -> None:
    """Every connection writes ahead, waits for the disk and minds foreign keys."""
    async with engine.begin() as connection:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            found = await connection.exec_driver_sql(f"PRAGMA {pragma}")
            assert found.scalar_one() == value


async def test_a_tenant_comes_back_as_it_was(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Every field of a tenant survives, its times to the microsecond."""
    tenants = SqlTenants(engine)
    for plan in Plan:
        tenant = new_tenant(plan=plan)
        await tenants.add(tenant)
        assert await tenants.get(tenant.id) == tenant


async def test_a_tenant_that_is_not_there(engine: AsyncEngine) -> None:
    """An id that nobody has raises TenantNotFoundError."""
    with pytest.raises(TenantNotFoundError):
        await SqlTenants(engine).get(TenantId(uuid4()))


async def test_a_name_is_taken_once(engine: AsyncEngine, new_tenant: Callable[..., Tenant]) -> None:
    """Of twenty tenants of one name that are added at once, one is added."""
    tenants = SqlTenants(engine)
    made = [new_tenant("one name") for _ in range(20)]
    outcomes = await asyncio.gather(*map(tenants.add, made), return_exceptions=True)
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, NameTakenError) for outcome in outcomes) == 19


async def _add(store: SqlApiKeys, tenant: Tenant, number: int, quota: int) -> ApiKey:
    return await store.add(
        tenant.id, number.to_bytes(32, "big"), f"{number:04}", tenant.created_at, quota
    )


async def test_versions_count_up_under_concurrency(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Twenty API keys that are added at once have the versions 1 to 20."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant)
    store = SqlApiKeys(engine)
    made = await asyncio.gather(*(_add(store, tenant, n, quota=20) for n in range(20)))
    assert sorted(key.version for key in made) == list(range(1, 21))
    assert all(key.status is ApiKeyStatus.ACTIVE for key in made)


async def test_the_quota_is_exact_under_concurrency(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Of twenty that are added at once to a quota of five, five are added: versions 1 to 5."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant)
    store = SqlApiKeys(engine)
    outcomes = await asyncio.gather(
        *(_add(store, tenant, n, quota=5) for n in range(20)), return_exceptions=True
    )
    made = [outcome for outcome in outcomes if isinstance(outcome, ApiKey)]
    assert sorted(key.version for key in made) == [1, 2, 3, 4, 5]
    assert sum(isinstance(outcome, QuotaReachedError) for outcome in outcomes) == 15


async def test_each_tenant_counts_for_itself(
    engine: AsyncEngine, new_tenant: Callable[..., Tenant]
) -> None:
    """Another tenant's API keys change neither versions nor quota."""
    first, second = new_tenant(), new_tenant()
    store = SqlApiKeys(engine)
    for tenant in (first, second):
        await SqlTenants(engine).add(tenant)
    assert (await _add(store, first, 1, quota=1)).version == 1
    assert (await _add(store, second, 2, quota=1)).version == 1


async def test_a_revoked_key_counts_as_a_version_and_not_in_the_quota(
    engine: AsyncEngine, database_path: Path, new_tenant: Callable[..., Tenant]
) -> None:
    """After a revocation there is room again; the version is never given out twice."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant)
    store = SqlApiKeys(engine)
    await _add(store, tenant, 1, quota=1)
    with closing(sqlite3.connect(database_path)) as connection, connection:
        connection.execute("UPDATE api_keys SET status = 'revoked'")
    assert (await _add(store, tenant, 2, quota=1)).version == 2
    assert await store.find_principal((1).to_bytes(32, "big")) is None


async def test_a_digest_leads_to_its_principal(
    engine: AsyncEngine, database_path: Path, new_tenant: Callable[..., Tenant]
) -> None:
    """A digest is its tenant's, with plan and status as they are now; an unknown one nobody's."""
    tenant = new_tenant(plan=Plan.STARTER)
    await SqlTenants(engine).add(tenant)
    store = SqlApiKeys(engine)
    await _add(store, tenant, 7, quota=1)
    digest = (7).to_bytes(32, "big")
    expected = ApiKeyPrincipal(tenant.id, Plan.STARTER, 1, suspended=False)
    assert await store.find_principal(digest) == expected
    assert await store.find_principal(bytes(32)) is None
    with closing(sqlite3.connect(database_path)) as connection, connection:
        connection.execute("UPDATE tenants SET status = 'suspended'")
    suspended = await store.find_principal(digest)
    assert suspended is not None
    assert suspended.suspended


async def test_data_survive_reopening(
    database_path: Path, new_tenant: Callable[..., Tenant]
) -> None:
    """A database that is opened a second time is migrated already and has what it had."""
    tenant = new_tenant()
    for expected in (False, True):
        engine = await open_database(str(database_path))
        tenants = SqlTenants(engine)
        if expected:
            assert await tenants.get(tenant.id) == tenant
        else:
            await tenants.add(tenant)
        await engine.dispose()


async def test_a_newer_schema_is_refused(database_path: Path) -> None:
    """A database that a later version has migrated is not touched."""
    engine = await open_database(str(database_path))
    await engine.dispose()
    with closing(sqlite3.connect(database_path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match="does not know"):
        await open_database(str(database_path))


@pytest.fixture
def no_database(database_path: Path) -> Path:
    """A file of something else."""
    database_path.write_bytes(b"no database" * 1000)
    return database_path


async def test_what_is_no_database_is_refused(no_database: Path) -> None:
    """A file that is no database is refused by name."""
    with pytest.raises(ConfigError, match=str(no_database)):
        await open_database(str(no_database))


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A path that cannot be opened is refused by name."""
    with pytest.raises(ConfigError, match="nowhere"):
        await open_database(str(tmp_path / "nowhere" / "accounts.sqlite3"))
