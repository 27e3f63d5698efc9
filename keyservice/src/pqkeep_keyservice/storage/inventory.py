"""Finds pages of the inventory: key versions, and their uses up to a checkpoint."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.ledger.checkpoints import find_counted
from pqkeep_keyservice.ledger.schema import KEY_USAGE, USES
from pqkeep_keyservice.ledger.uses import (
    DAY_US,
    NO_KEYRING,
    NO_VERSION,
    first_day,
    first_single_day,
    month_of,
)
from pqkeep_keyservice.storage.schema import KEYS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    MAX_PRINCIPALS_LISTED,
    OTHER_PRINCIPALS,
    CountedLog,
    ListInventory,
    ListUses,
    OperationUses,
    PrincipalUses,
    UnattributedUses,
    UsesList,
)
from pqkeep_protocol.keys import KeyVersion

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
    """One more than MAX_PRINCIPALS_LISTED if there are more."""
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
    if versions:
        place = of.keyring, of.algorithm, of.key_version
        (first, low), (last, high) = versions[0], versions[-1]
        on_page = [
            of_tenant,
            sa.tuple_(*place) >= _literal((first.keyring, first.algorithm, low), place),
            sa.tuple_(*place) <= _literal((last.keyring, last.algorithm, high), place),
        ]
        if request.algorithm is not None:
            on_page.append(of.algorithm == request.algorithm)
        names = "keyring", "algorithm", "key_version"
        by_operation = counts.select(*names, "operation", where=on_page)
        for row in connection.execute(by_operation.order_by(*place, of.operation)):
            operations.setdefault(tuple(row[:3]), []).append(OperationUses(*row[3:]))
        grouped = counts.select(*names, "principal", "operation", where=on_page).subquery()
        within = sa.func.row_number().over(
            partition_by=[grouped.c[name] for name in names],
            order_by=[grouped.c.principal, grouped.c.operation],
        )
        numbered = sa.select(grouped, within.label("number")).subquery()
        by_principal = sa.select(numbered).where(
            sa.or_(
                numbered.c.number <= MAX_PRINCIPALS_LISTED + 1,
                numbered.c.principal == OTHER_PRINCIPALS,
            )
        )
        for row in connection.execute(by_principal.order_by(numbered.c.number)):
            has_other = has_other or row.principal == OTHER_PRINCIPALS
            if row.number <= MAX_PRINCIPALS_LISTED + 1:
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


def _versions(
    connection: sa.Connection, request: ListInventory
) -> tuple[tuple[tuple[KeyName, KeyVersion], ...], int, bool]:
    """Return the versions on a page, their number on all pages, and whether there are more."""
    order = KEYS.c.keyring, KEYS.c.algorithm, KEYS.c.version
    matches = [KEYS.c.tenant_id == request.tenant]
    if request.keyring is not None:
        matches.append(KEYS.c.keyring == request.keyring)
    if request.algorithm is not None:
        matches.append(KEYS.c.algorithm == request.algorithm)
    total = connection.execute(sa.select(sa.func.count()).where(*matches)).scalar_one()
    query = sa.select(*order).where(*matches)
    if request.after is not None:
        after = request.after
        query = query.where(
            sa.tuple_(*order) > _literal((after.keyring, after.algorithm, after.version), order)
        )
    rows = connection.execute(query.order_by(*order).limit(request.limit + 1)).all()
    versions = tuple(
        (KeyName(request.tenant, Algorithm(row.algorithm), row.keyring), KeyVersion(row.version))
        for row in rows[: request.limit]
    )
    return versions, total, len(rows) > request.limit


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
