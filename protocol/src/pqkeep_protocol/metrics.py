"""Metrics: their names and labels, and how both processes keep their values.

A measurement is kept as plain numbers and costs a request almost nothing. The gateway writes the
Prometheus format on request (``pqkeep_gateway.management``). Label values come from closed tables.
No tenant, no address and no text from a client is a label value.
"""

import asyncio
import os
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import WitnessProblem
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.commits import WriteProblem
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import SHARD_NAME, KeyStatus
from pqkeep_protocol.messages import Request, Result

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of every histogram's buckets, in seconds. One more bucket takes the rest."""
LAG_SECONDS = 0.5
"""The time between two measurements of the event loop's lag."""
NONE = "none"
"""The label value for "no algorithm" or "no operation"."""


class Kind(StrEnum):
    """Prometheus's kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class _Matching:
    """The set of all texts that match a pattern."""

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
    """The possible values of each label."""


class Sample(Struct, frozen=True, array_like=True):
    """One value of a metric."""

    labels: tuple[str, ...]
    """The values of the metric's labels, in the metric's order."""
    value: float
    """The value. For a histogram, the sum in seconds."""
    counts: tuple[int, ...] = ()
    """For a histogram, the count in each bucket of BOUNDS and in the last one."""


Samples = Mapping[str, tuple[Sample, ...]]
"""The values of metrics, by name."""


class Metrics(Result, frozen=True, kw_only=True, tag="metrics"):
    """The key service's current numbers; see KEY_SERVICE_METRICS."""

    samples: dict[str, tuple[Sample, ...]]


class GetMetrics(Request[Metrics], frozen=True, kw_only=True, tag="get-metrics"):
    """Return the key service's numbers. It adds no record. The tenant is INSTALLATION.

    Numbers from the database can be some seconds old, so that frequent requests cost it no more.
    """


class Distribution:
    """A histogram of durations over BOUNDS."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Add a duration, once or several times."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.sum += seconds * times

    def sample(self, *labels: str) -> Sample:
        """Return the histogram as a metric's value."""
        return Sample(labels, self.sum, tuple(self.counts))


def one(value: float, *labels: str) -> tuple[Sample, ...]:
    """Return the values of a metric with a single value."""
    return (Sample(labels, float(value)),)


def counted(counts: Mapping[str, float]) -> tuple[Sample, ...]:
    """Return the values of a metric with one label."""
    return tuple(Sample((label,), count) for label, count in counts.items())


async def measure_lag(lag: Distribution) -> None:
    """Measure the event loop's lag repeatedly, until cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        lag.observe(max(0.0, now() - due))


async def free_space(folder: Path | None) -> tuple[Sample, ...]:
    """Return the bytes that this process can still write in a folder; no value without a folder."""
    if folder is None:
        return ()
    found = await asyncio.to_thread(os.statvfs, folder)
    return one(found.f_bavail * found.f_frsize)


def names(values: Iterable[StrEnum], *others: str) -> frozenset[str]:
    """Return the possible values of a label."""
    return frozenset({*(member.value for member in values), *others})


OPERATIONS = names(Operation)
SCHEDULED = (Operation.ARCHIVE_KEY, Operation.ROTATE_KEY, Operation.SCHEDULE_ARCHIVE)
"""The automatic changes of the key service."""
ALGORITHMS = names(Algorithm, NONE)
COSIGNING, WAITING = "cosigning", "waiting"
"""The states of witnesses without a problem: with and without a cosignature."""

KEY_SERVICE_METRICS = (
    Metric(
        "pqkeep_key_service_operations_total",
        Kind.COUNTER,
        "Requests that the key service has completed, each with its audit record. A rule's "
        "denials have the outcome `rule-denied`.",
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
        "pqkeep_key_service_warned_operations_total",
        Kind.COUNTER,
        "Operations that succeeded with a warning: a tenant's rule will deny them at its date.",
        {"operation": OPERATIONS, "algorithm": ALGORITHMS},
    ),
    Metric(
        "pqkeep_key_service_queue_length",
        Kind.GAUGE,
        "What waits in the key service: calls in flight, audit records for their commit, SLH-DSA"
        " signatures and verifications for a worker process, searches of the audit log.",
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
        "pqkeep_key_service_resident_memory_bytes",
        Kind.GAUGE,
        "Memory of the key service's process, without its worker processes.",
    ),
    Metric(
        "pqkeep_key_service_open_fds",
        Kind.GAUGE,
        "Open files and connections of the key service's process.",
    ),
    Metric(
        "pqkeep_key_service_max_fds",
        Kind.GAUGE,
        "The key service's limit of open files and connections.",
    ),
    Metric(
        "pqkeep_key_service_start_time_seconds",
        Kind.GAUGE,
        "When the key service's process started, in Unix seconds.",
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
        "1 if the key service is active, 0 if it is a standby or has lost its database.",
    ),
    Metric(
        "pqkeep_key_service_time_seconds",
        Kind.GAUGE,
        "The key service's clock at the time of the request, in Unix seconds.",
    ),
    Metric(
        "pqkeep_key_service_epoch",
        Kind.GAUGE,
        "The fencing token: the number of database sessions so far that were the only writer. It"
        " grows with each restart, lost connection and takeover.",
    ),
    Metric(
        "pqkeep_key_service_takeovers_total",
        Kind.COUNTER,
        "How often a standby key service took over from another one, ever.",
    ),
    Metric(
        "pqkeep_keys_database_up",
        Kind.GAUGE,
        "1 if the key service can write its database, 0 if it cannot.",
    ),
    Metric(
        "pqkeep_keys_database_problem",
        Kind.GAUGE,
        "1 for the reason why the database cannot be written.",
        {"problem": names(WriteProblem)},
    ),
    Metric(
        "pqkeep_keys_database_free_bytes",
        Kind.GAUGE,
        "Free space beside the keys database, in bytes. No value for a database on a server.",
    ),
    Metric(
        "pqkeep_keys",
        Kind.GAUGE,
        "Key versions by status, of all tenants and the audit log.",
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
        "When that root key came into use (Unix time).",
    ),
    Metric(
        "pqkeep_root_key_rotation_keys",
        Kind.GAUGE,
        "During a root key rotation: keys already under the newest root key, and keys still to do.",
        {"state": frozenset({"done", "remaining"})},
    ),
    Metric(
        "pqkeep_schedule_due_keys",
        Kind.GAUGE,
        "Keys with an automatic change that is due and not made yet.",
    ),
    Metric(
        "pqkeep_schedule_changes_total",
        Kind.COUNTER,
        "Automatic changes of keys: made, or failed and to be retried.",
        {
            "operation": names(SCHEDULED, NONE),
            "outcome": frozenset({"success", "failure"}),
        },
    ),
    Metric(
        "pqkeep_last_backup_timestamp_seconds",
        Kind.GAUGE,
        "When the newest backup announced by pqkeepd backup was made (Unix time).",
    ),
    Metric(
        "pqkeep_last_backup_number",
        Kind.GAUGE,
        "The two parts of that backup's number.",
        {"part": frozenset({"generation", "records"})},
    ),
    Metric(
        "pqkeep_audit_log_records",
        Kind.GAUGE,
        "The size of the audit log in records.",
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
        "pqkeep_witnesses",
        Kind.GAUGE,
        "Witnesses by state. Each state except cosigning and waiting is a problem; conflict means"
        " that records were lost or replaced.",
        {"state": names(WitnessProblem, COSIGNING, WAITING)},
    ),
    Metric(
        "pqkeep_witness_cosignature_timestamp_seconds",
        Kind.GAUGE,
        "When the witnesses last cosigned (Unix time): the oldest among the newest cosignatures of each, 0"
        " if one has made none. No value without witnesses.",
    ),
    Metric(
        "pqkeep_audit_log_commits_total",
        Kind.COUNTER,
        "Commits of audit records. Each commit takes all waiting records. If it fails, their "
        "requests are refused with 503.",
        {"outcome": frozenset({"success", "failure"})},
    ),
    Metric(
        "pqkeep_audit_log_commit_duration_seconds",
        Kind.HISTOGRAM,
        "The duration of a commit of audit records, until it is durable.",
    ),
)
"""The key service's metrics."""
