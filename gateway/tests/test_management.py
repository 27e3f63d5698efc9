"""The management address: its responses, its clients, and the cost of a million requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
import pytest
from gateway.tests.world import one_shard
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message
from tests.patience import PATIENCE

from pqkeep_gateway.access.principals import AnonymousPrincipal
from pqkeep_gateway.access.rate_limit import Closeness, Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.config import Config
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.http.observer import RequestObserver, Route
from pqkeep_gateway.management.app import LIMITS, management_app, open_listener, serving
from pqkeep_gateway.management.collection import METRICS, Collection, Sources, exposition
from pqkeep_gateway.management.installation import NAMES, Inspection, MailMode
from pqkeep_gateway.management.readiness import Readiness
from pqkeep_gateway.shards import StoredShard
from pqkeep_gateway.storage.monitoring import Accounts, Backlog
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Checkpoints
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.commits import IN_WORDS, WriteProblem
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.metrics import KEY_SERVICE_METRICS, NONE, Sample, Samples, counted, one
from pqkeep_protocol.startup.background_tasks import BackgroundTasks
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress

if TYPE_CHECKING:
    from pqkeep_gateway.audit_stream import AuditStream
    from pqkeep_gateway.http.tls_server import TlsServer
    from pqkeep_gateway.storage.operators import Operator
    from pqkeep_gateway.tenancy.operators import Operators
    from pqkeep_protocol.link import LinkTls

MANY = 1000
UP: Samples = {"pqkeep_keys_database_up": one(1)}
DOWN: Samples = {"pqkeep_keys_database_up": one(0)}
STANDS_BY: Samples = {**UP, "pqkeep_key_service_active": one(0)}
"""Another key service has the database, or had it a moment ago."""


@dataclass
class FakeParts:
    """The parts that the gateway needs, with counters of their checks."""

    samples: Samples | None = field(default_factory=lambda: UP)
    is_database_up: bool = True
    is_redis_up: bool = True
    is_mail_deferred: bool = False
    is_log_late: bool = False
    problem: WriteProblem = WriteProblem.NO_RESPONSE
    cause: str = ""
    hangs: bool = False
    asked: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    stored: tuple[StoredShard, ...] = (StoredShard("default", draining=False, tenants=3),)
    refusals: dict[ErrorKind, int] = field(default_factory=dict)

    def _count(self, name: str) -> None:
        self.asked[name] = self.asked.get(name, 0) + 1

    async def key_metrics(self) -> Samples | None:
        self._count("key service")
        return self.samples

    async def database(self) -> None:
        self._count("database")
        if self.hangs:
            await asyncio.Event().wait()
        if not self.is_database_up:
            raise UnavailableError(self.problem)

    async def log(self) -> None:
        self._count("log")
        if self.is_log_late:
            raise UnavailableError(WriteProblem.FAILED)

    async def redis(self) -> int:
        self._count("redis")
        if not self.is_redis_up:
            raise UnavailableError(self.problem, self.cause)
        return 1

    async def shards(self) -> Sequence[StoredShard]:
        self._count("shards")
        return self.stored

    async def backlog(self) -> Backlog:
        self._count("backlog")
        return Backlog(2, 1, 1, 3, 1)


class FakeTls:
    """A listener's TLS."""

    handshakes: ClassVar = Counter({"X25519MLKEM768": 2, "x25519": 1, "0x6399": 5})
    failures: ClassVar = Counter({"NO_POST_QUANTUM_GROUP": 1})
    expires = 4e9


class FakeStream:
    """The stream of the audit log to a sink that is behind."""

    lag_seconds = 12.5


class FakeLink:
    """A TLS link to a key service that was never reached."""

    expires_at = 5e9
    peer_expires_at = 0.0


class Setting:
    """A management application with fake parts."""

    def __init__(
        self,
        parts: FakeParts,
        *names: str,
        wait_seconds: float = 5.0,
        bearable: Sequence[str] = (),
    ) -> None:
        self.observer = RequestObserver()
        key_service = Cached[Samples | None](
            parts.key_metrics,
            otherwise=None,
            name="key service",
            seconds=60,
            wait_seconds=wait_seconds,
        )
        stored = Cached[Sequence[StoredShard] | None](
            parts.shards, otherwise=None, name="shards", seconds=60, wait_seconds=wait_seconds
        )
        self.readiness = Readiness(
            {"default": key_service},
            stored,
            {"accounts_database": parts.database, "rate_limits": parts.redis},
            parts.log,
            lambda: parts.is_mail_deferred,
            bearable=bearable,
        )
        arrivals = SourceBudget(Limit(1, 1), lambda: 0.0)
        self.sources = Sources(
            observer=self.observer,
            connections=Connections(1, 1, arrivals),
            waiting_calls=lambda: parts.waiting,
            refusals={"default": parts.refusals},
            key_services={"default": key_service},
            shards=stored,
            find_backlog=parts.backlog,
            waiting_passwords=lambda: 4,
            rate={Closeness.NEAR: 7},
            quota={Closeness.REACHED: 8},
            database_folder=Path("/"),
            mail_attempts={"delivered": 1},
            webhook_attempts={"delivered": 1},
            tls=cast("TlsServer", FakeTls()),
            link=cast("LinkTls", FakeLink()),
            audit_streams={"default": cast("AuditStream", FakeStream())},
        )
        self.collection = Collection(self.sources, self.readiness)
        self.app = management_app(self.readiness, self.collection, names)

    async def ask(
        self, path: str, host: str = "127.0.0.1:8081", method: str = "GET"
    ) -> tuple[int, bytes]:
        """Return status and body of a response."""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(b"host", host.encode())],
        }
        await self.app(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]


def reasons(body: bytes) -> list[str]:
    """Return the unavailable parts according to /readyz."""
    found: list[str] = msgspec.json.decode(body).get("reasons", [])
    return found


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        (FakeParts(), []),
        (FakeParts(samples=None), ["key_service"]),
        (FakeParts(samples=DOWN), ["keys_database"]),
        (FakeParts(samples={}), ["keys_database"]),
        (FakeParts(samples=STANDS_BY), ["key_service"]),
        (FakeParts(is_database_up=False), ["accounts_database"]),
        (FakeParts(is_redis_up=False), ["rate_limits"]),
        (
            FakeParts(samples=None, is_database_up=False, is_redis_up=False),
            ["key_service", "accounts_database", "rate_limits"],
        ),
        (FakeParts(is_mail_deferred=True), []),
    ],
)
async def test_what_is_missing_is_named(parts: FakeParts, missing: list[str]) -> None:
    """/readyz is 503 with the unavailable parts, while /livez is 200."""
    setting = Setting(parts)
    status, body = await setting.ask("/readyz")
    assert (status, reasons(body)) == (503 if missing else 200, missing)
    assert ("mail_server" in msgspec.json.decode(body)["degraded"]) is parts.is_mail_deferred
    assert (await setting.ask("/livez"))[0] == 200


async def test_a_part_that_requests_can_lack_is_degraded() -> None:
    """Without the rate limits' server and with local shares, /readyz is 200 and names the cause."""
    parts = FakeParts(is_redis_up=False, cause="redis://a: it does not respond")
    for bearable, status in (((), 503), (("rate_limits",), 200)):
        setting = Setting(parts, bearable=bearable)
        told, body = await setting.ask("/readyz")
        assert told == status
        assert msgspec.json.decode(body)["causes"]["rate_limits"] == parts.cause
        assert (msgspec.json.decode(body)["degraded"] == ["rate_limits"]) is bool(bearable)


async def test_tenants_without_their_shard_are_named() -> None:
    """Tenants in a shard without settings make the gateway degraded; the reason names the shard."""
    shards = [
        StoredShard("b", draining=False, tenants=1),
        StoredShard("c", draining=True, tenants=0),
    ]
    parts = FakeParts(stored=(*FakeParts().stored, *shards))
    status, body = await Setting(parts).ask("/readyz")
    assert (status, msgspec.json.decode(body)["degraded"]) == (200, ["shard_settings:b"])
    *_, unnamed = (await inspection_of(parts).inspect()).shards
    assert (unnamed.name, unnamed.reason) == ("b", "it is missing in the settings")


async def test_a_gateway_that_stops_is_not_ready() -> None:
    """A stopping gateway is not ready."""
    setting = Setting(FakeParts())
    setting.readiness.stop()
    status, body = await setting.ask("/readyz")
    assert (status, reasons(body)) == (503, ["stopping"])


async def test_a_part_that_hangs_is_asked_once() -> None:
    """A hanging database gets one check, even for many requests."""
    parts = FakeParts(hangs=True)
    asked = Cached[bool](
        _responses(parts.database), otherwise=False, name="database", seconds=0, wait_seconds=0.01
    )
    assert not any(await asyncio.gather(*(asked.get() for _ in range(MANY))))
    assert not await asked.get()
    assert parts.asked == {"database": 1}


async def test_what_is_lost_and_found_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failing part is logged once, without the error's text, and once when it recovers."""
    caplog.set_level(logging.INFO)
    problems: list[Exception | None] = [None, OSError("secret"), ValueError("secret"), None, None]

    async def respond() -> bool:
        if (problem := problems.pop(0)) is not None:
            raise problem
        return True

    asked = Cached[bool](respond, otherwise=False, name="database", seconds=0, wait_seconds=60)
    assert [await asked.get() for _ in range(5)] == [True, False, False, True, True]
    lines = [cast("dict[str, Any]", record.msg) for record in caplog.records]
    assert [(line["event"], line["part"], line.get("error")) for line in lines] == [
        ("a part does not answer what it is asked", "database", "OSError"),
        ("a part answers again", "database", None),
    ]


@pytest.mark.threat("management-address")
async def test_many_questions_cost_the_parts_one() -> None:
    """Many simultaneous requests for each document check each part at most once a second."""
    parts = FakeParts()
    setting = Setting(parts)
    paths = "/livez", "/readyz", "/metrics"
    began = time.monotonic()
    many = await asyncio.gather(*map(setting.ask, 200 * paths))
    assert {status for status, _ in many} <= {200, 503}  # 503: this process was too slow
    assert [(await setting.ask(path))[0] for path in paths] == [200, 200, 200]
    seconds = time.monotonic() - began
    assert parts.asked.keys() == {"key service", "database", "redis", "backlog", "shards", "log"}
    assert max(parts.asked.values()) <= 1 + seconds


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8081", "[::1]:8081", "10.0.0.7:80", "localhost:1", "LOCALHOST", ""],
)
async def test_who_asks_for_an_address_is_answered(host: str) -> None:
    """Addresses and localhost are accepted in the Host header."""
    assert (await Setting(FakeParts()).ask("/livez", host))[0] == 200


@pytest.mark.threat("management-address")
@pytest.mark.parametrize(
    "host", ["example.org", "example.org:8081", "127.0.0.1.example.org", "[example]", "0x7f.1"]
)
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/"])
async def test_another_name_is_refused(host: str, path: str) -> None:
    """Any other name in the Host header gets 421, and nothing is checked."""
    parts = FakeParts()
    assert (await Setting(parts).ask(path, host))[0] == 421
    assert parts.asked == {}


async def test_a_name_of_the_settings_is_answered() -> None:
    """Names in management_hosts are accepted, case-insensitively."""
    setting = Setting(FakeParts(), "Gateway.internal")
    assert (await setting.ask("/livez", "gateway.INTERNAL:8081"))[0] == 200
    assert (await setting.ask("/livez", "other.internal:8081"))[0] == 421


async def test_the_links_certificates_are_measured() -> None:
    """The expiry of the link's own certificate is a metric, and the peer's after a connection."""
    _, text = await Setting(FakeParts()).ask("/metrics")
    name = "pqkeep_link_certificate_expiry_timestamp_seconds"
    lines = [line for line in text.decode().splitlines() if line.startswith(name)]
    assert lines == [f'{name}{{end="gateway"}} 5e+09']


async def test_how_far_the_audit_sink_is_behind_is_measured() -> None:
    """The age of the oldest record that is not in the sink is a metric."""
    _, text = await Setting(FakeParts()).ask("/metrics")
    assert b'\npqkeep_audit_sink_age_seconds{shard="default"} 12.5\n' in text


async def test_limits_and_free_space_are_measured() -> None:
    """Requests near a limit or refused by it are counted, and free space is in bytes."""
    _, text = await Setting(FakeParts()).ask("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    limited = families["pqkeep_limited_requests"].samples
    assert {tuple(sample.labels.values()): sample.value for sample in limited} == {
        ("rate", "near"): 7,
        ("quota", "reached"): 8,
    }
    (free,) = families["pqkeep_accounts_database_free_bytes"].samples
    assert free.value > 0


async def test_nothing_else_is_there() -> None:
    """Other paths, and methods that change something, are refused."""
    setting = Setting(FakeParts())
    assert (await setting.ask("/api/v1/tenants"))[0] == 404
    assert (await setting.ask("/livez", method="POST"))[0] == 405
    assert (await setting.ask("/livez", method="HEAD"))[0] == 200


async def test_the_metrics_are_those_of_the_table() -> None:
    """Prometheus's own parser reads all metrics with the expected counts."""
    setting = Setting(FakeParts())
    route = Route("POST", "/api/v1/kem/encrypt", "encrypt", "Kyber768")
    for response in (200, not_found("x"), None):
        setting.observer.finish(
            route, "POST", 0.0, response, {"x": 1}, AnonymousPrincipal(), "request-1", "192.0.2.7"
        )
    _, text = await setting.ask("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    expected = {metric.name.removesuffix("_total") for metric in METRICS}
    assert expected <= families.keys()
    assert {
        tuple(sample.labels.values()): sample.value
        for sample in families["pqkeep_requests"].samples
    } == {
        ("Kyber768", "encrypt", "success"): 1,
        ("Kyber768", "encrypt", "ERR_NOT_FOUND_001"): 1,
        ("Kyber768", "encrypt", "client-gone"): 1,
    }
    groups = {
        sample.labels["group"]: sample.value for sample in families["pqkeep_tls_handshakes"].samples
    }
    assert {group: count for group, count in groups.items() if count} == {
        "X25519MLKEM768": 2,
        "x25519": 1,
        "other": 5,
    }
    assert "192.0.2.7" not in text.decode()
    assert "request-1" not in text.decode()


@pytest.mark.threat("management-address")
@pytest.mark.parametrize("named", ["rot13", "", "Kyber768 ", ["Kyber768"], {"a": 1}, 7])
def test_a_client_chooses_no_label(named: object) -> None:
    """An unknown algorithm is counted as none."""
    observer = RequestObserver()
    route = Route("POST", "/api/v1/kem/encrypt", "encrypt", "Kyber768")
    observer.finish(route, "POST", 0.0, 200, {"algorithm": named}, None, "", "")
    assert list(observer.outcomes) == [("encrypt", NONE, "success")]


def test_a_value_that_the_table_lacks_is_left_out() -> None:
    """The key service cannot add series: label values must be in the table."""
    samples = {
        "pqkeep_keys": (
            Sample(("Kyber768", "active"), 1),
            Sample(("tenant 7", "active"), 2),
            Sample(("Kyber768",), 3),
        ),
        "pqkeep_invented": one(4),
        "pqkeep_key_service_queue_length": counted({"calls": 5, "x\n": 6}),
    }
    text = exposition(KEY_SERVICE_METRICS, samples).decode()
    assert 'pqkeep_keys{algorithm="Kyber768",status="active"} 1.0' in text
    assert "tenant 7" not in text
    assert "invented" not in text
    assert text.count("\npqkeep_key_service_queue_length{") == 1


@contextmanager
def listening() -> Iterator[socket.socket]:
    """Listen on a free port."""
    with open_listener("127.0.0.1", 0) as listener:
        yield listener


async def test_it_has_few_connections_of_its_own() -> None:
    """One connection beyond the limit closes an idle one; responses continue."""
    with listening() as listener:
        port = listener.getsockname()[1]
        async with serving(Setting(FakeParts()).app, listener, BackgroundTasks(lambda: None)):
            opened = [
                await asyncio.open_connection("127.0.0.1", port)
                for _ in range(LIMITS.connections + 1)
            ]
            reader, writer = opened[-1]
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert await opened[0][0].read() == b""  # evicted
            for _, item in opened:
                item.close()


async def test_a_failure_of_its_watch_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the watch of its connections fails, the process stops."""

    async def fail(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr("pqkeep_gateway.management.app.watch_connections", fail)
    stopped = asyncio.Event()
    tasks = BackgroundTasks(stopped.set)
    with listening() as listener:
        async with serving(Setting(FakeParts()).app, listener, tasks), asyncio.timeout(PATIENCE):
            await stopped.wait()
    assert tasks.failed
    await tasks.end()


def test_an_address_in_use_is_refused() -> None:
    """A second gateway with the same management address does not start."""
    with listening() as listener, pytest.raises(ConfigError, match="management_address"):
        open_listener(*listener.getsockname())


def settings(**others: Any) -> Config:
    """Return valid settings; arguments replace some of them."""
    return Config(
        key_service_socket=".",  # type: ignore[arg-type]
        database=DatabaseAddress("accounts"),
        pepper_file=".",  # type: ignore[arg-type]
        operator_digest="0" * 64,
        **others,
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("off", None),
        ("127.0.0.1:8081", ("127.0.0.1", 8081)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9", ("::1", 9)),
        ("0.0.0.0:8081", ("0.0.0.0", 8081)),  # noqa: S104 - what is set explicitly
    ],
)
def test_management_addresses(text: str, address: tuple[str, int] | None) -> None:
    """An address and a port, or off."""
    assert settings(management_address=text).management == address


@pytest.mark.parametrize(
    "text", ["", "8081", ":8081", "localhost:8081", "127.0.0.1", "127.0.0.1:65536", "::1:x", "*:1"]
)
def test_no_management_address(text: str) -> None:
    """An address with a name, or without a host or port, is refused."""
    with pytest.raises(ValueError, match="management_address"):
        settings(management_address=text)


@pytest.mark.threat("management-address")
def test_the_default_is_loopback() -> None:
    """By default only this machine can reach it."""
    assert settings().management == ("127.0.0.1", 8081)


def _responses(check: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[bool]]:
    async def responses() -> bool:
        await check()
        return True

    return responses


def inspection_of(parts: FakeParts) -> Inspection:
    """Return the inspection of an installation with given parts."""
    setting = Setting(parts)

    class Directory:
        async def list(self) -> tuple[Operator, ...]:
            return ()

    class KeyService:
        async def execute(self, request: object, attribution: object) -> Checkpoints:
            if parts.samples is None:
                raise KeyServiceError(ErrorKind.UNAVAILABLE)
            return Checkpoints(checkpoints=())

    async def find_accounts() -> Accounts:
        await parts.database()
        backlog = Backlog(1, 0, 0, 0, 0)
        return Accounts(backlog, mail_attempted=0, tenants=1, suspended=0, scheduled=0)

    return Inspection(
        setting.readiness,
        setting.sources,
        find_accounts,
        cast("Operators", Directory()),
        one_shard(cast("Any", KeyService())),
        MailMode.SMTP,
    )


async def test_an_inspection_finds_everything_ready() -> None:
    """Working parts have no reason, and existing certificates have their expiry."""
    found = await inspection_of(FakeParts()).inspect()
    assert {part.name: part.reason for part in found.parts} == dict.fromkeys(NAMES)
    assert found.certificates == {"https": 4e9, "link.gateway": 5e9}
    (shard,) = found.shards
    assert (shard.name, shard.reason, shard.stored) == ("default", None, FakeParts().stored[0])
    assert shard.numbers == {("pqkeep_keys_database_up",): 1}


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("accounts_database", {"is_database_up": False}),
        ("rate_limits", {"is_redis_up": False}),
        ("mail_server", {"is_mail_deferred": True}),
        ("keys_database", {"samples": DOWN}),
        ("key_service", {"samples": None}),
    ],
)
async def test_an_inspection_says_what_is_missing(name: str, broken: dict[str, Any]) -> None:
    """An unavailable part has its reason, and the others are unchanged."""
    found = await inspection_of(FakeParts(**broken)).inspect()
    missing = {part.name: part.reason for part in found.parts if part.reason is not None}
    assert missing.pop(name)
    if name == "key_service":
        unknown = missing.pop("keys_database")
        assert unknown is not None
        assert unknown.startswith("unknown")
    assert missing == {}
    assert (found.accounts is None) == (name == "accounts_database")


async def test_an_inspection_tells_an_outbox_that_refuses() -> None:
    """Events so old that changes are refused degrade the gateway, with a reason."""
    for is_late in (False, True):
        inspection = inspection_of(parts := FakeParts(is_log_late=is_late))
        found = {part.name: part for part in (await inspection.inspect()).parts}
        assert (found["audit_log"].reason is not None) is is_late
        status, body = await Setting(parts).ask("/readyz")
        assert (status, "audit_log" in msgspec.json.decode(body)["degraded"]) == (200, is_late)


@pytest.mark.parametrize("problem", WriteProblem)
async def test_the_cause_is_told(problem: WriteProblem) -> None:
    """/readyz and the inspection give the cause for each database and the rate limits."""
    samples: Samples = {**DOWN, "pqkeep_keys_database_problem": one(1, problem.value)}
    parts = FakeParts(samples, is_database_up=False, is_redis_up=False, problem=problem)
    _, body = await Setting(parts).ask("/readyz")
    named = ("keys_database", "accounts_database", "rate_limits")
    assert msgspec.json.decode(body)["causes"] == dict.fromkeys(named, IN_WORDS[problem])
    found = {part.name: part.reason for part in (await inspection_of(parts).inspect()).parts}
    assert {found[name] for name in named} == {IN_WORDS[problem]}


async def test_an_inspection_asks_once_however_often_it_is_asked() -> None:
    """A thousand simultaneous inspections cost the database as much as one."""
    alone, parts = FakeParts(), FakeParts()
    await inspection_of(alone).inspect()
    inspection = inspection_of(parts)
    await asyncio.gather(*(inspection.inspect() for _ in range(MANY)))
    assert parts.asked == alone.asked


@pytest.mark.parametrize(
    ("ahead", "is_told"), [(0, False), (4, False), (6, True), (-4, False), (-9, True)]
)
async def test_a_key_service_with_another_clock(ahead: float, is_told: bool) -> None:  # noqa: FBT001
    """A clock difference above the tolerance degrades the gateway, but nothing is refused."""
    parts = FakeParts()
    parts.samples = {**UP, "pqkeep_key_service_time_seconds": one(time.time() + ahead)}
    status, body = await Setting(parts).ask("/readyz")
    told = msgspec.json.decode(body)
    assert (status, "clock" in told["degraded"]) == (200, is_told)
    assert ("clock" in told["causes"]) is is_told


async def test_an_end_logs_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """A request in progress is dropped at the end without an error in the log."""
    asked = asyncio.Event()

    async def hangs(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    tasks = BackgroundTasks(lambda: None)
    with listening() as listener:
        async with serving(hangs, listener, tasks), asyncio.timeout(PATIENCE):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asked.wait()
        writer.close()
        await tasks.end()
        for task in asyncio.all_tasks() - before:  # as the end of the process does
            task.cancel()
            await asyncio.wait([task])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
