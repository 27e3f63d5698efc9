"""A record always keeps its original format, and so its text and its leaf."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import sqlalchemy as sa
from keyservice.tests.test_log_tiles import climbed

from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.append import append_records, insert_statement, load_log_state
from pqkeep_keyservice.ledger.checkpoints import add_checkpoint, check_log, log_id
from pqkeep_keyservice.ledger.merkle import leaf_hash
from pqkeep_keyservice.ledger.records import (
    FORMATS,
    Formats,
    NewRecord,
    Row,
    format_1,
    record_text,
)
from pqkeep_keyservice.ledger.search import list_records, prove_consistency, prove_records
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Checkpoint, ListRecords, Proof, ProveConsistency, ProveRecords
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
Sql = Callable[..., list[Any]]
TENANTS = [TenantId(UUID(int=number)) for number in (7, 8)]
VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "audit-records.json"
KNOWN = json.loads(VECTORS.read_text())["records"]
FIRST, SECOND = 300, 400
"""Numbers of records before and in the new format. All are within the second tile."""


def _format_2(row: Any) -> msgspec.Struct:
    """Return a record of a later format with one more name."""
    names = {**msgspec.structs.asdict(format_1(row)), "recorded_at_us": row.recorded_at_us}
    types = [(name, type(value)) for name, value in sorted(names.items())]
    return msgspec.defstruct("Format2", types)(**names)


LATER: Formats = {**FORMATS, 2: _format_2}


def new_records(count: int) -> Iterator[NewRecord]:
    """Make records of two tenants in turn."""
    for n in range(count):
        tenant = TENANTS[n % 2]
        yield NewRecord(tenant, "p", Operation.SIGN, None, None, "success", f"r{n}", "a", "y")


@pytest.fixture
async def before(database: Database, store: KeyStore, sealer: Sealer) -> list[Proof]:
    """Return all records with proofs, before there is a second format."""
    await store.check()
    await store.commit([(record, None) for record in new_records(FIRST)])
    return await _prove(database, FIRST, FORMATS)


@pytest.fixture
async def after(before: list[Proof], database: Database, sql: Sql) -> list[Proof]:
    """Return all records with proofs, after records of a second format are added."""
    sql("ALTER TABLE audit_records ADD COLUMN region VARCHAR(16)")

    def append(connection: sa.Connection) -> None:
        log_state = load_log_state(connection, LATER)
        insert = insert_statement(database.dialect)
        more = list(new_records(SECOND - FIRST))
        append_records(connection, insert, log_state, more, LATER)

    await database.write(append)
    return await _prove(database, SECOND, LATER)


async def _prove(database: Database, size: int, formats: Formats) -> list[Proof]:
    request = ProveRecords(tenant=INSTALLATION, after=0, size=size, limit=500)
    return list(await database.query(prove_records, request, formats))


def root_of(leaves: list[bytes]) -> bytes:
    """Return the tree's root by RFC 9162's definition alone."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + root_of(leaves[:half]) + root_of(leaves[half:])).digest()


def leaves_of(proofs: list[Proof]) -> list[bytes]:
    """Return the leaves of records."""
    return [sha256(b"\x00" + proof.line).digest() for proof in proofs]


@BOTH
async def test_old_leaves_are_unchanged(before: list[Proof], after: list[Proof]) -> None:
    """A second format leaves the text of earlier records unchanged, byte for byte."""
    assert [proof.line for proof in after[:FIRST]] == [proof.line for proof in before]
    formats = [json.loads(proof.line)["format"] for proof in after]
    assert formats == [1] * FIRST + [2] * (SECOND - FIRST)
    assert all("recorded_at_us" in json.loads(proof.line) for proof in after[FIRST:])


@BOTH
async def test_records_of_both_formats_are_proven(after: list[Proof], database: Database) -> None:
    """Proofs of both formats lead to one root, and each tree is consistent with the next."""
    leaves = leaves_of(after)
    root = root_of(leaves)
    for index, proof in enumerate(after):
        assert climbed(proof.line, index, SECOND, proof.path) == root
    request = ProveConsistency(tenant=INSTALLATION, first=FIRST, second=SECOND)
    path = await database.query(prove_consistency, request, LATER)
    assert is_consistent(FIRST, root_of(leaves[:FIRST]), SECOND, root, path)


def is_consistent(
    first: int, first_root: bytes, second: int, second_root: bytes, path: tuple[bytes, ...]
) -> bool:
    """Verify a consistency proof (RFC 9162, section 2.1.4.2)."""
    steps = list(path)
    if first & (first - 1) == 0:
        steps.insert(0, first_root)
    number, last = first - 1, second - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if number & 1 or number == last:
            old, new = (sha256(b"\x01" + step + root).digest() for root in (old, new))
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new = sha256(b"\x01" + new + step).digest()
        number, last = number >> 1, last >> 1
    return (old, new, last) == (first_root, second_root, 0)


@BOTH
async def test_what_was_signed_before_still_holds(
    before: list[Proof], after: list[Proof], database: Database
) -> None:
    """Checkpoints of every size, also from before the second format, are valid."""
    for size, proofs in ((FIRST, before), (SECOND, after)):
        await database.write(_sign, size, root_of(leaves_of(proofs)))
        await database.query(check_log, LATER)


def _sign(connection: sa.Connection, size: int, root: bytes) -> None:
    checkpoint = Checkpoint(
        log_id=log_id(connection),
        size=size,
        root=root,
        at_us=size,
        algorithm=Algorithm.ML_DSA_65,
        key_version=KeyVersion(1),
        signature=b"not looked at",
    )
    add_checkpoint(connection, checkpoint)


@BOTH
async def test_a_format_that_is_not_known_is_as_good_as_missing(
    after: list[Proof], database: Database
) -> None:
    """Records of an unknown format are left out, and their proofs are empty."""
    page = await database.query(list_records, ListRecords(tenant=TENANTS[0], limit=500))
    assert [json.loads(line)["id"] for line in page.lines] == list(range(1, FIRST, 2))
    proofs = await _prove(database, SECOND, FORMATS)
    assert len(proofs) == FIRST
    assert all(proof.path == () for proof in proofs)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: json.loads(known["text"])["operation"])
def test_the_text_and_the_leaf_of_each_format(known: dict[str, str]) -> None:
    """A fixed row of each format has this text and this leaf."""
    said = json.loads(known["text"])
    times = {name: _microseconds(said[name]) for name in ("recorded_at", "happened_at")}
    as_they_are = {name: said.get(name) for name in Row._fields if not name.endswith("_us")}
    fingerprint = said.get("public_key_sha256")
    row = Row(
        **as_they_are
        | {"nonce": bytes.fromhex(said["nonce"])}
        | {"public_key_sha256": None if fingerprint is None else bytes.fromhex(fingerprint)}
        | {f"{name}_us": value for name, value in times.items()}
    )
    assert record_text(row).decode() == known["text"]
    assert leaf_hash(record_text(row)).hex() == known["leaf"]


def _microseconds(instant: str | None) -> int | None:
    if instant is None:
        return None
    day = 20_484 * 86_400_000_000  # 2026-01-31
    hours, minutes, seconds = instant[11:-1].split(":")
    return day + (int(hours) * 60 + int(minutes)) * 60_000_000 + int(seconds.replace(".", ""))


def test_a_format_that_was_written_is_never_removed() -> None:
    """Every format from the first on exists and has vectors, because a log may use it."""
    assert {json.loads(known["text"])["format"] for known in KNOWN} == set(FORMATS)
    assert list(FORMATS) == list(range(1, len(FORMATS) + 1))
