"""Executes a request as one transaction: the operation, its change and its audit record.

The steps continue the count of the gateway's ``http/road.py``. The code carries their numbers.

7. Accept the frame: draining, standby, limits, the socket's permitted requests (``server.py``).
8. Enter the tenant's gate; a change also takes the key's lock.
9. Find keyring, algorithm, purpose and key versions, in memory or in the database
   (``operations/table.py``).
10. Run the operation: choose the version, check its status, compute (``operations/``).
11. Commit the audit record with the change.
12. Send the result, and count the request (``server.py``).

If all the data is in memory, a request runs at once. The commit of its record then sends the
result: no task, lock or future is needed. In all other cases, also if that form refuses the
request, a task executes the request from the start. Both forms have the same checks. If another
change of the key was committed first, the operation runs again on the new versions.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from weakref import WeakValueDictionary

from cachetools import TTLCache

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange, KeyringChange, RulesChange
from pqkeep_keyservice.keys.key_versions import KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.records import NewRecord, operation_record
from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_keyservice.live.tenant_gate import TenantGate
from pqkeep_keyservice.operations.context import OperationResult, Parts, RecordedError
from pqkeep_keyservice.operations.scheduled import (
    DeniedRotation,
    DestructionStep,
    RulesDeleted,
    destruction_step,
    due_change,
)
from pqkeep_keyservice.operations.table import context_in_memory, respond, row_of
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import AnyRequest, AnyResult, Attribution, Wrap
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

Then = Callable[[AnyResult | ErrorKind | None], None]
"""Takes a result or the kind of a refusal, durably recorded. None means that the epoch ended before
the record, and ``execute`` must run the request again."""


MAX_PER_TENANT = 64
DAY = 24 * 3600.0
"""The number of seconds in a day."""


class KeyLocks:
    """A lock for each key, with a bounded number of waiting changes."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[KeyName, asyncio.Lock] = WeakValueDictionary()
        self._changes: Counter[TenantId] = Counter()

    @asynccontextmanager
    async def lock(self, name: KeyName, deadline: float) -> AsyncIterator[None]:
        """Hold the key's lock.

        Raises OVERLOADED if too many changes wait or run. Raises DEADLINE_EXCEEDED if the lock is
        not free before the deadline (in the event loop's time).
        """
        tenant = name.tenant
        if self._changes[tenant] >= MAX_PER_TENANT or self._changes.total() >= MAX_WAITING:
            raise KeyServiceError(ErrorKind.OVERLOADED)
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._changes[tenant] += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await lock.acquire()
            except TimeoutError:
                raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._changes[tenant] -= 1
            if not self._changes[tenant]:
                del self._changes[tenant]


class Transactions:
    """Executes requests, and the automatic changes of the schedule."""

    def __init__(self, parts: Parts, log: AuditLog, gate: TenantGate) -> None:
        self._parts = parts
        self._log = log
        self._gate = gate
        self._locks = KeyLocks()
        self._denied_rotations: TTLCache[tuple[KeyName, int, str], None] = TTLCache(10_000, DAY)

    def execute_from_memory(
        self, request: AnyRequest, attribution: Attribution, deadline: float, then: Then
    ) -> bool:
        """8. Execute a request that needs no loading or waiting, and changes nothing.

        ``then`` is called once the record is durable. If False is returned, nothing has happened,
        and ``execute`` must run the request: it loads missing data, and records refusals. The
        deadline is in the event loop's time.
        """
        row = row_of(request)
        if row.from_memory is None:
            return False
        leave = self._gate.enter_from_memory(request.tenant)
        if leave is None:
            return False
        done: OperationResult | None = None
        try:
            epoch = self._parts.writer.epoch
            context = context_in_memory(  # 9
                request, row, self._parts, deadline, attribution.principal
            )
            if context is not None:
                done = context.noted(row.from_memory(request, context))  # 10
                _require_time(deadline)
        except Exception:  # noqa: BLE001 - execute raises it again, and records it
            done = None
        if done is None:
            leave()
            return False

        def recorded(outcome: CommitOutcome | None) -> None:
            leave()
            if outcome is CommitOutcome.STALE:
                then(None)
                return
            _wipe(request)
            then(done.result if outcome is CommitOutcome.DURABLE else ErrorKind.UNAVAILABLE)

        record = _record_of(request, attribution, done)
        self._log.append(((record, None),), epoch, recorded)  # 11
        return True

    async def execute(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        """8. Return the result or raise KeyServiceError, in both cases durably recorded.

        The deadline is in the event loop's time. Late work is given up before its change is
        committed, never after.
        """
        epoch = self._parts.writer.epoch
        try:
            leave = self._gate.enter_from_memory(request.tenant)
            if leave is None:
                async with self._gate.call(request.tenant):
                    return await self._execute(request, attribution, deadline)
            try:
                return await self._execute(request, attribution, deadline)
            finally:
                leave()
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None  # nothing can be recorded
        except Exception as error:  # noqa: BLE001 - an unexpected error is returned and recorded too
            kind = refusal_kind(error, request)
            notice = error.notice if isinstance(error, KeyServiceError) else None
            recorded = error if isinstance(error, RecordedError) else None
        finally:
            _wipe(request)
        version = getattr(request, "version", None)
        record = (
            operation_record(request, attribution, version, kind)
            if recorded is None
            else operation_record(
                request,
                attribution,
                recorded.version or version,
                kind,
                recorded.target,
                recorded.keyring,
                recorded.rule,
                recorded.campaign,
            )
        )
        if await self._log.commit(record, epoch=epoch) is not CommitOutcome.DURABLE:
            kind = ErrorKind.UNAVAILABLE  # the key may have changed, and the result with it
            notice = None
        raise KeyServiceError(kind, notice)

    async def _execute(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        if not row_of(request).changes_key or request.algorithm is None:
            return await self._commit(request, attribution, deadline)
        name = KeyName(request.tenant, request.algorithm, request.keyring)
        async with self._locks.lock(name, deadline):
            return await self._commit(request, attribution, deadline)

    async def _commit(
        self, request: AnyRequest, attribution: Attribution, deadline: float
    ) -> AnyResult:
        while True:
            _require_time(deadline)
            epoch = self._parts.writer.epoch
            done = await respond(request, self._parts, deadline, attribution.principal)  # 9, 10
            _require_time(deadline)
            record = _record_of(request, attribution, done)  # 11
            if done.change is None:
                outcome = await self._log.commit(record, epoch=epoch)
            elif isinstance(done.change, KeyringChange):
                outcome = await self._commit_keyring(record, done.change, epoch)
            elif isinstance(done.change, RulesChange):
                outcome = await self._commit_rules(record, done.change, epoch)
            else:
                outcome = await self._commit_change(record, done.change, epoch)
            if outcome is CommitOutcome.DURABLE:
                return done.result
            if outcome is CommitOutcome.QUOTA_REACHED:
                raise KeyServiceError(
                    ErrorKind.KEYRING_QUOTA_REACHED
                    if isinstance(done.change, KeyringChange)
                    else ErrorKind.KEY_QUOTA_REACHED
                )

    async def make_due_change(
        self, name: KeyName, now: datetime, deadline: float, *, destroys: bool = True
    ) -> Operation | None:
        """Make the next due change of a key, with its record. Return None if no change is due.

        Without ``destroys``, changes that destroy a key are ignored. Raises KeyServiceError and
        DamagedKeyError. Only RULE_DENIED has a record, once a day.
        """
        async with self._gate.call(name.tenant), self._locks.lock(name, deadline):
            while True:
                _require_time(deadline)
                epoch = self._parts.writer.epoch
                due = await due_change(name, now, self._parts, deadline, destroys=destroys)
                if due is None:
                    return None
                if isinstance(due, DeniedRotation):
                    await self._record_once(due, epoch)
                    raise KeyServiceError(ErrorKind.RULE_DENIED, due.notice)
                outcome = await self._commit_change(due.record, due.change, epoch)
                if outcome is CommitOutcome.DURABLE:
                    if due.operation is Operation.ROTATE_KEY and due.change.new.is_full:
                        _LOG.warning(
                            "a key has the most versions that it can have, so it cannot be rotated",
                            tenant=str(name.tenant),
                            keyring=name.keyring,
                            algorithm=name.algorithm.value,
                        )
                    return due.operation

    async def take_destruction_step(
        self, destroyed: KeyringId, now: datetime, deadline: float
    ) -> Operation | KeyServiceEvent | None:
        """Make the next due change towards destroying a keyring's private keys, with its record.

        The default keyring stands for all the tenant's private keys.

        Return None if nothing is due. Raises KeyServiceError and DamagedKeyError, without a record.
        """
        async with self._gate.call(destroyed.tenant):
            while True:
                _require_time(deadline)
                epoch = self._parts.writer.epoch
                step = await destruction_step(destroyed, now, self._parts)
                if step is None:
                    return None
                if isinstance(step, DestructionStep):
                    outcome = await self._commit_keyring(step.record, step.change, epoch)
                elif isinstance(step, RulesDeleted):
                    outcome = await self._commit_rules(step.record, step.change, epoch)
                else:
                    outcome = await self._commit_change(step.record, step.change, epoch)
                if outcome is CommitOutcome.DURABLE:
                    return step.operation

    async def _commit_change(
        self, record: NewRecord, change: KeyChange, epoch: int
    ) -> CommitOutcome:
        if change.destroys_a_seed and not await self._parts.store.database.scrub():
            # Another process reads the file, and a copy would remain: change nothing.
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        self._parts.keys.invalidate(change.old)  # correct even if the commit's outcome is unknown
        outcome = await self._log.commit(record, change, epoch)
        if outcome is CommitOutcome.DURABLE:
            self._parts.keys.update(change.new, epoch)
            if change.destroys_a_seed:
                await self._destroy_copies(change.new)
        return outcome

    async def _commit_keyring(
        self, record: NewRecord, change: KeyringChange, epoch: int
    ) -> CommitOutcome:
        self._parts.keyrings.invalidate(change.new)
        outcome = await self._log.commit(record, change, epoch)
        if outcome is CommitOutcome.DURABLE:
            self._parts.keyrings.update(change.new, epoch)
        return outcome

    async def _record_once(self, denied: DeniedRotation, epoch: int) -> None:
        """Record a denied rotation, unless this process did so within the last day."""
        rotation = denied.name, denied.version, denied.notice.rule
        if rotation in self._denied_rotations:
            return
        if await self._log.commit(denied.record, epoch=epoch) is CommitOutcome.DURABLE:
            self._denied_rotations[rotation] = None

    async def _commit_rules(
        self, record: NewRecord, change: RulesChange, epoch: int
    ) -> CommitOutcome:
        self._parts.rules.invalidate(change.new.tenant)
        outcome = await self._log.commit(record, change, epoch)
        if outcome is CommitOutcome.DURABLE:
            self._parts.rules.update(change.new, epoch)
        return outcome

    async def _destroy_copies(self, versions: KeyVersions) -> None:
        """Remove archived private keys from memory and from the write-ahead log."""
        for entry in versions.entries:
            if entry.sealed is None:
                self._parts.material.forget_private_key(versions.tenant, entry)
        if not await self._parts.store.database.scrub():
            _LOG.error(
                "an archived key is still in the write-ahead log; removal will be tried again"
            )


def _record_of(request: AnyRequest, attribution: Attribution, done: OperationResult) -> NewRecord:
    """Return the record of a successful operation."""
    record = operation_record(
        request,
        attribution,
        done.version,
        Outcome.SUCCESS,
        done.target,
        done.keyring,
        done.rule,
        done.campaign,
    )
    if done.operation is not None:
        record = record._replace(operation=done.operation)
    if done.policy is not None:
        record = record._replace(policy=done.policy)
    return record


def _wipe(request: AnyRequest) -> None:
    """Overwrite the key in a wrap request, once the operation cannot run again."""
    if isinstance(request, Wrap):
        request.symmetric_key[:] = bytes(len(request.symmetric_key))


def refusal_kind(error: Exception, request: AnyRequest) -> ErrorKind:
    """Return the kind of refusal for an error. Log unexpected errors."""
    match error:
        case KeyServiceError(kind=kind):
            return kind
        case DamagedKeyError():
            _LOG.error(
                "a key is damaged",
                operation=request.operation,
                tenant=str(request.tenant),
                damage=str(error),
            )
            return ErrorKind.UNAVAILABLE
        case DatabaseUnavailableError():  # already logged by the database
            return ErrorKind.UNAVAILABLE
        case _:
            _LOG.error("operation failed", operation=request.operation, exc_info=error)
            return ErrorKind.INTERNAL


def _require_time(deadline: float) -> None:
    if asyncio.get_running_loop().time() >= deadline:
        raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED)
