"""The reported use of keys always equals a count of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from msgspec import structs

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol import algorithms
from pqkeep_protocol.algorithms import LIFECYCLE, Algorithm, Operation
from pqkeep_protocol.audit import GetUsage, ListUsage, SignCheckpoint, UsageList
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey, KeyPosition, RotateKey

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Serving

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
USES = sorted(algorithms.USES)
USE = ", ".join(f"'{use}'" for use in USES)
COUNT = f"""
SELECT count(*), max(recorded_at_us) FROM audit_records
WHERE tenant_id = ? AND algorithm = ? AND key_version = ?
AND outcome IN ('success', 'verification-failed') AND operation IN ({USE})
AND event_id IS NULL
"""  # noqa: S608


def new_record(
    tenant: TenantId, algorithm: Algorithm, version: int | None, **said: str | int
) -> NewRecord:
    """Return a record of a use, with changes if given."""
    use = NewRecord(tenant, "p", Operation.ENCRYPT, algorithm, version, "success", "r", "a", "y")
    return use._replace(keyring=DEFAULT_KEYRING, **said)  # type: ignore[arg-type]


class Books:
    """Compares the reported usage with the log."""

    def __init__(self, service: InProcessService, sql: Sql, tenants: list[TenantId]) -> None:
        self.service, self._sql, self._tenants = service, sql, tenants

    async def work(self, rounds: int) -> None:
        """Use keys, and run operations that are not uses."""
        for tenant in self._tenants:
            for algorithm in (KEM, SIGNATURE):
                mixed = [
                    *(new_record(tenant, algorithm, 1, operation=str(use)) for use in USES),
                    *(
                        new_record(tenant, algorithm, 1, operation=str(other))
                        for other in LIFECYCLE
                    ),
                    *[new_record(tenant, algorithm, 2)] * rounds,
                    new_record(
                        tenant, algorithm, 1, operation="verify", outcome="verification-failed"
                    ),
                    new_record(tenant, algorithm, 1, outcome="decryption-failed"),
                    new_record(tenant, algorithm, 1, outcome="ERR_POLICY_001"),
                    new_record(tenant, algorithm, None),
                    new_record(tenant, algorithm, 1, event_id=str(uuid4()), happened_at_us=1),
                ]
                await self.service.parts.store.commit([(record, None) for record in mixed])

    async def sign(self) -> None:
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=SIGNATURE)
        await self.service.execute(request, ATTRIBUTION)

    async def usage(self, tenant: TenantId, algorithm: Algorithm, version: int) -> tuple[int, Any]:
        request = GetUsage(tenant=tenant, algorithm=algorithm, version=KeyVersion(version))
        told = await self.service.execute(request, ATTRIBUTION)
        return told.uses, told.last_used_us

    async def listed(
        self, tenant: TenantId, algorithm: Algorithm | None
    ) -> list[tuple[tuple[Algorithm, int], tuple[int, int]]]:
        """Return all usage, requested in one page and in several."""
        everything = ListUsage(tenant=tenant, algorithm=algorithm)
        page = await self.service.execute(everything, ATTRIBUTION)
        assert (len(page.usage), page.has_more) == (page.total, False)
        request = structs.replace(everything, limit=1)
        for number, usage in enumerate(page.usage, 1):
            alone = await self.service.execute(request, ATTRIBUTION)
            assert alone == UsageList(
                usage=(usage,), total=page.total, has_more=number < page.total
            )
            request = structs.replace(request, after=KeyPosition(usage.algorithm, usage.version))
        return [((u.algorithm, u.version), (u.uses, u.last_used_us)) for u in page.usage]

    async def agree(self) -> int:
        """Check that usage and log agree for every key. Return the total of uses."""
        total = 0
        for tenant in self._tenants:
            listed = {}
            for algorithm in (KEM, SIGNATURE):
                for version in (1, 2):
                    counted = self._sql(COUNT, str(tenant), str(algorithm), version)
                    assert await self.usage(tenant, algorithm, version) == counted[0]
                    total += counted[0][0]
                    if counted[0][0]:
                        listed[algorithm, version] = counted[0]
            for asked in (None, KEM, SIGNATURE):
                expected = {key: usage for key, usage in listed.items() if asked in (None, key[0])}
                assert await self.listed(tenant, asked) == sorted(expected.items())
        return total


ATTRIBUTION = Attribution("r", "p", "a", "y")


@pytest.fixture
async def books(service: InProcessService, sql: Sql) -> Books:
    """Return two tenants with two versions of two keys."""
    tenants = [TenantId(uuid4()) for _ in range(2)]
    for tenant in tenants:
        for algorithm in (KEM, SIGNATURE):
            generate = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
            await service.execute(generate, ATTRIBUTION)
            await service.execute(RotateKey(tenant=tenant, algorithm=algorithm), ATTRIBUTION)
    return Books(service, sql, tenants)


async def test_usage_is_the_log_s_count(books: Books) -> None:
    """Usage equals the log before, after and around a checkpoint."""
    assert await books.agree() == 0
    for rounds in (3, 0, 5):
        await books.work(rounds)
        before = await books.agree()
        await books.sign()
        assert await books.agree() == before > 0
    await books.sign()  # of nothing new
    assert await books.agree() == 4 * (3 * (len(USES) + 1) + 3 + 5)


async def test_a_last_use_is_the_latest_of_both_kinds(books: Books) -> None:
    """A checkpoint does not set a last use back to an earlier use as a target."""
    (tenant, *_) = books._tenants
    target = f"{DEFAULT_KEYRING}/{KEM}/2"
    moved = new_record(tenant, KEM, 1, operation=Operation.RE_ENCRYPT, target=target)
    for record in (moved, new_record(tenant, KEM, 2)):
        await books.service.parts.store.commit([(record, None)])
    before = await books.usage(tenant, KEM, 2)
    assert before[1] > (await books.usage(tenant, KEM, 1))[1]
    await books.sign()
    assert await books.usage(tenant, KEM, 2) == before


async def test_usage_agrees_while_checkpoints_are_made(books: Books) -> None:
    """Usage does not change at the moment when a checkpoint counts records."""
    (tenant, *_) = books._tenants
    await books.work(4)
    expected = await books.usage(tenant, KEM, 2)
    for _ in range(15):
        other = new_record(TenantId(uuid4()), KEM, 1)
        await books.service.parts.store.commit([(other, None)])
        _, *heard = await asyncio.gather(
            books.sign(), *(books.usage(tenant, KEM, 2) for _ in range(8))
        )
        assert heard == [expected] * 8
        more = new_record(tenant, KEM, 2)
        await books.service.parts.store.commit([(more, None)])
        expected = await books.usage(tenant, KEM, 2)
    assert expected[0] == 4 + 15


async def test_usage_survives_a_restart(serving: Serving, tenant: TenantId, sql: Sql) -> None:
    """Uses from before a restart are counted, signed or not."""
    for run in range(1, 4):
        async with serving() as service:
            if run == 1:
                generate = GenerateKey(tenant=tenant, algorithm=KEM, quota=None)
                await service.execute(generate, ATTRIBUTION)
            books = Books(service, sql, [])
            await service.parts.store.commit([(new_record(tenant, KEM, 1), None)])
            await books.sign()
            await service.parts.store.commit([(new_record(tenant, KEM, 1), None)])
            assert (await books.usage(tenant, KEM, 1))[0] == 2 * run


async def test_usage_is_of_keys_that_are_there(
    service: InProcessService, books: Books, tenant: TenantId
) -> None:
    """A missing version, or another tenant's, is not found."""
    (owner, *_) = books._tenants
    for who, version in ((owner, 3), (tenant, 1)):
        with pytest.raises(KeyServiceError) as refused:
            await books.usage(who, KEM, version)
        assert refused.value.kind is ErrorKind.KEY_NOT_FOUND
