"""Rows of keyrings and keys. A change is a compare-and-swap on the keyring's revision."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import CommitOutcome, KeyringChange
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring, SealedSeed, generation_of
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.storage.idempotency import add_idempotency_record, find_idempotency_record
from pqkeep_keyservice.storage.root_keys import is_under_dropped_root_key
from pqkeep_keyservice.storage.schema import KEYRINGS, KEYS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import INSTALLATION, KeyInfo, KeyStatus, KeyVersion, TenantId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def find_generation(connection: sa.Connection) -> int:
    """Return how often the installation was restored: its newest checkpoint key tells.

    A restore makes a new one, whose version is sealed with it.
    """
    is_checkpoint_key = _is_of(KEYS, INSTALLATION, Algorithm.ML_DSA_65)
    newest = sa.select(sa.func.max(KEYS.c.version)).where(is_checkpoint_key)
    return generation_of(connection.execute(newest).scalar() or KeyVersion(1))


def find_keyring(
    connection: sa.Connection, tenant: TenantId, algorithm: Algorithm, generation: int
) -> Keyring:
    """Return a keyring, empty if there are no keys. Raises DamagedKeyError if rows are missing."""
    keyring = connection.execute(
        sa.select(KEYRINGS).where(_is_of(KEYRINGS, tenant, algorithm))
    ).one_or_none()
    if keyring is None:
        return Keyring(tenant, algorithm, generation=generation)
    rows = connection.execute(
        sa.select(KEYS).where(_is_of(KEYS, tenant, algorithm)).order_by(KEYS.c.version)
    ).all()
    if len(rows) != keyring.versions:
        raise DamagedKeyError
    entries = tuple(_entry(algorithm, row) for row in rows)
    return Keyring(tenant, algorithm, entries, keyring.revision, generation)


def replace_keyring(connection: sa.Connection, change: KeyringChange) -> CommitOutcome:
    """Swap the new keyring in if the old one is still the current one."""
    old, new = change.old, change.new
    is_same = _is_of(KEYRINGS, new.tenant, new.algorithm)
    current = connection.execute(sa.select(KEYRINGS.c.revision).where(is_same)).scalar()
    if (current or 0) != old.revision:
        return CommitOutcome.STALE
    if change.idempotency is not None and find_idempotency_record(
        connection, new.tenant, change.idempotency
    ):
        return CommitOutcome.STALE
    added = new.entries[len(old.entries) :]
    if is_under_dropped_root_key(connection, (entry.sealed for entry in added if entry.sealed)):
        return CommitOutcome.STALE
    if change.quota is not None and _count_active_keys(connection, new.tenant) >= change.quota:
        return CommitOutcome.QUOTA_REACHED
    counts = {"revision": new.revision, "versions": len(new.entries)}
    if current is None:
        row = {"tenant_id": new.tenant, "algorithm": new.algorithm, **counts}
        connection.execute(sa.insert(KEYRINGS), row)
    else:
        swap = sa.update(KEYRINGS).where(is_same, KEYRINGS.c.revision == old.revision)
        if connection.execute(swap.values(counts)).rowcount == 0:
            return CommitOutcome.STALE
    _save_keys(connection, change)
    return CommitOutcome.DURABLE


def _save_keys(connection: sa.Connection, change: KeyringChange) -> None:
    old, new = change.old, change.new
    for before, after in zip(old.entries, new.entries, strict=False):
        if after is not before:
            connection.execute(
                sa.update(KEYS)
                .where(
                    _is_of(KEYS, new.tenant, new.algorithm),
                    KEYS.c.version == after.info.version,
                )
                .values(status=after.info.status, sealed_seed=after.sealed)
            )
    for added in new.entries[len(old.entries) :]:
        connection.execute(sa.insert(KEYS), _row(new.tenant, added))
        if change.idempotency is not None:
            version = added.info.version
            add_idempotency_record(connection, new.tenant, change.idempotency, version)


def _count_active_keys(connection: sa.Connection, tenant: TenantId) -> int:
    query = sa.select(sa.func.count()).where(
        KEYS.c.tenant_id == tenant, KEYS.c.status == KeyStatus.ACTIVE
    )
    return connection.execute(query).scalar_one()


def _is_of(table: sa.Table, tenant: TenantId, algorithm: Algorithm) -> sa.ColumnElement[bool]:
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
