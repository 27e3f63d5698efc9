"""Every eighth level of the tree is kept, also of a log that is older than its tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.merkle import Frontier
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.search import find
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import ListRecords, ProveRecords
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, KeyService

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location

Sql = Callable[..., list[Any]]
TENANTS = [TenantId(UUID(int=number)) for number in (7, 8, 9)]
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
    """After 65,536 records there are 256 tiles and one above them, and proofs over them hold."""
    size = 65_600
    row = NewRecord(
        TENANTS[0], "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y"
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


COLUMNS = (
    "recorded_at_us, tenant_id, principal, operation, algorithm, key_version, outcome, request_id,"
    " source_address, policy"
)
OLD = 700


def _old_records() -> Iterator[tuple[object, ...]]:
    """Make records, as the first schema had them, of a clock that was set back twice."""
    for number in range(OLD):
        tenant = str(TENANTS[number * number % 3])
        at = 1_000_000 + number * 10 - (5000 if number in {300, 301, 500} else 0)
        yield (at, tenant, f"p{number}", "encrypt", None, None, "success", f"r{number}", "a", "y")


def _migrate(connection: sa.Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", "pqkeep_keyservice.storage:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _make_old(url: str, path: Path, records: Iterable[tuple[object, ...]]) -> None:
    """Make a database of the schema before."""
    path.touch(0o600)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        _migrate(connection, "0002")
        places = ", ".join(f":{name.strip()}" for name in COLUMNS.split(","))
        names = [name.strip() for name in COLUMNS.split(",")]
        insert = sa.text(f"INSERT INTO audit_records ({COLUMNS}) VALUES ({places})")  # noqa: S608
        connection.execute(insert, [dict(zip(names, row, strict=True)) for row in records])
    engine.dispose()


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_old_records_are_carried_over(
    location: Location, database_path: Path, sealer: Sealer
) -> None:
    """Records of the first schema keep content and order; they get places, monotone times, a tree."""
    old = list(_old_records())
    _make_old(location.url, database_path, old)
    database = await location.open()
    store = KeyStore(database)
    await store.check(sealer)
    assert store.size == OLD
    kept = location.sql(f"SELECT id, number, {COLUMNS} FROM audit_records ORDER BY id")  # noqa: S608
    assert [row[3:] for row in kept] == [row[1:] for row in old]
    assert [row[0] for row in kept] == list(range(1, OLD + 1))
    assert [row[2] for row in kept] == list(accumulate((int(str(row[0])) for row in old), max))
    counted: Counter[str] = Counter()
    for _, number, _, tenant, *_ in kept:
        counted[tenant] += 1
        assert number == counted[tenant]
    assert location.sql("SELECT count(DISTINCT nonce) FROM audit_records") == [(OLD,)]
    tiles = location.sql("SELECT level, position FROM audit_tiles ORDER BY position")
    assert tiles == [(8, 0), (8, 1)]
    _, tree = await store.frontier()
    lines = (await database.query(find, ListRecords(tenant=INSTALLATION, limit=500))).lines
    rest = ListRecords(tenant=INSTALLATION, limit=500, after=500)
    lines += (await database.query(find, rest)).lines
    leaves = (sha256(b"\0" + line).digest() for line in lines)
    assert Frontier().grown(leaves)[0] == tree
    await database.close()
