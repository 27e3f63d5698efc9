"""The rate limiter of several gateways, in Redis or Valkey."""

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    InvalidResponse,
    RedisError,
    ResponseError,
)

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.rate_limit import ChangedError, Limit, Usage
from pqkeep_gateway.redis_address import RedisAddress, parse
from pqkeep_gateway.rehearsal import is_rehearsal
from pqkeep_gateway.storage.redis_script import RedisScript, is_read_only
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.commits import IN_WORDS, WriteProblem
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

TIMEOUT_SECONDS = 2.0
MAX_CONNECTIONS = 64
MARGIN_SECONDS = 3600
"""Seconds for which an idle window is kept beyond its length, for changes of the server's clock."""

CACHE_SECONDS = 30
"""The longest time that gateways cache look-ups.

It counts if an announcement is lost, or if an attacker writes the change counter.
"""

CHANGES_KEY = "pqkeep:changes"
WINDOW_KEY = "pqkeep:window:"

LEAST_REDIS = (6, 2)

ANEW = "anew"

SENTINEL_SECONDS = 0.5
"""The time limit of one Sentinel. So a third one is asked in time if two hang."""
FOLLOW_SECONDS = 0.5
"""The period in which Sentinels are asked for the primary."""

PROBED, PROBES = "readiness", Limit(64, 1)
"""A window that checks enter."""

_MICROSECONDS = 1_000_000
_CHANGED = -1
_FAILURES = (RedisError, OSError, TimeoutError)
AUTHENTICATION_ERRORS = (AuthenticationError, AuthenticationWrongNumberOfArgsError)
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
if ARGV[3] ~= '' or redis.call('EXISTS', KEYS[1]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[1], time[1] .. string.format('%06d', time[2]), 'EX', ARGV[1])
end
return redis.call('INCRBY', KEYS[1], ARGV[2])
"""
"""Increase the change counter. A missing counter begins at a number that was never used before, and
with ANEW any counter does.

The counter expires every half minute on purpose. If a gateway stops between a change and its
announcement, no other gateway caches the old state for longer than that.
"""


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary that Sentinels name. At capacity, a caller waits."""


class RedisRateLimiter:
    """A RateLimiter that several gateways share.

    Their common time is the server's at each gateway's first request, continued by a steady clock.
    With Sentinels, the server is their current primary. A primary that was a replica can lack the
    last announcements, and its clock can differ.
    """

    cache_seconds = float(CACHE_SECONDS)

    def __init__(
        self,
        url: str,
        password_file: Path | None,
        clock: Clock,
        *,
        sentinel_password_file: Path | None = None,
    ) -> None:
        """Connect at the first use. Raises ConfigError."""
        try:
            self._address = address = parse(url)
            options: dict[str, Any] = {
                **parse_url(address.url),
                "password": _password(password_file, "Redis password"),
                "timeout": TIMEOUT_SECONDS,
                "max_connections": MAX_CONNECTIONS,
                "socket_timeout": None,  # whole exchanges have a timeout, which is cheaper
                "socket_connect_timeout": TIMEOUT_SECONDS,
                "driver_info": None,  # Redis 7.0 has no CLIENT SETINFO, and rejects ACL rules with it
            }
        except ValueError as error:
            raise ConfigError(f"redis_url: {error}") from None
        self._pool: _PrimaryPool | None = None
        """The connections to the primary that Sentinels name."""
        if address.service is None:
            self._redis = Redis.from_pool(BlockingConnectionPool(**options))
        else:
            self._pool = _primary_pool(address, options, sentinel_password_file)
            self._redis = Redis.from_pool(self._pool)  # also closes the pool
        self._enter = RedisScript(self._redis, ENTER, self._now, TIMEOUT_SECONDS, self._reconnected)
        self._changes = self._redis.register_script(CHANGES)
        self._clock = clock
        self._offset: float | None = None
        self._primary: tuple[str, int] | None = None
        """The primary with the time of ``_offset``."""
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Try the commands of a request once. Raises ConfigError if none could ever succeed.

        A server that does not respond yet, or refuses writes now, may recover later.
        """
        try:
            await self._try()
        except _FAILURES as error:
            _LOG.error("the rate limits' server cannot be used yet", cause=self._cause(error))
        if self._pool is not None:
            self._following = asyncio.create_task(self._follow(self._pool))

    async def diagnose(self) -> Sequence[str]:
        """Return the problems of the server, its Sentinels and replicas. Raises ConfigError."""
        try:
            await self._try()
        except _FAILURES as error:
            return (self._cause(error),)
        if self._pool is None:
            return ()
        problems, replicas = list[str](), 0
        for place, sentinel in self._sentinels():
            try:
                listed = await _in_time(sentinel.sentinel_slaves(self._address.service))
            except _FAILURES as error:
                cause = _sentinel_problem(error) or _passing_problem(error)
                problems.append(f"the Sentinel {place}: {cause}")
            else:
                replicas = max(replicas, len(self._pool.sentinel_manager.filter_slaves(listed)))
        if not replicas:
            problems.append(f"{self._place}: no replica can replace the primary")
        return problems

    async def _try(self) -> None:
        """Try the commands of a request. Raises ConfigError if none could ever succeed."""
        try:
            told = await _in_time(self._redis.execute_command("HELLO"))  # type: ignore[no-untyped-call]
            self._require_version(told)
            await _in_time(self._changes(keys=[CHANGES_KEY], args=[CACHE_SECONDS, 0, ""]))
            await self._enter((f"{WINDOW_KEY}start", CHANGES_KEY), ("", 1, 1, 1, 1))
        except _FAILURES as error:
            if isinstance(error, MasterNotFoundError):
                await self._require_service()
            if (problem := _permanent_problem(error)) is not None:
                raise ConfigError(f"redis_url: {self._place}: {problem}") from None
            raise

    async def _require_service(self) -> None:
        """Raise ConfigError if the Sentinels reject the gateway, or know other names only."""
        known: set[str] = set()
        for place, sentinel in self._sentinels():
            try:
                known |= set(await _in_time(sentinel.sentinel_masters()))
            except _FAILURES as error:
                if (problem := _sentinel_problem(error)) is not None:
                    raise ConfigError(f"redis_url: the Sentinel {place}: {problem}") from None
        if known and self._address.service not in known:
            raise ConfigError(
                f"redis_url: {self._place}: the Sentinels do not know this name, but"
                f" {', '.join(sorted(known))}"
            )

    def _sentinels(self) -> Iterator[tuple[str, Redis]]:
        """Yield the Sentinels with their addresses."""
        for sentinel in [] if self._pool is None else [*self._pool.sentinel_manager.sentinels]:
            place = sentinel.connection_pool.connection_kwargs
            yield f"{place['host']}:{place['port']}", sentinel

    def _require_version(self, told: Any) -> None:
        """Raise ConfigError if the HELLO response has a version that is too old."""
        pairs = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
        texts = {_text(name): _text(value) for name, value in pairs.items()}
        server, version = texts.get("server", ""), texts.get("version", "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if server == "redis" and numbers < LEAST_REDIS:
            raise ConfigError(
                f"redis_url: {self._place} is Redis {version}; pqkeep needs Valkey, or Redis"
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
            raise self._unavailable(error) from None
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
        await self._available(self._redis.lpop(WINDOW_KEY + subject))

    async def changes(self) -> int:
        """Return the change counter."""
        return await self._add_changes(0)

    async def announce_change(self) -> None:
        """Make all gateways discard their cached look-ups."""
        if not is_rehearsal():
            await self._add_changes(1)

    async def check(self) -> None:
        """Raise UnavailableError if requests cannot be counted."""
        await self.changes()
        await self.enter(PROBED, PROBES)

    async def close(self) -> None:
        """Close the connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._enter.close()
        await self._redis.aclose()
        if self._pool is not None:
            await self._pool.sentinel_manager.aclose()

    async def _add_changes(self, count: int) -> int:
        args: list[str | int] = [CACHE_SECONDS, count, ""]
        return int(await self._available(self._changes(keys=[CHANGES_KEY], args=args)))

    async def _follow(self, pool: _PrimaryPool) -> None:
        """Leave a primary that still responds when the Sentinels have named another one."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            before = self._known_primary()
            with suppress(*_FAILURES):
                await _in_time(pool.get_master_address())  # type: ignore[no-untyped-call]
            if self._known_primary() != before is not None:
                _LOG.warning("the rate limits have another primary", address=self._place)
                await self._enter.close()

    async def _reconnected(self) -> None:
        """Make all gateways discard their cached look-ups.

        The server may have lost announcements: it can be another one, at the same address even.
        """
        await self._changes(keys=[CHANGES_KEY], args=[CACHE_SECONDS, 0, ANEW])
        if self._known_primary() != self._primary:
            self._offset = await self._measure_offset()

    def _known_primary(self) -> tuple[str, int] | None:
        """Return the primary of the last connection with Sentinels."""
        return None if self._pool is None else self._pool.master_address

    async def _measure_offset(self) -> float:
        """Return the seconds by which the server's time is ahead of the clock."""
        seconds, microseconds = await _in_time(self._redis.time())
        self._primary = self._known_primary()
        return float(seconds + microseconds / _MICROSECONDS - self._clock())

    def _now(self) -> int:
        return int((self._clock() + (self._offset or 0.0)) * _MICROSECONDS)

    @property
    def _place(self) -> str:
        """The address for messages, with the primary if it is known."""
        primary = self._known_primary()
        named = "" if primary is None else f" (primary {primary[0]}:{primary[1]})"
        return f"{self._address.shown}{named}"

    async def _available(self, response: Awaitable[Any]) -> Any:
        try:
            return await _in_time(response)
        except _FAILURES as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> UnavailableError:
        problem, cause = problem_of(error), self._cause(error)
        _LOG.error("the rate limits' server cannot be used", problem=problem.value, cause=cause)
        return UnavailableError(problem, cause)

    def _cause(self, error: Exception) -> str:
        return f"{self._place}: {_permanent_problem(error) or _passing_problem(error)}"


def _primary_pool(
    address: RedisAddress, options: Mapping[str, Any], password_file: Path | None
) -> _PrimaryPool:
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        address.servers,
        sentinel_kwargs={
            **tls,
            "ssl": address.is_tls,
            "password": _password(password_file, "Sentinels' password"),
            "socket_timeout": SENTINEL_SECONDS,
            "socket_connect_timeout": SENTINEL_SECONDS,
            "driver_info": None,
            "retry": Retry(NoBackoff(), 0),
        },
    )
    ignored = {"host", "port", "connection_class"}  # of a Sentinel
    kept = {name: value for name, value in options.items() if name not in ignored}
    return _PrimaryPool(address.service, sentinels, ssl=address.is_tls, **kept)  # type: ignore[no-untyped-call]


def _password(file: Path | None, what: str) -> str | None:
    return None if file is None else read_secret_text(file, what)


async def _in_time(response: Awaitable[Any]) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await response


def problem_of(error: Exception) -> WriteProblem:
    """Return the problem behind an error of the client or the server."""
    if isinstance(error, AuthenticationError):
        return WriteProblem.FORBIDDEN
    if isinstance(error, ResponseError):
        found = _WORD.search(f"{error.status_code} {error}")
        return _PROBLEMS[found[1]] if found else WriteProblem.FAILED
    return WriteProblem.NO_RESPONSE


_REJECTED = (
    "the server rejects the user or the password: check the user in redis_url and the file"
    " redis_password_file"
)
_REJECTED_BY_SENTINEL = (
    "a Sentinel rejects the password: check the file redis_sentinel_password_file"
)
_WITHOUT_RIGHT = (
    "the server's access rules (ACL) forbid a command that the gateway needs: use the rules in"
    " deploy/valkey.conf"
)
_NO_SENTINEL = "a server in redis_url is not a Sentinel: name the Sentinels' ports"
_TLS_FAILED = (
    "TLS failed: use rediss:// only for a server with TLS and a trusted certificate for its address"
)
_NOT_REDIS = "the server is not Redis or Valkey, or it uses TLS: then write rediss://"
_REPLICA = (
    "the server is a read-only replica: name its primary, or the Sentinels (redis+sentinel://)"
)


def _permanent_problem(error: Exception) -> str | None:
    """Return a description of an error that retries cannot solve, or None."""
    text = f"{getattr(error, 'status_code', '')} {error}"
    causes = (error, error.__cause__, error.__context__)
    is_unknown_command = isinstance(error, ResponseError) and "unknown command" in text
    problems = (
        (isinstance(error, AUTHENTICATION_ERRORS), _REJECTED),
        (
            isinstance(error, MasterNotFoundError) and AuthenticationError.__name__ in text,
            _REJECTED_BY_SENTINEL,
        ),
        (problem_of(error) is WriteProblem.FORBIDDEN, _WITHOUT_RIGHT),
        (is_unknown_command and "SENTINEL" in text.upper(), _NO_SENTINEL),
        (is_unknown_command, f"the server is too old, or is not Redis: {error}"),
        (any(isinstance(cause, ssl.SSLError) for cause in causes), _TLS_FAILED),
        (isinstance(error, InvalidResponse) or "Protocol error" in text, _NOT_REDIS),
    )
    return next((description for applies, description in problems if applies), None)


def _sentinel_problem(error: Exception) -> str | None:
    """Return a description of a Sentinel's error that retries cannot solve, or None."""
    is_rejected = isinstance(error, AUTHENTICATION_ERRORS)
    return _REJECTED_BY_SENTINEL if is_rejected else _permanent_problem(error)


def _passing_problem(error: Exception) -> str:
    """Return a description of an error that may pass. It has no text of the server."""
    if isinstance(error, MasterNotFoundError):
        _, _, unreached = str(error).partition(" : ")
        return "no Sentinel responds with a primary" if unreached else "the primary is away"
    if is_read_only(error):
        return _REPLICA
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and cause.errno:
            reason = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
            return f"it does not respond: {reason}"
    return IN_WORDS[problem_of(error)]


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
