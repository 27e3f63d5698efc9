"""How much in a month: the allowance of operations that some plans have."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.principals import TenantPrincipal
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import LIFECYCLE, Operation
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")

COUNTED = frozenset(Operation) - LIFECYCLE
"""Operations with keys. Managing keys is free, so that nobody puts a rotation off."""


class AllowanceUsedUpError(Exception):
    """The month's allowance is used up."""


class Usage(Protocol):
    """How many operations each tenant has used in a month. All raise UnavailableError."""

    async def reserve(self, tenant: TenantId, month: str, allowance: int) -> bool:
        """Count one operation, in one step, unless the allowance is used up."""
        ...

    async def release(self, tenant: TenantId, month: str) -> None:
        """Count one operation less: it did not succeed."""
        ...

    async def used(self, tenant: TenantId, month: str) -> int:
        """Return how many operations were counted."""
        ...


class Allowances:
    """Counts operations that succeed, for the tiers that have an allowance."""

    def __init__(self, usage: Usage, operations: Mapping[Tier, int | None], clock: Clock) -> None:
        """Take the tiers' operations a month; None: any number, which are not counted."""
        self._usage = usage
        self._operations = operations
        self._clock = clock

    async def spend(
        self,
        principal: TenantPrincipal,
        operation: Operation,
        work: Callable[[], Awaitable[T]],
    ) -> T:
        """Do a piece of work and count one operation, unless it fails. Raises AllowanceUsedUpError.

        It is reserved before and released after a failure, so that many at once never exceed the
        allowance. A gateway that is killed in between leaves one too many counted.
        """
        allowance = self._operations[principal.entitlements.effective_tier]
        if allowance is None or operation not in COUNTED:
            return await work()
        month = self._month()
        if not await self._usage.reserve(principal.tenant, month, allowance):
            raise AllowanceUsedUpError
        try:
            return await work()
        except BaseException:
            await self._release(principal.tenant, month)
            raise

    async def used(self, principal: TenantPrincipal) -> tuple[int, int] | None:
        """Return how much is used of the month's allowance; None where there is none."""
        allowance = self._operations[principal.entitlements.effective_tier]
        if allowance is None:
            return None
        return await self._usage.used(principal.tenant, self._month()), allowance

    def _month(self) -> str:
        return f"{date_of(self._clock()):%Y-%m}"

    async def _release(self, tenant: TenantId, month: str) -> None:
        try:
            await self._usage.release(tenant, month)
        except UnavailableError:
            _LOG.warning("a failed operation stays counted in the allowance", month=month)
