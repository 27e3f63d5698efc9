"""deploy/valkey.conf gives the gateways' user exactly the permissions that it needs."""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "valkey.conf"
PASSWORD = secrets.token_urlsafe()


async def _send(redis: Redis, *command: str) -> None:
    await redis.execute_command(*command)  # type: ignore[no-untyped-call]


@pytest.fixture
async def address(redis_server: str, tmp_path: Path) -> str:
    """A server's address, with the configuration's user."""
    lines = CONFIGURATION.read_text().splitlines()
    (user,) = (line.split() for line in lines if line.startswith("user pqkeep "))
    digest = f"#{hashlib.sha256(PASSWORD.encode()).hexdigest()}"
    rules = [digest if rule == "#SHA256" else rule for rule in user[2:]]
    async with Redis.from_url(f"redis://{redis_server}") as administrator:
        await _send(administrator, "ACL", "SETUSER", "pqkeep", "reset", *rules)
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "password").chmod(0o600)
    return f"redis://pqkeep@{redis_server}"


async def test_the_user_can_keep_windows(address: str, tmp_path: Path) -> None:
    """Counting, refusing, withdrawing and announcing changes are permitted."""
    limiter = RedisRateLimiter(address, tmp_path / "password", time.monotonic)
    subject, limit = tmp_path.as_posix(), Limit(1, 60)
    assert await limiter.enter(subject, limit) is None
    assert await limiter.enter(subject, limit) is not None
    await limiter.withdraw(subject)
    assert await limiter.enter(subject, limit) is None
    before = await limiter.changes()
    await limiter.announce_change()
    assert await limiter.changes() == before + 1
    await limiter.close()


async def test_the_user_can_do_nothing_else(address: str) -> None:
    """The user can use no other keys and no administration of the server."""
    async with Redis.from_url(address, password=PASSWORD) as redis:
        for command in (("GET", "other"), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("FLUSHALL",)):
            with pytest.raises(NoPermissionError):
                await _send(redis, *command)
