"""Lists of thousands of keys, which need the memory of as many public keys."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from pqkeep_gateway.api.key_operation import LONG_LISTS, LONG_LISTS_IN_ALL, KeyAccess
from pqkeep_gateway.shards import HERE, Placement
from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import MAX_KEYS_LISTED, Attribution, Keys, ListKeys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ATTRIBUTION = Attribution("request-1", "api-key:1", "192.0.2.7")


class KeysOf:
    """A key service whose keys have a given number of versions."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def execute(self, request: ListKeys, _: Attribution, placement: Placement, /) -> Keys:
        """Respond with a page."""
        await asyncio.sleep(0)
        first = 1 if request.after is None else request.after.version + 1
        last = min(first + request.limit - 1, self.count)
        keys = tuple(_key(version) for version in range(first, last + 1))
        return Keys(keys=keys, total=self.count, has_more=last < self.count)


def _key(version: int) -> KeyInfo:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    return KeyInfo(Algorithm.ML_DSA_65, KeyVersion(version), KeyStatus.RETIRED, b"public", made)


def pages(access: KeyAccess, tenant: int, at_most: int = 10_000) -> AsyncGenerator[Keys, None]:
    """List a tenant's keys."""
    request = ListKeys(tenant=TenantId(UUID(int=tenant)), algorithm=None, status=None)
    return access.pages(request, ATTRIBUTION, HERE, at_most)


def access_to(count: int) -> KeyAccess:
    """Return the access to tenants with a given number of keys."""
    return KeyAccess(
        cast("Any", None), cast("Any", None), cast("Any", KeysOf(count)), cast("Any", None)
    )


async def versions(listed: AsyncGenerator[Keys, None]) -> list[int]:
    """Read all pages."""
    return [key.version async for page in listed for key in page.keys]


@pytest.mark.parametrize("at_most", [1, 499, 500, 501, 1000, 1001, 1203, 1204])
async def test_every_key_is_listed_once(at_most: int) -> None:
    """Pages follow each other without gaps, up to the requested number."""
    found = await versions(pages(access_to(1203), 1, at_most))
    assert found == [*range(1, min(at_most, 1203) + 1)]


@pytest.mark.threat("other-tenant")
async def test_few_long_lists_are_made_at_once() -> None:
    """A long list above the limit, of a tenant or in total, is refused; a single page never is."""
    access, short = access_to(3 * MAX_KEYS_LISTED), access_to(MAX_KEYS_LISTED)
    begun = [pages(access, number // LONG_LISTS) for number in range(LONG_LISTS_IN_ALL)]
    for body in begun:
        for _ in range(2):
            await anext(body)
    for tenant in (0, LONG_LISTS_IN_ALL):
        with pytest.raises(OverloadedError):
            await versions(pages(access, tenant))
        assert len(await versions(pages(access, tenant, MAX_KEYS_LISTED))) == MAX_KEYS_LISTED
        assert len(await versions(pages(short, tenant))) == MAX_KEYS_LISTED
    async with aclosing(begun[0]):
        pass
    assert len(await versions(pages(access, 0))) == 3 * MAX_KEYS_LISTED
    for body in begun[1:]:
        assert len(await versions(body)) == MAX_KEYS_LISTED
    assert len(access.long_lists) == 0
