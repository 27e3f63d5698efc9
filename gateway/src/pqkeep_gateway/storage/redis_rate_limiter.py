"""Rate windows in Redis or Valkey, for several gateways."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import ChangedError, Limit
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

TIMEOUT_SECONDS = 2.0
MAX_CONNECTIONS = 64
KEPT_SECONDS = 7 * 86_400
"""How long a window stays that nobody enters: the server's clock may be set on by as much."""

REMEMBERED_SECONDS = 30
"""How long a gateway may remember what it looked up, whatever it heard since."""

CHANGES_KEY = "pqkeep:changes"
WINDOW_KEY = "pqkeep:window:"

_MICROSECONDS = 1_000_000
_ENTERED = -1
_CHANGED = -2

ENTER = """
if ARGV[1] ~= '' and ARGV[1] ~= redis.call('GET', KEYS[2]) then return -2 end
local events, length, now = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now + length then redis.call('DEL', KEYS[1]) end
local oldest = redis.call('LINDEX', KEYS[1], events - 1)
if oldest and tonumber(oldest) + length > now then return tonumber(oldest) + length - now end
redis.call('LPUSH', KEYS[1], ARGV[4])
redis.call('LTRIM', KEYS[1], 0, events - 1)
redis.call('EXPIRE', KEYS[1], ARGV[5])
return -1
"""
"""A window is a list of microseconds, the newest first. One that lies in the future was left by
a gateway whose time is not ours, and shuts nobody out."""

CHANGES = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[1], time[1] .. string.format('%06d', time[2]), 'EX', ARGV[1])
end
return redis.call('INCRBY', KEYS[1], ARGV[2])
"""
"""Where nothing is counted yet, or was lost, counting begins at a number never used before.

It is lost on purpose every half minute: a gateway that died, or could not reach the server, between
a change and its announcement leaves nobody who remembers what was before for longer than that.
"""


class RedisRateLimiter:
    """Windows of several gateways.

    Their common time is the server's when each of them first asked, carried on by a clock that
    does not jump.
    """

    def __init__(self, url: str, password_file: Path | None, clock: Clock) -> None:
        """Connect when needed. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            if parts.password or "password" in parse_qs(parts.query):
                raise ConfigError("redis_url: the password belongs into a file of its own")
            pool = BlockingConnectionPool.from_url(
                url,
                password=_password(password_file),
                max_connections=MAX_CONNECTIONS,
                timeout=TIMEOUT_SECONDS,
                socket_timeout=TIMEOUT_SECONDS,
                socket_connect_timeout=TIMEOUT_SECONDS,
            )
        except ValueError:
            raise ConfigError("redis_url: not a redis://, rediss:// or unix:// URL") from None
        self._redis = Redis.from_pool(pool)  # which it closes, too
        self._enter = self._redis.register_script(ENTER)
        self._changes = self._redis.register_script(CHANGES)
        self._clock = clock
        self._offset: float | None = None

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event of a subject, if it may happen; otherwise return how long to wait."""
        answer = await _reached(self._enter_now(subject, limit, as_of))
        if answer == _CHANGED:
            raise ChangedError
        return None if answer == _ENTERED else answer / _MICROSECONDS

    async def changes(self) -> int:
        """Return how often something changed that gateways remember."""
        return await self._changes_and(0)

    async def announce_change(self) -> None:
        """Make every gateway look up again what it remembers, from now on."""
        await self._changes_and(1)

    async def close(self) -> None:
        """Hang up."""
        await self._redis.aclose()

    async def _changes_and(self, more: int) -> int:
        args = [REMEMBERED_SECONDS, more]
        return int(await _reached(self._changes(keys=[CHANGES_KEY], args=args)))

    async def _enter_now(self, subject: str, limit: Limit, as_of: int | None) -> int:
        if self._offset is None:
            seconds, microseconds = await self._redis.time()
            self._offset = seconds + microseconds / _MICROSECONDS - self._clock()
        now = self._clock() + self._offset
        answer: int = await self._enter(
            keys=[WINDOW_KEY + subject, CHANGES_KEY],
            args=[
                "" if as_of is None else as_of,
                limit.events,
                limit.seconds * _MICROSECONDS,
                int(now * _MICROSECONDS),
                KEPT_SECONDS,
            ],
        )
        return answer


def _password(file: Path | None) -> str | None:
    return None if file is None else read_secret_text(file, "Redis password")


async def _reached(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except (RedisError, OSError, TimeoutError) as error:
        _LOG.error("the rate limit server is unreachable", error=type(error).__name__)
        raise UnavailableError from None
