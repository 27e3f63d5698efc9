"""Audit events of the gateway, and their delivery to the key service's audit log.

``pqkeep_protocol.audit_events`` lists them all. An administrative action writes its events into an
outbox in its own transaction; they are delivered at least once, and recorded exactly once. A
refusal changes nothing, so it is sent directly, and stored in the outbox only if that fails. A
request is answered after the log has its events, or with 503.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import MAX_PAGE, Event, RecordEvents
from pqkeep_protocol.audit_events import GatewayOperation, Outcome
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, KeyService
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

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
    )


class AuditOutbox(Protocol):
    """Events in the database that are not in the log yet. All methods raise UnavailableError."""

    async def add(self, event: Event) -> None:
        """Store an event that belongs to no other transaction."""
        ...

    async def list_oldest(self, limit: int) -> Sequence[Event]:
        """Return the oldest events."""
        ...

    async def remove(self, events: Sequence[Event]) -> None:
        """Remove events that are in the log."""
        ...


class AuditDelivery:
    """Delivers events to the audit log."""

    def __init__(self, outbox: AuditOutbox, keys: KeyService) -> None:
        self._outbox = outbox
        self._keys = keys

    async def run(self) -> None:
        """Deliver stored events every RETRY_SECONDS, until cancelled."""
        while True:
            with suppress(UnavailableError):  # it has been logged
                await self.deliver()
            await asyncio.sleep(RETRY_SECONDS)

    async def deliver(self) -> None:
        """Deliver all stored events. Raises UnavailableError."""
        while events := await self._outbox.list_oldest(MAX_PAGE):
            await self._send(events)
            await self._outbox.remove(events)

    async def record(self, event: Event) -> None:
        """Deliver an event of no transaction.

        Raises UnavailableError, after storing the event to be delivered later.
        """
        try:
            await self._send((event,))
        except UnavailableError:
            await self._outbox.add(event)
            raise

    async def _send(self, events: Sequence[Event]) -> None:
        request = RecordEvents(tenant=INSTALLATION, events=tuple(events))
        try:
            await self._keys.execute(request, _ATTRIBUTION)
        except KeyServiceError as error:
            _LOG.warning("events could not be delivered to the audit log", error=str(error))
            raise UnavailableError from None
