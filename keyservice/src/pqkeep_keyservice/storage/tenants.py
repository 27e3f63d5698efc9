"""All that is kept for a tenant, at once: taken out into a bundle, and put in from one."""

from collections.abc import Iterable, Iterator
from typing import assert_never

import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import (
    BundleDestroyed,
    CommitOutcome,
    TenantArrived,
    TenantLeft,
    TenantMove,
)
from pqkeep_keyservice.keys.sealing import Sealer, sealing_root_key_id
from pqkeep_keyservice.ledger.key_usage import add_tenant_counts, remove_tenant_counts
from pqkeep_keyservice.ledger.moves import moved_key_record
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.search import newest_key_revision, newest_keyring_revisions
from pqkeep_keyservice.storage.key_versions import insert_key_versions
from pqkeep_keyservice.storage.keyrings import insert_keyring
from pqkeep_keyservice.storage.root_keys import is_under_dropped_root_key
from pqkeep_keyservice.storage.schema import KEY_REVISIONS, KEYRINGS, KEYS, TENANT_BUNDLES
from pqkeep_protocol.administration import BUNDLE_PART
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyringName, TenantId

Revised = tuple[KeyringName, Algorithm | None]
"""A key, or without an algorithm a keyring."""


def moved_key_records(last: NewRecord, change: TenantLeft | TenantArrived) -> Iterator[NewRecord]:
    """Yield the records of each keyring and key that is moved with a last record."""
    for keyring in change.keyrings:
        yield moved_key_record(last, keyring.info.name, None, keyring.revision)
    for versions in change.keys:
        yield moved_key_record(last, versions.keyring, versions.algorithm, versions.revision)


def move(connection: sa.Connection, sealer: Sealer, change: TenantMove) -> CommitOutcome:
    """Take a step of a tenant's move. STALE if it cannot be taken; nothing is changed then."""
    match change:
        case TenantLeft():
            return _move_out(connection, change)
        case TenantArrived():
            return _move_in(connection, sealer, change)
        case BundleDestroyed():
            deleted = _delete_bundle(connection, change.tenant)
            return CommitOutcome.DURABLE if deleted else CommitOutcome.STALE
        case _:
            assert_never(change)


def _move_out(connection: sa.Connection, change: TenantLeft) -> CommitOutcome:
    """Replace a tenant's keys, keyrings and counts by the bundle that holds them.

    The revisions in the change are those after it: one more than those that are stored.
    """
    before = {name: revision - 1 for name, revision in _changed(change).items()}
    if _revisions(connection, change.tenant) != before:
        return CommitOutcome.STALE
    for table in (KEYS, KEY_REVISIONS, KEYRINGS):
        connection.execute(sa.delete(table).where(table.c.tenant_id == change.tenant))
    remove_tenant_counts(connection, change.tenant)
    parts = range(0, len(change.bundle), BUNDLE_PART)
    connection.execute(
        sa.insert(TENANT_BUNDLES),
        [
            {
                "tenant_id": change.tenant,
                "part": start // BUNDLE_PART,
                "data": change.bundle[start : start + BUNDLE_PART],
            }
            for start in parts
        ],
    )
    return CommitOutcome.DURABLE


def _move_in(connection: sa.Connection, sealer: Sealer, change: TenantArrived) -> CommitOutcome:
    """Add a tenant's keys, keyrings and counts where there are none."""
    if has_tenant(connection, change.tenant) or not _is_newer(connection, change):
        return CommitOutcome.STALE
    if _is_under_dropped_root_key(connection, change):
        return CommitOutcome.STALE
    _delete_bundle(connection, change.tenant)  # of an earlier move: it has arrived and come back
    for keyring in change.keyrings:
        insert_keyring(connection, sealer, keyring)
    for versions in change.keys:
        insert_key_versions(connection, sealer, versions)
    usage = [
        (each.keyring, each.algorithm, each.version, each.uses, each.last_used_us)
        for each in change.usage
    ]
    counts = [(each.hour, each.operation, each.count) for each in change.counts]
    add_tenant_counts(connection, change.tenant, usage, counts)
    return CommitOutcome.DURABLE


def has_tenant(connection: sa.Connection, tenant: TenantId) -> bool:
    """Return whether there are keys or keyrings of a tenant."""
    return bool(_revisions(connection, tenant))


def recorded_revisions(
    connection: sa.Connection, tenant: TenantId, names: Iterable[Revised]
) -> dict[Revised, int]:
    """Return the revisions of keys, and of keyrings (no algorithm), that the log knows; or 0."""
    of_keyrings = newest_keyring_revisions(connection, tenant)
    return {
        (keyring, algorithm): of_keyrings.get(keyring, 0)
        if algorithm is None
        else newest_key_revision(connection, tenant, keyring, algorithm)
        for keyring, algorithm in names
    }


def bundle_size(connection: sa.Connection, tenant: TenantId) -> int:
    """Return how many bytes a tenant's bundle has; 0 if there is none."""
    size = sa.select(sa.func.sum(sa.func.length(TENANT_BUNDLES.c.data)))
    return int(connection.execute(size.where(TENANT_BUNDLES.c.tenant_id == tenant)).scalar() or 0)


def find_bundle_part(connection: sa.Connection, tenant: TenantId, part: int) -> bytes | None:
    """Return a part of a tenant's bundle, if there is one."""
    is_asked = TENANT_BUNDLES.c.tenant_id == tenant, TENANT_BUNDLES.c.part == part
    found: bytes | None = connection.execute(
        sa.select(TENANT_BUNDLES.c.data).where(*is_asked)
    ).scalar()
    return found


def list_bundles(connection: sa.Connection) -> tuple[TenantId, ...]:
    """Return the tenants that have left and whose bundles are here."""
    tenant = TENANT_BUNDLES.c.tenant_id
    found = connection.execute(sa.select(tenant).distinct().order_by(tenant)).scalars()
    return tuple(map(TenantId, found))


def _delete_bundle(connection: sa.Connection, tenant: TenantId) -> int:
    is_its = TENANT_BUNDLES.c.tenant_id == tenant
    return connection.execute(sa.delete(TENANT_BUNDLES).where(is_its)).rowcount


def _revisions(connection: sa.Connection, tenant: TenantId) -> dict[Revised, int]:
    keys = sa.select(KEY_REVISIONS.c.keyring, KEY_REVISIONS.c.algorithm, KEY_REVISIONS.c.revision)
    keyrings = sa.select(KEYRINGS.c.name, sa.null(), KEYRINGS.c.revision)
    found = (
        *connection.execute(keys.where(KEY_REVISIONS.c.tenant_id == tenant)),
        *connection.execute(keyrings.where(KEYRINGS.c.tenant_id == tenant)),
    )
    return {(keyring, algorithm): revision for keyring, algorithm, revision in found}


def _changed(change: TenantLeft | TenantArrived) -> dict[Revised, int]:
    return {(each.info.name, None): each.revision for each in change.keyrings} | {
        (each.keyring, each.algorithm): each.revision for each in change.keys
    }


def _is_newer(connection: sa.Connection, change: TenantArrived) -> bool:
    changed = _changed(change)
    recorded = recorded_revisions(connection, change.tenant, changed)
    return all(revision > recorded[name] for name, revision in changed.items())


def _is_under_dropped_root_key(connection: sa.Connection, change: TenantArrived) -> bool:
    sealed = [each.sealed for key in change.keys for each in key.entries if each.sealed]
    if not sealed:
        return False
    return is_under_dropped_root_key(connection, min(sealed, key=sealing_root_key_id))
