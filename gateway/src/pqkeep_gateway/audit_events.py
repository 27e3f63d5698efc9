"""What the gateway does and refuses, on its way into the key service's audit log.

An administrative action writes its events into an outbox in its own transaction; from there they
are delivered at least once, and recorded exactly once. A refusal changes nothing, so it goes to the
log directly, and into the outbox only where that fails. Either way nothing is answered before the
log has it, or the answer is 503.
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
    """Return an event that happens now. The version is a PQC key's, or an API key's."""
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
    """Brings events to the audit log."""

    def __init__(self, outbox: AuditOutbox, keys: KeyService) -> None:
        """Take them from the outbox to the key service."""
        self._outbox = outbox
        self._keys = keys

    async def run(self) -> None:
        """Deliver what was left behind, until cancelled."""
        while True:
            with suppress(UnavailableError):  # what is away has been logged
                await self.deliver()
            await asyncio.sleep(RETRY_SECONDS)

    async def deliver(self) -> None:
        """Deliver everything that waits. Raises UnavailableError where that cannot be done."""
        while events := await self._outbox.list_oldest(MAX_PAGE):
            await self._bring(events)
            await self._outbox.remove(events)

    async def record(self, event: Event) -> None:
        """Record what changed nothing here. Raises UnavailableError; it is delivered later then."""
        try:
            await self._bring((event,))
        except UnavailableError:
            await self._outbox.add(event)
            raise

    async def _bring(self, events: Sequence[Event]) -> None:
        request = RecordEvents(tenant=INSTALLATION, events=tuple(events))
        try:
            await self._keys.execute(request, _ATTRIBUTION)
        except KeyServiceError as error:
            _LOG.warning("events could not be delivered to the audit log", error=str(error))
            raise UnavailableError from None
