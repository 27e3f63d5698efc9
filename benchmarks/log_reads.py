"""What reading a long log costs in CPU alone, without processes around it.

Run as ``python -m benchmarks.log_reads DATABASE…``: SQLite files of key services that do not run.
CPU milliseconds, so that a busy machine changes little; the least of ``REPEATS``.
"""

import sys
import time
from collections.abc import Callable, Mapping

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from pqkeep_keyservice.ledger.key_usage import find_key_usage
from pqkeep_keyservice.ledger.operation_counts import find_operation_counts
from pqkeep_keyservice.ledger.search import list_records, prove_consistency, prove_records
from pqkeep_keyservice.ledger.tree import log_size
from pqkeep_keyservice.ledger.whole_export import export_records
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
    """Return what is measured: as the operator, and as the tenant with most records."""
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
        "nothing: operation": search(INSTALLATION, operation="archive-key"),
        "nothing: key version": search(INSTALLATION, key_version=77),
        "nothing of a tenant: operation": search(tenant, operation="archive-key"),
        "nothing of a tenant: key version": search(tenant, key_version=77),
        "inclusion proof": lambda: prove_records(connection, proof),
        "consistency proof": lambda: prove_consistency(connection, consistency),
        "uses of a version": lambda: find_key_usage(connection, usage),
        "operations of a tenant": lambda: find_operation_counts(connection, counts),
        "1,000 records of an export": lambda: export_records(connection, page),
    }


def least_milliseconds(read: Callable[[], object]) -> float:
    """Return the CPU time of a read."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time_ns()
        read()
        times.append((time.process_time_ns() - began) / 1e6)
    return min(times)


def main() -> None:
    """Measure each database, and print a column for each."""
    table = Table("CPU milliseconds")
    rows: dict[str, list[str]] = {}
    for path in sys.argv[1:]:
        engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        with engine.connect() as connection:
            table.add_column(f"{log_size(connection):,}", justify="right")
            for name, read in reads(connection).items():
                rows.setdefault(name, []).append(f"{least_milliseconds(read):.2f}")
        engine.dispose()
    for name, values in rows.items():
        table.add_row(name, *values)
    Console().print(table)


if __name__ == "__main__":
    main()
