"""Fills a key service's database with keys and audit records, through the key service's own code.

Run as ``python -m benchmarks.log_fill SETTINGS RECORDS TENANTS VERSIONS TENANT``; prints JSON.

The key service of the settings file must not run. Records are committed by ``KeyStore.commit``, but
``BATCH`` at a time, with a checkpoint after each batch and a larger page cache. No requests are
behind them. One record in ten belongs to the named tenant, and all others to random tenants. All
versions of the named tenant's key are made in one change. Its records use these versions in
rotation.
"""

import asyncio
import gc
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import sqlalchemy as sa
import uvloop

from pqkeep_keyservice import clock, config
from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.worker_processes import worker_settings
from pqkeep_keyservice.operations.lifecycle import new_entry
from pqkeep_keyservice.process import open_database
from pqkeep_keyservice.root_key_sources.sources import read_root_keys
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import DEFAULT_KEYRING, TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey

BATCH = 100_000
"""Records in one transaction, with one additional checkpoint."""
CACHE_KIB = 2 * 1024 * 1024
"""Pages of SQLite's cache. The default, 2 MiB, reads and writes the same pages many times per
batch."""
SHARE = 10
"""One record in this number belongs to the named tenant."""
MANY_VERSIONS = Algorithm.ML_KEM_1024
"""The named tenant's key with all versions."""
_STRIDE = 7919
"""A prime, so that neighbouring records belong to different tenants."""
_KEYS_AT_ONCE = 64
_DEADLINE = 1e12
_PRINCIPALS = 30
_REFUSED_EVERY = 990
_LISTED_EVERY = 500


class Filled(msgspec.Struct, frozen=True):
    """The content of a filled database, and the cost of filling it."""

    records: int
    seconds: float
    cpu_microseconds: float
    """The time for one record, with its share of a checkpoint."""


async def fill(
    settings_file: Path, records: int, tenants: int, versions: int, named: UUID
) -> Filled:
    """Fill the database, up to a number of records."""
    settings = config.read(settings_file)
    sealer = Sealer(read_root_keys(settings.root_key_sources))
    database = await open_database(settings)
    parts = wire(
        KeyStore(database, sealer),
        sealer,
        worker_settings(settings),
        settings_file,
        sources=settings.root_key_sources,
    )
    await parts.activation.start(settings.shard)
    gc.disable()  # a batch is a million objects without cycles
    if database.dialect.name == "sqlite":
        await database.read(_enlarge_cache)
    others = [TenantId(UUID(int=number)) for number in range(1, tenants)]
    tenant = TenantId(named)
    if parts.store.size < records:
        await _generate(parts, others)
        await _rotate(parts, tenant, versions)
    began, cpu_began, first = time.perf_counter(), time.process_time(), parts.store.size
    makers = _records(tenant, others or [tenant], versions)
    while (missing := records - parts.store.size) > 0:
        batch = [(next(makers), None) for _ in range(min(BATCH, missing))]
        await parts.store.commit(batch)
        await parts.checkpoint_signer.sign(Algorithm.ML_DSA_65)
        if parts.store.size % (10 * BATCH) < BATCH:
            sys.stderr.write(f"{parts.store.size:,} records\n")
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    added = max(parts.store.size - first, 1)
    size = parts.store.size
    parts.close()
    await database.close()
    return Filled(size, seconds, cpu / added * 1_000_000)


def _enlarge_cache(connection: sa.Connection) -> None:
    connection.exec_driver_sql(f"PRAGMA cache_size = -{CACHE_KIB}")


async def _generate(parts: KeyServiceParts, tenants: Sequence[TenantId]) -> None:
    """Give each tenant a key, by a normal request."""
    attribution = Attribution("fill", "operator", "127.0.0.1", "")
    for begin in range(0, len(tenants), _KEYS_AT_ONCE):
        requests = [
            GenerateKey(tenant=tenant, algorithm=Algorithm.ML_KEM_768, quota=None, if_absent=True)
            for tenant in tenants[begin : begin + _KEYS_AT_ONCE]
        ]
        await asyncio.gather(
            *(parts.transactions.execute(each, attribution, _DEADLINE) for each in requests)
        )


async def _rotate(parts: KeyServiceParts, tenant: TenantId, versions: int) -> None:
    """Give a tenant one key with this number of versions, in one change."""
    key = old = KeyVersions(tenant, MANY_VERSIONS)
    if (await parts.key_cache.get(key.name)).entries:
        return  # the database was filled before, with fewer records
    key = await with_versions(parts, key, versions)
    record = _record(tenant, Operation.ROTATE_KEY, Outcome.SUCCESS, 0, versions)
    record = record._replace(algorithm=MANY_VERSIONS)
    await parts.store.commit([(record, KeyChange(old, key))])


async def with_versions(parts: KeyServiceParts, key: KeyVersions, versions: int) -> KeyVersions:
    """Return a new key with this number of additional versions, which are not stored."""
    retired: list[KeyEntry] = []
    for _ in range(versions):
        entry = await new_entry(key, parts.in_process, _DEADLINE, clock.now())
        both = key.with_rotated(entry) if key.entries else key.with_first(entry)
        retired += both.entries[:-1]
        key = replace(both, entries=both.entries[-1:])  # of all, each would take longer
    return replace(key, entries=(*retired, *key.entries))


def _records(named: TenantId, others: Sequence[TenantId], versions: int) -> Iterator[NewRecord]:
    uses = (*(Operation.ENCRYPT,) * 4, *(Operation.DECRYPT,) * 3, Operation.ENCAPSULATE)
    for count in itertools.count():
        is_named = count % SHARE == 0
        is_refused, is_list = count % _REFUSED_EVERY == 0, count % _LISTED_EVERY == 1
        yield _record(
            named if is_named else others[count * _STRIDE % len(others)],
            Operation.LIST_KEYS if is_list else uses[count % len(uses)],
            ErrorKind.DECRYPTION_FAILED if is_refused else Outcome.SUCCESS,
            count,
            count // SHARE % versions + 1 if is_named else 1,
        )


def _record(
    tenant: TenantId, operation: Operation, outcome: str, count: int, version: int
) -> NewRecord:
    return NewRecord(
        tenant=tenant,
        principal=f"api-key:{count % _PRINCIPALS + 1}",
        operation=operation,
        algorithm=Algorithm.ML_KEM_768 if version == 1 else MANY_VERSIONS,
        key_version=version,
        outcome=outcome,
        request_id=str(UUID(bytes=os.urandom(16))),
        source_address=f"192.0.2.{count % 254 + 1}",
        policy="plan-includes-algorithm",
        keyring=DEFAULT_KEYRING,
    )


if __name__ == "__main__":
    _, file, *counts, named_tenant = sys.argv
    how_many, how_many_tenants, how_many_versions = map(int, counts)
    filled = uvloop.run(
        fill(Path(file), how_many, how_many_tenants, how_many_versions, UUID(named_tenant))
    )
    sys.stdout.write(msgspec.json.encode(filled).decode())
