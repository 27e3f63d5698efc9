"""The cost of an operation with many tenants, versions of a key, and records.

Run as ``python -m benchmarks.log_growth DIRECTORY [SETTINGS…]``; prints a table. Each case is a key
service in this process without a gateway. It uses a new SQLite file in DIRECTORY, which must be on
a disk. For each SETTINGS file it uses the database filled by log_fill.py, with a stopped key
service. All cases are measured in turn, ``ROUNDS`` times, and the smallest value counts: CPU
microseconds of all threads, with a checkpoint for each ``RECORDS``.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import uvloop
from rich.table import Table

from benchmarks.console import results_console
from benchmarks.log_fill import with_versions
from pqkeep_keyservice import config
from pqkeep_keyservice.audit.checkpoint_signer import RECORDS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE, Sealer
from pqkeep_keyservice.ledger.records import NewRecord, operation_record
from pqkeep_keyservice.live.worker_processes import WorkerSettings, worker_settings
from pqkeep_keyservice.root_key_sources.sources import read_root_keys
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, Encapsulate

ROUNDS = 7
OPERATIONS = 3 * RECORDS
CALLERS = 64
COUNTS = (1, 100, 10_000)
KEM = Algorithm.ML_KEM_768
_ATTRIBUTION = Attribution("growth", "api-key:1", "192.0.2.7", "plan-includes-algorithm")
_DEADLINE = 1e12

Work = Callable[[TenantId], Awaitable[object]]


class Case(NamedTuple):
    """A key service, and the tenants that use their keys in turn."""

    name: str
    parts: KeyServiceParts
    tenants: Sequence[TenantId]
    version: KeyVersion
    """The active version of each key."""

    def works(self) -> Mapping[str, Work]:
        """Return the measured operations of a tenant."""

        async def encapsulate(tenant: TenantId) -> None:
            request = Encapsulate(tenant=tenant, algorithm=KEM, version=self.version)
            await self.parts.transactions.execute(request, _ATTRIBUTION, _DEADLINE)

        async def record(tenant: TenantId) -> None:
            await self.parts.log.commit(_record(tenant, self.version))

        return {"encapsulate": encapsulate, "record": record}

    async def microseconds(self, work: Work, operations: int = OPERATIONS) -> float:
        """Return the CPU time of one operation, with many concurrent callers."""
        tenants = cycle(self.tenants)

        async def caller(count: int) -> None:
            for _ in range(count):
                await work(next(tenants))

        began = time.process_time()
        for _ in range(max(1, operations // RECORDS)):
            count = min(operations, RECORDS) // CALLERS
            await asyncio.gather(*(caller(count) for _ in range(CALLERS)))
            await self.parts.checkpoint_signer.sign(Algorithm.ML_DSA_65)
        used = time.process_time() - began
        return used / (max(1, operations // RECORDS) * CALLERS * count) * 1e6


def _record(tenant: TenantId, version: KeyVersion) -> NewRecord:
    request = Encapsulate(tenant=tenant, algorithm=KEM, version=version)
    return operation_record(request, _ATTRIBUTION, version, Outcome.SUCCESS)


async def new_case(directory: Path, name: str, tenants: int, versions: int) -> Case:
    """Return a new key service.

    It has this many tenants, each with one key of this many versions.
    """
    path = directory / f"{tenants}-{versions}.sqlite3"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    sealer = Sealer({1: Secret(os.urandom(ROOT_KEY_SIZE))})
    store = KeyStore(SqliteDatabase(str(path)), sealer)
    parts = wire(store, sealer, WorkerSettings("pqcrypto", None), directory)
    await parts.activation.start()
    whose = [TenantId(UUID(int=number)) for number in range(1, tenants + 1)]
    changes = []
    for tenant in whose:
        new = KeyVersions(tenant, KEM)
        record = _record(tenant, KeyVersion(versions))
        changes.append((record, KeyChange(new, await with_versions(parts, new, versions))))
    await store.commit(changes)
    return Case(name, parts, whose, KeyVersion(versions))


async def filled_case(settings_file: Path) -> Case:
    """Return the key service of a filled database, and one of its tenants."""
    settings = config.read(settings_file)
    sealer = Sealer(read_root_keys(settings.root_key_sources))
    store = KeyStore(SqliteDatabase(settings.database.location), sealer)
    parts = wire(store, sealer, worker_settings(settings), settings_file)
    await parts.activation.start(settings.shard)
    return Case(f"{store.size:,} records", parts, [TenantId(UUID(int=1))], KeyVersion(1))


async def measure(directory: Path, filled: Sequence[Path]) -> Table:
    """Return the table."""
    cases = [
        *[await new_case(directory, f"{count:,} tenants", count, 1) for count in COUNTS],
        *[await new_case(directory, f"{count:,} versions", 1, count) for count in COUNTS[1:]],
        *[await filled_case(each) for each in filled],
    ]
    least: dict[tuple[str, str], float] = {}
    for case in cases:  # everything is in memory then that is kept there
        await case.microseconds(case.works()["encapsulate"], max(RECORDS, len(case.tenants)))
    for _ in range(ROUNDS):
        for case in cases:
            for name, work in case.works().items():
                took = await case.microseconds(work)
                least[case.name, name] = min(took, least.get((case.name, name), took))
    names = list(cases[0].works())
    table = Table("CPU µs", *(column for name in names for column in (name, "ratio")))
    for case in cases:
        values = [(least[case.name, name], least[cases[0].name, name]) for name in names]
        table.add_row(
            case.name, *(f"{x:.{n}f}" for a, b in values for x, n in ((a, 1), (a / b, 2)))
        )
        case.parts.close()
        await case.parts.store.database.close()
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the new databases go, on a disk")
    parser.add_argument("settings", type=Path, nargs="*", help="of a key service that is filled")
    arguments = parser.parse_args()
    results_console().print(uvloop.run(measure(arguments.directory, arguments.settings)))
