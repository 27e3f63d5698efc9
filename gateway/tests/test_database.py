"""The accounts database: its schema, and the versions that can be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from gateway.tests.world import add_tenant, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.storage.database import open_database, sqlite_engine
from pqkeep_gateway.storage.postgresql import postgresql_engine
from pqkeep_gateway.storage.schema import METADATA
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from gateway.tests.conftest import Location

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def has_schema() -> bool:
    """The database has no schema."""
    return False


async def test_migrations_create_the_schema(engine: AsyncEngine) -> None:
    """The migrated database has exactly the tables, columns and constraints of the schema."""

    def difference(connection: sa.Connection) -> object:
        return compare_metadata(MigrationContext.configure(connection), METADATA)

    async with engine.begin() as connection:
        assert await connection.run_sync(difference) == []


async def test_data_survive_reopening(location: Location, pepper: Pepper) -> None:
    """A reopened database is already migrated and has its data."""
    tenant = new_tenant()
    for expected in (False, True):
        engine = await open_database(location.name, pepper=pepper)
        tenants = SqlTenants(engine)
        if expected:
            assert await tenants.get(tenant.id) == tenant
        else:
            await add_tenant(engine, tenant)
        await engine.dispose()


def engine_on(location: str) -> AsyncEngine:
    """Return an engine without automatic migrations."""
    on_server = location.startswith("postgresql:")
    return postgresql_engine(location, None) if on_server else sqlite_engine(location)


@pytest.mark.parametrize("revision", ["0001", "0009", "9999"])
async def test_another_version_s_database_is_refused(location: Location, revision: str) -> None:
    """A database of an earlier or later version is refused with a clear message, and unchanged."""
    location.run("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    location.run(f"INSERT INTO alembic_version VALUES ('{revision}')")  # noqa: S608 - of a table of rows
    location.run("CREATE TABLE letters (id VARCHAR(36) PRIMARY KEY)")
    location.run("INSERT INTO letters VALUES ('old')")
    with pytest.raises(ConfigError, match="was created by another version of pqkeep") as refused:
        await open_database(location.name)
    assert location.name in str(refused.value)
    engine = engine_on(location.name)
    async with engine.connect() as connection:
        tables = await connection.run_sync(
            lambda synchronous: sa.inspect(synchronous).get_table_names()
        )
        stored = (
            await connection.execute(
                sa.text("SELECT version_num, id FROM alembic_version, letters")
            )
        ).all()
    await engine.dispose()
    assert sorted(tables) == ["alembic_version", "letters"]
    assert stored == [(revision, "old")]
