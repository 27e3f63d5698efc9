"""Combines the metrics of the gateway and the key services in one text.

It has Prometheus's text format, version 0.0.4. Samples with a label value outside the table are left
out.
"""

import asyncio
import platform
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from pqkeep_gateway.audit_stream import AuditStream
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.observer import RequestObserver
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.management.metrics import GATEWAY_METRICS, OTHER, QUOTA, RATE
from pqkeep_gateway.management.readiness import Problems, Readiness
from pqkeep_gateway.shards import StoredShard
from pqkeep_gateway.storage.monitoring import Backlog
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.link import LinkTls
from pqkeep_protocol.metrics import (
    BOUNDS,
    KEY_SERVICE_METRICS,
    SHARD,
    Distribution,
    Kind,
    Metric,
    Sample,
    Samples,
    counted,
    free_space,
    measure_lag,
    one,
)
from pqkeep_protocol.tls_groups import NAMES

TEXT_SECONDS = 1.0
"""The period of the text: it is written at most once a second."""
TEXT_WAIT_SECONDS = 8.0
BACKLOG_SECONDS = 10.0
BACKLOG_WAIT_SECONDS = 2.0

GROUPS = frozenset(NAMES.values())

METRICS = (
    *GATEWAY_METRICS,
    *(replace(metric, labels={**metric.labels, "shard": SHARD}) for metric in KEY_SERVICE_METRICS),
)
"""All metrics. Those of key services have a shard label."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of all metrics."""

    observer: RequestObserver
    connections: Connections
    waiting_calls: Callable[[], int]
    """Returns how many calls wait for a key service."""
    refusals: Mapping[str, Mapping[ErrorKind, int]]
    """Calls that were refused, or got no response."""
    key_services: Mapping[str, Cached[Samples | None]]
    """The metrics of each shard's key service; None if it does not respond."""
    shards: Cached[Sequence[StoredShard] | None]
    """The shards. None while the accounts database does not respond."""
    find_backlog: Callable[[], Awaitable[Backlog]]
    waiting_passwords: Callable[[], int]
    rate: Mapping[str, int]
    quota: Mapping[str, int]
    """Requests near a limit, and refused ones."""
    database_folder: Path | None
    """None if the accounts database is on a server."""
    mail_attempts: Mapping[str, int]
    webhook_attempts: Mapping[str, int]
    tls: TlsServer | None
    link: LinkTls | None
    audit_streams: Mapping[str, AuditStream]
    """The audit stream of each shard. Empty without a sink."""


class Collection:
    """Collects the metrics of all sources."""

    def __init__(self, sources: Sources, readiness: Readiness) -> None:
        self._sources = sources
        self._readiness = readiness
        self._backlog = Cached[Backlog | None](
            sources.find_backlog,
            otherwise=None,
            name="the backlog in the accounts database",
            seconds=BACKLOG_SECONDS,
            wait_seconds=BACKLOG_WAIT_SECONDS,
        )
        self._free = Cached[tuple[Sample, ...]](
            lambda: free_space(sources.database_folder),
            otherwise=(),
            name="the free space beside the accounts database",
            seconds=BACKLOG_SECONDS,
            wait_seconds=BACKLOG_WAIT_SECONDS,
        )
        self._text = Cached[bytes](
            self._write,
            otherwise=b"",
            name="the text of the metrics",
            seconds=TEXT_SECONDS,
            wait_seconds=TEXT_WAIT_SECONDS,
        )
        self._lag = Distribution()
        self._build = version("pqkeep-gateway"), platform.python_version()

    async def run(self) -> None:
        """Measure the event loop until cancelled."""
        await measure_lag(self._lag)

    async def text(self) -> bytes:
        """Return all metrics in Prometheus's text format; empty if they are unavailable."""
        return await self._text.get()

    async def _write(self) -> bytes:
        problems, shard_problems, stored, backlog, free = await asyncio.gather(
            self._readiness.problems(),
            self._readiness.shard_problems(),
            self._sources.shards.get(),
            self._backlog.get(),
            self._free.get(),
        )
        samples = {
            **await self._of_key_services(),
            **self._own(problems),
            "pqkeep_accounts_database_free_bytes": free,
            **_of_shards(shard_problems, stored or ()),
            **({} if self._sources.tls is None else _of_tls(self._sources.tls)),
            **({} if self._sources.link is None else _of_link(self._sources.link)),
            **_of_sink(self._sources.audit_streams),
            **({} if backlog is None else _of_backlog(backlog)),
        }
        return await asyncio.to_thread(_written, samples)

    async def _of_key_services(self) -> Samples:
        """Return the metrics of all key services, each with its shard."""
        services = self._sources.key_services
        found = await asyncio.gather(*(service.get() for service in services.values()))
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for shard, numbers in zip(services, found, strict=True):
            for name, values in (numbers or {}).items():
                samples[name] += [
                    Sample((*value.labels, shard), value.value, value.counts) for value in values
                ]
        return {name: tuple(values) for name, values in samples.items()}

    def _own(self, problems: Problems) -> Samples:
        sources = self._sources
        observer, connections = sources.observer, sources.connections
        return {
            "pqkeep_requests_total": tuple(
                Sample(labels, count) for labels, count in observer.outcomes.items()
            ),
            "pqkeep_request_duration_seconds": tuple(
                times.sample(operation) for operation, times in observer.durations.items()
            ),
            "pqkeep_key_service_refusals_total": tuple(
                Sample((kind.value, shard), count)
                for shard, refusals in sources.refusals.items()
                for kind, count in refusals.items()
            ),
            "pqkeep_queue_length": counted(
                {
                    "key_service": sources.waiting_calls(),
                    "passwords": sources.waiting_passwords(),
                }
            ),
            "pqkeep_limited_requests_total": tuple(
                Sample((limit, state), count)
                for limit, counts in ((RATE, sources.rate), (QUOTA, sources.quota))
                for state, count in counts.items()
            ),
            "pqkeep_connections": one(connections.count),
            "pqkeep_connections_closed_total": counted(connections.closed),
            "pqkeep_event_loop_lag_seconds": (self._lag.sample(),),
            "pqkeep_ready": counted(_ready(problems)),
            "pqkeep_mail_attempts_total": counted(sources.mail_attempts),
            "pqkeep_webhook_attempts_total": counted(sources.webhook_attempts),
            "pqkeep_build_info": one(1, *self._build),
        }


def _written(samples: Samples) -> bytes:
    from pqkeep_gateway.management.collection import exposition  # noqa: PLC0415 - slow to import

    return exposition(METRICS, samples)


def _of_backlog(backlog: Backlog) -> Samples:
    return {
        "pqkeep_audit_outbox_events": counted(
            {"waiting": backlog.events_waiting, "refused": backlog.events_refused}
        ),
        "pqkeep_audit_outbox_age_seconds": one(_age(backlog.oldest_event_us)),
        "pqkeep_mail_waiting": one(backlog.mail_waiting),
        "pqkeep_mail_age_seconds": one(_age(backlog.oldest_mail_us)),
    }


def _of_tls(tls: TlsServer) -> Samples:
    groups = {group: tls.handshakes[group] for group in GROUPS}
    groups[OTHER] = sum(tls.handshakes.values()) - sum(groups.values())
    return {
        "pqkeep_tls_handshakes_total": counted(groups),
        "pqkeep_tls_failures_total": one(sum(tls.failures.values())),
        "pqkeep_tls_certificate_expiry_timestamp_seconds": one(tls.expires),
    }


def _of_sink(streams: Mapping[str, AuditStream]) -> Samples:
    ages = {shard: stream.lag_seconds for shard, stream in streams.items()}
    return {"pqkeep_audit_sink_age_seconds": counted(ages)} if ages else {}


def _ready(problems: Problems) -> Mapping[str, bool]:
    return {part: problem is None for part, problem in problems.items()}


def _of_shards(problems: Mapping[str, Problems], stored: Sequence[StoredShard]) -> Samples:
    return {
        "pqkeep_shard_ready": tuple(
            Sample((part, shard), is_ready)
            for shard, problem in problems.items()
            for part, is_ready in _ready(problem).items()
        ),
        "pqkeep_shard_tenants": counted({shard.name: shard.tenants for shard in stored}),
    }


def _of_link(link: LinkTls) -> Samples:
    ends = {"gateway": link.expires_at, "key_service": link.peer_expires_at}
    return {
        "pqkeep_link_certificate_expiry_timestamp_seconds": counted(
            {end: at for end, at in ends.items() if at}
        )
    }


def _age(at_us: int) -> float:
    return max(0.0, time.time() - at_us / 1_000_000) if at_us else 0.0


_UPPER_BOUNDS = [*map(str, BOUNDS), "+Inf"]


class _Collected:
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(table: Iterable[Metric], samples: Samples) -> bytes:
    """Return the metrics of a table that have values, and this process's metrics, as text."""
    registry = CollectorRegistry(auto_describe=False)
    collected = _Collected([_family(metric, samples) for metric in table])
    registry.register(cast("Collector", collected))
    ProcessCollector(registry=registry)
    text: bytes = generate_latest(registry)
    return text


def _family(metric: Metric, samples: Samples) -> Family:
    labels = list(metric.labels)
    known = _known(metric, samples.get(metric.name, ()))
    match metric.kind:
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.text, labels=labels)
            for sample in known:
                counter.add_metric(sample.labels, sample.value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.text, labels=labels)
            for sample in known:
                gauge.add_metric(sample.labels, sample.value)
            return gauge
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.text, labels=labels)
            for sample in known:
                histogram.add_metric(sample.labels, list(_buckets(sample)), sample.value)
            return histogram


def _known(metric: Metric, samples: Iterable[Sample]) -> Iterator[Sample]:
    for sample in samples:
        if len(sample.labels) == len(metric.labels) and all(
            label in values
            for label, values in zip(sample.labels, metric.labels.values(), strict=True)
        ):
            yield sample


def _buckets(sample: Sample) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip(_UPPER_BOUNDS, sample.counts, strict=True):
        total += count
        yield bound, total
