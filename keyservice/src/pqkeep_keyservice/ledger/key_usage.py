"""Counts the operations of tenants, and finds the usage of keys.

A number is the stored count up to the newest checkpoint plus a query over the records after it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from pqkeep_keyservice.ledger.append import Commit, Kind, add_all, execute, insert_or_update
from pqkeep_keyservice.ledger.campaigns import add_moves, moves_of_records
from pqkeep_keyservice.ledger.merkle import log_size
from pqkeep_keyservice.ledger.records import target_of, target_text
from pqkeep_keyservice.ledger.schema import (
    AUDIT_LOG,
    AUDIT_RECORDS,
    IS_UNCOUNTED,
    KEY_USAGE,
    OPERATION_COUNTS,
    RARE,
    USES,
    is_uncounted_of,
)
from pqkeep_keyservice.ledger.uses import DAY_US, IS_USE, Counting, tally_of_records
from pqkeep_protocol.algorithms import LEGACY, Algorithm, Operation
from pqkeep_protocol.audit import (
    MAX_PREVIEWED,
    PREVIEW_DAYS,
    RE_ENCRYPT_TARGET,
    REFUSED,
    CountOperations,
    GetUsage,
    KeyVersionUsage,
    ListUsage,
    OperationCount,
    OperationCounts,
    PreviewedUse,
    PreviewRules,
    RulePreview,
    UsageList,
)
from pqkeep_protocol.audit_events import API_KEY, Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.rules import ALL_KEYRINGS, PARTS_OF_SIGN, USE_OF, Rule, RuleUse

HOUR_US = 3600 * 1_000_000
KEPT_HOURS = 40 * 24
"""The hours for which counts are kept: a month and some more."""
EVERYBODY = ""
"""The tenant column of counts for the whole log, so that reading them needs no sum."""

NOT_REFUSED = (*Outcome, ErrorKind.VERIFICATION_FAILED)
"""Outcomes that are not refusals. ``schema.RARE`` has the same condition in SQL."""
_WAS_REFUSED = AUDIT_RECORDS.c.outcome.not_in(NOT_REFUSED)
_OPERATIONS = tuple(Operation)
_IS_COUNTED = sa.or_(
    _WAS_REFUSED,
    sa.and_(AUDIT_RECORDS.c.event_id.is_(None), AUDIT_RECORDS.c.operation.in_(_OPERATIONS)),
)
_HOUR = AUDIT_RECORDS.c.recorded_at_us // HOUR_US
_OPERATION = sa.case((_WAS_REFUSED, REFUSED), else_=AUDIT_RECORDS.c.operation)
_NEWEST_HOUR = sa.select(sa.func.max(OPERATION_COUNTS.c.hour)).scalar_subquery()
_DROP_OLD_COUNTS = sa.delete(OPERATION_COUNTS).where(
    OPERATION_COUNTS.c.hour <= _NEWEST_HOUR - sa.bindparam("kept", type_=sa.Integer)
)


def find_operation_counts(connection: sa.Connection, request: CountOperations) -> OperationCounts:
    """Return the counts of a tenant, or of the whole log, by bucket."""
    everybody = request.tenant == INSTALLATION
    counts, first = OPERATION_COUNTS.c, sa.literal(request.since_hour)
    counted = sa.select(counts.hour, counts.operation, counts.count).where(
        counts.tenant_id == (EVERYBODY if everybody else str(request.tenant)), counts.hour >= first
    )
    since = sa.select(_HOUR, _OPERATION, sa.literal(1)).where(
        IS_UNCOUNTED,
        _IS_COUNTED,
        first <= _HOUR,
        *(() if everybody else (is_uncounted_of(request.tenant),)),
    )
    both = sa.union_all(counted, since).subquery()
    bucket = (both.c.hour // request.hours).label("bucket")
    rows = sa.select(bucket, both.c.operation, both.c.count).subquery()
    group = rows.c.bucket, rows.c.operation
    total = sa.cast(sa.func.sum(rows.c.count), sa.BigInteger)
    return OperationCounts(
        counts=tuple(
            OperationCount(number * request.hours, operation, count)
            for number, operation, count in connection.execute(
                sa.select(*group, total).group_by(*group)
            )
        )
    )


def count_operations(connection: sa.Connection, size: int) -> None:
    """Add the records up to a size to the counts, and drop expired counts."""
    new = AUDIT_RECORDS.c.id <= size
    for tenant in (AUDIT_RECORDS.c.tenant_id, sa.literal(EVERYBODY)):
        group = tenant.label("tenant"), _HOUR.label("hour"), _OPERATION.label("counted")
        records = sa.select(*group).where(IS_UNCOUNTED, new, _IS_COUNTED).subquery()
        counted = sa.select(records, sa.func.count()).group_by(*records.c)
        insert = insert_or_update(connection.dialect, OPERATION_COUNTS).from_select(
            list(OPERATION_COUNTS.columns), counted
        )
        connection.execute(adding_counts(insert))
    execute(connection, _DROP_OLD_COUNTS, KEPT_HOURS)


def add_operations(connection: sa.Connection, commits: Iterable[Commit]) -> None:
    """Add commits to the counts, with the same result as counting their records."""
    totals: Counter[tuple[str, int, str]] = Counter()
    for _, recorded_at_us, kinds in commits:
        for kind, count in kinds.items():
            counted = _counted_operation(kind)
            if counted is not None:
                for tenant in (kind.tenant_id, EVERYBODY):
                    totals[tenant, recorded_at_us // HOUR_US, counted] += count
    if totals:
        rows = [(*key, count) for key, count in totals.items()]
        add_all(connection, OPERATION_COUNTS, adding_counts, rows)
    execute(connection, _DROP_OLD_COUNTS, KEPT_HOURS)


def _counted_operation(kind: Kind) -> str | None:
    """Return a kind's counted operation, by the rules of ``_IS_COUNTED`` and ``_OPERATION``."""
    if kind.outcome not in NOT_REFUSED:
        return REFUSED
    return kind.operation if not kind.is_event and kind.operation in _OPERATIONS else None


def adding_counts(insert: Any) -> Any:
    """Return an INSERT that adds each count to the stored one."""
    return insert.on_conflict_do_update(
        index_elements=list(OPERATION_COUNTS.primary_key),
        set_={"count": OPERATION_COUNTS.c.count + insert.excluded["count"]},
    )


def find_key_usage(connection: sa.Connection, request: GetUsage) -> tuple[int, int | None]:
    """Return a key version's number of uses, and its last use's time (microseconds since 1970)."""
    counted = connection.execute(
        sa.select(sa.func.sum(KEY_USAGE.c.uses), sa.func.max(KEY_USAGE.c.last_used_us)).where(
            *_matches(KEY_USAGE, request), KEY_USAGE.c.key_version == request.version
        )
    ).one()
    since = connection.execute(
        sa.select(sa.func.count(), sa.func.max(AUDIT_RECORDS.c.recorded_at_us)).where(
            IS_UNCOUNTED,
            *_matches(AUDIT_RECORDS, request),
            AUDIT_RECORDS.c.key_version == request.version,
            *IS_USE,
        )
    ).one()
    target = target_text(request.keyring, request.algorithm, request.version)
    as_target = connection.execute(
        sa.select(sa.func.count(), sa.func.max(AUDIT_RECORDS.c.recorded_at_us)).where(
            IS_UNCOUNTED,
            is_uncounted_of(request.tenant),
            AUDIT_RECORDS.c.target == target,
            *IS_USE,
        )
    ).one()
    newest = max(
        (last_us for last_us in (since[1], as_target[1]) if last_us is not None),
        default=counted[1],
    )
    return int(counted[0] or 0) + since[0] + as_target[0], newest


def list_key_usage(connection: sa.Connection, request: ListUsage) -> UsageList:
    """Return one page of the key versions with uses, by algorithm, then version."""
    columns = AUDIT_RECORDS.c
    key = columns.algorithm, columns.key_version
    counted = sa.select(
        KEY_USAGE.c.algorithm,
        KEY_USAGE.c.key_version,
        KEY_USAGE.c.uses,
        KEY_USAGE.c.last_used_us,
    ).where(*_matches(KEY_USAGE, request))
    since = (
        sa.select(*key, sa.func.count(), sa.func.max(columns.recorded_at_us))
        .where(IS_UNCOUNTED, *_matches(AUDIT_RECORDS, request), *IS_USE)
        .group_by(*key)
    )
    both = sa.union_all(counted, since).subquery()
    version = both.c.algorithm, both.c.key_version
    uses = sa.cast(sa.func.sum(both.c.uses), sa.BigInteger)
    used = sa.select(*version, uses, sa.func.max(both.c.last_used_us)).group_by(*version)
    usage = _with_targets(connection, request, connection.execute(used))
    after = (request.after.algorithm, request.after.version) if request.after else ("", 0)
    rest = [row for row in usage if row[:2] > after]
    return UsageList(
        usage=tuple(
            KeyVersionUsage(Algorithm(algorithm), KeyVersion(number), *facts)
            for algorithm, number, *facts in rest[: request.limit]
        ),
        total=len(usage),
        has_more=len(rest) > request.limit,
    )


def _with_targets(
    connection: sa.Connection, request: ListUsage, used: Iterable[Any]
) -> list[tuple[str, int, int, int]]:
    """Add the uses as targets of re-encryptions; return all uses by algorithm, then version."""
    usage = {(row[0], row[1]): (row[2], row[3]) for row in used}
    targets = _targets(is_uncounted_of(request.tenant))
    for _, target, uses, last_us in connection.execute(targets):
        keyring, algorithm, version = target_of(target)
        if keyring == request.keyring and request.algorithm in (None, algorithm):
            before, last_before_us = usage.get((algorithm, version), (0, 0))
            usage[algorithm, version] = before + uses, max(last_before_us, last_us)
    return sorted((*key, *facts) for key, facts in usage.items())


def _targets(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the query of uncounted uses as re-encryption targets, by tenant and target."""
    columns = AUDIT_RECORDS.c
    return (
        sa.select(
            columns.tenant_id,
            columns.target,
            sa.func.count(),
            sa.func.max(columns.recorded_at_us),
        )
        .where(IS_UNCOUNTED, columns.target.is_not(None), *conditions, *IS_USE)
        .group_by(columns.tenant_id, columns.target)
    )


def _matches(table: sa.Table, request: GetUsage | ListUsage) -> Iterator[sa.ColumnElement[bool]]:
    is_counted = table is KEY_USAGE
    yield (
        table.c.tenant_id == str(request.tenant) if is_counted else is_uncounted_of(request.tenant)
    )
    yield table.c.keyring == request.keyring
    if request.algorithm is not None:
        yield table.c.algorithm == request.algorithm
    elif not request.legacy:
        yield table.c.algorithm.not_in(LEGACY)


_NEW_KEYS = (Operation.GENERATE_KEY, Operation.IMPORT_KEY, Operation.ROTATE_KEY)
_AFTER_NAMES = "\x7f"
"""Sorts after every character of a keyring's name."""


def preview_rules(connection: sa.Connection, request: PreviewRules, now: datetime) -> RulePreview:
    """Return what rules would have refused in the last PREVIEW_DAYS days."""
    first_day = int(now.timestamp()) * 1_000_000 // DAY_US - PREVIEW_DAYS
    rows: list[tuple[Any, ...]] = []
    for rule in request.rules:
        found = [*_previewed(connection, request.tenant, rule, first_day)]
        rows += [(rule, *row) for row in found if not _is_excepted(rule, row[0], now)]
    uses: dict[tuple[Any, ...], PreviewedUse] = {}
    for rule, principal, keyring, algorithm, operation, count, first_us, last_us in rows:
        uses.setdefault(
            (principal, keyring, algorithm, operation),
            PreviewedUse(
                rule.name,
                principal,
                keyring or None,
                Algorithm(algorithm),
                operation,
                int(count),
                first_us,
                last_us,
            ),
        )
    most = sorted(uses.values(), key=lambda use: (-use.uses, -use.last_used_us, use.principal))
    return RulePreview(
        since_us=first_day * DAY_US,
        uses=tuple(most[:MAX_PREVIEWED]),
        has_more=len(most) > MAX_PREVIEWED,
    )


def _previewed(
    connection: sa.Connection, tenant: TenantId, rule: Rule, first_day: int
) -> Iterator[Any]:
    """Yield the uses that a rule ends: of keys from the counts, and new keys from the records."""
    operations = {operation.value for operation, use in USE_OF.items() if use in rule.uses}
    if PARTS_OF_SIGN.intersection(rule.uses):  # the hash function is not counted
        operations.add(Operation.SIGN_HASH.value)
    if {RuleUse.ENCRYPT, RuleUse.WRAP} & set(rule.uses):
        operations.add(RE_ENCRYPT_TARGET)
    at_us = AUDIT_RECORDS.c.recorded_at_us
    for table, times, conditions in (
        (
            USES,
            (sa.func.sum(USES.c.uses), sa.func.min(USES.c.first_used_us), USES.c.last_used_us),
            (USES.c.day >= first_day, USES.c.operation.in_(sorted(operations))),
        ),
        (
            AUDIT_RECORDS,
            (sa.func.count(), sa.func.min(at_us), at_us),
            (
                at_us >= first_day * DAY_US,
                RARE["operation"],
                AUDIT_RECORDS.c.operation.in_(sorted(operations.intersection(_NEW_KEYS))),
                AUDIT_RECORDS.c.outcome == Outcome.SUCCESS,
            ),
        ),
    ):
        group = (table.c.principal, table.c.keyring, table.c.algorithm, table.c.operation)
        yield from connection.execute(
            sa.select(*group, *times[:2], sa.func.max(times[2]))
            .where(
                table.c.tenant_id == str(tenant),
                table.c.algorithm.in_(rule.algorithms),
                _in_keyrings(table.c.keyring, rule),
                *conditions,
            )
            .group_by(*group)
            .order_by(times[0].desc())
            .limit(MAX_PREVIEWED + 1)
        )


def _in_keyrings(keyring: sa.Column[str], rule: Rule) -> sa.ColumnElement[bool]:
    """Return the condition for the keyrings of a rule. Only ``*`` covers public keys of others."""
    if ALL_KEYRINGS in rule.keyrings:
        return sa.true()
    prefixes = [name[:-1] for name in rule.keyrings if name.endswith(ALL_KEYRINGS)]
    return sa.or_(
        keyring.in_([name for name in rule.keyrings if not name.endswith(ALL_KEYRINGS)]),
        *(sa.and_(keyring >= prefix, keyring < prefix + _AFTER_NAMES) for prefix in prefixes),
    )


def _is_excepted(rule: Rule, principal: str, now: datetime) -> bool:
    version = principal.removeprefix(API_KEY).partition("/")[0]
    return principal.startswith(API_KEY) and any(
        str(exception.api_key) == version and exception.until > now for exception in rule.exceptions
    )


CountRow = tuple[int, str, int]
"""Hour since 1970, operation, count."""


def count_all(connection: sa.Connection, counting: Counting) -> None:
    """Count all records that are not counted yet."""
    size = log_size(connection)
    counting.add(connection, tally_of_records(connection, size))
    add_moves(connection, moves_of_records(connection, size))
    count_operations(connection, size)
    connection.execute(sa.update(AUDIT_LOG).values(counted_until=size))


def tenant_counts(connection: sa.Connection, tenant: TenantId) -> list[CountRow]:
    """Return a tenant's stored operation counts."""
    counts = sa.select(*list(OPERATION_COUNTS.c)[1:]).where(
        OPERATION_COUNTS.c.tenant_id == str(tenant)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(counts)]


def remove_tenant_counts(connection: sa.Connection, tenant: TenantId) -> None:
    """Remove a tenant's operation counts. Later records are counted from zero."""
    connection.execute(
        sa.delete(OPERATION_COUNTS).where(OPERATION_COUNTS.c.tenant_id == str(tenant))
    )


def add_tenant_counts(
    connection: sa.Connection, tenant: TenantId, counts: Sequence[CountRow]
) -> None:
    """Add counts to a tenant's own. The log's own counts change only by its own records."""
    rows = [(str(tenant), *count) for count in counts]
    add_all(connection, OPERATION_COUNTS, adding_counts, rows)
