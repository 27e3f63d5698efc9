"""Windows in a real Redis: several gateways, outages, and lost data."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis
from tests.patience import PATIENCE

from pqkeep_gateway.access.rate_limit import ChangedError, Limit
from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter
from pqkeep_gateway.storage.redis_script import MAX_CALLS, RedisScript
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.settings import ConfigError

LIMIT = Limit(5, 60)
PASSWORD = "password-of-the-windows"  # noqa: S105 - of a server that ends with the tests


@pytest.fixture
def server(redis_server: str) -> Iterator[redis.Redis]:
    """The server for direct access; it is empty."""
    with redis.Redis.from_url(f"redis://{redis_server}", decode_responses=True) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
async def gateways(
    redis_server: str, server: redis.Redis
) -> AsyncIterator[tuple[RedisRateLimiter, RedisRateLimiter]]:
    """Two gateways' windows, with clocks years apart."""
    url = f"redis://{redis_server}"
    first = RedisRateLimiter(url, None, lambda: 1_000.0)
    second = RedisRateLimiter(url, None, lambda: 900_000_000.0)
    yield first, second
    await first.close()
    await second.close()


@pytest.fixture
async def rate_limiter(gateways: tuple[RedisRateLimiter, RedisRateLimiter]) -> RedisRateLimiter:
    """One gateway's windows."""
    return gateways[0]


Gateways = tuple[RedisRateLimiter, RedisRateLimiter]


async def test_gateways_share_a_window(gateways: Gateways) -> None:
    """An event in one gateway counts in the other, even with different clocks."""
    first, second = gateways
    for rate_limiter in (first, second, first, second, second):
        assert await rate_limiter.enter("a", LIMIT) is None
    for rate_limiter in gateways:
        wait = await rate_limiter.enter("a", LIMIT)
        assert wait is not None
        assert 50 < wait <= 60


async def test_a_shared_window_is_exact_under_concurrency(gateways: Gateways) -> None:
    """Of eighty concurrent events on two gateways, exactly the limit's number is allowed."""
    outcomes = await asyncio.gather(
        *(rate_limiter.enter("a", Limit(30, 60)) for rate_limiter in gateways for _ in range(40))
    )
    assert outcomes.count(None) == 30


async def test_a_change_is_heard_by_every_gateway(gateways: Gateways) -> None:
    """An announcement of one gateway reaches the other with its next event."""
    first, second = gateways
    as_of = await second.changes()
    assert await first.changes() == as_of
    assert await second.enter("a", LIMIT, as_of) is None
    await first.announce_change()
    with pytest.raises(ChangedError):
        await second.enter("a", LIMIT, as_of)
    assert await second.changes() == await first.changes() != as_of


@pytest.mark.threat("rate-limit-store")
@pytest.mark.parametrize("announced", [0, 1, 50])
async def test_a_server_that_forgot_makes_nothing_old_valid(
    rate_limiter: RedisRateLimiter, server: redis.Redis, announced: int
) -> None:
    """After a data loss in Redis no earlier number of changes becomes current again."""
    seen = {await rate_limiter.changes()}
    for _ in range(announced):
        await rate_limiter.announce_change()
        seen.add(await rate_limiter.changes())
    server.flushall()
    for as_of in seen:
        with pytest.raises(ChangedError):
            await rate_limiter.enter("a", LIMIT, as_of)
    for _ in range(60):
        assert await rate_limiter.changes() not in seen
        await rate_limiter.announce_change()


async def test_what_is_remembered_is_looked_up_again_before_long(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """A change counter is valid for 30 seconds, even if announcements are lost."""
    for _ in range(3):
        await rate_limiter.changes()
        assert 0 < server.ttl("pqkeep:changes") <= 30
        await rate_limiter.announce_change()
    as_of = await rate_limiter.changes()
    server.pexpire("pqkeep:changes", 0)  # as if they were over
    with pytest.raises(ChangedError):
        await rate_limiter.enter("a", LIMIT, as_of)


@pytest.mark.threat("rate-limit-store")
async def test_who_keeps_the_number_of_changes_keeps_nothing_for_long(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """An attacker who resets the counter can hide a change only for the cache time."""
    as_of = await rate_limiter.changes()
    await rate_limiter.announce_change()
    server.set("pqkeep:changes", as_of)
    assert await rate_limiter.enter("a", LIMIT, as_of) is None
    assert 0 < rate_limiter.cache_seconds <= 30


async def test_a_change_is_announced_to_a_server_that_forgot(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """An announcement changes the number also before the first count."""
    before = await rate_limiter.changes()
    server.flushall()
    await rate_limiter.announce_change()
    assert await rate_limiter.changes() > before


async def test_a_window_in_the_future_shuts_nobody_out(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """Times in the future, from a gateway with another clock, are dropped."""
    seconds, _ = server.time()
    server.lpush("pqkeep:window:a", *[(seconds + 86_400) * 1_000_000] * 5)
    assert [await rate_limiter.enter("a", LIMIT) for _ in range(5)] == 5 * [None]
    assert await rate_limiter.enter("a", LIMIT) is not None


async def test_a_window_takes_no_more_room_than_its_limit(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """A window stores at most its limit of times, and expires after its last event."""
    for limit in (Limit(50, 60), LIMIT, LIMIT):
        for _ in range(60):
            await rate_limiter.enter("a", limit)
    assert server.llen("pqkeep:window:a") == 50
    assert 60 < server.ttl("pqkeep:window:a") <= 60 + 3600
    assert server.keys() == ["pqkeep:window:a"]


@pytest.mark.threat("rate-limit-store")
async def test_a_full_server_counts_nothing_wrongly(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """A full server admits no uncounted event, and loses no window."""
    assert await rate_limiter.enter("a", LIMIT) is None
    server.config_set("maxmemory", 1)
    try:
        for refused in (
            rate_limiter.enter("a", LIMIT),
            rate_limiter.enter("b", LIMIT),
            rate_limiter.changes(),
            rate_limiter.announce_change(),
        ):
            with pytest.raises(UnavailableError):
                await refused
    finally:
        server.config_set("maxmemory", 0)
    assert (await rate_limiter.count("a", LIMIT)).remaining == LIMIT.events - 2


async def test_a_server_that_forgot_the_scripts(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """A restarted server without the scripts gets them again."""
    await rate_limiter.enter("a", LIMIT)
    server.script_flush()
    assert await rate_limiter.enter("a", LIMIT) is None
    server.script_flush()
    assert await rate_limiter.changes() > 0


async def _ask_everything(rate_limiter: RedisRateLimiter) -> None:
    for ask in (
        rate_limiter.enter("a", LIMIT),
        rate_limiter.changes(),
        rate_limiter.announce_change(),
    ):
        with pytest.raises(UnavailableError):
            await ask


async def test_no_server_is_unavailable(unused_tcp_port: int) -> None:
    """Without a server nothing is admitted: the limiter fails closed."""
    rate_limiter = RedisRateLimiter(f"redis://127.0.0.1:{unused_tcp_port}", None, lambda: 1_000.0)
    await _ask_everything(rate_limiter)
    await rate_limiter.close()


@contextmanager
def _frozen(server: redis.Redis) -> Iterator[None]:
    """Freeze the server for a while."""
    pid = server.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_server_that_hangs_is_unavailable_and_comes_back(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """A hanging server is unavailable, and works again afterwards without intervention."""
    assert await rate_limiter.enter("a", LIMIT) is None
    with _frozen(server):
        outcomes = await asyncio.gather(
            *(rate_limiter.enter(f"b{n}", LIMIT) for n in range(100)), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {UnavailableError}
    assert await rate_limiter.enter("a", LIMIT) is None


async def test_a_server_that_hung_up_is_connected_again(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """Each broken connection costs at most one event; then the limiter recovers."""
    await asyncio.gather(*(rate_limiter.enter(f"b{n}", LIMIT) for n in range(10)))
    server.client_kill_filter(_type="normal", skipme=True)
    await asyncio.gather(
        *(rate_limiter.enter(f"b{n}", LIMIT) for n in range(10)), return_exceptions=True
    )
    assert await asyncio.gather(*(rate_limiter.enter(f"c{n}", LIMIT) for n in range(10))) == 10 * [
        None
    ]


@pytest.fixture
def locked(server: redis.Redis) -> Iterator[None]:
    """A Redis user with a password and access to pqkeep's keys only."""
    server.acl_setuser(
        "pqkeep", enabled=True, passwords=["+" + PASSWORD], keys=["pqkeep:*"], categories=["+@all"]
    )
    yield
    server.acl_deluser("pqkeep")


def _password_file(folder: Path, password: str) -> Path:
    path = folder / "password"
    path.write_text(password + "\n")
    path.chmod(0o400)
    return path


async def test_the_password_is_in_a_file(redis_server: str, locked: None, tmp_path: Path) -> None:
    """The gateway connects with the password from its file, and rights for pqkeep's keys only."""
    file = _password_file(tmp_path, PASSWORD)
    rate_limiter = RedisRateLimiter(f"redis://pqkeep@{redis_server}", file, lambda: 1_000.0)
    assert await rate_limiter.enter("a", LIMIT, await rate_limiter.changes()) is None
    await rate_limiter.announce_change()
    await rate_limiter.close()


async def test_a_wrong_password_is_unavailable_and_unseen(
    redis_server: str, locked: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a wrong password, requests are refused. Logs and reprs do not contain the password."""
    file = _password_file(tmp_path, PASSWORD + "x")
    rate_limiter = RedisRateLimiter(f"redis://pqkeep@{redis_server}", file, lambda: 1_000.0)
    await _ask_everything(rate_limiter)
    assert "forbidden" in caplog.text
    assert PASSWORD not in caplog.text + repr(rate_limiter)
    await rate_limiter.close()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@127.0.0.1:1",
        f"rediss://pqkeep:{PASSWORD}@127.0.0.1:1",
        f"unix://pqkeep:{PASSWORD}@/run/redis.sock",
        f"redis://127.0.0.1:1?password={PASSWORD}",
        f"unix:///run/redis.sock?db=1&password={PASSWORD}",
        f"memcached://127.0.0.1:1/{PASSWORD}",
        "127.0.0.1:1",
        "",
        "redis://127.0.0.1:port",
    ],
)
def test_an_address_that_is_refused(url: str) -> None:
    """An address with a password, or of another form, is refused without being shown."""
    with pytest.raises(ConfigError, match="redis_url") as raised:
        RedisRateLimiter(url, None, lambda: 1_000.0)
    assert PASSWORD not in str(raised.value)


def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A password file must be readable by this process's user only."""
    file = _password_file(tmp_path, PASSWORD)
    file.chmod(0o440)
    with pytest.raises(ConfigError, match="0400"):
        RedisRateLimiter("redis://127.0.0.1:1", file, lambda: 1_000.0)


async def test_calls_of_one_moment_are_each_carried_out_once(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """Windows are exact and responses correct, even if the server has lost the script."""
    await rate_limiter.enter("first", LIMIT)
    server.script_flush()
    limit = Limit(50, 60)
    outcomes = await asyncio.gather(
        *(rate_limiter.count(subject, limit) for _ in range(120) for subject in ("a", "b", "c"))
    )
    for number, subject in enumerate("abc"):
        its = outcomes[number::3]
        assert [usage.remaining for usage in its if not usage.is_refused] == [*range(49, -1, -1)]
        assert server.llen(f"pqkeep:window:{subject}") == 50


async def test_equal_calls_of_one_moment_are_one_call_of_the_script(
    rate_limiter: RedisRateLimiter, server: redis.Redis
) -> None:
    """Three subjects with forty simultaneous events each cost three script calls."""
    await rate_limiter.enter("first", LIMIT)
    server.config_resetstat()
    calls = (rate_limiter.enter(subject, LIMIT) for _ in range(40) for subject in ("a", "b", "c"))
    waits = await asyncio.gather(*calls)
    assert waits.count(None) == 3 * LIMIT.events
    assert server.info("commandstats")["cmdstat_evalsha"]["calls"] == 3


async def test_single_events_and_several_at_once_share_a_window(
    gateways: Gateways, server: redis.Redis
) -> None:
    """Simultaneous calls with one, two and seven events do not exceed the limit together."""
    limit = Limit(100, 60)
    asked = [(gateway, events) for _ in range(30) for gateway in gateways for events in (1, 7, 2)]
    usages = await asyncio.gather(*(question.count("a", limit, events=n) for question, n in asked))
    admitted = sum(
        events for usage, (_, events) in zip(usages, asked, strict=True) if not usage.is_refused
    )
    assert admitted == server.llen("pqkeep:window:a")
    assert 100 - 7 < admitted <= 100
    assert min(usage.remaining for usage in usages if not usage.is_refused) == 100 - admitted
    assert {round(usage.reset) for usage in usages} == {60}


async def test_one_that_waits_no_more_disturbs_no_other(rate_limiter: RedisRateLimiter) -> None:
    """Cancelled calls in a batch do not affect the others' responses."""
    calls = [asyncio.create_task(rate_limiter.enter(f"{n}", LIMIT)) for n in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert ended[1::2] == [None] * 10
    assert {type(item) for item in ended[::2]} == {asyncio.CancelledError}
    assert await rate_limiter.enter("next", LIMIT) is None


async def test_a_call_that_cannot_be_sent_keeps_nobody_waiting(
    rate_limiter: RedisRateLimiter,
) -> None:
    """A call that cannot be encoded fails its whole batch, but no later batch."""
    await rate_limiter.enter("first", LIMIT)
    calls = (rate_limiter.enter(subject, LIMIT) for subject in ("a", "\ud800"))
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
    assert {type(item) for item in ended} == {UnicodeEncodeError}
    assert await rate_limiter.enter("a", LIMIT) is None


async def test_a_server_that_hangs_hangs_once() -> None:
    """Calls that wait behind an unanswered batch fail with it, and are never sent."""
    received, heard, gone = bytearray(), asyncio.Event(), asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            received.extend(data)
            heard.set()
        writer.close()
        gone.set()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = Redis(port=port, protocol=2, driver_info=None)
        script = RedisScript(client, "return 1", lambda: 0, 0.2)
        first = asyncio.create_task(script(("first",), ()))
        await heard.wait()
        others = [asyncio.create_task(script(("other",), ())) for _ in range(2 * MAX_CALLS)]
        outcomes = await asyncio.gather(first, *others, return_exceptions=True)
        await script.close()
        await client.aclose()
        await gone.wait()
    assert {type(outcome) for outcome in outcomes} == {TimeoutError}
    assert b"first" in received
    assert b"other" not in received
