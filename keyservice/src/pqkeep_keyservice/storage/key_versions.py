"""Rows of keys and their versions. A change is a compare-and-swap on the key's revision.

An index finds keys with due changes.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_mac import key_mac, require_authentic
from pqkeep_keyservice.keys.key_versions import (
    EPOCH,
    IDEMPOTENCY_KEY_LIFETIME,
    MICROSECOND,
    NO_LIMITS,
    AgeLimits,
    KeyEntry,
    KeyName,
    KeyVersions,
    SealedSeed,
    generation_of,
    microseconds,
)
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger.search import newest_key_revision
from pqkeep_keyservice.storage.root_keys import is_under_dropped_root_key
from pqkeep_keyservice.storage.schema import KEY_REVISIONS, KEYRINGS, KEYS
from pqkeep_protocol.administration import ScheduledArchive
from pqkeep_protocol.algorithms import LEGACY, Algorithm
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    INSTALLATION,
    DestructionState,
    KeyInfo,
    KeyringName,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import Idempotency, ListKeys

IS_DELETED = sa.and_(
    KEYRINGS.c.name != sa.literal_column(f"'{DEFAULT_KEYRING}'"),
    KEYRINGS.c.destruction.is_not(None),
    KEYRINGS.c.destruction != sa.literal_column(f"'{DestructionState.CANCELLED}'"),
)
"""The condition for deleted keyrings, including those that are gone. The partial index
``deleted_keyrings`` needs it without parameters."""
_NAME = ("tenant_id", "keyring", "algorithm")


def _is_named(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[column] == sa.bindparam(column) for column in _NAME))


_REVISION = sa.select(KEY_REVISIONS).where(_is_named(KEY_REVISIONS))
_ENTRIES = (
    sa.select(*(column for column in KEYS.c if column.name not in _NAME))
    .where(_is_named(KEYS))
    .order_by(KEYS.c.version)
)


def find_generation(connection: sa.Connection) -> int:
    """Return the number of restores of the installation, by its newest checkpoint key.

    A restore generates a new checkpoint key. Its version number is sealed with it.
    """
    is_checkpoint_key = _is_of(KEYS, KeyName(INSTALLATION, Algorithm.ML_DSA_65))
    newest = sa.select(sa.func.max(KEYS.c.version)).where(is_checkpoint_key)
    return generation_of(connection.execute(newest).scalar() or KeyVersion(1))


def count_keys(connection: sa.Connection) -> list[tuple[Algorithm, KeyStatus, int]]:
    """Return the number of key versions by algorithm and status. It reads only an index."""
    query = sa.select(KEYS.c.algorithm, KEYS.c.status, sa.func.count())
    rows = connection.execute(query.group_by(KEYS.c.algorithm, KEYS.c.status))
    return [(Algorithm(algorithm), KeyStatus(status), count) for algorithm, status, count in rows]


def list_keys(
    connection: sa.Connection, tenant: TenantId | None = None, keyring: KeyringName | None = None
) -> list[KeyName]:
    """Return the names of keys: of one keyring, of one tenant, or of all tenants."""
    name = (KEY_REVISIONS.c.tenant_id, KEY_REVISIONS.c.keyring, KEY_REVISIONS.c.algorithm)
    query = sa.select(*name).order_by(*name)
    if tenant is not None:
        query = query.where(KEY_REVISIONS.c.tenant_id == tenant)
    if keyring is not None:
        query = query.where(KEY_REVISIONS.c.keyring == keyring)
    return [
        KeyName(TenantId(row.tenant_id), Algorithm(row.algorithm), row.keyring)
        for row in connection.execute(query)
    ]


class KeyPage(NamedTuple):
    """One page of a tenant's key versions."""

    versions: tuple[tuple[KeyName, KeyVersion], ...]
    total: int
    """The number on all pages."""
    has_more: bool


def find_key_page(connection: sa.Connection, request: ListKeys) -> KeyPage:
    """Return one page of the key versions of all keyrings, by keyring, algorithm and version.

    Nothing is authenticated: the caller loads each key.
    """
    deleted = sa.select(KEYRINGS.c.name).where(
        KEYRINGS.c.tenant_id == request.tenant,
        IS_DELETED,
    )
    matches: list[sa.ColumnElement[bool]] = [
        KEYS.c.tenant_id == request.tenant,
        KEYS.c.keyring.not_in(deleted),
    ]
    if request.algorithm is not None:
        matches.append(KEYS.c.algorithm == request.algorithm)
    elif not request.legacy:
        matches.append(KEYS.c.algorithm.not_in(LEGACY))
    if request.status is not None:
        matches.append(KEYS.c.status == request.status)
    if request.scheduled:
        matches.append(KEYS.c.archive_at_us.is_not(None))
    total = connection.execute(sa.select(sa.func.count()).where(*matches)).scalar_one()
    order = KEYS.c.keyring, KEYS.c.algorithm, KEYS.c.version
    query = sa.select(*order).where(*matches)
    if request.after is not None:
        place = request.after.keyring, request.after.algorithm, request.after.version
        literals = (sa.literal(*pair) for pair in zip(place, (c.type for c in order), strict=True))
        query = query.where(sa.tuple_(*order) > sa.tuple_(*literals))
    rows = connection.execute(query.order_by(*order).limit(request.limit + 1)).all()
    versions = tuple(
        (KeyName(request.tenant, Algorithm(row.algorithm), row.keyring), KeyVersion(row.version))
        for row in rows[: request.limit]
    )
    return KeyPage(versions, total, len(rows) > len(versions))


def find_key_versions(
    connection: sa.Connection, sealer: Sealer, name: KeyName, generation: int
) -> KeyVersions:
    """Return the versions of a key, empty if there is no key.

    Raises DamagedKeyError if the rows do not match their MAC, or are older than the last change in
    the audit log.
    """
    versions = _find_authentic(connection, sealer, name, generation)
    if versions.revision < newest_key_revision(
        connection, name.tenant, name.keyring, name.algorithm
    ):
        raise DamagedKeyError("the key is older than its last change in the audit log")
    return versions


def _find_authentic(
    connection: sa.Connection, sealer: Sealer, name: KeyName, generation: int
) -> KeyVersions:
    row = connection.execute(_REVISION, _columns(name)).one_or_none()
    if row is None:
        return KeyVersions(name.tenant, name.algorithm, generation=generation, keyring=name.keyring)
    keys = connection.execute(_ENTRIES, _columns(name)).all()
    try:
        entries = tuple([_entry(name, key) for key in keys])
        versions = KeyVersions(
            name.tenant, name.algorithm, entries, row.revision, generation, name.keyring
        )
        require_authentic(sealer, versions, row.mac)
        if row.due_at_us != stored_time(versions.due_at(find_age_limits(connection, name))):
            raise DamagedKeyError("the key differs from what was stored")
    except (TypeError, ValueError, OverflowError):  # a SQLite column can hold values of any type
        raise DamagedKeyError("the key has values that pqkeep never stores") from None
    return versions


def find_public_key(
    connection: sa.Connection, tenant: TenantId, algorithm: Algorithm, public_key: bytes
) -> list[tuple[KeyringName, KeyVersion]]:
    """Return the versions of a tenant's keys with this public key, over all keyrings."""
    query = sa.select(KEYS.c.keyring, KEYS.c.version).where(
        KEYS.c.tenant_id == tenant,
        KEYS.c.public_key_sha256 == sha256(public_key).digest(),
        KEYS.c.algorithm == algorithm,
    )
    rows = connection.execute(query.order_by(KEYS.c.keyring, KEYS.c.version))
    return [(row.keyring, KeyVersion(row.version)) for row in rows]


def is_idempotency_key_used(
    connection: sa.Connection, tenant: TenantId, idempotency: Idempotency
) -> bool:
    """Return whether this Idempotency-Key generated a key within the last day."""
    oldest = clock.now() - IDEMPOTENCY_KEY_LIFETIME
    query = sa.select(KEYS.c.version).where(
        KEYS.c.tenant_id == tenant,
        KEYS.c.idempotency_key == idempotency.key,
        KEYS.c.created_at_us > (oldest - EPOCH) // MICROSECOND,
    )
    return connection.execute(query.limit(1)).one_or_none() is not None


def replace_key_versions(
    connection: sa.Connection, sealer: Sealer, change: KeyChange
) -> CommitOutcome:
    """Swap in the new key if the old one is still current."""
    old, new = change.old, change.new
    is_same = _is_of(KEY_REVISIONS, new.name)
    current = connection.execute(sa.select(KEY_REVISIONS.c.revision).where(is_same)).scalar()
    if (current or 0) != old.revision:
        return CommitOutcome.STALE
    for added in change.added:
        if is_destruction_begun(connection, new.name) or (
            added.sealed and is_under_dropped_root_key(connection, added.sealed)
        ):
            return CommitOutcome.STALE
        if added.idempotency and is_idempotency_key_used(connection, new.tenant, added.idempotency):
            return CommitOutcome.STALE
    if change.quota is not None and _count_active_keys(connection, new.tenant) >= change.quota:
        return CommitOutcome.QUOTA_REACHED
    state = _revision_state(connection, sealer, new)
    if current is None:
        row = {**_columns(new.name), **state}
        connection.execute(sa.insert(KEY_REVISIONS), row)
    else:
        swap = sa.update(KEY_REVISIONS).where(is_same, KEY_REVISIONS.c.revision == old.revision)
        if connection.execute(swap.values(state)).rowcount == 0:
            return CommitOutcome.STALE
    _save_keys(connection, change)
    return CommitOutcome.DURABLE


def insert_key_versions(connection: sa.Connection, sealer: Sealer, versions: KeyVersions) -> None:
    """Add a new key with all its versions. Its keyring must exist."""
    connection.execute(
        sa.insert(KEY_REVISIONS),
        {**_columns(versions.name), **_revision_state(connection, sealer, versions)},
    )
    if versions.entries:
        connection.execute(
            sa.insert(KEYS), [_row(versions.name, entry) for entry in versions.entries]
        )


def set_due(connection: sa.Connection, tenant: TenantId, keyring: KeyringName) -> None:
    """Store new due times for a keyring's keys after a change of its age limits.

    Keys with damaged rows are not changed. They are refused anyway.
    """
    stored = KEY_REVISIONS.c.tenant_id == tenant, KEY_REVISIONS.c.keyring == keyring
    for row in connection.execute(sa.select(KEY_REVISIONS.c.algorithm).where(*stored)).all():
        with suppress(TypeError, ValueError, OverflowError):
            name = KeyName(tenant, Algorithm(row.algorithm), keyring)
            keys = connection.execute(_ENTRIES, _columns(name))
            versions = KeyVersions(
                tenant, name.algorithm, tuple(_entry(name, key) for key in keys), keyring=keyring
            )
            due_at = versions.due_at(find_age_limits(connection, name))
            same = sa.update(KEY_REVISIONS).where(_is_of(KEY_REVISIONS, name))
            connection.execute(same.values(due_at_us=stored_time(due_at)))


def _revision_state(
    connection: sa.Connection, sealer: Sealer, versions: KeyVersions
) -> dict[str, object]:
    return {
        "revision": versions.revision,
        "mac": key_mac(sealer, versions),
        "due_at_us": stored_time(versions.due_at(find_age_limits(connection, versions.name))),
    }


def _save_keys(connection: sa.Connection, change: KeyChange) -> None:
    old, new = change.old, change.new
    for before, after in zip(old.entries, new.entries, strict=False):
        if after is not before:
            connection.execute(
                sa.update(KEYS)
                .where(
                    _is_of(KEYS, new.name),
                    KEYS.c.version == after.info.version,
                )
                .values({**_state(after), "sealed_seed": after.sealed})
            )
    if change.added:
        connection.execute(sa.insert(KEYS), [_row(new.name, added) for added in change.added])


def _count_active_keys(connection: sa.Connection, tenant: TenantId) -> int:
    active = sa.or_(KEYS.c.status == KeyStatus.ACTIVE, KEYS.c.disabled_from == KeyStatus.ACTIVE)
    query = sa.select(sa.func.count()).where(KEYS.c.tenant_id == tenant, active)
    return connection.execute(query).scalar_one()


def _columns(name: KeyName) -> dict[str, object]:
    return dict(zip(_NAME, (name.tenant, name.keyring, name.algorithm), strict=True))


def _is_of(table: sa.Table, name: KeyName) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[column] == value for column, value in _columns(name).items()))


def _row(name: KeyName, entry: KeyEntry) -> dict[str, object]:
    idempotency = entry.idempotency
    return {
        **_columns(name),
        "version": entry.info.version,
        **_state(entry),
        "imported": entry.info.imported,
        "public_key": entry.info.public_key,
        "public_key_sha256": sha256(entry.info.public_key).digest(),
        "sealed_seed": entry.sealed,
        "created_at_us": entry.created_at_us,
        "idempotency_key": None if idempotency is None else idempotency.key,
        "idempotency_request": None if idempotency is None else idempotency.request,
    }


def _state(entry: KeyEntry) -> dict[str, object]:
    return {
        "status": entry.info.status,
        "disabled_from": entry.disabled_from,
        "retired_at_us": stored_time(entry.retired_at),
        "archive_at_us": stored_time(entry.info.archive_at),
        "disabled_until_us": stored_time(entry.info.disabled_until),
    }


def stored_time(when: datetime | None) -> int | None:
    """Return a time in its stored form: microseconds since 1970."""
    return None if when is None else microseconds(when)


def loaded_time(stored: int | None) -> datetime | None:
    """Return the time of a stored value."""
    return None if stored is None else EPOCH + stored * MICROSECOND


def _entry(name: KeyName, row: Sequence[Any]) -> KeyEntry:
    (
        version,
        status,
        disabled_from,
        retired_at_us,
        archive_at_us,
        disabled_until_us,
        imported,
        public_key,
        sealed,
        created_at_us,
        idempotency_key,
        idempotency_request,
        public_key_sha256,
    ) = row
    if public_key_sha256 != sha256(public_key).digest():  # a look-up by public key relies on it
        raise DamagedKeyError("the key differs from what was stored")
    info = KeyInfo(
        name.algorithm,
        KeyVersion(version),
        KeyStatus(status),
        public_key,
        EPOCH + created_at_us * MICROSECOND,
        loaded_time(archive_at_us),
        name.keyring,
        imported,
        loaded_time(disabled_until_us),
    )
    has_idempotency = (idempotency_key, idempotency_request) != (None, None)
    return KeyEntry(
        info,
        None if sealed is None else SealedSeed(sealed),
        Idempotency(idempotency_key, idempotency_request) if has_idempotency else None,
        None if disabled_from is None else KeyStatus(disabled_from),
        loaded_time(retired_at_us),
    )


def find_age_limits(connection: sa.Connection, name: KeyName) -> AgeLimits:
    """Return the age limits of a key's keyring."""
    limits = sa.select(KEYRINGS.c.rotation_days, KEYRINGS.c.archive_after_days)
    is_same = KEYRINGS.c.tenant_id == name.tenant, KEYRINGS.c.name == name.keyring
    row = connection.execute(limits.where(*is_same, sa.not_(IS_DELETED))).one_or_none()
    return NO_LIMITS if row is None else AgeLimits(*row)


def is_destruction_begun(connection: sa.Connection, name: KeyName) -> bool:
    """Return whether the destruction of a key's tenant or keyring has begun or is completed."""
    query = sa.select(KEYRINGS.c.revision).where(
        KEYRINGS.c.tenant_id == name.tenant,
        KEYRINGS.c.name.in_((DEFAULT_KEYRING, name.keyring)),
        KEYRINGS.c.destruction.in_((DestructionState.BEGUN, DestructionState.COMPLETED)),
    )
    return connection.execute(query).first() is not None


_ORDER = (
    KEY_REVISIONS.c.due_at_us,
    KEY_REVISIONS.c.tenant_id,
    KEY_REVISIONS.c.keyring,
    KEY_REVISIONS.c.algorithm,
)


class DueKey(NamedTuple):
    """A key with a due change. It sorts by due time."""

    due_at_us: int
    tenant: TenantId
    keyring: KeyringName
    algorithm: Algorithm

    @property
    def name(self) -> KeyName:
        """The key's name."""
        return KeyName(self.tenant, self.algorithm, self.keyring)


def list_due_keys(
    connection: sa.Connection, now: datetime, after: DueKey | None, limit: int
) -> list[DueKey]:
    """Return keys with due changes, the longest due first, from after ``after`` on."""
    query = sa.select(*_ORDER).where(KEY_REVISIONS.c.due_at_us <= microseconds(now))
    if after is not None:
        query = query.where(sa.tuple_(*_ORDER) > sa.tuple_(*_values(after)))
    rows = connection.execute(query.order_by(*_ORDER).limit(limit))
    return [
        DueKey(row.due_at_us, TenantId(row.tenant_id), row.keyring, Algorithm(row.algorithm))
        for row in rows
    ]


def list_archives(
    connection: sa.Connection, after: ScheduledArchive | None, limit: int
) -> list[ScheduledArchive]:
    """Return key versions that are to be archived, in order, behind one of them.

    Return key versions that are to be archived, in order, after a given one.
    """
    order = KEYS.c.tenant_id, KEYS.c.keyring, KEYS.c.algorithm, KEYS.c.version
    query = sa.select(*order, KEYS.c.archive_at_us).where(KEYS.c.archive_at_us.is_not(None))
    if after is not None:
        values = after.tenant, after.keyring, after.algorithm, after.version
        literals = (sa.literal(*pair) for pair in zip(values, (c.type for c in order), strict=True))
        query = query.where(sa.tuple_(*order) > sa.tuple_(*literals))
    return [
        ScheduledArchive(
            TenantId(row.tenant_id),
            row.keyring,
            Algorithm(row.algorithm),
            KeyVersion(row.version),
            at,
        )
        for row in connection.execute(query.order_by(*order).limit(limit))
        if (at := loaded_time(row.archive_at_us)) is not None
    ]


def every_due_key(connection: sa.Connection) -> list[KeyName]:
    """Return all keys with a due time, even in the future."""
    is_due = KEY_REVISIONS.c.due_at_us.is_not(None)
    return [
        KeyName(TenantId(row.tenant_id), Algorithm(row.algorithm), row.keyring)
        for row in connection.execute(sa.select(*_ORDER).where(is_due).order_by(*_ORDER)).all()
    ]


def count_due_keys(connection: sa.Connection, now: datetime) -> int:
    """Return the number of keys with a due change."""
    is_due = KEY_REVISIONS.c.due_at_us <= microseconds(now)
    return connection.execute(sa.select(sa.func.count()).where(is_due)).scalar_one()


def _values(key: DueKey) -> tuple[sa.ColumnElement[object], ...]:
    return tuple(sa.literal(value, column.type) for value, column in zip(key, _ORDER, strict=True))
