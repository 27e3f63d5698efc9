"""The key service's numbers: its own counters, and values looked up on request.

``pqkeep_protocol.metrics`` defines them.
"""

import asyncio
import platform
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pqkeep_keyservice.activation import Activation
from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.audit.service import AuditService
from pqkeep_keyservice.audit.witnesses import Witnesses
from pqkeep_keyservice.clock import now_us
from pqkeep_keyservice.live.worker_processes import WorkerProcesses
from pqkeep_keyservice.schedule import Schedule
from pqkeep_keyservice.storage.key_versions import count_keys
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import NewestBackup
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import WitnessState
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.commits import WriteProblem
from pqkeep_protocol.metrics import (
    COSIGNING,
    NONE,
    WAITING,
    Distribution,
    Metrics,
    Sample,
    Samples,
    counted,
    free_space,
    measure_lag,
    one,
)

UP_SECONDS = 1.0
UP_WAIT_SECONDS = 1.5
"""The gateway waits two seconds for all numbers."""
KEYS_SECONDS = 60.0
"""Counting a million keys takes a tenth of a second. It uses its own connection."""
KEYS_WAIT_SECONDS = 0.5
ROOT_KEY_SECONDS = 10.0
"""The seconds for which slow numbers are cached, such as the count of keys to reseal."""
_PAGE_BYTES = resource.getpagesize()


class ServiceMetrics:
    """Counts completed requests, and collects the numbers of all parts."""

    def __init__(  # noqa: PLR0913 - the parts with numbers
        self,
        store: KeyStore,
        log: AuditLog,
        signer: CheckpointSigner,
        audit_service: AuditService,
        witnesses: Witnesses,
        workers: WorkerProcesses,
        schedule: Schedule,
        activation: Activation,
        *,
        database_folder: Path | None,
    ) -> None:
        """Take the folder of the database; None if the database is on a server."""
        self._activation = activation
        self._writer = store.writer
        self._store = store
        self._log = log
        self._signer = signer
        self._audit_service = audit_service
        self._witnesses = witnesses
        self._workers = workers
        self._schedule = schedule
        self._outcomes: Counter[tuple[Operation, Algorithm | None, str]] = Counter()
        self._durations: defaultdict[tuple[Operation, Algorithm | None], Distribution] = (
            defaultdict(Distribution)
        )
        self._warned: Counter[tuple[Operation, Algorithm | None]] = Counter()
        self._lag = Distribution()
        self._began = now_us() / 1e6
        self._free = Cached[tuple[Sample, ...]](
            lambda: free_space(database_folder),
            otherwise=(),
            name="the free space beside the keys database",
            seconds=ROOT_KEY_SECONDS,
            wait_seconds=KEYS_WAIT_SECONDS,
        )
        self._problem = Cached[WriteProblem | None](
            self._find_problem,
            otherwise=WriteProblem.NO_RESPONSE,
            name="the keys database",
            seconds=UP_SECONDS,
            wait_seconds=UP_WAIT_SECONDS,
        )
        self._keys = Cached[tuple[Sample, ...]](
            self._count_keys,
            otherwise=(),
            name="the number of keys",
            seconds=KEYS_SECONDS,
            wait_seconds=KEYS_WAIT_SECONDS,
        )
        self._due = Cached[tuple[Sample, ...]](
            self._count_due,
            otherwise=(),
            name="the number of keys that are due",
            seconds=ROOT_KEY_SECONDS,
            wait_seconds=KEYS_WAIT_SECONDS,
        )
        self._root_key = Cached[Samples](
            self._root_key_state,
            otherwise={},
            name="the root key's state",
            seconds=ROOT_KEY_SECONDS,
            wait_seconds=KEYS_WAIT_SECONDS,
        )

    async def run(self) -> None:
        """Measure the event loop's lag until cancelled."""
        await measure_lag(self._lag)

    def count(
        self,
        operation: Operation,
        algorithm: Algorithm | None,
        outcome: str,
        seconds: float,
        times: int = 1,
    ) -> None:
        """Count ``times`` completed requests, which took ``seconds`` each."""
        self._outcomes[operation, algorithm, outcome] += times
        self._durations[operation, algorithm].observe(seconds, times)

    def count_warned(self, operation: Operation, algorithm: Algorithm | None) -> None:
        """Count a success with a warning."""
        self._warned[operation, algorithm] += 1

    async def collect(self, calls: int) -> Metrics:
        """Return all numbers. ``calls`` is the number of calls in flight."""
        problem, keys, root_key, due, free = await asyncio.gather(
            self._problem.get(),
            self._keys.get(),
            self._root_key.get(),
            self._due.get(),
            self._free.get(),
        )
        log, signer = self._log, self._signer
        waiting = {
            "calls": calls,
            "audit_records": log.waiting,
            "signing": self._workers.waiting_to_sign,
            "verifying": self._workers.waiting_to_verify,
            "searches": self._audit_service.waiting_searches,
        }
        return Metrics(
            samples={
                "pqkeep_key_service_operations_total": tuple(
                    Sample((operation.value, _label(algorithm), str(outcome)), count)
                    for (operation, algorithm, outcome), count in self._outcomes.items()
                ),
                "pqkeep_key_service_operation_duration_seconds": tuple(
                    times.sample(operation.value, _label(algorithm))
                    for (operation, algorithm), times in self._durations.items()
                ),
                "pqkeep_key_service_warned_operations_total": tuple(
                    Sample((operation.value, _label(algorithm)), count)
                    for (operation, algorithm), count in self._warned.items()
                ),
                "pqkeep_key_service_queue_length": counted(waiting),
                "pqkeep_key_service_event_loop_lag_seconds": (self._lag.sample(),),
                "pqkeep_key_service_cpu_seconds_total": one(time.process_time()),
                **_process_samples(),
                "pqkeep_key_service_start_time_seconds": one(self._began),
                "pqkeep_key_service_build_info": one(1, *_build()),
                "pqkeep_key_service_active": one(bool(self._writer.serving)),
                "pqkeep_key_service_time_seconds": one(now_us() / 1e6),
                "pqkeep_key_service_epoch": one(self._writer.newest),
                "pqkeep_key_service_takeovers_total": one(self._writer.takeovers),
                "pqkeep_keys_database_up": one(problem is None),
                "pqkeep_keys_database_problem": counted(
                    {} if problem is None else {problem.value: 1}
                ),
                "pqkeep_keys_database_free_bytes": free,
                "pqkeep_keys": keys,
                **root_key,
                "pqkeep_schedule_due_keys": due,
                "pqkeep_schedule_changes_total": tuple(
                    Sample(labels, count) for labels, count in self._schedule.changes.items()
                ),
                **_backup_samples(self._store.newest_backup),
                "pqkeep_audit_log_records": one(self._store.size),
                "pqkeep_audit_log_unsigned_records": one(
                    max(0, self._store.size - signer.signed_size)
                ),
                "pqkeep_audit_log_checkpoints_total": one(signer.count),
                **_witness_samples(self._witnesses.states),
                "pqkeep_audit_log_commits_total": counted(log.commits),
                "pqkeep_audit_log_commit_duration_seconds": (log.durations.sample(),),
            }
        )

    async def _find_problem(self) -> WriteProblem | None:
        if self._writer.is_standing_by:  # a standby already asks for the lock all the time
            return None
        return await self._store.find_write_problem()

    async def _root_key_state(self) -> Samples:
        state = await self._store.find_root_key_state()
        rotation = {} if state.is_alone else {"done": state.done, "remaining": state.remaining}
        return {
            "pqkeep_root_key_id": one(state.id),
            "pqkeep_root_key_added_timestamp_seconds": one(state.added_at_us / 1_000_000),
            "pqkeep_root_key_rotation_keys": counted(rotation),
        }

    async def _count_due(self) -> tuple[Sample, ...]:
        return one(await self._schedule.count())

    async def _count_keys(self) -> tuple[Sample, ...]:
        counts = await self._store.database.query(count_keys)
        return tuple(
            Sample((algorithm.value, status.value), count) for algorithm, status, count in counts
        )


@cache
def _build() -> tuple[str, str]:
    return version("pqkeep-keyservice"), platform.python_version()


def _process_samples() -> Samples:
    """Return the memory and files of this process; nothing where /proc is not mounted."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        open_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return {}
    return {
        "pqkeep_key_service_resident_memory_bytes": one(resident * _PAGE_BYTES),
        "pqkeep_key_service_open_fds": one(open_files),
        "pqkeep_key_service_max_fds": () if limit == resource.RLIM_INFINITY else one(limit),
    }


def _backup_samples(newest: NewestBackup | None) -> Samples:
    number = newest and {"generation": newest.generation, "records": newest.records}
    return {
        "pqkeep_last_backup_timestamp_seconds": one(newest.created_at_us / 1e6) if newest else (),
        "pqkeep_last_backup_number": counted(number or {}),
    }


def _witness_samples(witnesses: Sequence[WitnessState]) -> Samples:
    states = Counter(
        witness.problem or (COSIGNING if witness.size is not None else WAITING)
        for witness in witnesses
    )
    oldest = min((witness.at or 0 for witness in witnesses), default=None)
    return {
        "pqkeep_witnesses": counted({str(state): count for state, count in states.items()}),
        "pqkeep_witness_cosignature_timestamp_seconds": () if oldest is None else one(oldest),
    }


def _label(algorithm: Algorithm | None) -> str:
    return NONE if algorithm is None else algorithm.value
