"""Rows of keyrings and keys. A change is a compare-and-swap on the keyring's revision."""

from datetime import UTC, datetime

import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import CommitOutcome, KeyringChange
from pqkeep_keyservice.keys.keyring import (
    EPOCH,
    IDEMPOTENCY_KEY_LIFETIME,
    MICROSECOND,
    KeyEntry,
    Keyring,
    SealedSeed,
    generation_of,
)
from pqkeep_keyservice.keys.keyring_mac import keyring_mac, require_authentic
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger.search import newest_keyring_revision
from pqkeep_keyservice.storage.root_keys import is_under_dropped_root_key
from pqkeep_keyservice.storage.schema import KEYRINGS, KEYS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import INSTALLATION, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency


def find_generation(connection: sa.Connection) -> int:
    """Return how often the installation was restored: its newest checkpoint key tells.

    A restore makes a new one, whose version is sealed with it.
    """
    is_checkpoint_key = _is_of(KEYS, INSTALLATION, Algorithm.ML_DSA_65)
    newest = sa.select(sa.func.max(KEYS.c.version)).where(is_checkpoint_key)
    return generation_of(connection.execute(newest).scalar() or KeyVersion(1))


def has_keys(connection: sa.Connection) -> bool:
    """Return whether there are keys: for a check of the database, one page is read."""
    return connection.execute(sa.select(sa.exists(sa.select(KEYS.c.version)))).scalar_one()


def count_keys(connection: sa.Connection) -> list[tuple[Algorithm, KeyStatus, int]]:
    """Return how many key versions there are of each algorithm and status, from an index alone."""
    query = sa.select(KEYS.c.algorithm, KEYS.c.status, sa.func.count())
    found = connection.execute(query.group_by(KEYS.c.algorithm, KEYS.c.status))
    return [(Algorithm(algorithm), KeyStatus(status), count) for algorithm, status, count in found]


def list_keyrings(connection: sa.Connection) -> list[tuple[TenantId, Algorithm]]:
    """Return the names of all keyrings."""
    query = sa.select(KEYRINGS.c.tenant_id, KEYRINGS.c.algorithm)
    found = connection.execute(query.order_by(KEYRINGS.c.tenant_id, KEYRINGS.c.algorithm))
    return [(TenantId(row.tenant_id), Algorithm(row.algorithm)) for row in found]


def find_keyring(
    connection: sa.Connection,
    sealer: Sealer,
    tenant: TenantId,
    algorithm: Algorithm,
    generation: int,
) -> Keyring:
    """Return a keyring, empty if there are no keys.

    Raises DamagedKeyError if its rows are not those that were stored, or are those that were stored
    before the last change that the audit log has.
    """
    keyring = _find_authentic(connection, sealer, tenant, algorithm, generation)
    if keyring.revision < newest_keyring_revision(connection, tenant, algorithm):
        raise DamagedKeyError("the keyring is older than the audit log says")
    return keyring


def _find_authentic(
    connection: sa.Connection,
    sealer: Sealer,
    tenant: TenantId,
    algorithm: Algorithm,
    generation: int,
) -> Keyring:
    row = connection.execute(
        sa.select(KEYRINGS).where(_is_of(KEYRINGS, tenant, algorithm))
    ).one_or_none()
    if row is None:
        return Keyring(tenant, algorithm, generation=generation)
    keys = connection.execute(
        sa.select(KEYS).where(_is_of(KEYS, tenant, algorithm)).order_by(KEYS.c.version)
    ).all()
    try:
        entries = tuple(_entry(algorithm, key) for key in keys)
        keyring = Keyring(tenant, algorithm, entries, row.revision, generation)
        require_authentic(sealer, keyring, row.mac)
    except (TypeError, ValueError, OverflowError):  # a SQLite column holds values of any type
        raise DamagedKeyError("the keyring has values that were never stored") from None
    return keyring


def is_idempotency_key_used(
    connection: sa.Connection, tenant: TenantId, idempotency: Idempotency
) -> bool:
    """Return whether a request with this Idempotency-Key generated a key in the last day."""
    oldest = datetime.now(UTC) - IDEMPOTENCY_KEY_LIFETIME
    query = sa.select(KEYS.c.version).where(
        KEYS.c.tenant_id == tenant,
        KEYS.c.idempotency_key == idempotency.key,
        KEYS.c.created_at_us > (oldest - EPOCH) // MICROSECOND,
    )
    return connection.execute(query.limit(1)).one_or_none() is not None


def replace_keyring(
    connection: sa.Connection, sealer: Sealer, change: KeyringChange
) -> CommitOutcome:
    """Swap the new keyring in if the old one is still the current one."""
    old, new = change.old, change.new
    is_same = _is_of(KEYRINGS, new.tenant, new.algorithm)
    current = connection.execute(sa.select(KEYRINGS.c.revision).where(is_same)).scalar()
    if (current or 0) != old.revision:
        return CommitOutcome.STALE
    for added in change.added:
        if added.sealed and is_under_dropped_root_key(connection, added.sealed):
            return CommitOutcome.STALE
        if added.idempotency and is_idempotency_key_used(connection, new.tenant, added.idempotency):
            return CommitOutcome.STALE
    if change.quota is not None and _count_active_keys(connection, new.tenant) >= change.quota:
        return CommitOutcome.QUOTA_REACHED
    state = {"revision": new.revision, "mac": keyring_mac(sealer, new)}
    if current is None:
        row = {"tenant_id": new.tenant, "algorithm": new.algorithm, **state}
        connection.execute(sa.insert(KEYRINGS), row)
    else:
        swap = sa.update(KEYRINGS).where(is_same, KEYRINGS.c.revision == old.revision)
        if connection.execute(swap.values(state)).rowcount == 0:
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
    if change.added:
        connection.execute(sa.insert(KEYS), [_row(new.tenant, added) for added in change.added])


def _count_active_keys(connection: sa.Connection, tenant: TenantId) -> int:
    query = sa.select(sa.func.count()).where(
        KEYS.c.tenant_id == tenant, KEYS.c.status == KeyStatus.ACTIVE
    )
    return connection.execute(query).scalar_one()


def _is_of(table: sa.Table, tenant: TenantId, algorithm: Algorithm) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.tenant_id == tenant, table.c.algorithm == algorithm)


def _row(tenant: TenantId, entry: KeyEntry) -> dict[str, object]:
    idempotency = entry.idempotency
    return {
        "tenant_id": tenant,
        "algorithm": entry.info.algorithm,
        "version": entry.info.version,
        "status": entry.info.status,
        "public_key": entry.info.public_key,
        "sealed_seed": entry.sealed,
        "created_at_us": entry.created_at_us,
        "idempotency_key": None if idempotency is None else idempotency.key,
        "idempotency_request": None if idempotency is None else idempotency.request,
    }


def _entry(algorithm: Algorithm, row: sa.Row[tuple[object, ...]]) -> KeyEntry:
    info = KeyInfo(
        algorithm=algorithm,
        version=KeyVersion(row.version),
        status=KeyStatus(row.status),
        public_key=row.public_key,
        created_at=EPOCH + row.created_at_us * MICROSECOND,
    )
    sealed = None if row.sealed_seed is None else SealedSeed(row.sealed_seed)
    if row.idempotency_key is None and row.idempotency_request is None:
        return KeyEntry(info, sealed)
    return KeyEntry(info, sealed, Idempotency(row.idempotency_key, row.idempotency_request))
