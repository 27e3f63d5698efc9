"""Windows in a Valkey that Sentinels replace."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from tests.fixtures import processes, unprivileged
from tests.fixtures.certificate import new_certificate
from tests.fixtures.redis import Sentinels, running_sentinels
from tests.patience import PATIENCE

from pqkeep_gateway.access.rate_limit import ChangedError, Limit
from pqkeep_gateway.storage import redis_rate_limiter
from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.settings import ConfigError

LIMIT = Limit(5, 60)


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    """A primary, a replica and two Sentinels."""
    settings = {"down-after-milliseconds": "2000", "failover-timeout": "3000"}
    with running_sentinels(1, 2, settings) as running:
        yield running


@pytest.fixture
def password_file(sentinels: Sentinels, tmp_path: Path) -> Path:
    """The password of servers and Sentinels."""
    file = tmp_path / "password"
    file.write_text(sentinels.password)
    file.chmod(0o600)
    return file


@asynccontextmanager
async def _limiter(
    url: str, password: Path | None, of_sentinels: Path | None
) -> AsyncIterator[RedisRateLimiter]:
    limiter = RedisRateLimiter(url, password, time.monotonic, sentinel_password_file=of_sentinels)
    try:
        yield limiter
    finally:  # otherwise a failure leaves sockets to the next tests
        await limiter.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers respond late on a busy machine."""
    monkeypatch.setattr(redis_rate_limiter, "TIMEOUT_SECONDS", PATIENCE)
    monkeypatch.setattr(redis_rate_limiter, "SENTINEL_SECONDS", PATIENCE)


async def _problem(url: str, password: Path | None, of_sentinels: Path | None) -> str:
    async with _limiter(url, password, of_sentinels) as limiter:
        with pytest.raises(ConfigError) as raised:
            await limiter.open()
    return str(raised.value)


async def test_what_is_wrong_with_sentinels_is_named(
    sentinels: Sentinels, password_file: Path
) -> None:
    """A rejected password, an unknown name and a server that is no Sentinel end the start."""
    url = sentinels.url
    assert "redis_sentinel_password_file" in await _problem(url, password_file, None)
    assert "file redis_password_file" in await _problem(url, None, password_file)
    unknown = await _problem(url.replace("/pqkeep", "/other"), password_file, password_file)
    assert "do not know this name, but pqkeep" in unknown
    at_server = f"redis+sentinel://127.0.0.1:{sentinels.nodes[0]}/pqkeep"
    assert "not a Sentinel" in await _problem(at_server, password_file, password_file)


async def test_a_replica_is_named(sentinels: Sentinels, password_file: Path) -> None:
    """The cause of a server that is a read-only replica has its address."""
    address = f"redis://127.0.0.1:{sentinels.nodes[1]}"
    async with _limiter(address, password_file, None) as limiter:
        with pytest.raises(UnavailableError) as raised:
            await limiter.check()
    assert raised.value.problem.value == "read-only"
    assert raised.value.cause.startswith(f"{address}: the server is a read-only replica")


async def _until_counted(limiter: RedisRateLimiter, subject: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await limiter.enter(subject, LIMIT)
        except UnavailableError:
            assert time.monotonic() < deadline
        else:
            return


async def test_a_killed_primary_is_replaced(sentinels: Sentinels, password_file: Path) -> None:
    """The window goes on with the replica, and no look-up from before the change is valid."""
    async with _limiter(sentinels.url, password_file, password_file) as limiter:
        await limiter.open()
        as_of = await limiter.changes()
        for _ in range(3):
            assert await limiter.enter("a", LIMIT, as_of) is None
        first, second = sentinels.nodes
        with sentinels.client(first) as primary:
            primary.execute_command("WAIT", 1, 2000)
        sentinels.kill(first)
        with pytest.raises(UnavailableError) as raised:
            await limiter.enter("a", LIMIT, as_of)
        assert f"primary 127.0.0.1:{first}" in raised.value.cause
        await _until_counted(limiter, "other")
        while sentinels.primary() != second:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.1)
        with pytest.raises(ChangedError):
            await limiter.enter("a", LIMIT, as_of)
        assert await limiter.changes() > as_of
        assert [await limiter.enter("a", LIMIT) is None for _ in range(3)] == [True, True, False]


class Front:
    """Relays connections to a server, from TLS or plain, and records what TLS clients send."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._target = port
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            is_tls = client.recv(1, socket.MSG_PEEK) == b"\x16"
            if is_tls:
                client = self._context.wrap_socket(client, server_side=True)
            with client, socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(target=self._pass, args=(server, client), daemon=True)
                back.start()
                while data := client.recv(65_536):
                    self.received += data if is_tls else b""
                    server.sendall(data)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)


@pytest.mark.threat("lying-sentinel")
async def test_a_sentinel_that_lies_gets_no_password(tmp_path: Path) -> None:
    """With TLS, a primary without a trusted certificate gets no byte of a command."""
    (tmp_path / "other").mkdir()
    trusted, other = new_certificate(tmp_path), new_certificate(tmp_path / "other")
    port, watching = processes.free_port(), processes.free_port()
    with (
        unprivileged.own_folder("tls") as folder,
        Front(port, trusted.context) as server,
        Front(watching, trusted.context) as sentinel,
    ):
        settings = {"down-after-milliseconds": "60000"}
        running = Sentinels(folder, "tls-password", settings, [server.port], [watching])
        try:
            running.start(port, port)
            running.watch()
            file = tmp_path / "password"
            file.write_text(running.password)
            file.chmod(0o600)
            url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/pqkeep?ssl_ca_certs={trusted.path}"
            async with _limiter(url, file, file) as limiter:
                await limiter.open()
                assert await limiter.enter("a", LIMIT) is None
            assert b"tls-password" in server.received
            assert b"tls-password" in sentinel.received
            with Front(port, other.context) as lie:
                for command in (
                    ("REMOVE", "pqkeep"),
                    ("MONITOR", "pqkeep", "127.0.0.1", lie.port, 1),
                    ("SET", "pqkeep", "auth-pass", running.password),
                ):
                    with running.client(watching) as administrator:
                        administrator.execute_command("SENTINEL", *command)
                async with _limiter(url, file, file) as limiter:
                    with pytest.raises(ConfigError, match=f"{lie.port}.*TLS failed"):
                        await limiter.open()
                assert lie.received == b""
        finally:
            for process in running.processes.values():
                processes.stop(process)
