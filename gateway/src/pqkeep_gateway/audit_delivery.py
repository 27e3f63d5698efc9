"""Delivery of the gateway's audit events to the key service's audit log.

``pqkeep_protocol.audit_events`` lists all events. An administrative action writes its events into
an outbox in its own transaction. They are delivered at least once. The log records each exactly
once. A refusal changes nothing, so it is sent directly. It is stored in the outbox only if that
fails.

A response waits up to WAIT_SECONDS for the log. A completed action is reported as completed even if
its events are still in the outbox. If the outbox has not been emptied for MAX_DELAY, it accepts no
more events, and so no more actions.

An event that the log rejects, or that cannot be read, stays in the outbox with the reason. It is
not sent again, and does not delay others.

Each event goes to the log of its tenant's shard. A shard that does not respond delays only its own
events. ``run`` alone sends these until the shard responds again.
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
"""The longest time that a response waits for the log."""


RETRY_SECONDS = 1.0


SWEEP_SECONDS = 5.0
"""The period of the search for undelivered events. Normally a delivery follows each change."""


_ATTRIBUTION = Attribution("", "gateway", "", "")


class AuditDelivery:
    """Delivers events to the audit log."""

    def __init__(self, outbox: SqlAuditOutbox, shards: Shards) -> None:
        self._outbox = outbox
        self._shards = shards
        self._failing: set[str] = set()
        """Shards that do not accept events."""

    async def run(self) -> None:
        """Deliver stored events every few seconds, until cancelled."""
        with suppress(UnavailableError):  # already logged
            if refused := await self._outbox.count_refused():
                _LOG.error("the outbox keeps events that the audit log refused", events=refused)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(repeat(self.deliver, SWEEP_SECONDS))
            for shard in self._shards.names:
                tasks.create_task(repeat(partial(self._retry, shard), RETRY_SECONDS))

    async def empty(self) -> None:
        """Deliver all stored events, without a time limit. Raises UnavailableError."""
        failed: set[str] = set()
        while events := await self._outbox.list_oldest(MAX_PAGE, without=failed):
            failed |= await self._settle(events, None)
        if failed:
            raise UnavailableError

    async def deliver(self) -> None:
        """Deliver stored events after a change and before its response.

        ``run`` delivers the events that this cannot deliver within WAIT_SECONDS.
        """
        until = _moment()
        with suppress(UnavailableError):
            while events := await self._outbox.list_oldest(MAX_PAGE, without=self._failing):
                await self._settle(events, until)

    async def record(self, *events: Event, placement: Placement | None = None) -> None:
        """Deliver at most MAX_PAGE events of a tenant that belong to no transaction, or store them.

        ``placement``: the tenant's placement when its request was admitted; None: it is looked up.
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
        """Refuse an action outside the database if the outbox accepts no events of the tenant.

        Raises UnavailableError.
        """
        await self._outbox.require_open(tenant)

    async def _retry(self, shard: str) -> None:
        """Deliver the events of a failing shard."""
        while shard in self._failing:
            events = await self._outbox.list_oldest(MAX_PAGE, only=shard)
            if not events:
                self._failing.discard(shard)
            elif await self._settle(events, None):
                break

    async def _settle(self, events: Sequence[WaitingEvent], until: float | None) -> set[str]:
        """Deliver events to each shard separately. Return the shards that accept none."""
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
        """Send events to a shard; return the rejected events with the reasons."""
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
