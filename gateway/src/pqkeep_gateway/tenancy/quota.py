"""The monthly quota of operations, which some plans have."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import TenantPrincipal
from pqkeep_gateway.access.rate_limit import NEAR, Closeness
from pqkeep_gateway.storage.usage import SqlUsage
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import USES
from pqkeep_protocol.audit_events import AuditEvent, GatewayOperation
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")

COUNTED: frozenset[GatewayOperation] = USES | {AuditEvent.HASH, AuditEvent.GENERATE_RANDOM}
"""Counted operations. Key management is free, so that rotations are not postponed."""


class QuotaUsedUpError(Exception):
    """The monthly quota is used up."""


class Quotas:
    """Counts successful operations for tiers with a quota."""

    def __init__(
        self, usage: SqlUsage, operations: Mapping[Tier, int | None], clock: Clock
    ) -> None:
        """Take each tier's operations per month; None: unlimited and not counted."""
        self._usage = usage
        self._operations = operations
        self._clock = clock
        self.closeness = Counter(dict.fromkeys(map(str, Closeness), 0))
        """Operations near their tenant's quota, and operations refused by it, by Closeness."""

    async def spend(
        self,
        principal: TenantPrincipal,
        operation: GatewayOperation,
        work: Callable[[], Awaitable[T]],
    ) -> T:
        """Do work that counts as one operation, unless it fails. Raises QuotaUsedUpError.

        The operation is reserved first and released after a failure. So concurrent work never
        exceeds the quota. A gateway that is killed in between leaves one operation too many
        counted.
        """
        if self._quota(principal, operation) is None:
            return await work()

        async def counted() -> tuple[T, int]:
            return await work(), 1

        return await self.spend_many(principal, operation, 1, counted)

    async def spend_many(
        self,
        principal: TenantPrincipal,
        operation: GatewayOperation,
        many: int,
        work: Callable[[], Awaitable[tuple[T, int]]],
    ) -> T:
        """Do work that counts as several operations; count those that succeeded.

        Raises QuotaUsedUpError, before any work, if the quota has fewer left.
        """
        quota = self._quota(principal, operation)
        if quota is None:
            return (await work())[0]
        month = self._month()
        used = await self._usage.reserve(principal.tenant, month, quota, many)
        if used is None:
            self.closeness[Closeness.REACHED] += 1
            raise QuotaUsedUpError
        if used >= NEAR * quota:
            self.closeness[Closeness.NEAR] += 1
        succeeded = 0
        try:
            result, succeeded = await work()
        finally:
            if many > succeeded:
                await self._release(principal.tenant, month, many - succeeded)
        return result

    async def used(self, tenant: TenantId, entitlements: Entitlements) -> tuple[int, int] | None:
        """Return the used part of the monthly quota, and the quota; None without a quota."""
        quota = self._operations[entitlements.effective_tier]
        if quota is None:
            return None
        return await self._usage.used(tenant, self._month()), quota

    def counts(self, principal: TenantPrincipal, operation: GatewayOperation) -> bool:
        """Return whether an operation counts against the monthly quota."""
        return self._quota(principal, operation) is not None

    def _quota(self, principal: TenantPrincipal, operation: GatewayOperation) -> int | None:
        """Return a tenant's monthly quota; None if this operation is not counted."""
        if operation not in COUNTED:
            return None
        return self._operations[principal.entitlements.effective_tier]

    def _month(self) -> str:
        return f"{date_of(self._clock()):%Y-%m}"

    async def _release(self, tenant: TenantId, month: str, operations: int) -> None:
        try:
            await self._usage.release(tenant, month, operations)
        except UnavailableError:
            _LOG.warning(
                "failed operations stay counted in the allowance",
                month=month,
                operations=operations,
            )
