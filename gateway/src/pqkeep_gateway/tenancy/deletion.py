"""Offboarding: a suspended tenant is deleted at a time that an operator set, unless it is cancelled.

First its private keys are destroyed, each with a record, then its people, API keys and invitations
end in one transaction. Its records stay: the audit log, invoices, and the tenant with its name. What
is interrupted goes on where it was: the status ``deleting`` is left by nothing but the end.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.background import repeat
from pqkeep_gateway.tenancy.tenants import Tenant
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, TenantId
from pqkeep_protocol.messages import ArchiveKey, Attribution, KeyService, ListKeys, RetireKey
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

DEFAULT_DAYS = 7
MAX_DAYS = 90
AT_ONCE = 100
RETRY_SECONDS = 5.0
"""How often tenants whose time has come are looked for."""
GATEWAY = Attribution("", "gateway", "", "tenant-deletion")
_STEPS: Mapping[KeyStatus, tuple[type[RetireKey | ArchiveKey], ...]] = {
    KeyStatus.ACTIVE: (RetireKey,),
    KeyStatus.DISABLED: (RetireKey, ArchiveKey),
    KeyStatus.RETIRED: (ArchiveKey,),
}
_CHANGED_ELSEWHERE = frozenset({ErrorKind.KEY_STATUS, ErrorKind.KEY_NOT_FOUND})
"""What the key service says where another gateway was first."""


class NotSuspendedError(Exception):
    """Only a suspended tenant is deleted."""


class NoDeletionError(Exception):
    """No deletion is scheduled, or it has begun."""


class DeletionStore(Protocol):
    """Tenants in the database that are to be deleted. All methods raise UnavailableError."""

    async def schedule(
        self, tenant: TenantId, at: datetime, now: datetime, audit_event: Event
    ) -> Tenant:
        """Store when a suspended tenant is deleted, unless that is stored already; tell its owners.

        Raises NotSuspendedError, TenantNotFoundError, BilledElsewhereError.
        """
        ...

    async def cancel(self, tenant: TenantId, audit_event: Event) -> Tenant:
        """Let a tenant stay, suspended as it is. Raises NoDeletionError, TenantNotFoundError."""
        ...

    async def begin_due(self, now: datetime, limit: int) -> Sequence[TenantId]:
        """Return tenants whose time has come, whose deletion cannot be cancelled any more."""
        ...

    async def finish(self, tenant: TenantId, now: datetime, by: Attribution) -> bool:
        """End everything of a tenant whose deletion has begun; False if that is done already."""
        ...


class Deletions:
    """Schedules and carries out the deletion of tenants."""

    def __init__(
        self,
        store: DeletionStore,
        keys: KeyService,
        announce_change: Callable[[], Awaitable[None]],
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take what to call when API keys have ended."""
        self._store = store
        self._keys = keys
        self._announce_change = announce_change
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def schedule(self, tenant: TenantId, days: int, attribution: Attribution) -> Tenant:
        """Have a suspended tenant deleted after so many days; a time that is set already stays.

        Raises NotSuspendedError, TenantNotFoundError, BilledElsewhereError.
        """
        now = self._now()
        at = now + timedelta(days=days)
        scheduled = event(
            attribution, tenant, AuditEvent.DELETE_TENANT, policy=f"at-{at:%Y-%m-%dT%H:%M:%SZ}"
        )
        changed = await self._store.schedule(tenant, at, now, scheduled)
        await self._audit_delivery.deliver()
        return changed

    async def cancel(self, tenant: TenantId, attribution: Attribution) -> Tenant:
        """Let a tenant stay, suspended as it is. Raises NoDeletionError, TenantNotFoundError."""
        cancelled = event(attribution, tenant, AuditEvent.CANCEL_TENANT_DELETION)
        changed = await self._store.cancel(tenant, cancelled)
        await self._audit_delivery.deliver()
        return changed

    async def run(self) -> None:
        """Delete tenants whose time has come, until cancelled."""
        await repeat(self.delete_due, RETRY_SECONDS)

    async def delete_due(self) -> None:
        """Delete the tenants whose time has come. One that fails holds no other up."""
        for tenant in await self._store.begin_due(self._now(), AT_ONCE):
            try:
                await self._destroy_keys(tenant)
            except KeyServiceError as error:
                _LOG.error(
                    "a tenant's keys cannot be destroyed, and will be tried again",
                    tenant=str(tenant),
                    error=str(error),
                )
                continue
            await self._store.finish(tenant, self._now(), GATEWAY)
            await self._announce_change()
            await self._audit_delivery.deliver()

    async def _destroy_keys(self, tenant: TenantId) -> None:
        """Destroy every private key of a tenant. Raises KeyServiceError unless none is left."""
        for status in (KeyStatus.ACTIVE, KeyStatus.DISABLED, KeyStatus.RETIRED):
            before: Sequence[KeyInfo] = ()
            while found := await self._list(tenant, status):
                if found == before:
                    raise KeyServiceError(ErrorKind.BAD_ANSWER)  # it changed nothing
                for key in found:
                    await self._destroy(tenant, key)
                before = found

    async def _list(self, tenant: TenantId, status: KeyStatus) -> Sequence[KeyInfo]:
        request = ListKeys(tenant=tenant, algorithm=None, status=status, all_keyrings=True)
        return (await self._keys.execute(request, GATEWAY)).keys

    async def _destroy(self, tenant: TenantId, key: KeyInfo) -> None:
        for kind in _STEPS[key.status]:
            request = kind(
                tenant=tenant, keyring=key.keyring, algorithm=key.algorithm, version=key.version
            )
            try:
                await self._keys.execute(request, GATEWAY)
            except KeyServiceError as error:
                if error.kind not in _CHANGED_ELSEWHERE:
                    raise

    def _now(self) -> datetime:
        return date_of(self._clock())
