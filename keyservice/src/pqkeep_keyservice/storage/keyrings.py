"""Rows of keyrings. A change is a compare-and-swap on the keyring's revision."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import CommitOutcome, KeyringChange
from pqkeep_keyservice.keys.key_mac import (
    keyring_mac,
    labels_text,
    purposes_text,
    require_authentic_keyring,
)
from pqkeep_keyservice.keys.key_versions import microseconds
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId, default_keyring
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, KEY_TOTALS
from pqkeep_keyservice.ledger.search import newest_keyring_revisions, recorded_keyring_revisions
from pqkeep_keyservice.storage.key_versions import IS_DELETED, loaded_time, set_due, stored_time
from pqkeep_keyservice.storage.schema import KEYRING_COUNTS, KEYRINGS, KEYS
from pqkeep_protocol.audit import FindKeyrings
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    INSTALLATION,
    Destruction,
    DestructionState,
    KeyringName,
    TenantId,
)
from pqkeep_protocol.messages import KeyringSort, ListKeyrings

_IS_OPEN = KEYRINGS.c.destruction.in_((DestructionState.SCHEDULED, DestructionState.BEGUN))
_INFO = msgspec.json.Decoder(dict[str, str])
_AFTER_NAMES = "\x7f"
"""Sorts after every character of a keyring's name."""
_OLDER = "the keyring is older than its last change in the audit log"


def find_keyring(connection: sa.Connection, sealer: Sealer, name: KeyringId) -> Keyring | None:
    """Return a keyring, or None.

    Raises DamagedKeyError if the row does not match its MAC, or is older than the last change in
    the audit log.
    """
    row = connection.execute(sa.select(KEYRINGS).where(_is(name))).one_or_none()
    recorded = newest_keyring_revisions(
        connection, name.tenant, AUDIT_RECORDS.c.keyring == name.keyring
    )
    stored = None if row is None else _authentic(sealer, row)
    if (stored.revision if stored else 0) < recorded.get(name.keyring, 0):
        raise DamagedKeyError(_OLDER)
    if stored is None and name.keyring == DEFAULT_KEYRING:
        return default_keyring(name.tenant)
    return stored


def list_keyrings(connection: sa.Connection, sealer: Sealer, tenant: TenantId) -> list[Keyring]:
    """Return all keyrings of a tenant, by name. Raises DamagedKeyError like ``find_keyring``."""
    rows = connection.execute(sa.select(KEYRINGS).where(KEYRINGS.c.tenant_id == tenant))
    keyrings = {keyring.info.name: keyring for keyring in (_authentic(sealer, row) for row in rows)}
    for name, revision in newest_keyring_revisions(connection, tenant).items():
        if name not in keyrings or keyrings[name].revision < revision:
            raise DamagedKeyError(_OLDER)
    keyrings.setdefault(DEFAULT_KEYRING, default_keyring(tenant))
    return [keyrings[name] for name in sorted(keyrings)]


class KeyringPage(NamedTuple):
    """One page of a tenant's keyrings."""

    keyrings: tuple[Keyring, ...]
    total: int
    """The number of matches on all pages."""
    has_more: bool
    last_used_us: tuple[int, ...] = ()
    """The last use of each, up to the newest checkpoint; 0 without one. Empty unless requested."""


def find_keyring_page(
    connection: sa.Connection, sealer: Sealer, request: ListKeyrings
) -> KeyringPage:
    """Return one page of a tenant's keyrings. It reads no keyring of another page.

    Raises DamagedKeyError if a keyring of the page does not match its MAC. It is also raised if a
    keyring between the page's first and last name is missing, or is older than its last change in
    the audit log. In another order than by name, only the keyrings of the page are compared with
    the log.
    """
    page = (
        _search(connection, sealer, request)
        if request.is_search
        else _by_name(connection, sealer, request)
    )
    if not request.counts_uses:
        return page
    used = _last_uses(connection, request.tenant, [keyring.info.name for keyring in page.keyrings])
    return page._replace(
        last_used_us=tuple(used.get(keyring.info.name, 0) for keyring in page.keyrings)
    )


def _by_name(connection: sa.Connection, sealer: Sealer, request: ListKeyrings) -> KeyringPage:
    """Return a page in the order of names."""
    matches = sa.and_(*_conditions(request))
    query = sa.select(KEYRINGS).where(matches)
    if request.after is not None:
        query = query.where(KEYRINGS.c.name > request.after)
    rows = connection.execute(query.order_by(KEYRINGS.c.name).limit(request.limit + 1))
    found = [_authentic(sealer, row) for row in rows]
    has_virtual = _matches_default(request) and _has_no_row(connection, request.tenant)
    if has_virtual and (request.after is None or request.after < DEFAULT_KEYRING):
        found.append(default_keyring(request.tenant))
        found.sort(key=_keyring_name)
    total = _total(connection, request, matches, has_virtual=has_virtual)
    page = tuple(found[: request.limit])
    has_more = len(found) > len(page)
    _require_newest(connection, request, page[-1].info.name if has_more else None)
    return KeyringPage(page, total, has_more)


def _search(connection: sa.Connection, sealer: Sealer, request: ListKeyrings) -> KeyringPage:
    """Return a page of a search. The default keyring is found without a row too."""
    found = _searched(request).subquery()
    total = connection.execute(sa.select(sa.func.count()).select_from(found)).scalar_one()
    by = found.c[_SORTED_BY[request.sort]]
    first = (by.desc() if request.is_descending else by.asc()).nulls_last()
    page = sa.select(found.c.name).order_by(first, found.c.name)
    names = connection.execute(page.offset(request.offset).limit(request.limit + 1)).scalars().all()
    shown = names[: request.limit]
    query = sa.select(KEYRINGS).where(KEYRINGS.c.tenant_id == request.tenant)
    rows = connection.execute(query.where(KEYRINGS.c.name.in_(shown))) if shown else ()
    keyrings = {keyring.info.name: keyring for keyring in (_authentic(sealer, row) for row in rows)}
    keyrings.setdefault(DEFAULT_KEYRING, default_keyring(request.tenant))
    recorded = newest_keyring_revisions(
        connection, request.tenant, AUDIT_RECORDS.c.keyring.in_(shown)
    )
    if any(keyrings[name].revision < revision for name, revision in recorded.items()):
        raise DamagedKeyError(_OLDER)
    return KeyringPage(tuple(keyrings[name] for name in shown), total, len(names) > len(shown))


_SORTED_BY = {
    KeyringSort.NAME: "name",
    KeyringSort.CREATED: "created_at_us",
    KeyringSort.LAST_USED: "last_used_us",
    KeyringSort.ROTATION: "rotation_days",
}


def _searched(request: ListKeyrings) -> sa.Select[Any]:
    """Return the query of the keyrings that a search selects, with the columns to sort by."""
    of = KEYRINGS.c
    days = sa.func.nullif(of.rotation_days, 0).label("rotation_days")
    listed: sa.FromClause
    own = sa.select(of.name, of.created_at_us, days).where(*_conditions(request))
    if _matches_default(request):
        stored = sa.select(of.name).where(_is(KeyringId(request.tenant, DEFAULT_KEYRING)))
        virtual = sa.select(
            sa.literal(DEFAULT_KEYRING, of.name.type),
            sa.null().cast(sa.BigInteger),
            sa.null().cast(sa.Integer),
        ).where(~stored.exists())
        listed = sa.union_all(own, virtual).subquery()
    else:
        listed = own.subquery()
    columns = listed.c
    used = (
        sa.select(
            KEY_TOTALS.c.keyring.label("name"),
            sa.func.max(KEY_TOTALS.c.last_used_us).label("last_used_us"),
        )
        .where(KEY_TOTALS.c.tenant_id == str(request.tenant))
        .group_by(KEY_TOTALS.c.keyring)
        .subquery()
    )
    times = request.used_since_us, request.unused_since_us
    needs_uses = request.sort is KeyringSort.LAST_USED or times != (None, None)
    tables: sa.FromClause = listed
    last = used.c.last_used_us if needs_uses else sa.null().cast(sa.BigInteger)
    if needs_uses:
        tables = listed.outerjoin(used, used.c.name == columns.name)
    query = sa.select(*columns, last.label("last_used_us")).select_from(tables)
    for word in request.words:
        query = query.where(sa.func.lower(columns.name).contains(word.lower(), autoescape=True))
    if request.algorithms:
        of_algorithms = sa.select(KEYS.c.keyring).where(
            KEYS.c.tenant_id == request.tenant, KEYS.c.algorithm.in_(request.algorithms)
        )
        query = query.where(columns.name.in_(of_algorithms))
    if request.created_before_us is not None:
        query = query.where(columns.created_at_us < request.created_before_us)
    if request.created_since_us is not None:
        query = query.where(columns.created_at_us >= request.created_since_us)
    if request.used_since_us is not None:
        query = query.where(last >= request.used_since_us)
    if request.unused_since_us is not None:
        query = query.where(sa.or_(last.is_(None), last < request.unused_since_us))
    if request.is_rotated is not None:
        is_rotated = columns.rotation_days.is_not(None)
        query = query.where(is_rotated if request.is_rotated else ~is_rotated)
    return query


def _last_uses(
    connection: sa.Connection, tenant: TenantId, names: list[KeyringName]
) -> dict[KeyringName, int]:
    """Return the last use of some keyrings' keys, up to the newest checkpoint."""
    of = KEY_TOTALS.c
    query = sa.select(of.keyring, sa.func.max(of.last_used_us)).where(
        of.tenant_id == str(tenant), of.keyring.in_(names)
    )
    return dict(map(tuple, connection.execute(query.group_by(of.keyring))))


def _total(
    connection: sa.Connection,
    request: ListKeyrings,
    matches: sa.ColumnElement[bool],
    *,
    has_virtual: bool,
) -> int:
    """Return the number of matches on all pages. Only a search by label reads the rows."""
    named = (KEYRINGS.c.tenant_id == request.tenant, *_names(KEYRINGS.c.name, request))
    if request.deleted or request.label is not None:
        return _count_rows(connection, matches) + has_virtual
    if request.prefix or request.names is not None:
        rows = _count_rows(connection, *named) - _count_rows(connection, *named, IS_DELETED)
        return rows + has_virtual
    deleted = _count_rows(connection, *named, IS_DELETED, _IS_OPEN)
    return _count(connection, request.tenant) - deleted


def _count_rows(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(KEYRINGS).where(*conditions)
    return connection.execute(query).scalar_one()


def _names(column: sa.Column[str], request: ListKeyrings) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions for the names that a request can list."""
    if request.prefix:
        yield column >= request.prefix
        yield column < request.prefix + _AFTER_NAMES
    if request.names is not None:
        yield column.in_(request.names)


def _conditions(request: ListKeyrings) -> Iterator[sa.ColumnElement[bool]]:
    yield KEYRINGS.c.tenant_id == request.tenant
    yield from _names(KEYRINGS.c.name, request)
    yield sa.and_(IS_DELETED, _IS_OPEN) if request.deleted else sa.not_(IS_DELETED)
    if request.label is not None:
        name, value = (msgspec.json.encode(text).decode() for text in request.label)
        without = sa.func.replace(KEYRINGS.c.labels, f"{name}:{value}", "")
        yield KEYRINGS.c.labels != without


def _matches_default(request: ListKeyrings) -> bool:
    if request.deleted or request.label is not None:
        return False
    is_named = request.names is None or DEFAULT_KEYRING in request.names
    return is_named and DEFAULT_KEYRING.startswith(request.prefix)


def _has_no_row(connection: sa.Connection, tenant: TenantId) -> bool:
    return (
        connection.execute(
            sa.select(KEYRINGS.c.revision).where(_is(KeyringId(tenant, DEFAULT_KEYRING)))
        ).first()
        is None
    )


def _require_newest(
    connection: sa.Connection, request: ListKeyrings, last: KeyringName | None
) -> None:
    """Compare the stored keyrings up to ``last`` with the audit log. Raises DamagedKeyError."""

    def of_page(column: sa.Column[str]) -> Iterator[sa.ColumnElement[bool]]:
        yield from _names(column, request)
        if request.after is not None:
            yield column > request.after
        if last is not None:
            yield column <= last

    recorded = recorded_keyring_revisions(
        request.tenant, *of_page(AUDIT_RECORDS.c.keyring)
    ).subquery()
    is_same = sa.and_(KEYRINGS.c.tenant_id == request.tenant, KEYRINGS.c.name == recorded.c.keyring)
    older = (
        sa.select(recorded.c.keyring)
        .outerjoin(KEYRINGS, is_same)
        .where(sa.func.coalesce(KEYRINGS.c.revision, 0) < recorded.c.revision)
    )
    if connection.execute(older.limit(1)).first() is not None:
        raise DamagedKeyError(_OLDER)


def find_keyring_names(connection: sa.Connection, request: FindKeyrings) -> tuple[str, ...]:
    """Return the names that contain a text. Names that begin with the text come first."""
    text, name = request.text.lower(), sa.func.lower(KEYRINGS.c.name)
    begins = name.startswith(text, autoescape=True)
    query = (
        sa.select(KEYRINGS.c.name)
        .where(
            KEYRINGS.c.tenant_id == request.tenant,
            name.contains(text, autoescape=True),
            sa.not_(IS_DELETED),
        )
        .order_by(begins.desc(), KEYRINGS.c.name)
        .limit(request.limit)
    )
    names: list[str] = list(connection.execute(query).scalars())
    if text in DEFAULT_KEYRING and DEFAULT_KEYRING not in names:  # it may have no row
        names.insert(0, DEFAULT_KEYRING)
    return tuple(names[: request.limit])


def _keyring_name(keyring: Keyring) -> KeyringName:
    return keyring.info.name


def every_keyring(connection: sa.Connection) -> list[KeyringId]:
    """Return the names of all stored keyrings."""
    name = KEYRINGS.c.tenant_id, KEYRINGS.c.name
    return [KeyringId(*row) for row in connection.execute(sa.select(*name).order_by(*name))]


def list_due_destructions(
    connection: sa.Connection, now: datetime, after: KeyringId | None, limit: int
) -> list[KeyringId]:
    """Return keyrings with a due destruction, in order, from after ``after`` on."""
    return _keyrings(connection, (KEYRINGS.c.destruction_at_us <= microseconds(now),), after, limit)


def list_deleted_keyrings(
    connection: sa.Connection, after: KeyringId | None, limit: int
) -> list[KeyringId]:
    """Return the deleted keyrings of all tenants, in order, from after ``after`` on."""
    return _keyrings(connection, (KEYRINGS.c.name != DEFAULT_KEYRING,), after, limit)


def every_destruction(connection: sa.Connection) -> list[KeyringId]:
    """Return all keyrings with an uncompleted destruction."""
    return _keyrings(connection, (KEYRINGS.c.destruction_at_us.is_not(None),), None, None)


def _keyrings(
    connection: sa.Connection,
    conditions: Iterable[sa.ColumnElement[bool]],
    after: KeyringId | None,
    limit: int | None,
) -> list[KeyringId]:
    name = KEYRINGS.c.tenant_id, KEYRINGS.c.name
    query = sa.select(*name).where(*conditions, _IS_OPEN)
    if after is not None:
        literals = (sa.literal(*pair) for pair in zip(after, (c.type for c in name), strict=True))
        query = query.where(sa.tuple_(*name) > sa.tuple_(*literals))
    rows = connection.execute(query.order_by(*name).limit(limit))
    return [KeyringId(TenantId(row.tenant_id), row.name) for row in rows]


def list_destructions(
    connection: sa.Connection, tenant: TenantId, after: TenantId | None, limit: int | None
) -> list[TenantId]:
    """Return tenants with an uncompleted destruction, in order, from after ``after`` on.

    For a single tenant, include a completed destruction. INSTALLATION stands for all tenants.
    """
    if tenant == INSTALLATION:
        return _tenants(
            connection, (KEYRINGS.c.destruction_at_us.is_not(None), _IS_OPEN), after, limit
        )
    is_its = KEYRINGS.c.tenant_id == tenant, KEYRINGS.c.destruction.is_not(None)
    return _tenants(connection, is_its, after, limit)


def _tenants(
    connection: sa.Connection,
    conditions: Iterable[sa.ColumnElement[bool]],
    after: TenantId | None,
    limit: int | None,
) -> list[TenantId]:
    tenant = KEYRINGS.c.tenant_id
    query = sa.select(tenant).where(*conditions, KEYRINGS.c.name == DEFAULT_KEYRING)
    if after is not None:
        query = query.where(tenant > after)
    return list(map(TenantId, connection.execute(query.order_by(tenant).limit(limit)).scalars()))


def replace_keyring(
    connection: sa.Connection, sealer: Sealer, change: KeyringChange
) -> CommitOutcome:
    """Swap in the new keyring if the old one is still current."""
    outcome = _replace(connection, sealer, change)
    if outcome is CommitOutcome.DURABLE:
        set_due(connection, change.new.tenant, change.new.info.name)
    return outcome


def insert_keyring(connection: sa.Connection, sealer: Sealer, keyring: Keyring) -> None:
    """Add a new keyring with its revision."""
    name = {"tenant_id": keyring.tenant, "name": keyring.info.name}
    connection.execute(sa.insert(KEYRINGS), {**name, **_values(sealer, keyring)})
    if keyring.info.name != DEFAULT_KEYRING and not keyring.is_gone:
        _add_to_count(connection, keyring.tenant, 1)


def _values(sealer: Sealer, keyring: Keyring) -> dict[str, object]:
    return {
        "revision": keyring.revision,
        "description": keyring.info.description,
        "labels": labels_text(keyring),
        "purposes": purposes_text(keyring),
        "rotation_days": keyring.info.rotation_days,
        "archive_after_days": keyring.info.archive_after_days,
        "minimum_decryption_version": keyring.info.minimum_decryption_version,
        "minimum_encryption_version": keyring.info.minimum_encryption_version,
        "transit_type": keyring.info.transit_type,
        "derived": keyring.info.derived,
        "first_version": keyring.info.first_version,
        "deletion_allowed": keyring.info.deletion_allowed,
        "retired_public_keys_allowed": keyring.info.retired_public_keys_allowed,
        "created_at_us": stored_time(keyring.info.created_at),
        "destruction": keyring.destruction and keyring.destruction.state,
        "destruction_at_us": keyring.destruction and stored_time(keyring.destruction.at),
        "mac": keyring_mac(sealer, keyring),
    }


def _replace(connection: sa.Connection, sealer: Sealer, change: KeyringChange) -> CommitOutcome:
    new = change.new
    before = new.revision - 1
    values = _values(sealer, new)
    row = connection.execute(
        sa.select(KEYRINGS.c.revision, KEYRINGS.c.destruction).where(_is(new.name))
    ).one_or_none()
    if (row.revision if row else 0) != before:
        return CommitOutcome.STALE
    was_gone = row is None or _is_gone(new.info.name, row.destruction)
    if was_gone and change.quota is not None and _count(connection, new.tenant) >= change.quota:
        return CommitOutcome.QUOTA_REACHED
    if row is None:
        insert_keyring(connection, sealer, new)
        return CommitOutcome.DURABLE
    swap = sa.update(KEYRINGS).where(_is(new.name), KEYRINGS.c.revision == before)
    if connection.execute(swap.values(values)).rowcount == 0:
        return CommitOutcome.STALE
    if was_gone != new.is_gone:
        _add_to_count(connection, new.tenant, 1 if was_gone else -1)
    return CommitOutcome.DURABLE


def _is_gone(name: KeyringName, destruction: str | None) -> bool:
    return name != DEFAULT_KEYRING and destruction == DestructionState.COMPLETED


def _count(connection: sa.Connection, tenant: TenantId) -> int:
    """Return the number of a tenant's keyrings, including the default one."""
    counted = sa.select(KEYRING_COUNTS.c.keyrings).where(KEYRING_COUNTS.c.tenant_id == tenant)
    return 1 + (connection.execute(counted).scalar() or 0)


def _add_to_count(connection: sa.Connection, tenant: TenantId, number: int) -> None:
    counted = KEYRING_COUNTS.c.keyrings
    more = sa.update(KEYRING_COUNTS).where(KEYRING_COUNTS.c.tenant_id == tenant)
    if connection.execute(more.values(keyrings=counted + number)).rowcount == 0:
        connection.execute(sa.insert(KEYRING_COUNTS), {"tenant_id": tenant, "keyrings": number})


def _is(name: KeyringId) -> sa.ColumnElement[bool]:
    return sa.and_(KEYRINGS.c.tenant_id == name.tenant, KEYRINGS.c.name == name.keyring)


def _destruction(row: sa.Row[Any]) -> Destruction | None:
    at = loaded_time(row.destruction_at_us)
    if row.destruction is None and at is None:
        return None
    if at is None:
        raise ValueError("a destruction without a time")
    return Destruction(DestructionState(row.destruction), at)


def _authentic(sealer: Sealer, row: sa.Row[Any]) -> Keyring:
    try:
        info = msgspec.convert(
            (
                row.name,
                row.description,
                _INFO.decode(row.labels),
                tuple(row.purposes.split(",")),
                row.rotation_days,
                row.archive_after_days,
                loaded_time(row.created_at_us),
                row.minimum_decryption_version,
                row.minimum_encryption_version,
                row.transit_type,
                row.derived,
                row.first_version,
                row.deletion_allowed,
                row.retired_public_keys_allowed,
            ),
            KeyringInfo,
        )
        keyring = Keyring(TenantId(row.tenant_id), info, row.revision, _destruction(row))
        require_authentic_keyring(sealer, keyring, row.mac)
    except (TypeError, ValueError, OverflowError, AttributeError, msgspec.MsgspecError):
        raise DamagedKeyError("the keyring has values that pqkeep never stores") from None
    return keyring
