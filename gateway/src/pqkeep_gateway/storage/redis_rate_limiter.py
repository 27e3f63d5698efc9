"""The rate limiter of several gateways, in Redis or Valkey."""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    InvalidResponse,
    RedisError,
    ResponseError,
)

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import ChangedError, Limit, Usage
from pqkeep_gateway.rehearsal import is_rehearsal
from pqkeep_gateway.storage.redis_script import RedisScript
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.commits import WriteProblem
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

TIMEOUT_SECONDS = 2.0
MAX_CONNECTIONS = 64
MARGIN_SECONDS = 3600
"""Seconds for which an idle window is kept beyond its length, for changes of the server's clock."""

CACHE_SECONDS = 30
"""The longest time that gateways cache look-ups, if an announcement is lost, or if an attacker
writes the change counter."""

CHANGES_KEY = "pqkeep:changes"
WINDOW_KEY = "pqkeep:window:"

LEAST_REDIS = (6, 2)

_MICROSECONDS = 1_000_000
_CHANGED = -1
_FAILURES = (RedisError, OSError, TimeoutError)
_PROBLEMS: Mapping[str, WriteProblem] = {
    "OOM": WriteProblem.FULL,
    "MISCONF": WriteProblem.FULL,  # it cannot save to disk
    "READONLY": WriteProblem.READ_ONLY,
    "NOREPLICAS": WriteProblem.READ_ONLY,
    "NOAUTH": WriteProblem.FORBIDDEN,
    "WRONGPASS": WriteProblem.FORBIDDEN,
    "NOPERM": WriteProblem.FORBIDDEN,
    "The user executing the script": WriteProblem.FORBIDDEN,
    "BUSY": WriteProblem.LOCKED,  # a script is running
    "LOADING": WriteProblem.NO_RESPONSE,
}
"""The meaning of a server's error by a word in it. Before version 7 the word of a script's error is
in the middle of a sentence."""
_WORD = re.compile(rf"\b({'|'.join(_PROBLEMS)})\b")

ENTER = """
if ARGV[1] ~= '' and ARGV[1] ~= redis.call('GET', KEYS[2]) then return {-1, 0, 0, 0} end
local events, length, new = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local now, calls = tonumber(ARGV[6]), tonumber(ARGV[7])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now + length then redis.call('DEL', KEYS[1]) end
local oldest, admitted, wait = nil, 0, 0
for _ = 1, calls do
  oldest = redis.call('LINDEX', KEYS[1], events - new)
  if oldest and tonumber(oldest) + length > now then
    wait = tonumber(oldest) + length - now
    break
  end
  for _ = 1, new do redis.call('LPUSH', KEYS[1], ARGV[6]) end
  admitted = admitted + 1
end
if admitted == 0 then return {0, 0, 0, wait} end
redis.call('LTRIM', KEYS[1], 0, events - 1)
redis.call('EXPIRE', KEYS[1], ARGV[4])
oldest = tonumber(redis.call('LINDEX', KEYS[1], -1))
for _ = 1, 100 * calls do
  if oldest + length > now then break end
  redis.call('RPOP', KEYS[1])
  oldest = tonumber(redis.call('LINDEX', KEYS[1], -1))
end
return {admitted, events - redis.call('LLEN', KEYS[1]), math.max(oldest + length - now, 0), wait}
"""
"""Enter a window with ``events`` for each call, all or none. The window is a list of microseconds,
newest first.

Returns the number of calls that entered, the remaining events, and two numbers of microseconds:
until an event leaves, and until the next call can enter. -1 calls: the change counter differs, and
no call entered. Expired events are removed, at most a hundred for each call, so that no call takes
long. A window in the future belongs to a gateway with another clock, and is dropped."""

CHANGES = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[1], time[1] .. string.format('%06d', time[2]), 'EX', ARGV[1])
end
return redis.call('INCRBY', KEYS[1], ARGV[2])
"""
"""Increase the change counter. A missing counter begins at a number that was never used before.

The counter expires every half minute on purpose. If a gateway stops between a change and its
announcement, no other gateway caches the old state for longer than that.
"""


class RedisRateLimiter:
    """A RateLimiter that several gateways share.

    Their common time is the server's at each gateway's first request, continued by a steady clock.
    """

    cache_seconds = float(CACHE_SECONDS)

    def __init__(self, url: str, password_file: Path | None, clock: Clock) -> None:
        """Connect at the first use. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            if parts.password or "password" in parse_qs(parts.query):
                raise ConfigError(
                    "redis_url: remove the password from the URL and put it into"
                    " redis_password_file"
                )
            pool = BlockingConnectionPool.from_url(
                url,
                password=_password(password_file),
                max_connections=MAX_CONNECTIONS,
                timeout=TIMEOUT_SECONDS,
                socket_timeout=None,  # whole exchanges have a timeout, which is cheaper
                socket_connect_timeout=TIMEOUT_SECONDS,
                driver_info=None,  # Redis 7.0 has no CLIENT SETINFO, and rejects ACL rules with it
            )
        except ValueError:
            raise ConfigError("redis_url: not a redis://, rediss:// or unix:// URL") from None
        self._redis = Redis.from_pool(pool)  # also closes the pool
        self._enter = RedisScript(self._redis, ENTER, self._now, TIMEOUT_SECONDS)
        self._changes = self._redis.register_script(CHANGES)
        self._clock = clock
        self._offset: float | None = None
        place = parts.path if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]
        self._address = f"{parts.scheme}://{place}"

    async def open(self) -> None:
        """Try the commands of a request once. Raises ConfigError if none could ever succeed.

        A server that does not respond yet, or refuses writes now, may recover later.
        """
        try:
            told = await _in_time(self._redis.execute_command("HELLO"))  # type: ignore[no-untyped-call]
            self._require_version(told)
            await _in_time(self._changes(keys=[CHANGES_KEY], args=[CACHE_SECONDS, 0]))
            await self._enter((f"{WINDOW_KEY}start", CHANGES_KEY), ("", 1, 1, 1, 1))
        except _FAILURES as error:
            if (problem := _permanent_problem(error)) is not None:
                raise ConfigError(f"redis_url: {self._address}: {problem}") from None
            _LOG.error(
                "the rate limits' server cannot be used yet",
                address=self._address,
                problem=problem_of(error).value,
            )

    def _require_version(self, told: Any) -> None:
        """Raise ConfigError if the HELLO response has a version that is too old."""
        pairs = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
        texts = {_text(name): _text(value) for name, value in pairs.items()}
        server, version = texts.get("server", ""), texts.get("version", "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if server == "redis" and numbers < LEAST_REDIS:
            raise ConfigError(
                f"redis_url: {self._address} is Redis {version}; pqkeep needs Valkey, or Redis"
                f" {'.'.join(map(str, LEAST_REDIS))} or later"
            )

    async def count(
        self, subject: str, limit: Limit, as_of: int | None = None, *, events: int = 1
    ) -> Usage:
        """Count all events of a subject or none; return the state of the limit."""
        try:
            if self._offset is None:
                self._offset = await self._measure_offset()
            (admitted, remaining, reset, wait), place = await self._enter(
                (WINDOW_KEY + subject, CHANGES_KEY),
                (
                    "" if as_of is None else as_of,
                    limit.events,
                    limit.seconds * _MICROSECONDS,
                    limit.seconds + MARGIN_SECONDS,
                    events,
                ),
            )
        except _FAILURES as error:
            raise _unavailable(error) from None
        if admitted == _CHANGED:
            raise ChangedError
        if place >= admitted:
            return Usage(limit, 0, wait / _MICROSECONDS, is_refused=True)
        later = (admitted - 1 - place) * events
        return Usage(limit, remaining + later, reset / _MICROSECONDS)

    def count_now(
        self, subject: str, limit: Limit, as_of: int | None, now: float, *, events: int = 1
    ) -> Usage | None:
        """Return None: the counts are in Redis."""
        return None

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        """Count one event; return None, or the seconds until an event is allowed."""
        usage = await self.count(subject, limit, as_of)
        return usage.reset if usage.is_refused else None

    async def withdraw(self, subject: str) -> None:
        """Take back one counted event of a subject."""
        await _available(_in_time(self._redis.lpop(WINDOW_KEY + subject)))

    async def changes(self) -> int:
        """Return the change counter."""
        return await self._add_changes(0)

    async def announce_change(self) -> None:
        """Make all gateways discard their cached look-ups."""
        if not is_rehearsal():
            await self._add_changes(1)

    async def close(self) -> None:
        """Close the connections."""
        await self._enter.close()
        await self._redis.aclose()

    async def _add_changes(self, count: int) -> int:
        args = [CACHE_SECONDS, count]
        return int(await _available(_in_time(self._changes(keys=[CHANGES_KEY], args=args))))

    async def _measure_offset(self) -> float:
        """Return the seconds by which the server's time is ahead of the clock."""
        seconds, microseconds = await _in_time(self._redis.time())
        return float(seconds + microseconds / _MICROSECONDS - self._clock())

    def _now(self) -> int:
        return int((self._clock() + (self._offset or 0.0)) * _MICROSECONDS)


def _password(file: Path | None) -> str | None:
    return None if file is None else read_secret_text(file, "Redis password")


async def _in_time(response: Awaitable[Any]) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await response


async def _available(response: Awaitable[Any]) -> Any:
    try:
        return await response
    except _FAILURES as error:
        raise _unavailable(error) from None


def _unavailable(error: Exception) -> UnavailableError:
    problem = problem_of(error)
    _LOG.error(
        "the rate limits' server cannot be used", problem=problem.value, error=type(error).__name__
    )
    return UnavailableError(problem)


def problem_of(error: Exception) -> WriteProblem:
    """Return the problem behind an error of the client or the server."""
    if isinstance(error, AuthenticationError):
        return WriteProblem.FORBIDDEN
    if isinstance(error, ResponseError):
        found = _WORD.search(f"{error.status_code} {error}")
        return _PROBLEMS[found[1]] if found else WriteProblem.FAILED
    return WriteProblem.NO_RESPONSE


def _permanent_problem(error: Exception) -> str | None:
    """Return a description of an error that retries cannot solve, or None."""
    text = f"{getattr(error, 'status_code', '')} {error}"
    causes = (error, error.__cause__, error.__context__)
    if isinstance(error, AuthenticationError | AuthenticationWrongNumberOfArgsError):
        return (
            "the server rejects the user or the password: check the user in redis_url and the "
            "file redis_password_file"
        )
    if problem_of(error) is WriteProblem.FORBIDDEN:
        return (
            "the server's access rules (ACL) forbid a command that the gateway needs: use the "
            "rules in deploy/valkey.conf"
        )
    if isinstance(error, ResponseError) and "unknown command" in text:
        return f"the server is too old, or is not Redis: {error}"
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "TLS failed: use rediss:// only for a server with TLS and a trusted certificate"
    if isinstance(error, InvalidResponse) or "Protocol error" in text:
        return "the server is not Redis or Valkey, or it uses TLS: then write rediss://"
    return None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
