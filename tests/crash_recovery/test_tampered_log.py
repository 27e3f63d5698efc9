"""A log that was changed in the database is found by the key service's start or the verifier."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from gateway.tests.world import one_shard
from tests.crash_recovery import invariants
from tests.crash_recovery.run import EXPORT, Report
from tests.crash_recovery.snapshot import Snapshot, read, sqlite_urls
from tests.fixtures.key_service import running_key_service
from tests.patience import PATIENCE
from tests.sampling import sampled

from pqkeep.audit import verify
from pqkeep_gateway.access.clock import steady_clock
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_gateway.api import audit
from pqkeep_gateway.api.audit_export import ExportLimits
from pqkeep_gateway.http.endpoint import ApiCall, JsonLines
from pqkeep_gateway.key_client import KeyClient, UnixSocket
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.messages import Attribution
from pqkeep_server.initialise import Layout

OLD = 10
"""A record in a complete tile."""
SOON_SECONDS = 11.0
"""An older export does not excuse a checkpoint that it lacks."""
NOBODY = "0" * 32
TABLES = ("audit_records", "audit_tiles", "audit_checkpoints", "keys")

Tamper = Callable[[sqlite3.Connection], None]


def edit_an_old_one(log: sqlite3.Connection) -> None:
    """Change a record's principal."""
    _edit(log, OLD)


def edit_the_last(log: sqlite3.Connection) -> None:
    _edit(log, _size(log))


def remove_an_old_one(log: sqlite3.Connection) -> None:
    log.execute("DELETE FROM audit_records WHERE id = ?", (OLD,))


def remove_the_last(log: sqlite3.Connection) -> None:
    log.execute("DELETE FROM audit_records WHERE id = ?", (_size(log),))


def swap(log: sqlite3.Connection) -> None:
    """Swap two neighbours of different tenants."""
    for old, new in ((OLD, 0), (OLD + 1, OLD), (0, OLD + 1)):
        log.execute("UPDATE audit_records SET id = ? WHERE id = ?", (new, old))


def insert(log: sqlite3.Connection) -> None:
    """Insert a record, which changes the ids of all later ones."""
    log.execute("UPDATE audit_records SET id = -id WHERE id > ?", (OLD,))
    log.execute("UPDATE audit_records SET id = 1 - id WHERE id < 0")
    names = ", ".join(
        name for (_, name, *_) in log.execute("PRAGMA table_info(audit_records)") if name != "id"
    )
    values = names.replace("number", "1000000").replace("event_id", "NULL")
    log.execute(
        f"INSERT INTO audit_records (id, {names}) "  # noqa: S608 - names of columns
        f"SELECT id + 1, {values} FROM audit_records WHERE id = ?",
        (OLD,),
    )


def change_a_tile(log: sqlite3.Connection) -> None:
    log.execute("UPDATE audit_tiles SET hash = randomblob(32) WHERE level = 1 * 8 AND position = 1")


def change_the_root(log: sqlite3.Connection) -> None:
    log.execute("UPDATE audit_checkpoints SET root = randomblob(32) WHERE size = ?", (_size(log),))


def change_the_signature(log: sqlite3.Connection) -> None:
    log.execute(
        "UPDATE audit_checkpoints SET signature = randomblob(length(signature)) WHERE size = ?",
        (_size(log),),
    )


def truncate(log: sqlite3.Connection) -> None:
    """Cut the log back to an earlier checkpoint, with all its consequences."""
    ((size,),) = log.execute(
        "SELECT max(size) FROM audit_checkpoints WHERE size < ?", (_size(log),)
    )
    log.execute("DELETE FROM audit_records WHERE id > ?", (size,))
    log.execute("DELETE FROM audit_checkpoints WHERE size > ?", (size,))
    log.execute("DELETE FROM audit_tiles WHERE (position + 1) * (1 << level) > ?", (size,))


def rehash(log: sqlite3.Connection) -> None:
    """Edit a record, and adapt tree and checkpoints, without new signatures."""
    _edit(log, OLD)
    log.commit()
    snapshot = _snapshot(log)
    tiles, roots = invariants.tree(snapshot, [each.size for each in snapshot.checkpoints])
    log.executemany(
        "UPDATE audit_tiles SET hash = ? WHERE level = ? AND position = ?",
        [(top, *name) for name, top in tiles.items()],
    )
    log.executemany(
        "UPDATE audit_checkpoints SET root = ? WHERE size = ?",
        [(root, size) for size, root in roots.items()],
    )


def replace_the_key(log: sqlite3.Connection) -> None:
    """Adapt everything to an edited record, and sign it with a replaced key."""
    rehash(log)
    log.commit()
    snapshot = _snapshot(log)
    forger = MLDSA65PrivateKey.generate()
    log.execute(
        "UPDATE keys SET public_key = ? WHERE tenant_id = ? AND algorithm = ?",
        (forger.public_key().public_bytes_raw(), NOBODY, invariants.SIGNED_WITH),
    )
    log.executemany(
        "UPDATE audit_checkpoints SET signature = ? WHERE size = ?",
        [
            (
                forger.sign(invariants.signed_text(snapshot.log_id, each), invariants.CONTEXT),
                each.size,
            )
            for each in snapshot.checkpoints
        ],
    )


def _edit(log: sqlite3.Connection, record: int) -> None:
    log.execute("UPDATE audit_records SET principal = 'api-key:99' WHERE id = ?", (record,))


def _size(log: sqlite3.Connection) -> int:
    size: int = log.execute("SELECT max(id) FROM audit_records").fetchone()[0]
    return size


def _snapshot(log: sqlite3.Connection) -> Snapshot:
    file = Path(log.execute("PRAGMA database_list").fetchone()[2])
    return read(*sqlite_urls(file.parent.parent))


@dataclass(frozen=True)
class Case:
    """A manipulation, and the expected findings."""

    tamper: Tamper
    named: tuple[str, int | None]
    """The verifier's findings for an export that the running service made later: kind and record.

    If a tile's hash is wrong, each of the tile's records is named, because any of them could be the
    edited one. None: no record, or a record of unknown position."""
    at_start: str | None
    """The key service's error at its next start. None: only the verifier can find it."""


RECORDS = "records are not the signed ones"
SIGNATURE = "does not have the log's signature"
KEYS = "keys are not the generated ones"
CASES = [
    Case(edit_an_old_one, ("edited", OLD), None),
    Case(edit_the_last, ("edited", None), RECORDS),
    Case(remove_an_old_one, ("missing", OLD), None),
    Case(remove_the_last, ("truncated", None), RECORDS),
    Case(swap, ("edited", OLD), None),
    Case(insert, ("edited", OLD + 1), RECORDS),
    Case(change_a_tile, ("wrong-proof", None), RECORDS),
    Case(change_the_root, ("bad-signature", None), RECORDS),
    Case(change_the_signature, ("bad-signature", None), SIGNATURE),
    Case(rehash, ("bad-signature", None), SIGNATURE),
    Case(replace_the_key, ("bad-signature", None), KEYS),
    Case(truncate, ("truncated", None), None),
]


@pytest.fixture
def kept(small_run: tuple[Report, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Trusted copies: the log's keys, and a checkpoint."""
    lines = (small_run[1] / EXPORT).read_bytes().splitlines(keepends=True)
    files = tmp_path / "keys.jsonl", tmp_path / "checkpoint.jsonl"
    for file, kind in zip(files, (b'{"type":"key"', b'{"type":"checkpoint"'), strict=True):
        file.write_bytes(b"".join(line for line in lines if line.startswith(kind)))
    return files


def _copy(small_run: tuple[Report, Path], folder: Path) -> Path:
    """Copy the run's data."""
    ignored = shutil.ignore_patterns("*.sock")
    return shutil.copytree(small_run[1] / "data", folder / "d", ignore=ignored)


@contextmanager
def key_service(data: Path) -> Iterator[str | None]:
    """Run only a key service. Yield its start error, or None."""
    output = data / "output"
    with running_key_service(Layout(data).key_service_settings, output) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and "serving" not in output.read_text():
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        assert process.returncode in (None, os.EX_CONFIG)
        yield None if process.returncode is None else output.read_text()


@pytest.fixture(scope="module")
def served(
    small_run: tuple[Report, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A copy of the data, served by a key service."""
    data = _copy(small_run, tmp_path_factory.mktemp("served"))
    with key_service(data) as problem:
        assert problem is None
        yield data


@contextmanager
def tampered(data: Path, original: Path, tamper: Tamper) -> Iterator[None]:
    """Manipulate the key service's database; restore it at the end."""
    with closing(sqlite3.connect(_database(data), timeout=10)) as log:
        with log:
            tamper(log)
        yield
        log.execute("ATTACH ? AS original", (str(_database(original)),))
        with log:
            for table in TABLES:
                log.execute(f"DELETE FROM main.{table}")  # noqa: S608 - one of ours
                log.execute(
                    f"INSERT INTO main.{table} SELECT * FROM original.{table}"  # noqa: S608
                )


def _database(data: Path) -> Path:
    return data / "keyservice" / "keys.sqlite3"


async def export(data: Path, file: Path) -> None:
    """Export the key service's log through the gateway's endpoint, as far as possible."""
    keys = KeyClient(UnixSocket(str(Layout(data).socket)))
    connected = asyncio.create_task(keys.run())
    while not await keys.is_reachable():  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.02)
    exports = ExportLimits(MemoryRateLimiter(steady_clock()))
    nothing: Any = None
    rows = audit.endpoints(one_shard(keys), exports, nothing, nothing)
    (endpoint,) = (each for each in rows if each.path == "/audit/export")
    call = ApiCall(
        principal=OperatorPrincipal(), attribution=Attribution("", "operator", ""), values={}
    )
    lines = await endpoint.handler(call)
    assert isinstance(lines, JsonLines)
    with file.open("wb") as exported, suppress(KeyServiceError):  # the connection is cut then
        async for chunk in lines.chunks:
            exported.write(chunk)
    connected.cancel()


def _ids(case: Case) -> str:
    return case.tamper.__name__


@pytest.mark.parametrize("case", sampled(CASES, 3), ids=_ids)
async def test_what_the_verifier_says(
    case: Case,
    small_run: tuple[Report, Path],
    served: Path,
    kept: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    """An export of the manipulated log is refuted, with trusted keys and one trusted checkpoint."""
    keys, checkpoint = kept
    exported = tmp_path / EXPORT
    signed_at = datetime.fromisoformat(json.loads(checkpoint.read_bytes())["at"])
    if case.tamper is truncate:
        await asyncio.sleep(
            max(0.0, SOON_SECONDS - (datetime.now(UTC) - signed_at).total_seconds())
        )
    with tampered(served, small_run[1] / "data", case.tamper):
        await export(served, exported)
    found = verify([exported, checkpoint], trusted_keys=keys).findings
    kind, record = case.named
    assert kind in {each.kind for each in found if record in (None, each.record)}, found[:3]


async def test_what_the_verifier_says_of_the_original(
    served: Path, kept: tuple[Path, Path], tmp_path: Path
) -> None:
    """The verifier reports no problem in an unchanged log."""
    exported = tmp_path / EXPORT
    await export(served, exported)
    assert verify([exported, kept[1]], trusted_keys=kept[0]).is_verified


@pytest.mark.threat("keys-database-writer")
@pytest.mark.parametrize("case", sampled((c for c in CASES if c.at_start), 4), ids=_ids)
def test_what_the_key_service_says(
    case: Case, small_run: tuple[Report, Path], tmp_path: Path
) -> None:
    """A key service does not start on a log that it did not sign, and names the error."""
    data = _copy(small_run, tmp_path)
    with closing(sqlite3.connect(_database(data))) as log, log:
        case.tamper(log)
    with key_service(data) as problem:
        assert case.at_start is not None
        assert problem is not None
        assert case.at_start in problem
