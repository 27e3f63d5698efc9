"""An unusable PostgreSQL server: both processes and pqkeepd name the cause and the remedy."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from tests.fixtures.certificate import new_certificate
from tests.fixtures.postgresql import ACCOUNTS_ROLE, KEYS_ROLE, PostgresServer, running_postgresql
from tests.fixtures.processes import HOST
from tests.patience import PATIENCE

from pqkeep_gateway.storage.database import open_database
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.postgresql import open_postgresql
from pqkeep_protocol.startup.postgresql import require_version
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_server.backup.databases import ACCOUNTS, Database, snapshot
from pqkeep_server.backup.tables import DatabaseError
from pqkeep_server.doctor import examine
from pqkeep_server.initialise import Layout, Stores, initialise
from pqkeep_server.settings_check import UnreachableError, check_database

PROVISIONED = {ACCOUNTS_ROLE: "pqkeep_accounts", KEYS_ROLE: "pqkeep_keys"}
PASSWORDS = "host all all 127.0.0.1/32 scram-sha-256\n"
ELSEWHERE = "host all all 10.0.0.0/8 trust\n"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server for this file, which each test leaves unchanged."""
    with running_postgresql() as started:
        yield started


@contextmanager
def rules(server: PostgresServer, lines: str) -> Iterator[None]:
    """Use other lines of pg_hba.conf for everyone except the superuser."""
    file = server.data / "pg_hba.conf"
    before = file.read_text()
    file.write_text("local all all trust\n" + lines)
    server.sql("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        file.write_text(before)
        server.sql("SELECT pg_reload_conf()")


@contextmanager
def statement(server: PostgresServer, done: str, undone: str) -> Iterator[None]:
    """Run a statement as superuser, and another one at the end."""
    for database in PROVISIONED.values():
        server.sql(done, database=database)
    try:
        yield
    finally:
        for database in PROVISIONED.values():
            server.sql(undone, database=database)


@contextmanager
def untrusted(folder: Path) -> Iterator[int]:
    """Listen like a TLS server with an untrusted certificate; yield the port."""
    context = new_certificate(folder).context
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), connection:
                        connection.recv(8)  # SSLRequest
                        connection.sendall(b"S")
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class Case(NamedTuple):
    """A fault of a server, or of the address."""

    address: Callable[[PostgresServer, str], str]
    """Returns the address for a role."""
    spoil: Callable[[PostgresServer, ExitStack], object]
    names: Sequence[str]
    """The cause and the remedy in the message. {role} and {database} are filled in."""
    is_permanent: bool


def _as_provisioned(server: PostgresServer, role: str) -> str:
    return server.url(role, PROVISIONED[role])


def _with(options: str) -> Callable[[PostgresServer, str], str]:
    return lambda server, role: f"{_as_provisioned(server, role)}?{options}"


def _spoiled_by(made: str) -> Callable[[PostgresServer, ExitStack], object]:
    """Return a fault that is caused by the statement x in each database, and ended by y."""
    return lambda server, stack: stack.enter_context(
        statement(server, made, "DROP TABLE IF EXISTS x CASCADE")
    )


def _nothing(*_: object) -> None:
    pass


REVOKE = "REVOKE CREATE ON SCHEMA public FROM pg_database_owner"
GRANT = "GRANT CREATE ON SCHEMA public TO pg_database_owner"
CASES = {
    "wrong password": Case(
        _as_provisioned,
        lambda server, stack: stack.enter_context(rules(server, PASSWORDS)),
        ("password", "{role}", "database_password_file"),
        is_permanent=True,
    ),
    "no such role": Case(
        lambda server, role: server.url("stranger", PROVISIONED[role]),
        _nothing,
        ("stranger", "deploy/postgresql.sql"),
        is_permanent=True,
    ),
    "no such database": Case(
        lambda server, role: server.url(role, "absent"),
        _nothing,
        ("absent", "CREATE DATABASE"),
        is_permanent=True,
    ),
    "no right in the schema": Case(
        _as_provisioned,
        lambda server, stack: stack.enter_context(statement(server, REVOKE, GRANT)),
        ("its tables", "OWNER TO"),
        is_permanent=True,
    ),
    **{
        name: Case(
            _as_provisioned,
            _spoiled_by(make),
            (f"{kind} y", "never makes one"),
            is_permanent=True,
        )
        for name, kind, make in (
            ("a view", "the view", "CREATE TABLE x (a int); CREATE VIEW y AS TABLE x"),
            (
                "a view with rows",
                "the materialized view",
                "CREATE TABLE x (a int); CREATE MATERIALIZED VIEW y AS TABLE x",
            ),
            (
                "a trigger",
                "the trigger",
                (
                    "CREATE TABLE x (a int); CREATE TRIGGER y BEFORE UPDATE ON x"
                    " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
                ),
            ),
            (
                "a rule",
                "the rule",
                "CREATE TABLE x (a int); CREATE RULE y AS ON DELETE TO x DO INSTEAD NOTHING",
            ),
        )
    },
    "TLS is refused": Case(
        _with("sslmode=require"), _nothing, ("TLS", "sslmode"), is_permanent=True
    ),
    "TLS is demanded": Case(
        _with("sslmode=disable"),
        lambda server, stack: stack.enter_context(rules(server, ELSEWHERE)),
        ("pg_hba.conf", "sslmode"),
        is_permanent=True,
    ),
    "nothing listens": Case(
        lambda _, role: f"postgresql://{role}@{HOST}:9/{PROVISIONED[role]}",
        _nothing,
        (f"nothing listens at {HOST}:9", "start the server"),
        is_permanent=False,
    ),
    "no such host": Case(
        lambda _, role: f"postgresql://{role}@absent.invalid/{PROVISIONED[role]}",
        _nothing,
        ("absent.invalid", "host"),
        is_permanent=False,
    ),
    "too many connections": Case(
        _as_provisioned,
        lambda server, stack: [
            stack.enter_context(
                statement(
                    server,
                    f"ALTER ROLE {role} CONNECTION LIMIT 0",
                    f"ALTER ROLE {role} CONNECTION LIMIT -1",
                )
            )
            for role in PROVISIONED
        ],
        ("connection", "{role}", "CONNECTION LIMIT"),
        is_permanent=False,
    ),
}


async def _open_accounts(address: str) -> None:
    await (await open_database(address)).dispose()


async def _open_keys(address: str) -> None:
    await (await open_postgresql(address)).close()


OPENINGS: dict[str, Callable[[str], Awaitable[None]]] = {
    ACCOUNTS_ROLE: _open_accounts,
    KEYS_ROLE: _open_keys,
}


@pytest.mark.parametrize("name", CASES)
async def test_a_server_that_cannot_be_used(
    name: str, server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gateway, key service, config check and doctor name the cause. They retry if that can help."""
    case = CASES[name]
    addresses = {role: case.address(server, role) for role in PROVISIONED}
    layout = Layout(tmp_path / "data")
    stores = Stores(accounts=addresses[ACCOUNTS_ROLE], keys=addresses[KEYS_ROLE])
    initialise(layout, "operator", signup="operator", stores=stores)
    files = {ACCOUNTS_ROLE: layout.gateway_settings, KEYS_ROLE: layout.key_service_settings}
    with ExitStack() as stack:
        case.spoil(server, stack)
        for role, address in addresses.items():
            expected = [each.format(role=role, database=PROVISIONED[role]) for each in case.names]
            caplog.clear()
            said = await _refused(OPENINGS[role](address), is_permanent=case.is_permanent)
            said += caplog.text
            assert all(each in said for each in expected), said
            checking = asyncio.to_thread(check_database, files[role])
            said = await _refused(checking, is_permanent=case.is_permanent)
            assert all(each in said for each in expected), said
        problems = (await asyncio.to_thread(lambda: dict(examine(layout))))["databases"]
    assert len(problems) == len(PROVISIONED)


async def _refused(opening: Awaitable[None], *, is_permanent: bool) -> str:
    """Return the message about an unusable server."""
    transient = (UnavailableError, DatabaseUnavailableError, UnreachableError)
    with pytest.raises(ConfigError if is_permanent else transient) as caught:
        await opening
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "status"), [("no such role", os.EX_CONFIG), ("nothing listens", os.EX_TEMPFAIL)]
)
def test_statuses_of_commands(
    name: str,
    status: int,
    server: PostgresServer,
    tmp_path: Path,
    pqkeepd_command: Sequence[str | Path],
) -> None:
    """Config check and the process have the same status: 78 for settings, 75 if a retry may help."""
    address = CASES[name].address(server, ACCOUNTS_ROLE)
    layout = Layout(tmp_path / "data")
    initialise(layout, "operator", signup="operator", stores=Stores(accounts=address))
    for command in (["config", "check"], ["gateway"]):
        ended = _run([*pqkeepd_command, *command, layout.gateway_settings])
        while "in time" in ended.stderr:  # a busy machine: connecting has a time limit
            ended = _run([*pqkeepd_command, *command, layout.gateway_settings])
        assert ended.returncode == status, ended.stderr
        assert all(each in ended.stderr for each in CASES[name].names)


def _run(words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


async def test_an_untrusted_certificate(tmp_path: Path) -> None:
    """A server without a trusted certificate is refused, and the message names the setting."""
    other = tmp_path / "other"
    other.mkdir()
    authority = new_certificate(other).path
    with untrusted(tmp_path) as port:
        for role, name in PROVISIONED.items():
            address = f"postgresql://{role}@{HOST}:{port}/{name}?sslmode=verify-full"
            address += f"&sslrootcert={authority}"
            said = await _refused(OPENINGS[role](address), is_permanent=True)
            assert "not trusted" in said
            assert "sslrootcert" in said


async def test_a_statement_that_hangs_ends_a_command(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Database calls of backup, restore and migrations have a timeout, which the message names."""
    monkeypatch.setattr("pqkeep_server.backup.databases.STATEMENT_SECONDS", 2.0)
    address = server.url(ACCOUNTS_ROLE, server.new_database(ACCOUNTS_ROLE))
    await _open_accounts(address)
    database = Database(ACCOUNTS, DatabaseAddress(address))
    with psycopg.connect(
        host=str(server.folder),
        port=server.port,
        user="postgres",
        dbname=address.rpartition("/")[2],
    ) as other:
        other.execute("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseError, match="in time"):
            async with asyncio.timeout(PATIENCE), snapshot(database) as run:
                await run(lambda connection: connection.exec_driver_sql("SELECT FROM tenants"))


async def test_a_standby_is_named_until_it_is_promoted(
    another_postgres_server: PostgresServer,
) -> None:
    """A standby server is read-only, so connecting is retried. After its promotion it is used."""
    server = another_postgres_server
    await asyncio.to_thread(server.stop)
    signal = server.data / "standby.signal"
    replica = {"wal_level": "replica", "max_wal_senders": "2"}
    await asyncio.to_thread(partial(server.start, **replica))  # its log says so from here on
    await asyncio.to_thread(server.stop)
    signal.touch()
    os.chown(signal, server.data.stat().st_uid, server.data.stat().st_gid)
    await asyncio.to_thread(partial(server.start, **replica))
    address = _as_provisioned(server, KEYS_ROLE)
    said = await _refused(_open_keys(address), is_permanent=False)
    assert "standby" in said
    assert "promote" in said
    server.sql("SELECT pg_promote()")
    await _open_keys(address)


def test_an_old_server_is_refused() -> None:
    """The message has the found and the required version."""
    require_version((15, 0), "postgresql://a@b/c")
    with pytest.raises(ConfigError, match=r"PostgreSQL 14\.11.* 15 or later"):
        require_version((14, 11), "postgresql://a@b/c")
