"""The pages of a long list of keys are complete together."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    MAX_KEYS_LISTED,
    Attribution,
    KeyPosition,
    KeyService,
    ListKeys,
    RotateKey,
)

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM, OTHER = Algorithm.ML_KEM_768, Algorithm.X_WING
SIZES = {KEM: 520, OTHER: 20}
TOTAL = 540
STORED_AT_ONCE = 130
"""Versions of a transaction: the lock's holder is ended after two seconds of silence."""


@pytest.fixture
async def many(store: KeyStore, material: KeyMaterial, tenant: TenantId) -> list[KeyInfo]:
    """Store 540 keys as if by rotations. Return them in the order of a list."""
    made: list[KeyInfo] = []
    for algorithm, size in SIZES.items():
        stored = KeyVersions(tenant, algorithm)
        entries: list[KeyEntry] = []
        for number in range(1, size + 1):
            version = KeyVersion(number)
            public_key, sealed = material.generate(KeyName(tenant, algorithm), version)
            status = KeyStatus.ACTIVE if number == size else KeyStatus.RETIRED
            created = datetime(2026, 1, 1, 0, 0, number % 60, tzinfo=UTC)
            info = KeyInfo(algorithm, version, status, public_key, created)
            made.append(info)
            entries.append(KeyEntry(info, sealed))
            await asyncio.sleep(0)
            if number % STORED_AT_ONCE and number < size:
                continue
            full = KeyVersions(tenant, algorithm, (*stored.entries, *entries), revision=number)
            row = NewRecord(
                tenant, "p", Operation.ROTATE_KEY, algorithm, number, "success", "r", "a", "y"
            )
            await store.commit([(row, KeyChange(stored, full))])
            stored, entries = full, []
    return made


def _position(key: KeyInfo) -> KeyPosition:
    return KeyPosition(key.algorithm, key.version)


async def test_the_pages_of_a_list_are_complete_and_ordered(
    many: list[KeyInfo], keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """540 keys are listed as 500 and 40, each once, in order, with the total."""

    async def pages(
        algorithm: Algorithm | None = None, status: KeyStatus | None = None
    ) -> list[tuple[KeyInfo, ...]]:
        got: list[tuple[KeyInfo, ...]] = []
        after = None
        for _ in range(TOTAL // MAX_KEYS_LISTED + 2):
            request = ListKeys(tenant=tenant, algorithm=algorithm, status=status, after=after)
            response = await keys.execute(request, attribution)
            got.append(response.keys)
            if not response.has_more:
                assert sum(len(page) for page in got) == response.total
                return got
            after = _position(response.keys[-1])
        raise AssertionError("the list does not end")

    everything = await pages()
    assert [len(page) for page in everything] == [500, 40]
    assert [key for page in everything for key in page] == many
    assert many == sorted(many, key=lambda key: (key.algorithm, key.version))
    (first, second) = await pages(KEM)
    assert [*first, *second] == many[: SIZES[KEM]]
    retired = [key for page in await pages(status=KeyStatus.RETIRED) for key in page]
    assert retired == [key for key in many if key.status is KeyStatus.RETIRED]
    assert len(retired) == TOTAL - 2


async def test_any_part_of_a_list_can_be_asked_for(
    many: list[KeyInfo], keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """A page starts after a key, and ends at its limit or with the list."""
    for at, limit, size in (
        (0, 500, 500),
        (0, 7, 7),
        (100, 500, 439),
        (538, 500, 1),
        (539, 1, 0),
    ):
        request = ListKeys(
            tenant=tenant, algorithm=None, status=None, after=_position(many[at]), limit=limit
        )
        response = await keys.execute(request, attribution)
        assert response.keys == tuple(many[at + 1 : at + 1 + limit])
        assert (len(response.keys), response.total) == (size, TOTAL)
        assert response.has_more is (at + 1 + size < TOTAL)


async def test_a_page_far_behind_the_end_is_empty(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """A page after a missing key of a tenant without keys is empty."""
    after = KeyPosition(KEM, KeyVersion(MAX_KEY_VERSION))
    request = ListKeys(tenant=tenant, algorithm=None, status=None, after=after)
    response = await keys.execute(request, attribution)
    assert (response.keys, response.total, response.has_more) == ((), 0, False)


async def test_a_long_key_goes_on(
    many: list[KeyInfo], keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """A key with 520 versions is rotated, and the new version is on the last page."""
    rotated = await keys.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
    assert rotated.key.version == SIZES[KEM] + 1
    before = KeyPosition(KEM, KeyVersion(SIZES[KEM]))
    request = ListKeys(tenant=tenant, algorithm=KEM, status=None, after=before)
    assert (await keys.execute(request, attribution)).keys == (rotated.key,)
    assert sql("SELECT count(*) FROM keys") == [(TOTAL + 1,)]
