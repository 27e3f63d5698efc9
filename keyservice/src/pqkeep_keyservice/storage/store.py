"""Keyrings and audit records in SQL. A change is a compare-and-swap on the keyring's revision."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.config import ConfigError
from pqkeep_keyservice.keyring import KeyEntry, Keyring, SealedSeed
from pqkeep_keyservice.storage import once
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.once import Earlier
from pqkeep_keyservice.storage.schema import AUDIT_RECORDS, KEYRINGS, KEYS, ROOT_KEYS
from pqkeep_keyservice.storage.sealing import DamagedKeyError, Sealer
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Once

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Change:
    """A keyring to put in another's place."""

    old: Keyring
    new: Keyring
    quota: int | None = None
    """How many active keys the tenant may have afterwards; None: any number."""
    once: Once | None = None
    """The Idempotency-Key that it was asked for with."""

    @property
    def destroys_a_seed(self) -> bool:
        """Whether a sealed seed is deleted, of which no copy may stay."""
        before_and_after = zip(self.old.entries, self.new.entries, strict=False)
        return any(before.sealed and after.sealed is None for before, after in before_and_after)


class Verdict(Enum):
    """What became of a change and its record: both are durable, or neither is there."""

    DURABLE = auto()
    STALE = auto()
    """Another change came first, or the same one was made before with its Idempotency-Key."""
    QUOTA_REACHED = auto()


class AuditRow(NamedTuple):
    """One row of the audit log, in the order of its columns."""

    recorded_at_us: int
    tenant_id: str
    principal: str
    operation: str
    algorithm: str | None
    key_version: int | None
    outcome: str
    request_id: str
    source_address: str
    policy: str


Entry = tuple[AuditRow, Change | None]
"""One row, and the change it records, if any."""


class KeyStore:
    """Loads keyrings, and commits changes of them with the records of what was done."""

    def __init__(self, database: Database) -> None:
        """Use an open database."""
        self._database = database
        insert = sa.insert(AUDIT_RECORDS)
        self._insert_audit_row = str(
            insert.compile(dialect=database.dialect, column_keys=AuditRow._fields)
        )

    def check_root_key(self, sealer: Sealer) -> None:
        """Remember the root key's check value, or compare it. Raises ConfigError."""
        query = sa.select(ROOT_KEYS.c.check_value).where(ROOT_KEYS.c.id == sealer.root_key_id)
        with self._database.transaction() as connection:
            stored = connection.execute(query).scalar()
            if stored is None:
                row = {"id": sealer.root_key_id, "check_value": sealer.check_value()}
                connection.execute(sa.insert(ROOT_KEYS), row)
            elif not sealer.matches(stored):
                raise ConfigError("the root key is not the one that sealed this database's keys")

    async def load(self, tenant: TenantId, algorithm: Algorithm) -> Keyring:
        """Return the current keyring; an empty one where there are no keys."""
        return await self._database.read(_load, tenant, algorithm)

    async def find_earlier(self, tenant: TenantId, key: Once) -> Earlier | None:
        """Return what an Idempotency-Key was used for, if it was."""
        return await self._database.read(once.find, tenant, key)

    async def commit(self, entries: Sequence[Entry]) -> list[Verdict]:
        """Make many records, each with its change, durable in one transaction."""
        return await self._database.write(self._write, entries)

    async def scrub(self) -> bool:
        """Leave no copy of what was deleted on disk; return whether that could be done."""
        return await self._database.scrub()

    def _write(self, connection: sa.Connection, entries: Sequence[Entry]) -> list[Verdict]:
        verdicts = [
            _apply(connection, change) if change else Verdict.DURABLE for _, change in entries
        ]
        rows = [
            row
            for (row, _), verdict in zip(entries, verdicts, strict=True)
            if verdict is Verdict.DURABLE
        ]
        if rows:
            connection.exec_driver_sql(self._insert_audit_row, rows)
        return verdicts


def _load(connection: sa.Connection, tenant: TenantId, algorithm: Algorithm) -> Keyring:
    ring = connection.execute(
        sa.select(KEYRINGS).where(_same_ring(KEYRINGS, tenant, algorithm))
    ).one_or_none()
    if ring is None:
        return Keyring(tenant, algorithm)
    rows = connection.execute(
        sa.select(KEYS).where(_same_ring(KEYS, tenant, algorithm)).order_by(KEYS.c.version)
    ).all()
    if [row.version for row in rows] != list(range(1, ring.versions + 1)):
        raise DamagedKeyError
    return Keyring(tenant, algorithm, tuple(_entry(algorithm, row) for row in rows), ring.revision)


def _apply(connection: sa.Connection, change: Change) -> Verdict:
    old, new = change.old, change.new
    same = _same_ring(KEYRINGS, new.tenant, new.algorithm)
    current = connection.execute(sa.select(KEYRINGS.c.revision).where(same)).scalar()
    if (current or 0) != old.revision:
        return Verdict.STALE
    if change.once is not None and once.find(connection, new.tenant, change.once):
        return Verdict.STALE
    if change.quota is not None and _active_keys(connection, new.tenant) >= change.quota:
        return Verdict.QUOTA_REACHED
    counts = {"revision": new.revision, "versions": len(new.entries)}
    if current is None:
        row = {"tenant_id": new.tenant, "algorithm": new.algorithm, **counts}
        connection.execute(sa.insert(KEYRINGS), row)
    else:
        swap = sa.update(KEYRINGS).where(same, KEYRINGS.c.revision == old.revision)
        if connection.execute(swap.values(counts)).rowcount == 0:
            return Verdict.STALE
    for before, after in zip(old.entries, new.entries, strict=False):
        if after is not before:
            connection.execute(
                sa.update(KEYS)
                .where(
                    _same_ring(KEYS, new.tenant, new.algorithm),
                    KEYS.c.version == after.info.version,
                )
                .values(status=after.info.status, sealed_seed=after.sealed)
            )
    for added in new.entries[len(old.entries) :]:
        connection.execute(sa.insert(KEYS), _row(new.tenant, added))
        if change.once is not None:
            once.remember(connection, new.tenant, change.once, added.info.version)
    return Verdict.DURABLE


def _active_keys(connection: sa.Connection, tenant: TenantId) -> int:
    query = sa.select(sa.func.count()).where(
        KEYS.c.tenant_id == tenant, KEYS.c.status == KeyStatus.ACTIVE
    )
    return connection.execute(query).scalar_one()


def _same_ring(table: sa.Table, tenant: TenantId, algorithm: Algorithm) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.tenant_id == tenant, table.c.algorithm == algorithm)


def _row(tenant: TenantId, entry: KeyEntry) -> dict[str, object]:
    return {
        "tenant_id": tenant,
        "algorithm": entry.info.algorithm,
        "version": entry.info.version,
        "status": entry.info.status,
        "public_key": entry.info.public_key,
        "sealed_seed": entry.sealed,
        "created_at_us": (entry.info.created_at - _EPOCH) // _MICROSECOND,
    }


def _entry(algorithm: Algorithm, row: sa.Row[tuple[object, ...]]) -> KeyEntry:
    info = KeyInfo(
        algorithm=algorithm,
        version=KeyVersion(row.version),
        status=KeyStatus(row.status),
        public_key=row.public_key,
        created_at=_EPOCH + row.created_at_us * _MICROSECOND,
    )
    return KeyEntry(info, None if row.sealed_seed is None else SealedSeed(row.sealed_seed))
