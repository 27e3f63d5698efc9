"""Finds pages of the inventory: key versions, and their uses up to a checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.ledger.checkpoints import find_counted
from pqkeep_keyservice.ledger.schema import KEY_TOTALS, KEY_USAGE, USE_PRINCIPALS, USES
from pqkeep_keyservice.ledger.search import by_principal
from pqkeep_keyservice.ledger.uses import (
    DAY_US,
    EVER,
    NO_KEYRING,
    NO_VERSION,
    first_day,
    first_single_day,
    month_of,
)
from pqkeep_keyservice.storage.key_versions import IS_DELETED
from pqkeep_keyservice.storage.schema import KEYRINGS, KEYS
from pqkeep_protocol.algorithms import LEGACY, Algorithm
from pqkeep_protocol.audit import (
    MAX_SURVEYED,
    OTHER_PRINCIPALS,
    CountedLog,
    InventorySort,
    ListInventory,
    ListUses,
    NotableKey,
    NotableKeys,
    OperationUses,
    PrincipalUses,
    SurveyKeys,
    UnattributedUses,
    UsesList,
)
from pqkeep_protocol.keys import DestructionState, KeyStatus, KeyVersion

Place = tuple[str, str, int]
"""Keyring, algorithm and version."""


class InventoryPage(NamedTuple):
    """One page of a tenant's key versions, which nothing authenticates, and of their uses."""

    counted: CountedLog
    since_us: int
    versions: tuple[tuple[KeyName, KeyVersion], ...]
    total: int
    has_more: bool
    operations: dict[Place, list[OperationUses]]
    principals: dict[Place, list[PrincipalUses]]
    """At most the requested number and one more, which shows that there are more."""
    unattributed: tuple[UnattributedUses, ...]
    has_other_principals: bool


class _Counts:
    """The table of uses since a time."""

    def __init__(self, counted: CountedLog, since_us: int | None) -> None:
        self.table = KEY_USAGE if since_us is None else USES
        self.since_us = 0
        self._since: tuple[sa.ColumnElement[bool], ...] = ()
        if since_us is not None:
            day = since_us // DAY_US
            if day < first_single_day(counted.at_us // DAY_US):
                day = first_day(month_of(day))
            self.since_us = max(day, 0) * DAY_US
            self._since = (USES.c.day >= day,)

    def select(self, *group: str, where: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
        """Return the query of the number, the first and the last use by some columns."""
        columns = [self.table.c[name] for name in group]
        of = self.table.c
        return (
            sa.select(
                *columns,
                sa.cast(sa.func.sum(of.uses), sa.BigInteger).label("uses"),
                sa.func.min(of.first_used_us).label("first_used_us"),
                sa.func.max(of.last_used_us).label("last_used_us"),
            )
            .where(*where, *self._since)
            .group_by(*columns)
        )


def find_inventory(connection: sa.Connection, request: ListInventory) -> InventoryPage | None:
    """Return one page, or None if no checkpoint has the counted records."""
    counted = find_counted(connection)
    if counted is None:
        return None
    versions, total, has_more = _versions(connection, request)
    counts = _Counts(counted, request.since_us)
    of = counts.table.c
    of_tenant = of.tenant_id == str(request.tenant)
    operations: dict[Place, list[OperationUses]] = {}
    principals: dict[Place, list[PrincipalUses]] = {}
    has_other = False
    names = "keyring", "algorithm", "key_version"
    on_page: list[sa.ColumnElement[bool]] = []
    if versions:
        place = of.keyring, of.algorithm, of.key_version
        on_page = [
            of_tenant,
            *_are(place, versions),
        ]
        by_operation = counts.select(*names, "operation", where=on_page)
        for row in connection.execute(by_operation.order_by(*place, of.operation)):
            operations.setdefault(tuple(row[:3]), []).append(OperationUses(*row[3:]))
    if versions and request.principals:
        grouped = counts.select(*names, "principal", "operation", where=on_page).subquery()
        within = sa.func.row_number().over(
            partition_by=[grouped.c[name] for name in names],
            order_by=[grouped.c.principal, grouped.c.operation],
        )
        numbered = sa.select(grouped, within.label("number")).subquery()
        listed = sa.select(numbered).where(
            sa.or_(
                numbered.c.number <= request.principals + 1,
                numbered.c.principal == OTHER_PRINCIPALS,
            )
        )
        for row in connection.execute(listed.order_by(numbered.c.number)):
            has_other = has_other or row.principal == OTHER_PRINCIPALS
            if row.number <= request.principals + 1:
                principals.setdefault(tuple(row[:3]), []).append(PrincipalUses(*row[3:8]))
    unattributed = counts.select(
        "algorithm", "operation", where=(of_tenant, of.keyring == NO_KEYRING)
    )
    return InventoryPage(
        counted,
        counts.since_us,
        versions,
        total,
        has_more,
        operations,
        principals,
        tuple(
            UnattributedUses(Algorithm(algorithm), *uses)
            for algorithm, *uses in connection.execute(
                unattributed.order_by(of.algorithm, of.operation)
            )
        ),
        has_other,
    )


_VERSIONS = KEYS.c.keyring, KEYS.c.algorithm, KEYS.c.version
_ROTATION_US = sa.case(
    (
        sa.and_(
            KEYS.c.status == KeyStatus.ACTIVE,
            KEYS.c.archive_at_us.is_(None),
            KEYS.c.algorithm.not_in(LEGACY),
            KEYRINGS.c.rotation_days > 0,
            sa.not_(IS_DELETED),
        ),
        KEYS.c.created_at_us + KEYRINGS.c.rotation_days * sa.literal(DAY_US, sa.BigInteger),
    )
)
_TEXT = sa.func.lower(
    KEYS.c.keyring + "/" + KEYS.c.algorithm + " v" + sa.cast(KEYS.c.version, sa.String)
)


def _versions(
    connection: sa.Connection, request: ListInventory
) -> tuple[tuple[tuple[KeyName, KeyVersion], ...], int, bool]:
    """Return the versions on a page, their number on all pages, and whether there are more."""
    query = _Query(request)
    all_matches = query.matching(is_sorted=False).subquery()
    total = connection.execute(sa.select(sa.func.count()).select_from(all_matches))
    matches = query.matching()
    if request.after is not None:
        after = request.after
        place = after.keyring, after.algorithm, after.version
        matches = matches.where(sa.tuple_(*_VERSIONS) > _literal(place, _VERSIONS))
    page = matches.order_by(*query.order()).offset(request.offset).limit(request.limit + 1)
    rows = connection.execute(page).all()
    versions = tuple(
        (KeyName(request.tenant, Algorithm(row.algorithm), row.keyring), KeyVersion(row.version))
        for row in rows[: request.limit]
    )
    return versions, total.scalar_one(), len(rows) > request.limit


def _uses_by(request: ListInventory, name: str) -> sa.Select[Any]:
    """Return the query of the key versions that a principal used, with its uses.

    The few principals are searched first. SQLite looks up only pairs in the index of principals.
    """
    known, used = USE_PRINCIPALS.c, KEY_USAGE.c
    named = sa.select(known.tenant_id, known.principal).where(
        known.month == EVER,
        known.tenant_id == str(request.tenant),
        *by_principal(known.principal, name),
    )
    place = used.keyring, used.algorithm, used.key_version
    return (
        sa.select(
            *place,
            sa.func.sum(used.uses).label("uses"),
            sa.func.max(used.last_used_us).label("last_used_us"),
        )
        .where(sa.tuple_(used.tenant_id, used.principal).in_(named))
        .group_by(*place)
    )


class _Query:
    """The query of the key versions that a request selects. It joins only the tables it needs."""

    def __init__(self, request: ListInventory) -> None:
        self._request = request
        by = request.used_by
        self._used = KEY_TOTALS if by is None else _uses_by(request, by).subquery("used")
        but = request.not_used_by
        self._others = None if but is None else _uses_by(request, but).subquery("others")

    def matching(self, *, is_sorted: bool = True) -> sa.Select[Any]:
        """Return the query without an order. ``is_sorted``: with the tables that the order needs."""
        request = self._request
        tables: sa.FromClause = KEYS
        if self._needs_keyrings(is_sorted=is_sorted):
            of_same = KEYRINGS.c.tenant_id == request.tenant, KEYRINGS.c.name == KEYS.c.keyring
            tables = tables.outerjoin(KEYRINGS, sa.and_(*of_same))
        if self._needs_uses(is_sorted=is_sorted):
            is_of_tenant = (
                [KEY_TOTALS.c.tenant_id == str(request.tenant)] if request.used_by is None else []
            )
            is_same = sa.and_(*is_of_tenant, *_are_same(self._used))
            tables = tables.join(self._used, is_same, isouter=request.used_by is None)
        if self._others is not None:
            tables = tables.outerjoin(self._others, sa.and_(*_are_same(self._others)))
        conditions = *self._of_keys(), *self._of_keyrings(), *self._of_uses()
        return sa.select(*_VERSIONS).select_from(tables).where(*conditions)

    def order(self) -> tuple[sa.ColumnElement[Any], ...]:
        """Return the order: rows without a value come last."""
        request, keys = self._request, KEYS.c
        columns: dict[InventorySort, sa.ColumnElement[Any]] = {
            InventorySort.ALGORITHM: keys.algorithm,
            InventorySort.STATUS: keys.status,
            InventorySort.CREATED: keys.created_at_us,
            InventorySort.LAST_USED: self._used.c.last_used_us,
            InventorySort.USES: sa.func.coalesce(self._used.c.uses, 0),
            InventorySort.ROTATION: _ROTATION_US,
            InventorySort.DESTRUCTION: keys.archive_at_us,
        }
        if request.sort is InventorySort.NAME:
            return tuple(
                column.desc() if request.is_descending else column.asc() for column in _VERSIONS
            )
        by = columns[request.sort]
        return (by.desc() if request.is_descending else by.asc()).nulls_last(), *_VERSIONS

    def _needs_keyrings(self, *, is_sorted: bool) -> bool:
        request = self._request
        return request.rotated_before_us is not None or (
            is_sorted and request.sort is InventorySort.ROTATION
        )

    def _needs_uses(self, *, is_sorted: bool) -> bool:
        request = self._request
        asked = request.used_by, request.used_since_us, request.unused_since_us
        return any(value is not None for value in asked) or (
            is_sorted and request.sort in {InventorySort.LAST_USED, InventorySort.USES}
        )

    def _of_keys(self) -> Iterator[sa.ColumnElement[bool]]:
        """Yield the conditions of the key's own row."""
        request, keys = self._request, KEYS.c
        is_scheduled, is_legacy = keys.archive_at_us.is_not(None), keys.algorithm.in_(LEGACY)
        asked: tuple[tuple[Any, Callable[[Any], sa.ColumnElement[bool]]], ...] = (
            (request.keyring, keys.keyring.__eq__),
            (request.not_keyring, keys.keyring.__ne__),
            (request.algorithms or None, keys.algorithm.in_),
            (request.statuses or None, keys.status.in_),
            (request.created_since_us, keys.created_at_us.__ge__),
            (request.created_before_us, keys.created_at_us.__lt__),
            (request.destroyed_before_us, keys.archive_at_us.__lt__),
            (request.is_imported, keys.imported.is_),
            (request.is_scheduled, lambda wanted: is_scheduled if wanted else ~is_scheduled),
            (request.is_legacy, lambda wanted: is_legacy if wanted else ~is_legacy),
        )
        yield keys.tenant_id == request.tenant
        yield from (condition(value) for value, condition in asked if value is not None)
        for word in request.words:
            yield _TEXT.contains(word.lower(), autoescape=True)

    def _of_keyrings(self) -> Iterator[sa.ColumnElement[bool]]:
        request = self._request
        if request.is_keyring_deleted is not None:
            deleted = sa.select(KEYRINGS.c.name).where(
                KEYRINGS.c.tenant_id == request.tenant, IS_DELETED
            )
            is_deleted = KEYS.c.keyring.in_(deleted)
            yield is_deleted if request.is_keyring_deleted else ~is_deleted
        if request.rotated_before_us is not None:
            yield request.rotated_before_us > _ROTATION_US

    def _of_uses(self) -> Iterator[sa.ColumnElement[bool]]:
        request, last_us = self._request, self._used.c.last_used_us
        if request.used_since_us is not None:
            yield last_us >= request.used_since_us
        if request.unused_since_us is not None:
            yield sa.or_(last_us.is_(None), last_us < request.unused_since_us)
        if self._others is not None:
            yield self._others.c.keyring.is_(None)


def _are_same(used: sa.FromClause) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions for the uses of a key version."""
    names = used.c.keyring, used.c.algorithm, used.c.key_version
    yield from (name == own for name, own in zip(names, _VERSIONS, strict=True))


def _are(
    columns: Sequence[sa.Column[Any]], versions: Sequence[tuple[KeyName, KeyVersion]]
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions for some key versions.

    Each column has its own condition too: SQLite looks up only these in an index.
    """
    places = [(name.keyring, name.algorithm.value, version) for name, version in versions]
    for column, values in zip(columns, zip(*places, strict=True), strict=True):
        yield column.in_(sorted(set(values)))
    yield sa.tuple_(*columns).in_(places)


def _literal(values: Place, columns: Sequence[sa.Column[Any]]) -> sa.ColumnElement[Any]:
    """Return a place as SQL, with the columns' types."""
    pairs = zip(values, (column.type for column in columns), strict=True)
    return sa.tuple_(*(sa.literal(*pair) for pair in pairs))


def find_uses(connection: sa.Connection, request: ListUses) -> UsesList | None:
    """Return one page of uses, or None if no checkpoint has the counted records."""
    counted = find_counted(connection)
    if counted is None:
        return None
    counts = _Counts(counted, request.since_us)
    of = counts.table.c
    matches = [
        of.tenant_id == str(request.tenant),
        of.keyring == (request.keyring or NO_KEYRING),
        of.algorithm == request.algorithm,
        of.key_version == (request.version or NO_VERSION),
    ]
    order = of.principal, of.operation
    if request.after is not None:
        after = request.after.principal, request.after.operation
        pairs = zip(after, order, strict=True)
        matches.append(
            sa.tuple_(*order) > sa.tuple_(*(sa.literal(text, of_.type) for text, of_ in pairs))
        )
    query = counts.select("principal", "operation", where=matches).order_by(*order)
    rows = connection.execute(query.limit(request.limit + 1)).all()
    return UsesList(
        counted=counted,
        since_us=counts.since_us,
        uses=tuple(PrincipalUses(*row) for row in rows[: request.limit]),
        has_more=len(rows) > request.limit,
    )


class Survey(NamedTuple):
    """Which keys are old, unused or scheduled for destruction. Nothing authenticates them."""

    old: NotableKeys
    unused: NotableKeys
    scheduled: NotableKeys


LATE_DAYS = 1
"""The accepted delay of an automatic rotation."""


def survey_keys(connection: sa.Connection, request: SurveyKeys, now: datetime) -> Survey:
    """Return a tenant's keys that need attention: their number for each problem, and the first."""
    now_us = int(now.timestamp()) * 1_000_000
    of, rings = KEYS.c, KEYRINGS.c
    with_keyring = sa.outerjoin(
        KEYS, KEYRINGS, sa.and_(rings.tenant_id == of.tenant_id, rings.name == of.keyring)
    )
    own_days = sa.case(
        (sa.func.coalesce(rings.rotation_days, 0) > 0, rings.rotation_days + LATE_DAYS),
        else_=request.old_days,
    )
    key = of.keyring, of.algorithm, of.version
    is_active = sa.and_(
        of.tenant_id == request.tenant,
        of.status == KeyStatus.ACTIVE,
        sa.or_(rings.name.is_(None), ~IS_DELETED),
    )
    day_us = sa.literal(DAY_US, sa.BigInteger)
    old = (
        sa.select(*key, (of.created_at_us + own_days * day_us).label("at_us"))
        .select_from(with_keyring)
        .where(is_active)
    )
    used = (
        sa.select(
            KEY_USAGE.c.keyring,
            KEY_USAGE.c.algorithm,
            KEY_USAGE.c.key_version,
            sa.func.max(KEY_USAGE.c.last_used_us).label("last_used_us"),
        )
        .where(KEY_USAGE.c.tenant_id == str(request.tenant))
        .group_by(KEY_USAGE.c.keyring, KEY_USAGE.c.algorithm, KEY_USAGE.c.key_version)
        .subquery()
    )
    last_us = sa.case(
        (used.c.last_used_us > of.created_at_us, used.c.last_used_us), else_=of.created_at_us
    )
    unused = (
        sa.select(*key, (last_us + request.unused_days * DAY_US).label("at_us"))
        .select_from(
            with_keyring.outerjoin(
                used,
                sa.and_(
                    used.c.keyring == of.keyring,
                    used.c.algorithm == of.algorithm,
                    used.c.key_version == of.version,
                ),
            )
        )
        .where(is_active)
    )
    versions = sa.select(*key, of.archive_at_us.label("at_us")).where(
        of.tenant_id == request.tenant,
        of.archive_at_us.is_not(None),
        of.sealed_seed.is_not(None),
    )
    deleted = sa.select(
        rings.name.label("keyring"),
        sa.literal("").label("algorithm"),
        sa.literal(0).label("version"),
        rings.destruction_at_us.label("at_us"),
    ).where(
        rings.tenant_id == request.tenant,
        IS_DELETED,
        rings.destruction == DestructionState.SCHEDULED,
    )
    return Survey(
        _notable(connection, old, now_us),
        _notable(connection, unused, now_us),
        _notable(connection, sa.union_all(versions, deleted), None),
    )


def _notable(
    connection: sa.Connection, query: sa.Select[Any] | sa.CompoundSelect[Any], until_us: int | None
) -> NotableKeys:
    """Return the number of a query's keys, and the first by time; until a time if one is given."""
    found = query.subquery()
    matches = sa.true() if until_us is None else found.c.at_us <= until_us
    total = sa.select(sa.func.count(), sa.func.max(found.c.at_us)).where(matches)
    count, newest_us = connection.execute(total).one()
    first: Sequence[Any] = ()
    if count:
        order = found.c.at_us, found.c.keyring, found.c.algorithm, found.c.version
        listed = sa.select(found).where(matches).order_by(*order).limit(MAX_SURVEYED)
        first = connection.execute(listed).all()
    return NotableKeys(
        count,
        newest_us or 0,
        tuple(
            NotableKey(
                row.keyring,
                Algorithm(row.algorithm) if row.version else None,
                KeyVersion(row.version) if row.version else None,
                row.at_us,
            )
            for row in first
        ),
    )
