"""Every eighth level of the tree is stored."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import ProveRecords
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, KeyService

Sql = Callable[..., list[Any]]
TENANT = TenantId(UUID(int=7))
SOMEBODY = Attribution("r", "p", "a", "y")


def climbed(line: bytes, index: int, size: int, path: tuple[bytes, ...]) -> bytes:
    """Return the root that a proof leads to (RFC 9162, section 2.1.3.2)."""
    number, last, root = index, size - 1, sha256(b"\x00" + line).digest()
    for step in path:
        if number & 1 or number == last:
            root = sha256(b"\x01" + step + root).digest()
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            root = sha256(b"\x01" + root + step).digest()
        number, last = number >> 1, last >> 1
    assert last == 0
    return root


async def test_tiles_of_both_levels(store: KeyStore, keys: KeyService, sql: Sql) -> None:
    """65,536 records have 256 tiles and one tile above them; proofs that cross tiles are valid."""
    size = 65_600
    row = NewRecord(
        TENANT, "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y"
    )
    for begin in range(0, size, 8192):
        await store.commit([(row, None)] * min(8192, size - begin))
    tiles = sql("SELECT level, count(*), max(position) FROM audit_tiles GROUP BY level ORDER BY 1")
    assert tiles == [(8, 256, 255), (16, 1, 0)]
    _, tree = await store.frontier()
    for index in (0, 255, 256, 65_535, 65_536, 65_599):
        request = ProveRecords(tenant=INSTALLATION, after=index, size=size, limit=1)
        (proof,) = (await keys.execute(request, SOMEBODY)).proofs
        assert climbed(proof.line, index, size, proof.path) == tree.root()
