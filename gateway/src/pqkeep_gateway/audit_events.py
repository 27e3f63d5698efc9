"""Audit events of the gateway, and their delivery to the key service's audit log.

``pqkeep_protocol.audit_events`` lists them all. An administrative action writes its events into an
outbox in its own transaction; they are delivered at least once, and recorded exactly once. A
refusal changes nothing, so it is sent directly, and stored in the outbox only if that fails.

An answer waits for the log for a moment. What is done is answered as done, also if its events are
only in the outbox yet. If the outbox has not been emptied for MAX_DELAY, it takes no more events, so
that nothing more is done.

An event that the log refuses for good, or that cannot be read, stays in the outbox with the reason:
it is not sent again, and holds no other up.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID, uuid4

from pqkeep_gateway.background import repeat
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import MAX_PAGE, Event, RecordEvents
from pqkeep_protocol.audit_events import GatewayOperation, Outcome
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyringName, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, KeyService
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

MAX_DELAY = timedelta(minutes=5)
"""How long an event may wait before the outbox takes no more."""
WAIT_SECONDS = 2.0
"""How long an answer waits for the log."""
RETRY_SECONDS = 1.0
_ATTRIBUTION = Attribution("", "gateway", "", "")


def event(
    attribution: Attribution,
    tenant: TenantId,
    operation: GatewayOperation,
    *,
    outcome: str = Outcome.SUCCESS,
    policy: str = "",
    algorithm: str | None = None,
    key_version: int | None = None,
    keyring: KeyringName | None = None,
) -> Event:
    """Return an event that happens now. The outcome of a refusal is its error code.

    The key version is that of a key, or of an API key.
    """
    return Event(
        id=uuid4(),
        at_us=time.time_ns() // 1000,
        tenant=tenant,
        principal=attribution.principal,
        operation=operation,
        algorithm=algorithm,
        key_version=None if key_version is None else KeyVersion(key_version),
        outcome=outcome,
        request_id=attribution.request_id,
        source_address=attribution.source_address,
        policy=policy,
        keyring=keyring,
    )


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event that is kept because the audit log refused it."""

    id: str
    at_us: int
    """When it says that it happened, in microseconds since 1970: that may be what is wrong."""
    reason: str
    event: Event | None
    """None if it cannot be read."""


class AuditOutbox(Protocol):
    """Events in the database that are not in the log yet. All methods raise UnavailableError."""

    async def add(self, event: Event, refusal: str | None = None) -> None:
        """Store an event that belongs to no other transaction, unless one waits for MAX_DELAY.

        ``refusal``: why the log has refused it.
        """
        ...

    async def require_open(self) -> None:
        """Raise UnavailableError if an event waits for MAX_DELAY."""
        ...

    async def list_oldest(self, limit: int) -> Sequence[Event]:
        """Return the oldest events that the log has not refused, but none that cannot be read."""
        ...

    async def settle(self, delivered: Sequence[Event], refusals: Mapping[UUID, str]) -> None:
        """Remove events that were delivered, except those that the log refused."""
        ...

    async def count_refused(self) -> int:
        """Return how many events the log has refused, or cannot be read."""
        ...

    async def list_refused(self) -> tuple[RefusedEvent, ...]:
        """Return these events, the oldest first, up to a bound."""
        ...


class AuditDelivery:
    """Delivers events to the audit log."""

    def __init__(self, outbox: AuditOutbox, keys: KeyService) -> None:
        self._outbox = outbox
        self._keys = keys
        self._fails = False

    async def run(self) -> None:
        """Deliver stored events every RETRY_SECONDS, until cancelled."""
        with suppress(UnavailableError):  # it has been logged
            if refused := await self._outbox.count_refused():
                _LOG.error("the outbox keeps events that the audit log refused", events=refused)
        await repeat(self.empty, RETRY_SECONDS)

    async def empty(self) -> None:
        """Deliver all stored events, however long it takes. Raises UnavailableError."""
        await self._empty(None)

    async def deliver(self) -> None:
        """Deliver stored events, after a change and before its answer.

        What cannot be delivered within WAIT_SECONDS is delivered by ``run``.
        """
        with suppress(UnavailableError):
            await self._empty(_moment())

    async def record(self, *events: Event) -> None:
        """Deliver events of no transaction, at most MAX_PAGE, or store them to be delivered later.

        Raises UnavailableError if neither succeeds.
        """
        try:
            refusals = await self._send(events, _moment())
        except UnavailableError:
            for event in events:
                await self._outbox.add(event)
        else:
            for event in events:
                if event.id in refusals:
                    await self._outbox.add(event, refusals[event.id])

    async def require_open(self) -> None:
        """Refuse what has effects outside the database, where a change would be refused.

        Raises UnavailableError.
        """
        await self._outbox.require_open()

    async def _empty(self, until: float | None) -> None:
        while events := await self._outbox.list_oldest(MAX_PAGE):
            await self._outbox.settle(events, await self._send(events, until))

    async def _send(self, events: Sequence[Event], until: float | None) -> Mapping[UUID, str]:
        """Send events; return those that the log refuses, and why."""
        request = RecordEvents(tenant=INSTALLATION, events=tuple(events))
        try:
            async with asyncio.timeout_at(until):
                recorded = await self._keys.execute(request, _ATTRIBUTION)
        except (KeyServiceError, TimeoutError) as error:
            if not self._fails:
                _LOG.warning("events cannot be delivered to the audit log", error=str(error))
            self._fails = True
            raise UnavailableError from None
        if self._fails:
            _LOG.info("events are delivered to the audit log again")
        self._fails = False
        for event in recorded.refused:
            _LOG.error(
                "the audit log refuses an event, which is kept in the outbox",
                event_id=str(event.id),
                reason=event.reason.value,
            )
        return {event.id: event.reason.value for event in recorded.refused}


def _moment() -> float:
    return asyncio.get_running_loop().time() + WAIT_SECONDS
