"""The cost of the inventory: pages over a long log, and the counting at its checkpoints.

Run as ``python -m benchmarks.inventory``. It fills a new SQLite file by the key service's own code,
without processes around it. Each commit has the records of one moment, and a checkpoint counts them
each second. Then it reads all pages, and compares their counts with the counts in an export.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa
from rich.table import Table

from benchmarks.console import results_console
from pqkeep_keyservice.ledger import schema as ledger
from pqkeep_keyservice.ledger.append import append_records, insert_statement, load_log_state
from pqkeep_keyservice.ledger.checkpoints import add_checkpoint, log_id
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.search import record_texts
from pqkeep_keyservice.ledger.uses import Counting, tally_of_commits
from pqkeep_keyservice.storage import schema as keys
from pqkeep_keyservice.storage.inventory import InventoryPage, find_inventory
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Checkpoint, ListInventory
from pqkeep_protocol.keys import KeyringName, KeyVersion, TenantId
from pqkeep_protocol.messages import KeyPosition

TENANTS, KEYRINGS, API_KEYS = 10, 200, 1_000
"""In all. Each tenant has the same number."""
OPERATIONS = Operation.ENCRYPT, Operation.DECRYPT
PER_COMMIT, PER_CHECKPOINT = 8, 2_000
PAGE = 20
KEM = Algorithm.ML_KEM_768

Uses = Counter[tuple[object, ...]]


def tenant_of(number: int) -> TenantId:
    """Return the id of a tenant."""
    return TenantId(UUID(int=number + 1))


def record_of(number: int) -> NewRecord:
    """Return a use: in time every API key of a tenant uses all its keyrings."""
    mixed = number * 2_654_435_761 % 2**32
    keyring = mixed // 10 % (KEYRINGS // TENANTS)
    api_key = mixed // 200 % (API_KEYS // TENANTS)
    operation = OPERATIONS[mixed // 20_000 % len(OPERATIONS)]
    return NewRecord(
        *(tenant_of(mixed % TENANTS), f"api-key:{api_key}", operation, KEM, 1),
        *("success", "order-4711", "192.0.2.7", "plan-includes-algorithm"),
        keyring=f"keyring-{keyring:03}",
    )


def fill(connection: sa.Connection, records: int) -> tuple[float, float]:
    """Append records with checkpoints. Return the CPU seconds of appending and of counting."""
    log, insert = load_log_state(connection), insert_statement(connection.dialect)
    counting = Counting()
    appending, total = 0.0, 0.0
    for begin in range(0, records, PER_CHECKPOINT):
        new = [record_of(begin + n) for n in range(min(PER_CHECKPOINT, records - begin))]
        began = time.process_time()
        for place in range(0, len(new), PER_COMMIT):
            log.advance(append_records(connection, insert, log, new[place : place + PER_COMMIT]))
        appending += time.process_time() - began
        size = log.frontier.size
        commits = log.appended.between(begin, size) or []
        began = time.process_time()
        counting.add(connection, tally_of_commits(commits))
        total += time.process_time() - began
        connection.execute(sa.update(ledger.AUDIT_LOG).values(counted_until=size))
        log.appended.forget(size)
    add_checkpoint(
        connection,
        Checkpoint(
            log_id=log_id(connection),
            size=log.frontier.size,
            root=log.frontier.root(),
            at_us=log.recorded_at_us,
            algorithm=Algorithm.ML_DSA_65,
            key_version=KeyVersion(1),
            signature=b"",
        ),
        log.appended,
    )
    return appending, total


def add_keys(connection: sa.Connection) -> None:
    """Add a row for each key, without a private key: nothing opens it."""
    for tenant in range(TENANTS):
        names = [f"keyring-{number:03}" for number in range(KEYRINGS // TENANTS)]
        of = {"tenant_id": tenant_of(tenant), "algorithm": KEM.value}
        connection.execute(
            sa.insert(keys.KEY_REVISIONS),
            [{**of, "keyring": name, "revision": 1, "mac": b""} for name in names],
        )
        connection.execute(
            sa.insert(keys.KEYS),
            [
                {
                    **of,
                    "keyring": name,
                    "version": 1,
                    "status": "active",
                    "imported": False,
                    "public_key": name.encode(),
                    "public_key_sha256": sha256(name.encode()).digest(),
                    "created_at_us": 0,
                }
                for name in names
            ],
        )


def read_all(connection: sa.Connection, since_us: int | None) -> tuple[Uses, list[float]]:
    """Read all pages of all tenants. Return the uses, and the CPU seconds of each page."""
    uses, seconds = Uses(), list[float]()
    for tenant in map(tenant_of, range(TENANTS)):
        after: KeyPosition | None = None
        page: InventoryPage | None = None
        while page is None or page.has_more:
            request = ListInventory(tenant=tenant, since_us=since_us, after=after, limit=PAGE)
            began = time.process_time()
            page = find_inventory(connection, request)
            seconds.append(time.process_time() - began)
            if page is None:
                raise RuntimeError("no checkpoint has the counted records")
            for (keyring, algorithm, version), found in page.operations.items():
                for use in found:
                    uses[str(tenant), keyring, algorithm, version, use.operation] += use.uses
            name, last = page.versions[-1]
            after = KeyPosition(name.algorithm, last, KeyringName(name.keyring))
    return uses, seconds


def exported(connection: sa.Connection) -> Uses:
    """Count the uses in the exported records."""
    names = "tenant_id", "keyring", "algorithm", "key_version", "operation"
    return Uses(
        tuple(record[name] for name in names)
        for record in map(json.loads, record_texts(connection, 0, 2**40))
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory() as directory:
        engine = sa.create_engine(f"sqlite:///{Path(directory) / 'keys.sqlite3'}")
        for metadata in (ledger.METADATA, keys.METADATA):
            metadata.create_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA synchronous = OFF")
            log = {"log_id": str(UUID(int=7)), "counted_until": 0}
            connection.execute(sa.insert(ledger.AUDIT_LOG), log)
            add_keys(connection)
            appending, counting = fill(connection, records)
        with engine.connect() as connection:
            table = Table("measure", "result")
            expected = exported(connection)
            for name, since_us in (("all uses", None), ("since this month", 1)):
                uses, seconds = read_all(connection, since_us)
                slowest = f"{max(seconds) * 1000:.0f} ms of CPU at most, of {len(seconds)} pages"
                table.add_row(f"a page of {PAGE} keys, {name}", slowest)
                table.add_row(f"counts equal the export, {name}", str(uses == expected))
    each = 1_000_000 / records
    table.add_row("CPU to append a record", f"{appending * each:.1f} µs")
    table.add_row("CPU to count a record", f"{counting * each:.1f} µs")
    results_console().print(table)


if __name__ == "__main__":
    main()
