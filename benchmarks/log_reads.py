"""The cost of reading a long log, without processes around it, in SQLite and PostgreSQL.

Run as ``python -m benchmarks.log_reads SETTINGS…``: settings files of stopped key services with
databases filled by log_fill.py.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import sqlalchemy as sa
import uvloop
from rich.table import Table

from benchmarks.console import results_console
from pqkeep_keyservice import config
from pqkeep_keyservice.audit.service import export_records
from pqkeep_keyservice.ledger.key_usage import find_key_usage, find_operation_counts
from pqkeep_keyservice.ledger.merkle import log_size
from pqkeep_keyservice.ledger.search import list_records, prove_consistency, prove_records
from pqkeep_keyservice.process import open_database
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    CountOperations,
    ExportRecords,
    GetUsage,
    ListRecords,
    ProveConsistency,
    ProveRecords,
)
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId

REPEATS = 15


def reads(connection: sa.Connection) -> Mapping[str, Callable[[], object]]:
    """Return the measured reads: of the operator, and of the tenant with most records."""
    size = log_size(connection)
    columns = "SELECT tenant_id FROM audit_records WHERE id > :after"
    busiest = f"{columns} GROUP BY tenant_id ORDER BY count(*) DESC LIMIT 1"
    text = connection.execute(sa.text(busiest), {"after": size - 10_000}).scalar_one()
    tenant, algorithm = TenantId(text), Algorithm.ML_KEM_768

    def search(tenant: TenantId, **asked: object) -> Callable[[], object]:
        request = ListRecords(tenant=tenant, newest_first=True, **asked)  # type: ignore[arg-type]
        return lambda: list_records(connection, request)

    proof = ProveRecords(tenant=INSTALLATION, after=size // 2, size=size, limit=1)
    consistency = ProveConsistency(tenant=INSTALLATION, first=size // 3, second=size)
    usage = GetUsage(tenant=tenant, algorithm=algorithm, version=KeyVersion(1))
    counts = CountOperations(tenant=tenant, since_hour=0, hours=24)
    page = ExportRecords(tenant=INSTALLATION, after=size - 1_001, size=size, limit=1_000)
    return {
        "newest 100": search(INSTALLATION),
        "newest 100 of a tenant": search(tenant),
        "nothing: operation": search(INSTALLATION, operations=("archive-key",)),
        "nothing: key version": search(INSTALLATION, key_version=20_000),
        "nothing: keyring": search(INSTALLATION, keyring="none"),
        "nothing: principal": search(INSTALLATION, principal="api-key:77"),
        "nothing: request id": search(INSTALLATION, request_id="none"),
        "nothing: outcome": search(INSTALLATION, outcome="internal"),
        "nothing: time": search(INSTALLATION, until_us=1),
        "nothing of a tenant: operation": search(tenant, operations=("archive-key",)),
        "nothing of a tenant: key version": search(tenant, key_version=20_000),
        "nothing of a tenant: request id": search(tenant, request_id="none"),
        "inclusion proof": lambda: prove_records(connection, proof),
        "consistency proof": lambda: prove_consistency(connection, consistency),
        "uses of a version": lambda: find_key_usage(connection, usage),
        "operations of a tenant": lambda: find_operation_counts(connection, counts),
        "1,000 records of an export": lambda: export_records(connection, page),
    }


async def milliseconds(settings_file: Path) -> tuple[int, dict[str, str]]:
    """Return the number of records, and the CPU and elapsed milliseconds of each read."""
    database = await open_database(config.read(settings_file))
    size = await database.query(log_size)
    found: dict[str, str] = {}
    for name in await database.query(lambda connection: list(reads(connection))):
        times: list[tuple[float, float]] = []
        for _ in range(REPEATS):
            read = partial(_measured, name)
            times.append(await database.query(read))
        cpu, elapsed = zip(*times, strict=True)
        found[name] = f"{min(cpu):.2f} / {median(elapsed):.2f}"
    await database.close()
    return size, found


def _measured(name: str, connection: sa.Connection) -> tuple[float, float]:
    read = reads(connection)[name]
    cpu, began = time.thread_time_ns(), time.perf_counter_ns()
    read()
    return (time.thread_time_ns() - cpu) / 1e6, (time.perf_counter_ns() - began) / 1e6


async def main(settings_files: Sequence[Path]) -> None:
    """Measure each database, and print a column for each."""
    table = Table("milliseconds: CPU of this process, least / elapsed, median")
    rows: dict[str, list[str]] = {}
    for each in settings_files:
        size, found = await milliseconds(each)
        table.add_column(f"{size:,}", justify="right")
        for name, value in found.items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        table.add_row(name, *values)
    results_console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path, nargs="+", help="of a key service that is filled")
    uvloop.run(main(parser.parse_args().settings))
