"""Delivery of the gateway's audit events to the key service's audit log.

``pqkeep_protocol.audit_events`` lists them all. An administrative action writes its events into an
outbox in its own transaction; they are delivered at least once, and recorded exactly once. A
refusal changes nothing, so it is sent directly, and stored in the outbox only if that fails.

An answer waits for the log for a moment. What is done is answered as done, also if its events are
only in the outbox yet. If the outbox has not been emptied for MAX_DELAY, it takes no more events, so
that nothing more is done.

An event that the log refuses for good, or that cannot be read, stays in the outbox with the reason:
it is not sent again, and holds no other up.

Each event goes to the log of the shard that its tenant is in. A shard that does not answer delays no
other's events: from then on its own are sent by ``run`` only, until it answers again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

from pqkeep_gateway.background import repeat
from pqkeep_gateway.shards import Placement, Shards, UnknownShardError
from pqkeep_gateway.storage.audit_outbox import SqlAuditOutbox, WaitingEvent
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import MAX_PAGE, Event, RecordEvents
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


WAIT_SECONDS = 2.0
"""How long an answer waits for the log."""


RETRY_SECONDS = 1.0


SWEEP_SECONDS = 5.0
"""Between two looks for events that nobody delivers: each change is followed by a delivery."""


_ATTRIBUTION = Attribution("", "gateway", "", "")


class AuditDelivery:
    """Delivers events to the audit log."""

    def __init__(self, outbox: SqlAuditOutbox, shards: Shards) -> None:
        self._outbox = outbox
        self._shards = shards
        self._failing: set[str] = set()
        """The shards that have not taken events."""

    async def run(self) -> None:
        """Deliver stored events every few seconds, until cancelled."""
        with suppress(UnavailableError):  # it has been logged
            if refused := await self._outbox.count_refused():
                _LOG.error("the outbox keeps events that the audit log refused", events=refused)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(repeat(self.deliver, SWEEP_SECONDS))
            for shard in self._shards.names:
                tasks.create_task(repeat(partial(self._retry, shard), RETRY_SECONDS))

    async def empty(self) -> None:
        """Deliver all stored events, however long it takes. Raises UnavailableError."""
        failed: set[str] = set()
        while events := await self._outbox.list_oldest(MAX_PAGE, without=failed):
            failed |= await self._settle(events, None)
        if failed:
            raise UnavailableError

    async def deliver(self) -> None:
        """Deliver stored events, after a change and before its answer.

        What cannot be delivered within WAIT_SECONDS is delivered by ``run``.
        """
        until = _moment()
        with suppress(UnavailableError):
            while events := await self._outbox.list_oldest(MAX_PAGE, without=self._failing):
                await self._settle(events, until)

    async def record(self, *events: Event, placement: Placement | None = None) -> None:
        """Deliver a tenant's events of no transaction, at most MAX_PAGE, or store them for later.

        ``placement``: where the tenant was when its request was admitted; None: it is looked up.
        Raises UnavailableError if neither succeeds.
        """
        try:
            shard = await self._shards.recording(events[0].tenant, placement)
            refusals = await self._send(shard, events, _moment())
        except UnavailableError:
            for event in events:
                await self._outbox.add(event)
        else:
            for event in events:
                if event.id in refusals:
                    await self._outbox.add(event, refusals[event.id])

    async def require_open(self, tenant: TenantId) -> None:
        """Refuse what has effects outside the database, where a tenant's change would be refused.

        Raises UnavailableError.
        """
        await self._outbox.require_open(tenant)

    async def _retry(self, shard: str) -> None:
        """Deliver the events of a shard that has not taken them."""
        while shard in self._failing:
            events = await self._outbox.list_oldest(MAX_PAGE, only=shard)
            if not events:
                self._failing.discard(shard)
            elif await self._settle(events, None):
                break

    async def _settle(self, events: Sequence[WaitingEvent], until: float | None) -> set[str]:
        """Deliver events, those of each shard by themselves; return the shards that take none."""
        of_shard: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            of_shard[event.shard].append(event.event)
        outcomes = await asyncio.gather(
            *(self._settle_shard(shard, of_shard[shard], until) for shard in of_shard)
        )
        return {shard for shard, is_done in zip(of_shard, outcomes, strict=True) if not is_done}

    async def _settle_shard(self, shard: str, events: Sequence[Event], until: float | None) -> bool:
        try:
            refusals = await self._send(shard, events, until)
        except UnavailableError:
            return False
        await self._outbox.settle(events, refusals)
        return True

    async def _send(
        self, shard: str, events: Sequence[Event], until: float | None
    ) -> Mapping[UUID, str]:
        """Send events to a shard; return those that its log refuses, and why."""
        request = RecordEvents(tenant=INSTALLATION, events=tuple(events))
        try:
            async with asyncio.timeout_at(until):
                recorded = await self._shards.of(shard).execute(request, _ATTRIBUTION)
        except (KeyServiceError, TimeoutError, UnknownShardError) as error:
            if shard not in self._failing:
                _LOG.warning(
                    "events cannot be delivered to the audit log", shard=shard, error=str(error)
                )
            self._failing.add(shard)
            raise UnavailableError from None
        if shard in self._failing:
            _LOG.info("events are delivered to the audit log again", shard=shard)
        self._failing.discard(shard)
        for event in recorded.refused:
            _LOG.error(
                "the audit log refuses an event, which is kept in the outbox",
                event_id=str(event.id),
                reason=event.reason.value,
            )
        return {event.id: event.reason.value for event in recorded.refused}


def _moment() -> float:
    return asyncio.get_running_loop().time() + WAIT_SECONDS
