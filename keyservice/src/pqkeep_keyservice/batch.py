"""Executes a batch: its requests one by one, then one commit of all their records.

A refused request does not affect the others. No response leaves before all records are durable.

KEMs and symmetric keys run on the event loop in short slices. Other work runs between two slices,
and the batches of different tenants take turns. Signatures, and many encapsulations to one key, run
in threads or worker processes, a few of a batch at once.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol, cast

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import CommitOutcome
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.records import NewRecord, operation_record
from pqkeep_keyservice.live.tenant_gate import TenantGate
from pqkeep_keyservice.operations.context import OperationResult, Parts, RecordedError
from pqkeep_keyservice.operations.kem_dem import encapsulate_all
from pqkeep_keyservice.operations.table import loaded_context, respond, row_of
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.transaction import refusal_kind
from pqkeep_protocol.algorithms import ALGORITHMS, Kind
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.codec import MAX_IN_FLIGHT
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.fair_queue import FairQueue
from pqkeep_protocol.keys import KeyringName, KeyVersion, RecordedName, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    BatchResults,
    Encapsulate,
    ItemRequest,
    ItemResult,
    Refused,
    Wrap,
)

SLICE_SECONDS = 0.001
"""How long a batch occupies the event loop without a pause, plus one request."""
FEWEST_ELSEWHERE = 16
"""The fewest encapsulations for which a worker process is faster."""
SIGNERS = max(2, os.cpu_count() or 1)
"""Requests of one batch that wait for a signature at once."""
SECONDS_TO_SIGN = 2.0
"""The time before the deadline after which no new signature begins: SLH-DSA takes that long."""


class Answered(NamedTuple):
    """A result, and the key information for its record."""

    result: ItemResult | Refused
    version: KeyVersion | None
    target: str | None = None
    keyring: KeyringName | None = None
    rule: RecordedName | None = None
    campaign: RecordedName | None = None


class Batches:
    """Executes batches."""

    def __init__(self, parts: Parts, log: AuditLog, gate: TenantGate) -> None:
        self._parts = parts
        self._log = log
        self._gate = gate
        self._turns = FairQueue[TenantId, None](
            [None], per_subject=1, max_waiting=64 * MAX_IN_FLIGHT
        )

    async def execute(
        self, batch: Batch, attribution: Attribution, deadline: float
    ) -> BatchResults:
        """Return a result for each request, all durably recorded.

        A request that is not done before the deadline, in the event loop's time, is refused with
        DEADLINE_EXCEEDED. Raises UNAVAILABLE, UNSUPPORTED, and TENANT_MOVED, which is recorded for
        each request.
        """
        requests = [item.request for item in batch.items]
        if any(request.tenant != batch.tenant for request in requests):
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        try:
            async with self._gate.call(batch.tenant):
                while True:
                    epoch = self._parts.writer.epoch
                    answered = await self._answer_all(requests, attribution.principal, deadline)
                    if await self._record(batch, answered, attribution, epoch):
                        return BatchResults(results=tuple(item.result for item in answered))
        except KeyServiceError as error:
            if error.kind is ErrorKind.TENANT_MOVED:
                refused = [_refused(request, error.kind) for request in requests]
                await self._record(batch, refused, attribution, self._parts.writer.epoch)
            raise
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        finally:
            for request in requests:
                if isinstance(request, Wrap):  # only now: a stale attempt executes it again
                    request.symmetric_key[:] = bytes(len(request.symmetric_key))

    async def _record(
        self,
        batch: Batch,
        answered: Sequence[Answered],
        attribution: Attribution,
        epoch: int,
    ) -> bool:
        records = list(_records(batch, answered, attribution))
        return await self._log.commit_all(records, epoch) is CommitOutcome.DURABLE

    async def _answer_all(
        self, requests: Sequence[ItemRequest], principal: str, deadline: float
    ) -> Sequence[Answered]:
        answered: dict[int, Answered] = {}
        answer = partial(self._answer, principal)
        here, elsewhere = _places(requests)
        if elsewhere:
            last = deadline - SECONDS_TO_SIGN
            await asyncio.gather(
                *(self._sign(answer, requests, elsewhere, answered, last) for _ in range(SIGNERS))
            )
        here = await self._encapsulate_elsewhere(principal, requests, here, answered, deadline)
        while here:
            await self._answer_slice(answer, requests, here, answered, deadline)
        if _now() >= deadline:  # the gateway has given up
            return [_refused(request, ErrorKind.DEADLINE_EXCEEDED) for request in requests]
        return [answered[place] for place in range(len(requests))]

    async def _encapsulate_elsewhere(
        self,
        principal: str,
        requests: Sequence[ItemRequest],
        places: deque[int],
        answered: dict[int, Answered],
        deadline: float,
    ) -> deque[int]:
        """Execute the requests equal to the first in a worker process; return the other places."""
        first = requests[places[0]] if places else None
        if not isinstance(first, Encapsulate) or first.public_key is not None:
            return places
        equal = [place for place in places if requests[place] == first]
        if len(equal) < FEWEST_ELSEWHERE:
            return places
        with suppress(KeyServiceError, DamagedKeyError):  # then each is refused on the event loop
            context = await loaded_context(first, row_of(first), self._parts, deadline, principal)
            outcomes = await encapsulate_all(first, context, len(equal))
            for place, done in zip(equal, outcomes, strict=False):
                answered[place] = _answered(context.noted(done))
        return deque(place for place in places if place not in answered)

    async def _sign(
        self,
        answer: "_Answer",
        requests: Sequence[ItemRequest],
        places: deque[int],
        answered: dict[int, Answered],
        last: float,
    ) -> None:
        """Execute the remaining requests one after another. Begin none after ``last``.

        A request that has no worker by then stops waiting.
        """
        while places:
            place = places.popleft()
            answered[place] = await answer(requests[place], last, is_late=_now() >= last)

    async def _answer_slice(
        self,
        answer: "_Answer",
        requests: Sequence[ItemRequest],
        places: deque[int],
        answered: dict[int, Answered],
        deadline: float,
    ) -> None:
        """Execute requests for SLICE_SECONDS, when it is the tenant's turn."""
        tenant = requests[0].tenant
        await self._turns.acquire(tenant)
        try:
            is_late = _now() >= deadline  # once per slice: the loop's time changes between slices
            end = perf_counter() + SLICE_SECONDS
            while places:
                place = places.popleft()
                answered[place] = await answer(requests[place], deadline, is_late=is_late)
                if perf_counter() >= end:
                    break
            await asyncio.sleep(0)  # let other work run before the next batch's turn
        finally:
            self._turns.release(tenant, None)

    async def _answer(
        self, principal: str, request: ItemRequest, deadline: float, *, is_late: bool
    ) -> Answered:
        if is_late:
            return _refused(request, ErrorKind.DEADLINE_EXCEEDED)
        try:
            done = await respond(request, self._parts, deadline, principal)
        except RecordedError as error:
            version = error.version or request.version
            return Answered(
                Refused(kind=error.kind, notice=error.notice),
                version,
                error.target,
                error.keyring,
                error.rule,
                error.campaign,
            )
        except Exception as error:  # noqa: BLE001 - an unexpected error is returned and recorded too
            return _refused(request, refusal_kind(error, request))
        return _answered(done)


class _Answer(Protocol):
    """Executes a request of one caller."""

    async def __call__(
        self, request: ItemRequest, deadline: float, /, *, is_late: bool
    ) -> Answered: ...


def _answered(done: OperationResult) -> Answered:
    return Answered(
        cast(ItemResult, done.result),
        done.version,
        done.target,
        done.keyring,
        done.rule,
        done.campaign,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _places(requests: Sequence[ItemRequest]) -> tuple[deque[int], deque[int]]:
    """Return the places of requests for the event loop, and of those for threads or processes."""
    here, elsewhere = deque[int](), deque[int]()
    for place, request in enumerate(requests):
        spec = ALGORITHMS[request.algorithm]
        takes_long = spec.kind is Kind.SIGNATURE or spec.is_legacy
        (elsewhere if takes_long else here).append(place)
    return here, elsewhere


def _refused(request: ItemRequest, kind: ErrorKind) -> Answered:
    return Answered(Refused(kind=kind), request.version)


def _records(
    batch: Batch, answered: Sequence[Answered], attribution: Attribution
) -> Iterator[NewRecord]:
    """Yield a record for each request. Requests with equal content share one object."""
    records: dict[object, NewRecord] = {}
    for item, done in zip(batch.items, answered, strict=True):
        request, result = item.request, done.result
        outcome = result.kind if isinstance(result, Refused) else Outcome.SUCCESS
        supplied = getattr(request, "public_key", None)
        content = (
            type(request),
            request.keyring,
            request.algorithm,
            item.policy,
            outcome,
            supplied,
            *done[1:],
        )
        record = records.get(content)
        if record is None:
            record = operation_record(
                request,
                attribution.under(item.policy),
                done.version,
                outcome,
                done.target,
                done.keyring,
                done.rule,
                done.campaign,
            )
            records[content] = record
        yield record
