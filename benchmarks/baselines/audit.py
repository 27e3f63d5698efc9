"""The audit log alone: many callers, each waiting for its record to be durable.

Run as ``python -m benchmarks.baselines.audit DATABASE SECONDS``; prints JSON.
"""

import asyncio
import sys
import time
import uuid
from pathlib import Path

import msgspec
import uvloop

from benchmarks.baselines.library import WARM_UP_SECONDS, Loop
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.records import operation_record
from pqkeep_keyservice.storage.sqlite import SqliteDatabase
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, Encapsulate

CALLERS = 64


async def measure(path: str, seconds: float) -> Loop:
    """Commit records to a new database for some seconds."""
    database = SqliteDatabase(path)
    log = AuditLog(KeyStore(database, Sealer({1: Secret(bytes(32))})))
    await _commit(log, WARM_UP_SECONDS)
    began, cpu_began = time.perf_counter(), time.process_time()
    count = await _commit(log, seconds)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    await database.close()
    return Loop(count / elapsed, cpu / count * 1_000_000)


async def _commit(log: AuditLog, seconds: float) -> int:
    version = KeyVersion(1)
    request = Encapsulate(
        tenant=TenantId(uuid.uuid4()), algorithm=Algorithm.ML_KEM_768, version=version
    )
    attribution = Attribution(str(uuid.uuid4()), "api-key:1", "127.0.0.1", "benchmark")
    row = operation_record(request, attribution, version, Outcome.SUCCESS)
    deadline = time.perf_counter() + seconds

    async def caller() -> int:
        count = 0
        while time.perf_counter() < deadline:
            await log.commit(row)
            count += 1
        return count

    return sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))


if __name__ == "__main__":
    _, database_path, duration = sys.argv
    Path(database_path).touch(0o600)
    result = uvloop.run(measure(database_path, float(duration)))
    sys.stdout.write(msgspec.json.encode(result).decode())
