"""A direct change of any database column is refused with its reason.

The columns come from the schema. A new column is refused with its table's message, or must be
listed in NOT_AUTHENTICATED with a reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from tests.patience import PATIENCE
from tests.sampling import later, step

from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger import checkpoints
from pqkeep_keyservice.ledger import schema as ledger
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.worker_processes import WorkerSettings
from pqkeep_keyservice.storage import schema as keys
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.wiring import KeyServiceParts, wire
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Cosignature
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keyrings import KeyPurpose
from pqkeep_protocol.keys import DEFAULT_KEYRING, DEFAULT_SHARD, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    CreateKeyring,
    Decrypt,
    DisableKey,
    Encrypt,
    GenerateKey,
    GetKey,
    GetKeyring,
    Idempotency,
    ListKeyrings,
    ListKeys,
    ListRules,
    PutRule,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    UpdateKeyring,
)
from pqkeep_protocol.rules import Rule
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from keyservice.tests.conftest import Location

KEM = Algorithm.ML_KEM_768
TENANT = TenantId(uuid4())
SOMEBODY = Attribution("r", "p", "a", "y")
TILE = 256
RECORDS = 600
"""More than two tiles of the tree."""
KEY: dict[str, Any] = {"tenant": TENANT, "algorithm": KEM}
GENERATE = GenerateKey(**KEY, quota=None, idempotency=Idempotency(bytes(32), b"r" * 32))

NAMED = "payments.cards"
PURPOSES = (KeyPurpose.ENCRYPT, KeyPurpose.DECRYPT)
NOT_STORED = "the key differs from what was stored"
NEVER_STORED = "the key has values that pqkeep never stores"
OLDER = "the key is older than its last change in the audit log"
NO_KEYRING = "the keyring differs from what was stored"
NEVER_A_KEYRING = "the keyring has values that pqkeep never stores"
OLDER_KEYRING = "the keyring is older than its last change in the audit log"
NO_RULES = "the rules differ from what was stored"
NEVER_RULES = "the rules have values that pqkeep never stores"
OLDER_RULES = "the rules are older than their last change in the audit log"
LOG = "the audit log is damaged"
INTEGRITY = "refused by the database"

MESSAGES: Mapping[str, tuple[str, ...]] = {
    "root_keys": ("root key",),
    "root_keys.check_value": ("the root key is not the one that sealed this database's keys",),
    "shard": ("this database belongs to the shard",),
    "keyrings": (NO_KEYRING, NEVER_A_KEYRING),
    "keyrings.tenant_id": (OLDER_KEYRING,),
    "keyrings.name": (OLDER_KEYRING, NO_KEYRING),
    "tenant_rules": (NO_RULES, NEVER_RULES),
    "tenant_rules.tenant_id": (OLDER_RULES,),
    "key_revisions": (NOT_STORED, NEVER_STORED),
    "key_revisions.tenant_id": (OLDER,),
    "key_revisions.keyring": (OLDER,),
    "key_revisions.algorithm": (OLDER,),
    "keys": (NOT_STORED, NEVER_STORED),
    "keys.sealed_seed": ("a private key",),
    "audit_records": (LOG,),
    "audit_tiles": (LOG,),
    "audit_checkpoints": (LOG,),
    "audit_log.log_id": (LOG,),
}
"""The expected error for a changed column, or for any column of a table."""

NOT_AUTHENTICATED = {
    "root_keys.added_at_us": "since when a root key is used is only shown",
    "shard.database_id": "the gateways compare it with the one that the shard had",
    "write_probe.written": "nothing reads it",
    "write_probe.filler": "likewise",
    "newest_backup.generation": "which backup is the newest is only shown",
    "newest_backup.records": "likewise",
    "newest_backup.created_at_us": "likewise",
    "tenant_bundles.tenant_id": "a bundle is opened with its digest, which the log has",
    "tenant_bundles.part": "likewise",
    "tenant_bundles.data": "likewise",
    "keyring_counts.tenant_id": "how many keyrings a tenant has only bounds new ones",
    "keyring_counts.keyrings": "likewise",
    "service_epoch.epoch": "which session writes: another number ends the session",
    "service_epoch.takeovers": "which key service has the lock is decided by the lock",
    "service_epoch.holder": "likewise",
    "service_epoch.backend_pid": "likewise",
    "service_epoch.backend_start_us": "likewise",
    "service_epoch.held_until_us": "likewise",
    "audit_cosignatures.witness": "a cosignature counts after its verification by an auditor",
    "audit_cosignatures.size": "likewise",
    "audit_cosignatures.origin": "likewise",
    "audit_cosignatures.signature": "likewise",
    "audit_log.counted_until": "how far uses and operations are counted",
    "key_usage.tenant_id": "uses are counted from the log, and only shown",
    "key_usage.keyring": "likewise",
    "key_usage.algorithm": "likewise",
    "key_usage.key_version": "likewise",
    "key_usage.principal": "likewise",
    "key_usage.operation": "likewise",
    "key_usage.uses": "likewise",
    "key_usage.first_used_us": "likewise",
    "key_usage.last_used_us": "likewise",
    "key_totals.tenant_id": "likewise",
    "key_totals.keyring": "likewise",
    "key_totals.algorithm": "likewise",
    "key_totals.key_version": "likewise",
    "key_totals.uses": "likewise",
    "key_totals.first_used_us": "likewise",
    "key_totals.last_used_us": "likewise",
    **{
        f"uses.{column}": "likewise"
        for column in (
            *("tenant_id", "keyring", "algorithm", "key_version", "principal", "operation"),
            *("day", "uses", "first_used_us", "last_used_us"),
        )
    },
    "use_principals.month": "likewise",
    "use_principals.tenant_id": "likewise",
    "use_principals.principal": "likewise",
    **{
        f"campaign_moves.{column}": "likewise"
        for column in (
            *("tenant_id", "campaign", "keyring", "algorithm", "key_version", "target"),
            *("count", "first_us", "last_us"),
        )
    },
    "operation_counts.tenant_id": "likewise",
    "operation_counts.hour": "likewise",
    "operation_counts.operation": "likewise",
    "operation_counts.count": "likewise",
}
"""Columns that decide nothing."""

COLUMNS = [
    column
    for schema in (keys.METADATA, ledger.METADATA)
    for table in schema.sorted_tables
    for column in table.columns
]

OTHER_TEXT = {
    "active": "retired",
    "disabled": "retired",
    "retired": "archived",
    "archived": "retired",
    "Kyber768": "X-Wing",
    "Dilithium3": "SLH-DSA-SHA2-128s",
    "SLH-DSA-SHA2-128s": "Dilithium3",
    "success": "internal",
}


def changed(column: sa.Column[Any], value: Any) -> Iterator[Any]:
    """Yield other values of a column's type, and null if it is allowed."""
    kind = column.type.python_type
    if kind is bool:
        yield not value
    elif kind is int:
        yield 7 if value is None else value + 1
    elif kind is bytes:
        yield bytes(32) if value is None else value[:-1] + bytes([value[-1] ^ 1])
    elif kind is UUID:
        yield uuid4()
    elif value is not None and len(value) == 36:
        yield str(uuid4())
    else:
        yield OTHER_TEXT.get(value, "sign" if value is None else f"{value}x")
    if column.nullable and value is not None:
        yield None


class Probe:
    """Serves a database like a process, and reports why it is refused."""

    def __init__(
        self,
        location: Location,
        sealer: Sealer,
        workers: WorkerSettings,
        settings: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self._location, self._sealer, self._workers = location, sealer, workers
        self._settings, self._caplog = settings, caplog
        self._uses: list[AnyRequest] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[KeyServiceParts]:
        database = await self._location.open()
        try:
            store = KeyStore(database, self._sealer)
            await store.claim_shard(DEFAULT_SHARD)
            await store.check()
            parts = wire(
                store, self._sealer, self._workers, self._settings, least_destruction_days=0
            )
            try:
                await parts.checkpoint_signer.check()
                yield parts
            finally:
                parts.close()
        finally:
            await database.close()

    async def prepare(self) -> None:
        """Make keys of every status, more records than a tile, and both kinds of checkpoints."""
        async with self.serving() as parts:
            for request in (
                UpdateKeyring(tenant=TENANT, purposes=PURPOSES),
                PutRule(tenant=TENANT, name="end", rules=(Rule("end", (Algorithm.X_WING,)),)),
                CreateKeyring(tenant=TENANT, keyring=NAMED, labels={"team": "payments"}),
                GENERATE,
                RotateKey(**KEY),
                RotateKey(**KEY),
                RotateKey(**KEY),
                ScheduleArchive(days=0, **KEY, version=KeyVersion(1)),
                ScheduleArchive(**KEY, version=KeyVersion(2), days=7),
                DisableKey(**KEY, version=KeyVersion(3)),
                Encrypt(**KEY, version=None, plaintext=b"text"),
            ):
                done: Any = await _ask(parts, request)
            fill = NewRecord(TENANT, "p", Operation.ENCRYPT, KEM, 3, "success", "r", "a", "y")
            move = fill._replace(
                operation=Operation.RE_ENCRYPT,
                keyring=DEFAULT_KEYRING,
                target=f"{DEFAULT_KEYRING}/{KEM}/4",
                campaign="cards",
            )
            event = fill._replace(event_id=str(uuid4()), happened_at_us=1)
            await parts.store.commit([(fill, None)] * RECORDS + [(event, None), (move, None)])
            await parts.store.database.write(_add_bundle)
            cosignature = Cosignature("witness.example/w1", "pqkeep.example/audit", bytes(76))
            await parts.store.database.write(checkpoints.add_cosignature, 1, cosignature)
            for algorithm in (Algorithm.SLH_DSA_SHA2_128S, Algorithm.ML_DSA_65):
                await parts.checkpoint_signer.sign(algorithm)
        self._uses = [
            *(GetKey(**KEY, version=KeyVersion(version)) for version in (1, 2, 3, 4)),
            ListKeys(tenant=TENANT, algorithm=None, status=None),
            Encrypt(**KEY, version=None, plaintext=b"text"),
            Decrypt(**KEY, version=KeyVersion(4), ciphertext=done.ciphertext),
            RetireKey(**KEY, version=KeyVersion(2)),
            GENERATE,
            GetKeyring(tenant=TENANT, keyring=NAMED),
            ListKeyrings(tenant=TENANT),
            ListRules(tenant=TENANT),
        ]

    async def refusal(self) -> str | None:
        """Return why the database is refused, at the start or in use, or None."""
        self._caplog.clear()
        try:
            async with self.serving() as parts:
                for request in self._uses:
                    try:
                        await _ask(parts, request)
                    except KeyServiceError as refused:
                        said = [cast(Any, record.msg) for record in self._caplog.records]
                        damages = [str(line["damage"]) for line in said if "damage" in line]
                        return damages[0] if damages else f"only {refused.kind}"
        except ConfigError as error:
            return str(error)
        return None


def _add_bundle(connection: sa.Connection) -> None:
    row = {"tenant_id": TENANT, "part": 0, "data": b"bundle"}
    connection.execute(sa.insert(keys.TENANT_BUNDLES), row)


async def _ask(parts: KeyServiceParts, request: AnyRequest) -> Any:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    return await parts.transactions.execute(request, SOMEBODY, deadline)


def rows(connection: sa.Connection, table: sa.Table) -> list[Mapping[str, Any]]:
    """Return the tenant's rows of a table of keys, and the newest signed row of the log."""
    query = sa.select(table)
    if table.metadata is keys.METADATA:
        if "tenant_id" in table.columns:
            query = query.where(table.c.tenant_id == TENANT)
        return [dict(row) for row in connection.execute(query).mappings()]
    signed = sa.select(sa.func.max(ledger.AUDIT_CHECKPOINTS.c.size)).scalar_subquery()
    if table is ledger.AUDIT_RECORDS:
        query = query.where(table.c.id <= signed)
    if table is ledger.AUDIT_TILES:
        query = query.where((table.c.position + 1) * TILE <= signed)
    order = [column.desc() for column in table.primary_key]
    return [dict(row) for row in connection.execute(query.order_by(*order).limit(1)).mappings()]


def update(engine: sa.Engine, table: sa.Table, row: Mapping[str, Any], **to: Any) -> None:
    """Change a row."""
    key = (
        table.primary_key if table is not keys.SERVICE_EPOCH else ()
    )  # its one row is ever another
    is_same = (column == row[column.name] for column in key)
    with engine.begin() as connection:
        assert connection.execute(sa.update(table).where(*is_same).values(to)).rowcount == 1


@pytest.fixture
async def probe(
    location: Location,
    sealer: Sealer,
    worker_settings: WorkerSettings,
    settings: Path,
    caplog: pytest.LogCaptureFixture,
) -> Probe:
    """Serve a database with a row in every table."""
    probe = Probe(location, sealer, worker_settings, settings, caplog)
    await probe.prepare()
    return probe


@pytest.mark.threat("keys-database-writer")
@pytest.mark.timeout(300)  # the database is opened some eighty times
@pytest.mark.parametrize("backend", ["sqlite", later("postgresql")], indirect=True)
async def test_a_changed_column_is_refused_with_its_message(
    probe: Probe, location: Location
) -> None:
    """Each column of each row, changed one at a time, is refused with the right message."""
    engine = sa.create_engine(location.url, poolclass=sa.NullPool)
    wrong: dict[str, Any] = {}
    assert await probe.refusal() is None
    for column in COLUMNS:
        table, name = column.table, f"{column.table.name}.{column.name}"
        with engine.connect() as connection:
            found = rows(connection, table)
        assert found, f"{table.name} has no row"
        for row in found[:: step(len(found))]:
            for value in list(changed(column, row[column.name]))[:: step(3)]:
                said = await _with(probe, engine, column, row, value)
                if name in NOT_AUTHENTICATED:
                    expected = said is None
                else:
                    messages = (*(MESSAGES.get(name) or MESSAGES[table.name]), INTEGRITY)
                    expected = said is not None and any(message in said for message in messages)
                if not expected:
                    wrong[f"{name}: {row[column.name]!r:.40} -> {value!r:.40}"] = said
    assert not wrong, "\n".join(f"{change}: {said}" for change, said in wrong.items())
    assert await probe.refusal() is None


async def _with(
    probe: Probe, engine: sa.Engine, column: sa.Column[Any], row: Mapping[str, Any], value: Any
) -> str | None:
    table = column.table
    try:
        update(engine, table, row, **{column.name: value})
    except (sa.exc.IntegrityError, sa.exc.DataError):
        return INTEGRITY
    try:
        return await probe.refusal()
    finally:
        update(engine, table, {**row, column.name: value}, **{column.name: row[column.name]})


@pytest.mark.threat("keys-database-writer")
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("table", [keys.KEYS, keys.KEY_REVISIONS], ids=lambda table: table.name)
async def test_an_earlier_state_is_refused(
    table: sa.Table, probe: Probe, location: Location
) -> None:
    """A key reset to an earlier stored state is older than its last change in the log."""
    engine = sa.create_engine(location.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        before = {
            stored_table: rows(connection, stored_table)
            for stored_table in (keys.KEY_REVISIONS, keys.KEYS)
        }
    async with probe.serving() as parts:
        await _ask(parts, RotateKey(**KEY))
    with engine.begin() as connection:
        for changed_table in (keys.KEYS, keys.KEY_REVISIONS):
            connection.execute(sa.delete(changed_table).where(changed_table.c.tenant_id == TENANT))
        if table is keys.KEYS:
            for restored_table, stored in before.items():
                connection.execute(sa.insert(restored_table), stored)
    assert await probe.refusal() == OLDER
