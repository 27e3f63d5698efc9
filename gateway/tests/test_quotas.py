"""The monthly quota is exact, and only successful operations count."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import add_tenant, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.entitlements import Entitlements, Subscription, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.storage.schema import USAGE
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_gateway.storage.usage import SqlUsage
from pqkeep_gateway.tenancy.quota import COUNTED, Quotas, QuotaUsedUpError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId

ALLOWANCE = 5
PER_MONTH = {tier: ALLOWANCE if tier is Tier.FREE else None for tier in Tier}


NEW_YEAR_S_EVE = datetime(2026, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC).timestamp()
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC).timestamp()


async def _succeed() -> str:
    return "done"


class Month:
    """Quotas in a real database, on a settable day, and one tenant."""

    def __init__(self, engine: AsyncEngine, tenant: Tenant) -> None:
        self.now = NEW_YEAR
        self.usage = SqlUsage(engine)
        self.quotas = Quotas(self.usage, PER_MONTH, lambda: self.now)
        self.tenant = tenant.id
        self._engine = engine

    async def spend(
        self,
        work: Callable[[], Awaitable[str]] = _succeed,
        entitlements: Entitlements | None = None,
        operation: Operation = Operation.ENCRYPT,
    ) -> str:
        """Use one operation of the tenant, on free unless another standing is given."""
        principal = ApiKeyPrincipal(
            self.tenant, entitlements or Entitlements(Tier.FREE), 1, suspended=False
        )
        return await self.quotas.spend(principal, operation, work)

    async def rows(self) -> dict[str, int]:
        """Return the tenant's counts by month."""
        async with self._engine.begin() as connection:
            query = sa.select(USAGE).where(USAGE.c.tenant_id == self.tenant)
            return {row.month: row.operations for row in await connection.execute(query)}


@pytest.fixture
async def month(engine: AsyncEngine) -> Month:
    """January, without any used operation."""
    tenant = new_tenant()
    await add_tenant(engine, tenant)
    return Month(engine, tenant)


async def test_so_many_and_no_more(month: Month) -> None:
    """The quota's number of operations is executed; the next one does not begin."""
    for _ in range(ALLOWANCE):
        assert await month.spend() == "done"
    begun: list[bool] = []

    async def work() -> str:
        begun.append(True)
        return "done"

    for _ in range(2):
        with pytest.raises(QuotaUsedUpError):
            await month.spend(work)
    assert begun == []
    assert await month.rows() == {"2027-01": ALLOWANCE}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_operations_near_the_quota_are_counted(month: Month) -> None:
    """Operations from 80 % of the quota on are counted as near.

    Refused ones are counted as reached.
    """
    closeness = month.quotas.closeness
    assert closeness == {"near": 0, "reached": 0}
    for _ in range(ALLOWANCE):
        await month.spend()
    with pytest.raises(QuotaUsedUpError):
        await month.spend()
    assert closeness == {"near": 2, "reached": 1}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_it_is_exact_under_concurrency(month: Month) -> None:
    """Of forty concurrent operations, exactly the quota's number is executed."""
    outcomes = await asyncio.gather(*(month.spend() for _ in range(40)), return_exceptions=True)
    assert outcomes.count("done") == ALLOWANCE
    assert sum(isinstance(outcome, QuotaUsedUpError) for outcome in outcomes) == 40 - ALLOWANCE
    assert await month.rows() == {"2027-01": ALLOWANCE}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_what_fails_is_given_back_under_concurrency(month: Month) -> None:
    """After concurrent failures, the whole quota is available again."""

    async def fail() -> str:
        await asyncio.sleep(0)
        raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)

    outcomes = await asyncio.gather(*(month.spend(fail) for _ in range(40)), return_exceptions=True)
    assert all(isinstance(outcome, KeyServiceError | QuotaUsedUpError) for outcome in outcomes)
    assert await month.rows() == {"2027-01": 0}


@pytest.mark.parametrize(
    "failure", [KeyServiceError(ErrorKind.INTERNAL), ValueError(), asyncio.CancelledError()]
)
async def test_a_failure_counts_nothing(month: Month, failure: BaseException) -> None:
    """A failed operation raises its own error and does not count."""

    async def fail() -> str:
        raise failure

    for _ in range(2 * ALLOWANCE):
        with pytest.raises(type(failure)):
            await month.spend(fail)
    assert await month.rows() == {"2027-01": 0}
    assert await month.spend() == "done"


async def test_what_is_cancelled_is_given_back(month: Month) -> None:
    """A cancelled operation does not count."""
    begun = asyncio.Event()

    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "done"

    spending = asyncio.create_task(month.spend(hang))
    await begun.wait()
    assert await month.rows() == {"2027-01": 1}
    spending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spending
    assert await month.rows() == {"2027-01": 0}


async def test_a_month_begins_at_midnight_in_utc(month: Month) -> None:
    """A used-up quota is whole again when January begins, and the old month's count is kept."""
    month.now = NEW_YEAR_S_EVE
    for _ in range(ALLOWANCE):
        await month.spend()
    with pytest.raises(QuotaUsedUpError):
        await month.spend()
    month.now = NEW_YEAR
    assert await month.spend() == "done"
    assert await month.rows() == {"2026-12": ALLOWANCE, "2027-01": 1}


async def test_what_fails_in_the_new_year_is_given_back_to_the_old(month: Month) -> None:
    """A failed operation is released in the month in which it was reserved."""
    month.now = NEW_YEAR_S_EVE

    async def fail_late() -> str:
        month.now = NEW_YEAR
        raise KeyServiceError(ErrorKind.INTERNAL)

    with pytest.raises(KeyServiceError):
        await month.spend(fail_late)
    assert await month.rows() == {"2026-12": 0}


@pytest.mark.parametrize("tier", [tier for tier in Tier if tier is not Tier.FREE])
async def test_tiers_without_an_allowance_write_nothing(month: Month, tier: Tier) -> None:
    """A tier without a quota counts no operations."""

    async def fail() -> str:
        raise ValueError

    for _ in range(2 * ALLOWANCE):
        assert await month.spend(entitlements=Entitlements(tier)) == "done"
    with pytest.raises(ValueError, match=r"^$"):
        await month.spend(fail, Entitlements(tier))
    assert await month.rows() == {}


async def test_an_ended_subscription_has_free_s_allowance(month: Month) -> None:
    """After the end of a subscription the free quota applies, with earlier operations on free."""
    await month.spend()
    ended = Entitlements(Tier.ENTERPRISE, Subscription.ENDED)
    for _ in range(ALLOWANCE - 1):
        await month.spend(entitlements=ended)
    with pytest.raises(QuotaUsedUpError):
        await month.spend(entitlements=ended)
    assert await month.spend(entitlements=Entitlements(Tier.ENTERPRISE)) == "done"


@pytest.mark.parametrize("operation", Operation)
async def test_operations_with_keys_count_and_upkeep_does_not(
    month: Month, operation: Operation
) -> None:
    """The ten operations with keys count. Key management does not, and needs no quota."""
    await month.spend(operation=operation)
    counts = operation is Operation.GENERATE_DATA_KEY or not any(
        word in operation.value for word in ("key", "archive", "destruction", "rule")
    )
    assert await month.rows() == ({"2027-01": 1} if counts else {})
    for _ in range(ALLOWANCE - counts):
        await month.spend()
    if counts:
        with pytest.raises(QuotaUsedUpError):
            await month.spend(operation=operation)
    else:
        assert await month.spend(operation=operation) == "done"


def test_operations_with_keys_count() -> None:
    """The specification's ten key operations count, and their variants."""
    assert {operation.value for operation in COUNTED} == {
        *("encrypt", "decrypt", "encapsulate", "decapsulate", "wrap", "unwrap", "re-encrypt"),
        *("sign", "verify", "sign-hash", "verify-hash", "sign-mu", "verify-mu", "sign-jws"),
        *("generate-data-key", "compute-mac", "verify-mac", "hash", "generate-random"),
    }


async def test_each_tenant_has_its_own(engine: AsyncEngine, month: Month) -> None:
    """One tenant's operations do not use another tenant's quota."""
    other = new_tenant()
    await add_tenant(engine, other)
    for _ in range(ALLOWANCE):
        await month.spend()
    assert await month.usage.reserve(other.id, "2027-01", 1, 1)
    assert not await month.usage.reserve(other.id, "2027-01", 1, 1)
    assert await month.rows() == {"2027-01": ALLOWANCE}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_nothing_is_given_back_that_was_not_taken(month: Month) -> None:
    """The count never falls below zero, so a tenant cannot gain operations."""
    await month.usage.release(month.tenant, "2027-01", 1)
    assert await month.rows() == {}
    await month.usage.reserve(month.tenant, "2027-01", 1, 1)
    for _ in range(3):
        await month.usage.release(month.tenant, "2027-01", 1)
    assert await month.rows() == {"2027-01": 0}


class Unreachable(SqlUsage):
    """A count that is unreachable, from the start or at a release."""

    def __init__(self, *, taking: bool) -> None:
        self._taking = taking

    async def reserve(self, tenant: TenantId, month: str, quota: int, operations: int) -> int:
        """Count an operation unless unreachable."""
        if not self._taking:
            raise UnavailableError
        return operations

    async def release(self, tenant: TenantId, month: str, operations: int) -> None:
        """Be out of reach."""
        raise UnavailableError

    async def used(self, tenant: TenantId, month: str) -> int:
        """Be out of reach."""
        raise UnavailableError


FREE = ApiKeyPrincipal(TenantId(uuid4()), Entitlements(Tier.FREE), 1, suspended=False)


async def test_without_a_count_nothing_is_done() -> None:
    """Without a connection to the usage count the operation is refused, and not executed."""
    quotas = Quotas(Unreachable(taking=False), PER_MONTH, lambda: NEW_YEAR)

    async def work() -> str:
        pytest.fail("it was begun")

    with pytest.raises(UnavailableError):
        await quotas.spend(FREE, Operation.ENCRYPT, work)


async def test_a_failure_is_told_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """If the release fails, the caller gets the operation's error, and the log the release's."""
    quotas = Quotas(Unreachable(taking=True), PER_MONTH, lambda: NEW_YEAR)

    async def fail() -> str:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED)

    with pytest.raises(KeyServiceError):
        await quotas.spend(FREE, Operation.DECRYPT, fail)
    assert "stay counted in the allowance" in caplog.text
    assert "2027-01" in caplog.text
