"""/readyz and /healthz while reading works and writing fails."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import httpx2
import psycopg
import pytest
import redis
from tests.fixtures import processes, unprivileged
from tests.fixtures.installation import Installation, running
from tests.fixtures.postgresql import ACCOUNTS_ROLE, KEYS_ROLE, PostgresServer, running_postgresql
from tests.fixtures.processes import HOST
from tests.fixtures.redis import running_redis
from tests.patience import PATIENCE

from pqkeep_protocol.commits import IN_WORDS, WriteProblem
from pqkeep_server.initialise import IN_FILES, Stores

SIZE = 96 << 20
CHUNK = 1 << 20
ACCOUNTS, KEYS = "accounts_database", "keys_database"
RATE_LIMITS = "rate_limits"
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Service:
    """An installation with its databases."""

    installation: Installation
    management: httpx2.Client
    small_disk: Path | None
    postgresql: PostgresServer | None = None
    redis: redis.Redis | None = None

    def causes(self) -> dict[str, str] | None:
        """Return the missing parts and reasons of /readyz; None if it is ready."""
        response = self.management.get("/readyz")
        told = response.json()
        assert response.is_success == (told["status"] == "ready")
        return (
            None
            if response.is_success
            else {name: told["causes"][name] for name in told["reasons"]}
        )

    def cause(self, part: str, problem: WriteProblem) -> str:
        """Return the beginning of a cause of /readyz, with the server of the rate limits."""
        if part != RATE_LIMITS or self.redis is None:
            return IN_WORDS[problem]
        port = self.redis.connection_pool.connection_kwargs["port"]
        is_replica = self.redis.info("replication")["role"] != "master"
        words = "the server is a read-only replica" if is_replica else RIGHTS.get(problem)
        return f"redis://{HOST}:{port}: {words or IN_WORDS[problem]}"

    def wait_for(self, *parts: str, problem: WriteProblem | None) -> None:
        """Wait until the parts are missing for this reason, while /livez is 200 all the time."""
        expected = None if problem is None else {part: self.cause(part, problem) for part in parts}
        deadline = time.monotonic() + PATIENCE
        while not _begins(told := self.causes(), expected):
            assert self.management.get("/livez").is_success
            assert time.monotonic() < deadline, told
            time.sleep(0.05)

    def server(self) -> PostgresServer:
        """Return the server of its databases."""
        assert self.postgresql is not None
        return self.postgresql


RIGHTS = {WriteProblem.FORBIDDEN: "the server's access rules (ACL) forbid a command"}


def _begins(told: dict[str, str] | None, expected: dict[str, str] | None) -> bool:
    """Return whether the told causes begin with the expected ones."""
    if told is None or expected is None:
        return told is expected
    return told.keys() == expected.keys() and all(
        told[part].startswith(words) for part, words in expected.items()
    )


Spoils = Callable[[Service], AbstractContextManager[None]]
"""Prevents writing but not reading, for a ``with`` block."""


@contextmanager
def full(service: Service) -> Iterator[None]:
    """Fill the databases' file system to the last byte."""
    if service.small_disk is None:
        pytest.skip("cannot mount a file system here")
    ballast = service.small_disk / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    size = CHUNK
    while size:
        try:
            size = os.write(descriptor, bytes(size))
        except OSError:
            size //= 2
    os.close(descriptor)
    try:
        yield
    finally:
        ballast.unlink()


def limited(module: str) -> Spoils:
    """Limit the file sizes of a process, like a quota."""

    @contextmanager
    def files_are_limited(service: Service) -> Iterator[None]:
        pid = service.installation.children()[module]
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    return files_are_limited


def locked_file(name: str) -> Spoils:
    """Lock a database's file from another program."""

    @contextmanager
    def is_locked(service: Service) -> Iterator[None]:
        file = service.installation.data / name
        with closing(sqlite3.connect(file, isolation_level=None, timeout=PATIENCE)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    return is_locked


@contextmanager
def read_only_server(service: Service) -> Iterator[None]:
    """Make every transaction of the server read-only."""
    server = service.server()
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on")
    server.sql("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        with psycopg.connect(
            host=str(server.folder),
            port=server.port,
            user="postgres",
            autocommit=True,
            options="-c default_transaction_read_only=off",
        ) as connection:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


def without_right(database: str, revoke: LiteralString, grant: LiteralString) -> Spoils:
    """Take a right away from the role that owns the tables."""

    @contextmanager
    def is_revoked(service: Service) -> Iterator[None]:
        service.server().sql(revoke, database=database)
        try:
            yield
        finally:
            service.server().sql(grant, database=database)

    return is_revoked


def locked_table(database: str, statement: LiteralString) -> Spoils:
    """Lock a table in another session, so that others can only read it."""

    @contextmanager
    def is_locked(service: Service) -> Iterator[None]:
        server = service.server()
        with psycopg.connect(
            host=str(server.folder), port=server.port, user="postgres", dbname=database
        ) as other:
            other.execute(statement)
            yield
            other.rollback()

    return is_locked


def told(*commands: str, undo: str) -> Spoils:
    """Make the rate limits' server refuse writes."""

    @contextmanager
    def takes_no_writes(service: Service) -> Iterator[None]:
        assert service.redis is not None
        for command in commands:
            service.redis.execute_command(*command.split())  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            service.redis.execute_command(*undo.split())  # type: ignore[no-untyped-call]

    return takes_no_writes


@contextmanager
def unsaved(service: Service) -> Iterator[None]:
    """Make the rate limits' server refuse writes with MISCONF, because it could not save."""
    assert service.redis is not None
    ask = service.redis.execute_command
    in_the_way = Path(str(service.redis.config_get("dir")["dir"])) / "dump.rdb"
    in_the_way.mkdir()
    ask("CONFIG", "SET", "save", "3600 1")  # type: ignore[no-untyped-call]
    ask("BGSAVE")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        ask("CONFIG", "SET", "save", "")  # type: ignore[no-untyped-call]
        in_the_way.rmdir()


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Path | None]:
    """A separate file system, or None without permission to mount one."""
    with unprivileged.own_folder("small-disk") as folder:
        if _LIBC.mount(b"none", bytes(folder), b"tmpfs", 0, f"size={SIZE}".encode()):
            yield None
            return
        folder.chmod(0o755)
        yield folder
        assert _LIBC.umount2(bytes(folder), 0) == 0


@contextmanager
def serving(
    folder: Path, stores: Stores, small_disk: Path | None, data: Path | None = None
) -> Iterator[Service]:
    """Run an installation."""
    with (
        running(folder, databases=stores, data=data) as installation,
        httpx2.Client(
            base_url=installation.ready["management_url"], timeout=PATIENCE, trust_env=False
        ) as management,
    ):
        yield Service(installation, management, small_disk)


@pytest.fixture(scope="module")
def on_files(
    tmp_path_factory: pytest.TempPathFactory, small_disk: Path | None
) -> Iterator[Service]:
    """An installation with both databases in files, on a separate file system."""
    folder = tmp_path_factory.mktemp("on-files")
    data = folder / "data" if small_disk is None else small_disk / "data"
    with serving(folder, IN_FILES, small_disk, data) as service:
        yield service
    shutil.rmtree(data)


@pytest.fixture(scope="module")
def on_server(
    tmp_path_factory: pytest.TempPathFactory, small_disk: Path | None
) -> Iterator[Service]:
    """An installation on PostgreSQL, with its tables on a separate file system, and on Redis."""
    folder, port = tmp_path_factory.mktemp("on-server"), processes.free_port()
    accounts, keys = "pqkeep_accounts", "pqkeep_keys"
    with ExitStack() as stack:
        if small_disk is not None:
            stack.callback(shutil.rmtree, small_disk / "tables")
        server = stack.enter_context(running_postgresql())
        if small_disk is not None:
            tables = small_disk / "tables"
            tables.mkdir()
            os.chown(tables, server.data.stat().st_uid, server.data.stat().st_gid)
            with psycopg.connect(
                host=str(server.folder), port=server.port, user="postgres", autocommit=True
            ) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{tables}'".encode())
            server.sql("ALTER DATABASE pqkeep_accounts SET TABLESPACE small")
            server.sql("ALTER DATABASE pqkeep_keys SET TABLESPACE small")
        address = stack.enter_context(running_redis(port))
        stores = Stores(
            accounts=server.url(ACCOUNTS_ROLE, accounts),
            keys=server.url(KEYS_ROLE, keys),
            redis_url=f"redis://{address}",
        )
        service = stack.enter_context(serving(folder, stores, small_disk))
        service.postgresql = server
        service.redis = stack.enter_context(redis.Redis(HOST, port))
        yield service


def _is_noticed(service: Service, spoils: Spoils, problem: WriteProblem, *parts: str) -> None:
    """Without other requests /readyz and /healthz report the failure and the recovery."""
    public = service.installation.base_url
    expected = dict.fromkeys(parts, IN_WORDS[problem])
    service.wait_for(problem=None)
    with spoils(service):
        service.wait_for(*parts, problem=problem)
        assert httpx2.get(f"{public}/healthz", timeout=PATIENCE).status_code == 503
        if problem is WriteProblem.FULL and KEYS in parts:
            response = httpx2.post(
                f"{public}/api/v1/kms/keys/generate",
                headers={"X-API-Key": service.installation.ready["api_key"]},
                json={"algorithm": "ML-KEM-768", "if_absent": True},
                timeout=PATIENCE,
            )
            if service.postgresql is None or not response.is_success:  # a page may have room for it
                assert response.status_code == 503
                assert response.json()["error"]["error_code"] == "ERR_SERVICE_001"
                assert int(response.headers["Retry-After"]) >= 1
        if RATE_LIMITS not in parts:  # which the operator's requests need
            found = service.installation.operator().get("/installation")["parts"]
            assert {each["name"]: each["reason"] for each in found if not each["ready"]} == expected
    service.wait_for(problem=None)
    assert httpx2.get(f"{public}/healthz", timeout=PATIENCE).status_code == 200
    fields = {"algorithm": "ML-KEM-768", "if_absent": True}
    assert service.installation.demo().ask("POST", "/kms/keys/generate", fields).is_success


@pytest.mark.threat("crash")
@pytest.mark.parametrize(
    ("spoils", "problem", "parts"),
    [
        pytest.param(full, WriteProblem.FULL, (KEYS, ACCOUNTS), id="full disk"),
        pytest.param(limited("pqkeep_keyservice"), WriteProblem.FULL, (KEYS,), id="keys limited"),
        pytest.param(
            limited("pqkeep_gateway"), WriteProblem.FULL, (ACCOUNTS,), id="accounts limited"
        ),
        pytest.param(
            locked_file("keyservice/keys.sqlite3"), WriteProblem.LOCKED, (KEYS,), id="keys locked"
        ),
        pytest.param(
            locked_file("gateway/accounts.sqlite3"),
            WriteProblem.LOCKED,
            (ACCOUNTS,),
            id="accounts locked",
        ),
    ],
)
def test_files_that_are_read_only_in_effect(
    on_files: Service, spoils: Spoils, problem: WriteProblem, parts: tuple[str, ...]
) -> None:
    """A database file that cannot be written is named with the cause, until it can be written."""
    _is_noticed(on_files, spoils, problem, *parts)


@pytest.mark.parametrize(
    ("spoils", "problem", "parts"),
    [
        pytest.param(full, WriteProblem.FULL, (KEYS, ACCOUNTS), id="full disk"),
        pytest.param(
            read_only_server, WriteProblem.READ_ONLY, (KEYS, ACCOUNTS), id="read-only server"
        ),
        pytest.param(
            without_right(
                "pqkeep_keys",
                "REVOKE INSERT ON audit_records FROM pqkeep_keyservice",
                "GRANT INSERT ON audit_records TO pqkeep_keyservice",
            ),
            WriteProblem.FORBIDDEN,
            (KEYS,),
            id="keys without INSERT",
        ),
        pytest.param(
            without_right(
                "pqkeep_accounts",
                "REVOKE UPDATE ON tenants FROM pqkeep_gateway",
                "GRANT UPDATE ON tenants TO pqkeep_gateway",
            ),
            WriteProblem.FORBIDDEN,
            (ACCOUNTS,),
            id="accounts without UPDATE",
        ),
        pytest.param(
            locked_table("pqkeep_keys", "LOCK TABLE audit_records IN SHARE MODE"),
            WriteProblem.LOCKED,
            (KEYS,),
            id="keys locked",
        ),
        pytest.param(
            locked_table("pqkeep_accounts", "LOCK TABLE audit_outbox IN SHARE MODE"),
            WriteProblem.LOCKED,
            (ACCOUNTS,),
            id="accounts locked",
        ),
        pytest.param(
            told("CONFIG SET maxmemory 1", undo="CONFIG SET maxmemory 0"),
            WriteProblem.FULL,
            (RATE_LIMITS,),
            id="Redis without memory",
        ),
        pytest.param(unsaved, WriteProblem.FULL, (RATE_LIMITS,), id="Redis cannot save"),
        pytest.param(
            told(f"REPLICAOF {HOST} 1", undo="REPLICAOF NO ONE"),
            WriteProblem.READ_ONLY,
            (RATE_LIMITS,),
            id="Redis a replica",
        ),
        pytest.param(
            told("CONFIG SET min-replicas-to-write 1", undo="CONFIG SET min-replicas-to-write 0"),
            WriteProblem.READ_ONLY,
            (RATE_LIMITS,),
            id="Redis without replicas",
        ),
        pytest.param(
            told("ACL SETUSER default -lpush", undo="ACL SETUSER default +lpush"),
            WriteProblem.FORBIDDEN,
            (RATE_LIMITS,),
            id="Redis without LPUSH",
        ),
    ],
)
def test_servers_that_take_no_writes(
    on_server: Service, spoils: Spoils, problem: WriteProblem, parts: tuple[str, ...]
) -> None:
    """A database server that only allows reads is named as the cause until it accepts writes."""
    _is_noticed(on_server, spoils, problem, *parts)


def test_an_idle_installation_is_left_alone(on_files: Service) -> None:
    """Without requests there is no probe. Many requests together cause one probe a second."""
    on_files.wait_for(problem=None)

    def written() -> int:
        file = on_files.installation.data / "keyservice/keys.sqlite3"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            (count,) = database.execute("SELECT written FROM write_probe").fetchone()
        return int(count)

    time.sleep(2)
    before = written()
    time.sleep(3)
    assert written() == before
    began, asked = time.monotonic(), 0
    while time.monotonic() < began + 3 or asked < 300:
        assert on_files.causes() is None
        asked += 1
    assert 1 <= written() - before <= time.monotonic() - began + 1
