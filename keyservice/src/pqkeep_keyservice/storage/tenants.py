"""Moves all of a tenant's data at once: out of the tables into a bundle, or into the tables."""

from collections.abc import Iterable, Iterator
from typing import assert_never

import sqlalchemy as sa
from msgspec.structs import astuple

from pqkeep_keyservice.keys.changes import (
    BundleDestroyed,
    CommitOutcome,
    TenantArrived,
    TenantLeft,
    TenantMove,
)
from pqkeep_keyservice.keys.sealing import Sealer, sealing_root_key_id
from pqkeep_keyservice.ledger.campaigns import add_tenant_moves, remove_tenant_moves
from pqkeep_keyservice.ledger.key_usage import add_tenant_counts, remove_tenant_counts
from pqkeep_keyservice.ledger.moves import moved_key_record
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.search import newest_key_revision, newest_keyring_revisions
from pqkeep_keyservice.ledger.uses import add_tenant_uses, remove_tenant_uses
from pqkeep_keyservice.storage.key_versions import insert_key_versions
from pqkeep_keyservice.storage.keyrings import insert_keyring
from pqkeep_keyservice.storage.root_keys import is_under_dropped_root_key
from pqkeep_keyservice.storage.rules import insert_rules, stored_revision
from pqkeep_keyservice.storage.schema import (
    KEY_REVISIONS,
    KEYRING_COUNTS,
    KEYRINGS,
    KEYS,
    TENANT_BUNDLES,
    TENANT_RULES,
)
from pqkeep_protocol.administration import BUNDLE_PART
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.keys import KeyringName, TenantId

Revised = tuple[KeyringName, Algorithm | None]
"""A key; or a keyring if there is no algorithm."""


def moved_key_records(last: NewRecord, change: TenantLeft | TenantArrived) -> Iterator[NewRecord]:
    """Yield the records of all moved keyrings, keys and rules. ``last`` is the move's last record."""
    for keyring in change.keyrings:
        yield moved_key_record(last, keyring.info.name, None, keyring.revision)
    for versions in change.keys:
        yield moved_key_record(last, versions.keyring, versions.algorithm, versions.revision)
    if change.rules is not None:
        yield last._replace(
            operation=KeyServiceEvent.MOVE_RULES,
            outcome=Outcome.SUCCESS,
            keyring_revision=change.rules.revision,
            public_key_sha256=change.rules.sha256,
        )


def move(connection: sa.Connection, sealer: Sealer, change: TenantMove) -> CommitOutcome:
    """Apply one step of a tenant's move. If it is STALE, nothing changes."""
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
    """Replace a tenant's keys, keyrings, rules and counts with its bundle.

    The revisions in the change are one higher than the stored ones.
    """
    before = {name: revision - 1 for name, revision in _changed(change).items()}
    if _revisions(connection, change.tenant) != before:
        return CommitOutcome.STALE
    if _rules_revision(connection, change.tenant) != (
        None if change.rules is None else change.rules.revision - 1
    ):
        return CommitOutcome.STALE
    for table in (KEYS, KEY_REVISIONS, KEYRINGS, KEYRING_COUNTS, TENANT_RULES):
        connection.execute(sa.delete(table).where(table.c.tenant_id == change.tenant))
    remove_tenant_counts(connection, change.tenant)
    remove_tenant_uses(connection, change.tenant)
    remove_tenant_moves(connection, change.tenant)
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
    """Add a tenant's keys, keyrings, rules and counts, if the tenant has none."""
    if has_tenant(connection, change.tenant) or not _is_newer(connection, change):
        return CommitOutcome.STALE
    if _is_under_dropped_root_key(connection, change):
        return CommitOutcome.STALE
    _delete_bundle(connection, change.tenant)  # left from the departure, if the tenant returns
    for keyring in change.keyrings:
        insert_keyring(connection, sealer, keyring)
    for versions in change.keys:
        insert_key_versions(connection, sealer, versions)
    if change.rules is not None:
        insert_rules(connection, sealer, change.rules)
    add_tenant_uses(connection, change.tenant, list(map(astuple, change.uses)))
    add_tenant_counts(connection, change.tenant, list(map(astuple, change.counts)))
    add_tenant_moves(connection, change.tenant, list(map(astuple, change.moves)))
    return CommitOutcome.DURABLE


def has_tenant(connection: sa.Connection, tenant: TenantId) -> bool:
    """Return whether a tenant has keys, keyrings or rules here."""
    return bool(_revisions(connection, tenant)) or _rules_revision(connection, tenant) is not None


def recorded_revisions(
    connection: sa.Connection, tenant: TenantId, names: Iterable[Revised]
) -> dict[Revised, int]:
    """Return the last recorded revisions of keys and keyrings (without algorithm); 0 for none."""
    of_keyrings = newest_keyring_revisions(connection, tenant)
    return {
        (keyring, algorithm): of_keyrings.get(keyring, 0)
        if algorithm is None
        else newest_key_revision(connection, tenant, keyring, algorithm)
        for keyring, algorithm in names
    }


def bundle_size(connection: sa.Connection, tenant: TenantId) -> int:
    """Return the bytes in a tenant's bundle, or 0 without a bundle."""
    size = sa.select(sa.func.sum(sa.func.length(TENANT_BUNDLES.c.data)))
    return int(connection.execute(size.where(TENANT_BUNDLES.c.tenant_id == tenant)).scalar() or 0)


def find_bundle_part(connection: sa.Connection, tenant: TenantId, part: int) -> bytes | None:
    """Return one part of a tenant's bundle, or None."""
    is_part = TENANT_BUNDLES.c.tenant_id == tenant, TENANT_BUNDLES.c.part == part
    data: bytes | None = connection.execute(
        sa.select(TENANT_BUNDLES.c.data).where(*is_part)
    ).scalar()
    return data


def list_bundles(connection: sa.Connection) -> tuple[TenantId, ...]:
    """Return the departed tenants with a bundle here."""
    tenant = TENANT_BUNDLES.c.tenant_id
    tenants = connection.execute(sa.select(tenant).distinct().order_by(tenant)).scalars()
    return tuple(map(TenantId, tenants))


def _delete_bundle(connection: sa.Connection, tenant: TenantId) -> int:
    is_tenants = TENANT_BUNDLES.c.tenant_id == tenant
    return connection.execute(sa.delete(TENANT_BUNDLES).where(is_tenants)).rowcount


def _revisions(connection: sa.Connection, tenant: TenantId) -> dict[Revised, int]:
    keys = sa.select(KEY_REVISIONS.c.keyring, KEY_REVISIONS.c.algorithm, KEY_REVISIONS.c.revision)
    keyrings = sa.select(KEYRINGS.c.name, sa.null(), KEYRINGS.c.revision)
    rows = (
        *connection.execute(keys.where(KEY_REVISIONS.c.tenant_id == tenant)),
        *connection.execute(keyrings.where(KEYRINGS.c.tenant_id == tenant)),
    )
    return {(keyring, algorithm): revision for keyring, algorithm, revision in rows}


def _rules_revision(connection: sa.Connection, tenant: TenantId) -> int | None:
    revision = sa.select(TENANT_RULES.c.revision).where(TENANT_RULES.c.tenant_id == tenant)
    return connection.execute(revision).scalar()


def _changed(change: TenantLeft | TenantArrived) -> dict[Revised, int]:
    return {(keyring.info.name, None): keyring.revision for keyring in change.keyrings} | {
        (key.keyring, key.algorithm): key.revision for key in change.keys
    }


def _is_newer(connection: sa.Connection, change: TenantArrived) -> bool:
    changed = _changed(change)
    recorded = recorded_revisions(connection, change.tenant, changed)
    rules = change.rules
    if rules is not None and rules.revision <= stored_revision(connection, change.tenant):
        return False
    return all(revision > recorded[name] for name, revision in changed.items())


def _is_under_dropped_root_key(connection: sa.Connection, change: TenantArrived) -> bool:
    sealed = [entry.sealed for key in change.keys for entry in key.entries if entry.sealed]
    if not sealed:
        return False
    return is_under_dropped_root_key(connection, min(sealed, key=sealing_root_key_id))
