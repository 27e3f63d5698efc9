"""A PostgreSQL server that is lost, unresponsive or configured wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from gateway.tests.world import add_tenant, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.fixtures.postgresql import PASSWORD
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.storage.api_keys import ApiKeyDraft, SqlApiKeys
from pqkeep_gateway.storage.database import open_database, transaction
from pqkeep_gateway.storage.postgresql import POOL_SIZE
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.storage.time_limits import LIMITS, TimeLimits
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from gateway.tests.conftest import Location
    from tests.fixtures.postgresql import PostgresServer

pytestmark = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)


ATTRIBUTION = Attribution("request-1", "operator", "192.0.2.7")


@pytest.fixture
def time_limits() -> TimeLimits:
    """The limits of the service."""
    return LIMITS


@pytest.fixture
def name(location: Location) -> str:
    """The name of the database on its server."""
    return location.name.rpartition("/")[2]


async def test_lost_connections_are_replaced(
    engine: AsyncEngine, postgres_server: PostgresServer, name: str
) -> None:
    """If the server closes idle connections, no request fails."""
    connections: list[Any] = []
    sa.event.listen(
        engine.sync_engine,
        "checkout",
        lambda opened, *_: connections.append(opened.driver_connection),
    )
    tenants = SqlTenants(engine)
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    await asyncio.gather(*(tenants.get(tenant.id) for _ in range(POOL_SIZE)))
    await asyncio.to_thread(postgres_server.end_connections, name)
    async with asyncio.timeout(PATIENCE):
        while not all(connection.is_closed() for connection in connections):  # noqa: ASYNC110 - read by the loop
            await asyncio.sleep(0.01)
    found = await asyncio.gather(*(tenants.get(tenant.id) for _ in range(POOL_SIZE)))
    assert found == [tenant] * POOL_SIZE


async def test_a_connection_that_is_about_to_close_is_used_once(
    location: Location, postgres_server: PostgresServer, pepper: Pepper
) -> None:
    """While a server ends its sessions, at most one request fails."""
    url = location.name.replace(f":{postgres_server.port}/", ":{}/")
    async with _saying_goodbye(postgres_server.port) as (port, say_goodbye):
        engine = await open_database(url.format(port), pepper=pepper)
        tenants, tenant = SqlTenants(engine), new_tenant()
        await add_tenant(engine, tenant)
        await asyncio.gather(*(tenants.get(tenant.id) for _ in range(POOL_SIZE)))
        say_goodbye()
        await asyncio.sleep(0.2)  # the event loop reads what the server has said
        with pytest.raises(UnavailableError):
            await tenants.get(tenant.id)
        assert await tenants.get(tenant.id) == tenant
        await engine.dispose()


@asynccontextmanager
async def _saying_goodbye(port: int) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """Relay to a server; the function tells all clients that the session ends."""
    clients: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(writer)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65_536):
                target.write(data)
            target.close()

        with suppress(OSError):
            await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    def say_goodbye() -> None:
        fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"
        while clients:
            clients.pop().write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], say_goodbye


async def test_a_connection_that_breaks_is_unavailable(
    engine: AsyncEngine, postgres_server: PostgresServer, name: str
) -> None:
    """A transaction with a broken connection raises UnavailableError; the next one succeeds."""

    async def interrupted() -> None:
        async with transaction(engine) as connection:
            await connection.execute(sa.select(1))
            await asyncio.to_thread(postgres_server.end_connections, name)
            await connection.execute(sa.select(1))

    with pytest.raises(UnavailableError):
        await interrupted()
    async with transaction(engine) as connection:
        assert (await connection.execute(sa.select(1))).scalar_one() == 1


async def test_a_server_that_hangs_is_unavailable(
    engine: AsyncEngine, postgres_server: PostgresServer, name: str
) -> None:
    """With a hanging server all callers get UnavailableError within the time limit."""
    tenants = SqlTenants(engine)
    stranger = TenantId(uuid4())
    with pytest.raises(TenantNotFoundError):
        await tenants.get(stranger)
    asked = (tenants.get(stranger) for _ in range(POOL_SIZE))
    await asyncio.gather(*asked, return_exceptions=True)
    async with asyncio.timeout(PATIENCE):
        with postgres_server.frozen(name):
            asked = (tenants.get(stranger) for _ in range(2 * POOL_SIZE))
            heard = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(error) for error in heard} == {UnavailableError}
    with pytest.raises(TenantNotFoundError):
        await tenants.get(stranger)


async def test_a_restarted_server_is_used_again(
    another_postgres_server: PostgresServer, location: Location, pepper: Pepper
) -> None:
    """Accounts are unavailable while the server is down, and available again afterwards."""
    server = another_postgres_server
    engine = await open_database(server.url("pqkeep_gateway", "pqkeep_accounts"), pepper=pepper)
    tenants = SqlTenants(engine)
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    await asyncio.to_thread(server.stop)
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await tenants.get(tenant.id)
    await asyncio.to_thread(server.start)
    assert await tenants.get(tenant.id) == tenant
    await engine.dispose()


@pytest.mark.parametrize("has_schema", [False])
async def test_concurrent_gateways_migrate_once(location: Location) -> None:
    """Six gateways that open an empty database concurrently all succeed."""
    engines = await asyncio.gather(*(open_database(location.name) for _ in range(6)))
    for engine in engines:
        assert (await SqlTenants(engine).list()).tenants == ()
        await engine.dispose()


async def test_a_rotation_waits_for_a_revocation(
    engine: AsyncEngine, postgres_server: PostgresServer, name: str
) -> None:
    """A rotation during a revocation of the newest API key replaces the next newest."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    store = SqlApiKeys(engine)
    drafts = [ApiKeyDraft(bytes([n]) * 32, "last", bytes(16), tenant.created_at) for n in range(3)]
    for draft in drafts[:2]:
        await store.add(tenant.id, draft, 2, ATTRIBUTION)

    async def until_waiting(count: int) -> None:
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        async with asyncio.timeout(PATIENCE):
            while len(postgres_server.sql(query, name)) < count:  # noqa: ASYNC110 - elsewhere
                await asyncio.sleep(0.01)

    with psycopg.connect(postgres_server.url("pqkeep_gateway", name)) as in_between:
        in_between.execute("SELECT * FROM api_keys WHERE version = 2 FOR UPDATE")
        revoking = asyncio.create_task(store.revoke(tenant.id, 2, tenant.created_at, ATTRIBUTION))
        await until_waiting(1)
        when = tenant.created_at
        rotating = asyncio.create_task(store.rotate(tenant.id, None, drafts[2], when, ATTRIBUTION))
        await until_waiting(2)
    assert (await revoking).version == 2
    assert (await rotating).revoked == 1


async def test_a_missing_server_is_unavailable(location: Location) -> None:
    """A missing server means an unavailable database, not an error in the settings."""
    with pytest.raises(UnavailableError):
        await open_database("postgresql://pqkeep_gateway@127.0.0.1:9/pqkeep_accounts")


async def test_a_missing_database_is_a_configuration_error(
    location: Location, postgres_server: PostgresServer
) -> None:
    """A database or role that the server does not have is reported as an error of the settings."""
    for role, name in (("pqkeep_gateway", "missing"), ("missing", "pqkeep_accounts")):
        with pytest.raises(ConfigError, match="missing"):
            await open_database(postgres_server.url(role, name))


async def test_a_password_comes_from_its_file(
    with_password: str, server_password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The database opens only with the password file, and no message contains the password."""
    engine = await open_database(with_password, server_password_file)
    assert PASSWORD not in repr(engine)
    await engine.dispose()
    with pytest.raises(ConfigError, match="with_password") as refused:
        await open_database(with_password)
    assert PASSWORD not in str(refused.value) + caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
async def test_a_password_file_open_to_others_is_refused(
    mode: int, server_password_file: Path, location: Location
) -> None:
    """A password file that others can read is refused by name, without a connection."""
    server_password_file.chmod(mode)  # noqa: ASYNC240 - no waiting
    with pytest.raises(ConfigError, match="passwords: other users have access"):
        await open_database("postgresql://nobody@127.0.0.1:9/none", server_password_file)
