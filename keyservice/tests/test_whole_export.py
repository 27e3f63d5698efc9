"""A full export has each record once, in pages that fit a frame, and the tree before each page."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from pqkeep_keyservice.audit.service import MAX_BYTES
from pqkeep_keyservice.ledger.merkle import Frontier
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import MAX_EXPORTED, ExportRecords, GetSubtrees
from pqkeep_protocol.codec import MAX_FRAME
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, KeyService

Sql = Callable[..., list[Any]]
TENANT = TenantId(UUID(int=7))
SOMEBODY = Attribution("r", "p", "a", "y")
SIZE = 300
QUOTE = '"'
USUAL = NewRecord(TENANT, "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y")
LONGEST = USUAL._replace(
    principal=QUOTE * 128, request_id=QUOTE * 128, policy=QUOTE * 128, source_address=QUOTE * 64
)


async def lines_after(keys: KeyService, after: int, size: int, limit: int) -> list[bytes]:
    """Return all lines after an id, page by page."""
    lines: list[bytes] = []
    going_on: int | None = after
    while going_on is not None:
        request = ExportRecords(tenant=INSTALLATION, after=going_on, size=size, limit=limit)
        page = await keys.execute(request, SOMEBODY)
        lines += page.lines
        going_on = page.next
    return lines


async def test_pages_grow_the_tree_that_is_signed(store: KeyStore, keys: KeyService) -> None:
    """The subtrees before any record and the pages after it give the log's root."""
    await store.commit([(USUAL, None)] * SIZE)
    _, tree = await store.frontier()
    for after in (0, 1, 2, 255, 256, 257, SIZE - 1, SIZE):
        request = GetSubtrees(tenant=INSTALLATION, size=after)
        before = Frontier(after, (await keys.execute(request, SOMEBODY)).hashes)
        lines = [] if after == SIZE else await lines_after(keys, after, SIZE, 7)
        leaves = [sha256(b"\0" + line).digest() for line in lines]
        assert before.with_leaves(leaves)[0] == tree


async def test_the_longest_records_fit_into_a_frame(store: KeyStore, keys: KeyService) -> None:
    """A page of long records has fewer of them, to fit a frame."""
    await store.commit([(LONGEST, None)] * MAX_EXPORTED)
    request = ExportRecords(tenant=INSTALLATION, after=0, size=MAX_EXPORTED, limit=MAX_EXPORTED)
    page = await keys.execute(request, SOMEBODY)
    assert MAX_BYTES <= sum(map(len, page.lines)) < MAX_BYTES + 4096 < MAX_FRAME
    assert page.next == len(page.lines)
    assert len(await lines_after(keys, 0, MAX_EXPORTED, MAX_EXPORTED)) == MAX_EXPORTED


async def test_a_damaged_log_is_exported_as_far_as_it_is_there(
    store: KeyStore, keys: KeyService, sql: Sql
) -> None:
    """Missing records are omitted, so that a verifier can name them."""
    await store.commit([(USUAL, None)] * SIZE)
    sql("DELETE FROM audit_records WHERE id IN (3, 4, 299)")
    assert len(await lines_after(keys, 0, SIZE, 2)) == SIZE - 3


@pytest.mark.parametrize(
    "request_of_more",
    [
        ExportRecords(tenant=INSTALLATION, after=0, size=SIZE + 1, limit=1),
        GetSubtrees(tenant=INSTALLATION, size=SIZE + 1),
    ],
)
async def test_nothing_is_exported_of_a_tree_that_is_not_there(
    request_of_more: ExportRecords | GetSubtrees, store: KeyStore, keys: KeyService
) -> None:
    """A tree larger than the log is not found."""
    await store.commit([(USUAL, None)] * SIZE)
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(request_of_more, SOMEBODY)
    assert refused.value.kind is ErrorKind.RECORD_NOT_FOUND
