"""Offboarding: a suspended tenant is deleted at a scheduled time, unless this is cancelled.

The key service keeps the time, which no change of this database can bring forward. It then destroys
the tenant's private keys. The tenant's row follows the key service's state. When no private key is
left, the tenant's people, API keys and invitations are deleted in one transaction. Its records
remain: the audit log, invoices, and the tenant with its name.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.background import repeat
from pqkeep_gateway.shards import Shards
from pqkeep_gateway.storage.deletion import NoDeletionError, ScheduledDeletion, SqlDeletions
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, Destruction, DestructionState, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelDestruction,
    KeyService,
    ListDestructions,
    ScheduleDestruction,
)
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

DEFAULT_DAYS = 7
MAX_DAYS = 90
AT_ONCE = 100
RETRY_SECONDS = 5.0
"""The period of comparing rows with key services."""
GATEWAY = Attribution("", "gateway", "", "tenant-deletion")


class Deletions:
    """Schedules the deletion of tenants, and completes it when their private keys are destroyed."""

    def __init__(
        self,
        store: SqlDeletions,
        shards: Shards,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take the function to call when API keys have ended."""
        self._store = store
        self._shards = shards
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery
        self._clock = clock
        self._cancelled: set[TenantId] = set()
        """The tenants with a destruction that the last comparison found cancelled.

        If the next comparison agrees, the deletion is cancelled here too: by then, a request that
        is just being cancelled has finished.
        """
        self._answering: set[int] = set()
        """The indexes of key services that responded to the last request."""

    async def schedule(self, tenant: TenantId, days: int, attribution: Attribution) -> Tenant:
        """Schedule the deletion of a suspended tenant in so many days.

        The key service may have a longer minimum. A time that is already set remains. Raises
        NotSuspendedError, TenantNotFoundError, BilledElsewhereError, and KeyServiceError: then the
        key service is informed later, unless it has an earlier cancellation. The cancellation
        stays, and cancels this deletion.
        """
        at = self._now() + timedelta(days=days)
        scheduled = event(
            attribution, tenant, AuditEvent.DELETE_TENANT, policy=f"at-{at:%Y-%m-%dT%H:%M:%SZ}"
        )
        stored = await self._store.schedule(tenant, at, scheduled)
        await self._audit_delivery.deliver()
        found = await self._schedule(tenant, stored.deletion_at or at, attribution)
        return await self._follow(tenant, found)

    async def cancel(self, tenant: TenantId, attribution: Attribution) -> Tenant:
        """Cancel a scheduled deletion; the tenant remains suspended.

        Raises NoDeletionError, TenantNotFoundError, and KeyServiceError: then nothing is cancelled.
        """
        await self._store.require_scheduled(tenant)
        try:
            await self._shards.execute(CancelDestruction(tenant=tenant), attribution)
        except KeyServiceError as error:
            if error.kind is ErrorKind.KEY_STATUS:
                raise NoDeletionError from None
            raise
        cancelled = event(attribution, tenant, AuditEvent.CANCEL_TENANT_DELETION)
        changed = await self._store.cancel(tenant, cancelled)
        await self._audit_delivery.deliver()
        return changed

    async def run(self) -> None:
        """Compare rows with key services repeatedly, until cancelled."""
        await repeat(self.compare, RETRY_SECONDS)

    async def compare(self) -> None:
        """Send new deletions to the key services, and update rows from the key services' states.

        A row decides whether a tenant is to be deleted; its key service decides the time and the
        progress. A failure of one tenant does not delay others.
        """
        known: dict[TenantId, Destruction] = {}
        for number, key_service in enumerate(self._shards.all):
            try:
                await self._compare_all(key_service, known)
            except KeyServiceError as error:
                self._note_failure(number, error)
            else:
                self._answering.add(number)
        for scheduled in await self._store.list_scheduled(AT_ONCE):
            try:
                await self._carry_on(scheduled, known.get(scheduled.tenant))
            except KeyServiceError as error:
                _LOG.error(
                    "a tenant that is to be deleted could not be dealt with: tried again",
                    tenant=str(scheduled.tenant),
                    error=str(error),
                )

    def _note_failure(self, number: int, error: KeyServiceError) -> None:
        """Log that a key service does not respond.

        It is logged once per outage, and only after an earlier response.
        """
        if number in self._answering:
            self._answering.remove(number)
            _LOG.warning("a key service does not say what it destroys", error=str(error))

    async def _compare_all(
        self, key_service: KeyService, known: dict[TenantId, Destruction]
    ) -> None:
        """Collect a key service's scheduled destructions, and cancel those without a row."""
        after: TenantId | None = None
        has_more = True
        while has_more:
            request = ListDestructions(tenant=INSTALLATION, after=after)
            page = await key_service.execute(request, GATEWAY)
            found = {
                destruction.tenant: destruction.destruction for destruction in page.destructions
            }
            known |= found
            for tenant in await self._store.list_kept(found):
                if found[tenant].state is DestructionState.SCHEDULED:
                    await key_service.execute(CancelDestruction(tenant=tenant), GATEWAY)
            has_more = page.has_more and bool(found)
            after = max(found, default=None)

    async def _carry_on(self, scheduled: ScheduledDeletion, found: Destruction | None) -> None:
        tenant = scheduled.tenant
        if found is None:
            own = await self._shards.execute(ListDestructions(tenant=tenant), GATEWAY)
            if own.destructions:
                found = own.destructions[0].destruction
            else:
                # a cancellation may arrive first, and no person asks again here
                found = await self._schedule(tenant, scheduled.at, GATEWAY, renews=False)
        if found.state is DestructionState.CANCELLED:
            if tenant in self._cancelled:
                await self._keep(tenant)
            self._cancelled ^= {tenant}
            return
        if found.state is not DestructionState.COMPLETED:
            has_begun = found.state is DestructionState.BEGUN
            said = (scheduled.at, scheduled.told_at, scheduled.has_begun)
            if said != (found.at, found.at, has_begun):
                await self._follow(tenant, found)
        elif await self._store.finish(tenant, self._now(), GATEWAY):
            await self._announce_change()
            await self._audit_delivery.deliver()

    async def _keep(self, tenant: TenantId) -> None:
        """Cancel a deletion that the operator cancelled at the key service."""
        cancelled = event(GATEWAY, tenant, AuditEvent.CANCEL_TENANT_DELETION)
        with suppress(NoDeletionError):
            await self._store.cancel(tenant, cancelled)
            await self._audit_delivery.deliver()

    async def _schedule(
        self, tenant: TenantId, at: datetime, attribution: Attribution, *, renews: bool = True
    ) -> Destruction:
        request = ScheduleDestruction(tenant=tenant, at=at, renews=renews)
        found = (await self._shards.execute(request, attribution)).destruction
        if found is None:
            raise KeyServiceError(ErrorKind.BAD_RESPONSE)
        return found

    async def _follow(self, tenant: TenantId, found: Destruction) -> Tenant:
        has_begun = found.has_begun
        return await self._store.follow(tenant, found.at, self._now(), has_begun=has_begun)

    def _now(self) -> datetime:
        return date_of(self._clock())
