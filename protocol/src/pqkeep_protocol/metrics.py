"""Metrics: what they are called, which labels they can have, and how both processes keep them.

A measurement is kept as plain numbers, so that it costs a request next to nothing; the gateway
writes the form of Prometheus when it is asked for it (``pqkeep_gateway.management``). The values of
labels come from closed tables: no tenant, no address and nothing that a client chooses is one.
"""

import asyncio
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.commits import WriteProblem
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import SHARD_NAME, KeyStatus
from pqkeep_protocol.messages import Request, Result

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of every distribution's buckets, in seconds; one more bucket is for the rest."""
LAG_SECONDS = 0.5
"""Between two measurements of the event loop's lag."""
NONE = "none"
"""The label value of what has no algorithm, or no operation."""


class Kind(StrEnum):
    """The kinds of metrics, as Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class _Matching:
    """Every text of a form."""

    def __init__(self, pattern: str) -> None:
        self._matches = re.compile(pattern).fullmatch

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._matches(text) is not None


VERSION = _Matching(r"[0-9A-Za-z.+-]{1,32}")
SHARD = _Matching(SHARD_NAME)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: a row of docs/observability.md."""

    name: str
    kind: Kind
    text: str
    labels: Mapping[str, Container[str]] = field(default_factory=dict)
    """Each label's possible values."""


class Sample(Struct, frozen=True, array_like=True):
    """One value of a metric."""

    labels: tuple[str, ...]
    """The values of the metric's labels, in their order."""
    value: float
    """Of a histogram the sum, in seconds."""
    counts: tuple[int, ...] = ()
    """Of a histogram: how many are in each bucket of BOUNDS, and in the one for the rest."""


Samples = Mapping[str, tuple[Sample, ...]]
"""The values of metrics, by name."""


class Metrics(Result, frozen=True, kw_only=True, tag="metrics"):
    """The key service's numbers now; see KEY_SERVICE_METRICS."""

    samples: dict[str, tuple[Sample, ...]]


class GetMetrics(Request[Metrics], frozen=True, kw_only=True, tag="get-metrics"):
    """Return the key service's numbers. It leaves no record. The tenant is INSTALLATION.

    What has to be looked up in the database is some seconds old: however often this is asked, it
    costs the database the same.
    """


class Distribution:
    """How long something took, each time: a histogram over BOUNDS."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Add a time, or the same one several times."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.sum += seconds * times

    def sample(self, *labels: str) -> Sample:
        """Return it as a metric's value."""
        return Sample(labels, self.sum, tuple(self.counts))


def one(value: float, *labels: str) -> tuple[Sample, ...]:
    """Return the values of a metric that has one."""
    return (Sample(labels, float(value)),)


def counted(counts: Mapping[str, float]) -> tuple[Sample, ...]:
    """Return the values of a metric with one label."""
    return tuple(Sample((label,), count) for label, count in counts.items())


async def measure_lag(lag: Distribution) -> None:
    """Measure how late the event loop is, again and again, until cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        lag.observe(max(0.0, now() - due))


def names(values: Iterable[StrEnum], *others: str) -> frozenset[str]:
    """Return the values of a label."""
    return frozenset({*(each.value for each in values), *others})


OPERATIONS = names(Operation)
SCHEDULED = (Operation.ARCHIVE_KEY, Operation.ROTATE_KEY, Operation.SCHEDULE_ARCHIVE)
"""What the key service does by itself when it is due."""
ALGORITHMS = names(Algorithm, NONE)

KEY_SERVICE_METRICS = (
    Metric(
        "pqkeep_key_service_operations_total",
        Kind.COUNTER,
        "Requests that the key service has answered, each with its audit record.",
        {
            "operation": OPERATIONS,
            "algorithm": ALGORITHMS,
            "outcome": names(ErrorKind, Outcome.SUCCESS),
        },
    ),
    Metric(
        "pqkeep_key_service_operation_duration_seconds",
        Kind.HISTOGRAM,
        "From the arrival of a request to its durable audit record.",
        {"operation": OPERATIONS, "algorithm": ALGORITHMS},
    ),
    Metric(
        "pqkeep_key_service_queue_length",
        Kind.GAUGE,
        "What waits in the key service: calls under way, audit records for their commit, signatures"
        " and verifications of SLH-DSA for a worker process, searches of the audit log.",
        {"queue": frozenset({"calls", "audit_records", "signing", "verifying", "searches"})},
    ),
    Metric(
        "pqkeep_key_service_event_loop_lag_seconds",
        Kind.HISTOGRAM,
        "How late the key service's event loop is, measured twice a second.",
    ),
    Metric(
        "pqkeep_key_service_cpu_seconds_total",
        Kind.COUNTER,
        "CPU time of the key service's process, without its worker processes.",
    ),
    Metric(
        "pqkeep_key_service_build_info",
        Kind.GAUGE,
        "1, with the versions of pqkeep and Python that the key service runs.",
        {"version": VERSION, "python": VERSION},
    ),
    Metric(
        "pqkeep_key_service_active",
        Kind.GAUGE,
        "1 where the key service serves, 0 where it stands by or has lost its database.",
    ),
    Metric(
        "pqkeep_key_service_time_seconds",
        Kind.GAUGE,
        "The key service's clock when it was asked, in Unix seconds.",
    ),
    Metric(
        "pqkeep_key_service_epoch",
        Kind.GAUGE,
        "The number of the database's sessions so far that were its only writer; it grows with"
        " each restart, lost connection and takeover.",
    ),
    Metric(
        "pqkeep_key_service_takeovers_total",
        Kind.COUNTER,
        "How often a key service that had stood by took over from another one, ever.",
    ),
    Metric(
        "pqkeep_keys_database_up",
        Kind.GAUGE,
        "1 where the key service can write its database, 0 where it cannot.",
    ),
    Metric(
        "pqkeep_keys_database_problem",
        Kind.GAUGE,
        "1 for the reason why it cannot.",
        {"problem": names(WriteProblem)},
    ),
    Metric(
        "pqkeep_keys",
        Kind.GAUGE,
        "Key versions by status, of all tenants and of the audit log.",
        {"algorithm": ALGORITHMS, "status": names(KeyStatus)},
    ),
    Metric(
        "pqkeep_root_key_id",
        Kind.GAUGE,
        "The number of the root key that seals new keys.",
    ),
    Metric(
        "pqkeep_root_key_added_timestamp_seconds",
        Kind.GAUGE,
        "Since when that root key is used (Unix time).",
    ),
    Metric(
        "pqkeep_root_key_rotation_keys",
        Kind.GAUGE,
        "While older root keys are replaced: keys that are, and are not yet, under that one.",
        {"state": frozenset({"done", "remaining"})},
    ),
    Metric(
        "pqkeep_schedule_due_keys",
        Kind.GAUGE,
        "Keys with a change that is due by itself, and is not made yet.",
    ),
    Metric(
        "pqkeep_schedule_changes_total",
        Kind.COUNTER,
        "Changes of keys that were due: made, or failed, to be tried again.",
        {
            "operation": names(SCHEDULED, NONE),
            "outcome": frozenset({"success", "failure"}),
        },
    ),
    Metric(
        "pqkeep_last_backup_timestamp_seconds",
        Kind.GAUGE,
        "When the newest backup was made that pqkeepd backup has announced (Unix time).",
    ),
    Metric(
        "pqkeep_last_backup_number",
        Kind.GAUGE,
        "The parts of that backup's number.",
        {"part": frozenset({"generation", "records"})},
    ),
    Metric(
        "pqkeep_audit_log_records",
        Kind.GAUGE,
        "Records in the audit log: its size.",
    ),
    Metric(
        "pqkeep_audit_log_unsigned_records",
        Kind.GAUGE,
        "Records that no checkpoint covers yet.",
    ),
    Metric(
        "pqkeep_audit_log_checkpoints_total",
        Kind.COUNTER,
        "Checkpoints signed since the key service started.",
    ),
    Metric(
        "pqkeep_audit_log_commits_total",
        Kind.COUNTER,
        "Commits of audit records, each of everything that waited; those that failed were answered"
        " with 503.",
        {"outcome": frozenset({"success", "failure"})},
    ),
    Metric(
        "pqkeep_audit_log_commit_duration_seconds",
        Kind.HISTOGRAM,
        "How long a commit of audit records takes, until it is durable.",
    ),
)
"""What the key service measures."""
