"""Deliberate bugs in the product, which the simulation must find.

A mutation replaces something in memory during a simulation. If two parts of the product prevent the
same failure, both are replaced.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

import sqlalchemy as sa
from tests.simulation import event_loop, faults
from tests.simulation import run as running
from tests.simulation.database import Server
from tests.simulation.installation import replaced
from tests.simulation.two_shards import TwoShards

from pqkeep_gateway.key_client import KeyClient, KeyConnection
from pqkeep_keyservice import moves, schedule
from pqkeep_keyservice.audit.log import AuditLog, Then
from pqkeep_keyservice.keys.changes import CommitOutcome
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions
from pqkeep_keyservice.ledger.append import LogState, load_log_state
from pqkeep_keyservice.ledger.merkle import Frontier
from pqkeep_keyservice.live.key_material import RevisionCache
from pqkeep_keyservice.live.tenant_gate import TenantGate
from pqkeep_keyservice.moves import TenantMoves, _cancelled, arriving_keys
from pqkeep_keyservice.operations import lifecycle
from pqkeep_keyservice.storage import key_versions, tenants
from pqkeep_keyservice.storage.key_versions import list_due_keys
from pqkeep_keyservice.storage.schema import TENANT_BUNDLES
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.storage.writer import Decision, Do, State, Writer
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import USABLE, KeyInfo, KeyStatus

Attribute = tuple[object, str, object]
"""The object, the name of its attribute, and the replacement."""

_append: Any = AuditLog.append
_commit: Any = AuditLog._commit
_call: Any = KeyClient.call
_lock: Any = Server.lock
_first_due: Any = KeyVersions.first_due
_list_due_keys: Any = list_due_keys
_move_out: Any = tenants._move_out
_arriving_keys: Any = arriving_keys
_cancel: Any = TenantMoves._cancel
_load_away: Any = TenantGate._load
_template = running.template
_ONLY_LOST_SESSIONS = {"end session": faults.Faults.end_session}
_ONLY_PAUSES = {"pause service": faults.Faults.pause_service}
_YEAR = timedelta(days=365)


@dataclass(frozen=True)
class Mutation:
    """A deliberate bug."""

    name: str
    found_by: frozenset[str]
    """The invariants, at least one of which must fail."""
    attributes: Sequence[Attribute]
    seeds: int = 40
    """The number of seeds that suffice."""
    first: int = 0
    """The seed to try first, because it found the bug before."""
    kind: type[running.Simulation] = running.Simulation

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the bug for a block."""
        with ExitStack() as stack:
            for owner, name, value in self.attributes:
                stack.enter_context(replaced(owner, name, value))
            yield


def _answer_first(self: Any, entries: Sequence[Any], epoch: int, then: Then) -> None:
    if any(change for _, change in entries):
        _append(self, entries, epoch, then)
        return
    _append(self, entries, epoch, lambda _: None)
    then(CommitOutcome.DURABLE)


def _answer_what_is_stale(self: Any, entries: Sequence[Any], epoch: int, then: Then) -> None:
    def believe(outcome: CommitOutcome | None) -> None:
        then(CommitOutcome.DURABLE if outcome is CommitOutcome.STALE else outcome)

    _append(self, entries, epoch, believe)


def _believe_in_events(self: Any, entries: Sequence[Any], epoch: int, then: Then) -> None:
    def believe(outcome: CommitOutcome | None) -> None:
        is_event = entries[0][0].event_id is not None
        then(CommitOutcome.DURABLE if is_event and outcome is None else outcome)

    _append(self, entries, epoch, believe)


async def _commit_first_only(self: Any, records: Sequence[Any], epoch: int) -> CommitOutcome:
    outcome: CommitOutcome = await _commit(self, [(records[0], None)], epoch)
    return outcome


def _keep_log_state(self: Any, connection: Any) -> LogState:
    if self._log_state is None:
        self._log_state = 0, load_log_state(connection)
    state: LogState = self._log_state[1]
    return state


def _advance_in_disorder(self: LogState, appended: Any) -> None:
    self.recorded_at_us = appended.recorded_at_us
    self._numbers.update(appended.numbers)
    self.frontier = Frontier(appended.frontier.size, appended.frontier.hashes[::-1])


def _keep_cached(self: Any, value: Any, epoch: int) -> Any:
    return self._cached.setdefault(value.name, value)


def _lock_again(self: Any, session: Any) -> bool:
    self.holder = None
    is_locked: bool = _lock(self, session)
    return is_locked


def _lock_where_silent(self: Any, session: Any) -> bool:
    if self.holder is not None and self.holder.held_until < self.loop.time():
        self.holder = None  # whose session goes on
    is_locked: bool = _lock(self, session)
    return is_locked


def _take_what_is_refused(self: Any) -> Decision:
    self._state = State.BEGINNING
    return Decision(Do.BEGIN_EPOCH)


def _rotate_without_retiring(self: Any, new: Any) -> KeyVersions:
    self.require_current()
    versions: KeyVersions = self._next((*self.entries, new))
    return versions


@cache
def _template_without_index() -> bytes:
    with running.new_folder() as folder:
        file = folder / "keys.sqlite3"
        file.write_bytes(_template())
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP INDEX one_active_key")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return file.read_bytes()


def _archive_and_stay_due(self: Any, version: Any) -> KeyVersions:
    entry = self.entry(version)
    archived = KeyEntry(_with_status(entry.info), None, entry.idempotency, None, entry.retired_at)
    versions: KeyVersions = self._with(archived)
    return versions


def _with_status(info: KeyInfo) -> KeyInfo:
    return KeyInfo(
        info.algorithm,
        info.version,
        KeyStatus.ARCHIVED,
        info.public_key,
        info.created_at,
        info.archive_at,
        info.keyring,
        info.imported,
    )


def _due_a_year_early(self: Any, limits: Any, now: Any, *, destroys: bool = True) -> Any:
    return _first_due(self, limits, now + _YEAR, destroys=destroys)


def _list_a_year_early(connection: Any, now: Any, after: Any, limit: int) -> Any:
    return _list_due_keys(connection, now + _YEAR, after, limit)


def _give_to_the_first(self: Any, frame: Any) -> None:
    if self._waiting:
        self._waiting.pop(next(iter(self._waiting))).told(frame)


def _send_again(self: Any, request: Any, attribution: Any, placement: Any, then: Any) -> None:
    def told(outcome: Any) -> None:
        if isinstance(outcome, KeyServiceError) and outcome.kind is ErrorKind.UNAVAILABLE:
            again = partial(_call, self, request, attribution, placement, then)
            asyncio.get_running_loop().call_later(1.0, again)
        else:
            then(outcome)

    _call(self, request, attribution, placement, told)


def _stay_too(connection: Any, change: Any) -> CommitOutcome:
    connection.exec_driver_sql("SAVEPOINT kept")
    outcome: CommitOutcome = _move_out(connection, change)
    bundle = connection.execute(sa.select(TENANT_BUNDLES)).all()
    connection.exec_driver_sql("ROLLBACK TO kept")
    if bundle:
        connection.execute(sa.insert(TENANT_BUNDLES), [each._asdict() for each in bundle])
    return outcome


def _forget_a_version(*arguments: Any) -> Any:
    arrived = _arriving_keys(*arguments)
    return tuple(replace(each, entries=each.entries[:-1]) for each in arrived)


async def _take_back_without_proof(self: Any, request: Any) -> Any:
    last = await self._last_move(request.tenant)
    if last is None or not last.is_out or last.is_finished or last.outcome is Outcome.BEGUN:
        return await _cancel(self, request)
    seal, content = await self._open_own_bundle(self._require_transfer_key(), last)
    back = last._replace(
        is_out=False,
        outcome=Outcome.COMPLETED,
        target=last.source,
        generation=last.generation + 1,
    )
    await self._commit_again(last.tenant, lambda: self._arrive(back, seal, content))
    return _cancelled(last, cancelled=True)


def _believe_every_epoch(*_: object) -> bool:
    return True


async def _let_in(*_: object) -> None:
    return None


async def _open_for_all(self: Any) -> Any:
    away = await _load_away(self)
    self.is_open = True
    return away


async def _no_previous(*_: object) -> None:
    return None


MUTATIONS = (
    Mutation(
        "an answer does not wait for its record",
        frozenset({"one record"}),
        [(AuditLog, "append", _answer_first)],
    ),
    Mutation(
        "what is stale is answered",
        frozenset({"one record"}),
        [
            (AuditLog, "append", _answer_what_is_stale),
            (event_loop, "LATE", 0.9),
            (faults, "KINDS", _ONLY_LOST_SESSIONS),
        ],
        first=3,
    ),
    Mutation(
        "a batch has one record",
        frozenset({"one record"}),
        [(AuditLog, "commit_all", _commit_first_only)],
    ),
    Mutation(
        "events that were not recorded are acknowledged",
        frozenset({"lost"}),
        [(AuditLog, "append", _believe_in_events)],
        first=11,
    ),
    Mutation(
        "a request is sent again",
        frozenset({"one record"}),
        [(KeyClient, "call", _send_again)],
        first=12,
    ),
    Mutation(
        "an answer goes to whoever waits the longest",
        frozenset({"one record", "answers", "plaintexts"}),
        [(KeyConnection, "_receive", _give_to_the_first)],
        first=3,
    ),
    Mutation(
        "the cache outlives its epoch",
        frozenset({"fresh", "progress"}),
        [
            (RevisionCache, "clear", lambda _: None),
            (faults, "KINDS", _ONLY_LOST_SESSIONS),
        ],
        first=22,
    ),
    Mutation(
        "one that was paused wakes with its cache, after another one has served",
        frozenset({"fresh", "progress"}),
        [
            (RevisionCache, "clear", lambda _: None),
            (faults, "KINDS", _ONLY_PAUSES),
        ],
        first=13,
    ),
    Mutation(
        "one that was paused keeps the lock",
        frozenset({"one writer"}),
        [
            (Server, "lock", _lock_where_silent),
            (Server, "is_newest", _believe_every_epoch),
            (faults, "KINDS", _ONLY_PAUSES),
        ],
    ),
    Mutation(
        "who is refused the lock begins an epoch",
        frozenset({"one writer"}),
        [
            (Writer, "lock_refused", _take_what_is_refused),
            (Server, "is_newest", _believe_every_epoch),
        ],
    ),
    Mutation(
        "a new epoch changes nothing",
        frozenset({"fresh", "progress"}),
        [
            (Writer, "on_change", lambda *_: None),
            (faults, "KINDS", _ONLY_LOST_SESSIONS),
        ],
        first=15,
    ),
    Mutation(
        "a change leaves the cache as it is",
        frozenset({"fresh"}),
        [
            (RevisionCache, "invalidate", lambda *_: None),
            (RevisionCache, "update", _keep_cached),
        ],
    ),
    Mutation(
        "the lock is given twice",
        frozenset({"one writer"}),
        [(Server, "lock", _lock_again), (Server, "is_newest", _believe_every_epoch)],
    ),
    Mutation(
        "a version is left out",
        frozenset({"versions"}),
        [
            (
                KeyVersions,
                "next_version",
                lambda self, _=1: len(self.entries) + 1 + (len(self.entries) > 1),
            )
        ],
    ),
    Mutation(
        "rotation leaves two active versions",
        frozenset({"one active", "keys"}),
        [
            (KeyVersions, "with_rotated", _rotate_without_retiring),
            (running, "template", _template_without_index),
        ],
    ),
    Mutation(
        "the tree forgets its order",
        frozenset({"tree"}),
        [(LogState, "advance", _advance_in_disorder)],
    ),
    Mutation(
        "the log's state outlives a lost session",
        frozenset({"no gaps", "tree", "progress"}),
        [(KeyStore, "_take_log_state", _keep_log_state)],
        seeds=160,
        first=14,
    ),
    Mutation(
        "the schedule is early",
        frozenset({"schedule"}),
        [
            (KeyVersions, "first_due", _due_a_year_early),
            (schedule, "list_due_keys", _list_a_year_early),
        ],
        first=15,
    ),
    Mutation(
        "an archived version is archived again",
        frozenset({"keys", "once"}),
        [(KeyVersions, "with_archived", _archive_and_stay_due)],
    ),
    Mutation(
        "a version that is to be archived is used",
        frozenset({"fresh"}),
        [(KeyInfo, "allows", lambda self, operation: self.status in USABLE[operation])],
        first=25,
    ),
    Mutation(
        "an Idempotency-Key is forgotten",
        frozenset({"once"}),
        [
            (lifecycle, "previous_entry", _no_previous),
            (key_versions, "is_idempotency_key_used", lambda *_: False),
            (faults, "KINDS", _ONLY_LOST_SESSIONS),
        ],
        seeds=210,
        first=120,
    ),
    Mutation(
        "a tenant that has left stays, too",
        frozenset({"keys", "one shard"}),
        [(tenants, "_move_out", _stay_too)],
        kind=TwoShards,
    ),
    Mutation(
        "a version does not arrive",
        frozenset({"keys"}),
        [(moves, "arriving_keys", _forget_a_version)],
        kind=TwoShards,
    ),
    Mutation(
        "a tenant comes back that may have arrived",
        frozenset({"one shard"}),
        [(TenantMoves, "_cancel", _take_back_without_proof)],
        first=12,
        kind=TwoShards,
    ),
    Mutation(
        "the gate is open when a tenant has left",
        frozenset({"one shard"}),
        [(TenantGate, "require", _let_in)],
        kind=TwoShards,
    ),
    Mutation(
        "the gate opens for all though a tenant has left",
        frozenset({"one shard"}),
        [(TenantGate, "_load", _open_for_all)],
        kind=TwoShards,
    ),
)
