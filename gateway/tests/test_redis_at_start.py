"""An unusable server for rate limits is reported at the start, with the cause."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.fixtures import processes
from tests.fixtures.processes import HOST

from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter
from pqkeep_protocol.startup.settings import ConfigError

SECRET = "4f1d-not-in-a-message"  # noqa: S105 - of no server
OLD = ("server", "redis", "version", "6.0.16", "proto", 3)


def _encoded(reply: Sequence[object]) -> bytes:
    items = [
        f":{item}" if isinstance(item, int) else f"${len(str(item))}\r\n{item}" for item in reply
    ]
    return "\r\n".join([f"%{len(reply) // 2}", *items, ""]).encode()


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Listen and respond to everything with the same bytes; yield the port."""
    with socket.create_server((HOST, 0)) as listener:

        def respond(peer: socket.socket) -> None:
            with peer:
                while peer.recv(4096):
                    peer.sendall(reply)

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=respond, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


async def _problem(url: str, password: Path | None = None) -> str:
    limiter = RedisRateLimiter(url, password, lambda: 1_000.0)
    try:
        with pytest.raises(ConfigError) as raised:
            await limiter.open()
    finally:
        await limiter.close()
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Redis or Valkey"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "not Redis or Valkey"),
        (b"-ERR unknown command `HELLO`\r\n", "too old"),
        (_encoded(OLD), "6.0.16"),
        (b"-NOAUTH Authentication required.\r\n", "password"),
        (b"-WRONGPASS invalid username-password pair\r\n", "password"),
        (b"-NOPERM this user has no permissions\r\n", "ACL"),
    ],
    ids=["HTTP", "TLS", "older than 6", "too old", "no password", "wrong password", "no rights"],
)
async def test_what_can_never_be_used_is_named(reply: bytes, words: str) -> None:
    """The message has the address and the cause."""
    with answering(reply) as port:
        problem = await _problem(f"redis://user@{HOST}:{port}")
        assert f"{HOST}:{port}" in problem
        assert words in problem


async def test_a_wrong_password_is_not_out_of_reach(redis_server: str, tmp_path: Path) -> None:
    """A rejected password is distinguished from an outage, and no message contains it."""
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o600)
    assert "password" in await _problem(f"redis://nobody@{redis_server}", file)


async def test_rules_that_lack_a_command_are_named(redis_server: str) -> None:
    """A Redis user without a required command is refused at the start."""
    async with Redis.from_url(f"redis://{redis_server}") as administrator:
        for rule in ("+@all -lpush", "+@all -evalsha -eval"):
            words = ("ACL", "SETUSER", "lacking", "reset", "on", "nopass", "~*", *rule.split())
            await administrator.execute_command(*words)  # type: ignore[no-untyped-call]
            assert "ACL" in await _problem(f"redis://lacking@{redis_server}")


async def test_a_server_that_is_away_may_come_back() -> None:
    """Without a server the gateway starts, and keeps trying."""
    limiter = RedisRateLimiter(f"redis://{HOST}:{processes.free_port()}", None, lambda: 1_000.0)
    await limiter.open()
    await limiter.close()
