"""Counts the re-encryptions of campaigns, and finds what the log has of a campaign.

Each checkpoint counts the records since the last one, as it does for uses.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from pqkeep_keyservice.ledger.append import Commit, add_all
from pqkeep_keyservice.ledger.records import target_of
from pqkeep_keyservice.ledger.schema import (
    AUDIT_RECORDS,
    CAMPAIGN_MOVES,
    IS_UNCOUNTED,
    KEY_USAGE,
    RARE,
    is_uncounted_of,
)
from pqkeep_keyservice.ledger.search import ids_of
from pqkeep_keyservice.ledger.uses import IS_USE
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import (
    GetMigration,
    KeyVersionSet,
    ListRecords,
    Migration,
    MovedVersions,
    RefusedUses,
)
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId

MAX_REFUSALS = 100_000
"""The most refusals that are read for a campaign, the newest first."""
MAX_PRINCIPALS = 500
"""The most refused uses in one result, by principal and key version."""

_COLUMNS = AUDIT_RECORDS.c
_IS_MOVE = (
    _COLUMNS.event_id.is_(None),
    _COLUMNS.campaign.is_not(None),
    _COLUMNS.target.is_not(None),
    _COLUMNS.outcome == Outcome.SUCCESS,
    _COLUMNS.operation == Operation.RE_ENCRYPT,
)

Place = tuple[str, str, str, str, int, str]
"""Tenant, campaign, keyring, algorithm, version, target."""
Times = tuple[int, int, int]
"""Count, and the first and the last time in microseconds since 1970."""
Moves = dict[Place, Times]
MoveRow = tuple[str, str, str, int, str, int, int, int]
"""A row of CAMPAIGN_MOVES without the tenant."""


def moves_of_commits(commits: Iterable[Commit]) -> Moves:
    """Return the moves in commits, by the rules of ``_IS_MOVE``."""
    moves: Moves = {}
    for _, at_us, kinds in commits:
        for kind, count in kinds.items():
            if (
                kind.campaign is None
                or kind.target is None
                or kind.is_event
                or (kind.outcome, kind.operation) != (Outcome.SUCCESS, Operation.RE_ENCRYPT)
                or kind.keyring is None
                or kind.algorithm is None
                or kind.key_version is None
            ):
                continue
            key = kind.keyring, kind.algorithm, kind.key_version, kind.target
            _add(moves, (kind.tenant_id, kind.campaign, *key), (count, at_us, at_us))
    return moves


def moves_of_records(
    connection: sa.Connection, size: int | None = None, *conditions: sa.ColumnElement[bool]
) -> Moves:
    """Return the moves in the uncounted records up to a size; None: up to the newest."""
    key = (_COLUMNS.tenant_id, _COLUMNS.campaign, _COLUMNS.keyring, _COLUMNS.algorithm)
    group = (*key, _COLUMNS.key_version, _COLUMNS.target)
    at_us = _COLUMNS.recorded_at_us
    query = sa.select(*group, sa.func.count(), sa.func.min(at_us), sa.func.max(at_us)).where(
        IS_UNCOUNTED, *_IS_MOVE, *conditions
    )
    if size is not None:
        query = query.where(_COLUMNS.id <= size)
    moves: Moves = {}
    for tenant, campaign, keyring, algorithm, version, target, *times in connection.execute(
        query.group_by(*group)
    ):
        place = tenant, campaign, keyring, algorithm, version, target
        _add(moves, place, (times[0], times[1], times[2]))
    return moves


def add_moves(connection: sa.Connection, moves: Moves) -> None:
    """Add moves to the stored counts."""
    if moves:
        rows = [(*place, *times) for place, times in moves.items()]
        add_all(connection, CAMPAIGN_MOVES, _adding, rows)


def _add(moves: Moves, place: Place, times: Times) -> None:
    before = moves.get(place)
    if before is not None:
        times = before[0] + times[0], min(before[1], times[1]), max(before[2], times[2])
    moves[place] = times


def _adding(insert: Any) -> Any:
    before, after = CAMPAIGN_MOVES.c, insert.excluded
    return insert.on_conflict_do_update(
        index_elements=list(CAMPAIGN_MOVES.primary_key),
        set_={
            "count": before["count"] + after["count"],
            "first_us": sa.case(
                (before.first_us < after.first_us, before.first_us), else_=after.first_us
            ),
            "last_us": sa.case(
                (before.last_us > after.last_us, before.last_us), else_=after.last_us
            ),
        },
    )


def tenant_moves(connection: sa.Connection, tenant: TenantId) -> list[MoveRow]:
    """Return the stored counts of a tenant's campaigns, to move with it."""
    query = sa.select(*list(CAMPAIGN_MOVES.c)[1:]).where(CAMPAIGN_MOVES.c.tenant_id == str(tenant))
    return [
        (row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7])
        for row in connection.execute(query)
    ]


def remove_tenant_moves(connection: sa.Connection, tenant: TenantId) -> None:
    """Remove the counts of a tenant's campaigns."""
    of_tenant = CAMPAIGN_MOVES.c.tenant_id == str(tenant)
    connection.execute(sa.delete(CAMPAIGN_MOVES).where(of_tenant))


def add_tenant_moves(connection: sa.Connection, tenant: TenantId, rows: Sequence[MoveRow]) -> None:
    """Add counts to those of a tenant's campaigns."""
    add_all(connection, CAMPAIGN_MOVES, _adding, [(str(tenant), *row) for row in rows])


def find_migration(connection: sa.Connection, request: GetMigration) -> Migration:
    """Return what the log has of a campaign."""
    refused, is_whole = _refused(connection, request)
    return Migration(
        moved=_moved(connection, request),
        last_used_us=_last_use(connection, request),
        refused=refused,
        is_whole=is_whole,
    )


def _moved(connection: sa.Connection, request: GetMigration) -> tuple[MovedVersions, ...]:
    counted = sa.select(CAMPAIGN_MOVES).where(
        CAMPAIGN_MOVES.c.tenant_id == str(request.tenant),
        CAMPAIGN_MOVES.c.campaign == request.campaign,
    )
    of_campaign = is_uncounted_of(request.tenant), _COLUMNS.campaign == request.campaign
    moves = moves_of_records(connection, None, *of_campaign)
    for row in connection.execute(counted):
        _add(moves, (row[0], row[1], row[2], row[3], row[4], row[5]), (row[6], row[7], row[8]))
    return tuple(
        MovedVersions(
            keyring, Algorithm(algorithm), KeyVersion(version), *target_of(target), *times
        )
        for (_, _, keyring, algorithm, version, target), times in sorted(moves.items())
    )


def _last_use(connection: sa.Connection, request: GetMigration) -> int | None:
    """Return the time of the newest use of a source, in microseconds since 1970."""
    last: int | None = None
    for source in request.sources:
        query = sa.select(sa.func.max(KEY_USAGE.c.last_used_us)).where(
            KEY_USAGE.c.tenant_id == str(request.tenant), *_is_in(KEY_USAGE, source)
        )
        last = _later(last, connection.execute(query).scalar())
    uncounted = (
        sa.select(
            *(_COLUMNS.keyring, _COLUMNS.algorithm, _COLUMNS.key_version, _COLUMNS.target),
            sa.func.max(_COLUMNS.recorded_at_us),
        )
        .where(IS_UNCOUNTED, is_uncounted_of(request.tenant), *IS_USE)
        .group_by(_COLUMNS.keyring, _COLUMNS.algorithm, _COLUMNS.key_version, _COLUMNS.target)
    )
    for keyring, algorithm, version, target, at_us in connection.execute(uncounted):
        used = [(keyring, algorithm, version), *([] if target is None else [target_of(target)])]
        if any(source.has(*key) for source in request.sources for key in used):
            last = _later(last, at_us)
    return last


def _is_in(table: sa.Table, source: KeyVersionSet) -> Iterable[sa.ColumnElement[bool]]:
    yield table.c.keyring == source.keyring
    yield table.c.algorithm == source.algorithm
    if source.versions is not None:
        yield table.c.key_version.in_(source.versions)
    if source.below is not None:
        yield table.c.key_version < source.below


def _later(one: int | None, other: int | None) -> int | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _refused(
    connection: sa.Connection, request: GetMigration
) -> tuple[tuple[RefusedUses, ...], bool]:
    """Return the refused uses, the newest first, and whether these are all."""
    if not request.refused:
        return (), True
    ids = ids_of(
        connection,
        ListRecords(tenant=request.tenant, since_us=request.since_us, until_us=request.until_us),
    )
    key = _COLUMNS.principal, _COLUMNS.keyring, _COLUMNS.algorithm, _COLUMNS.key_version
    newest = (
        sa.select(*key, _COLUMNS.recorded_at_us)
        .where(
            RARE["outcome"],
            _COLUMNS.outcome == ErrorKind.KEY_NOT_FOUND,
            *ids.is_in(_COLUMNS.id),
            # An expression, so that SQLite uses the index of rare outcomes.
            _COLUMNS.tenant_id + "" == str(request.tenant),
            _COLUMNS.event_id.is_(None),
            _COLUMNS.keyring.in_({refused.keyring for refused in request.refused}),
        )
        .order_by(_COLUMNS.id.desc())
        .limit(MAX_REFUSALS)
    ).subquery()
    last = sa.func.max(newest.c.recorded_at_us)
    group = newest.c.principal, newest.c.keyring, newest.c.algorithm, newest.c.key_version
    counted = sa.select(*group, sa.func.count(), last).group_by(*group).order_by(last.desc())
    found: list[RefusedUses] = []
    read = 0
    for principal, keyring, algorithm, version, count, last_us in connection.execute(counted):
        read += count
        if any(
            (refused.keyring, refused.algorithm) == (keyring, algorithm)
            and (version is None or refused.has(keyring, algorithm, version))
            for refused in request.refused
        ):
            found.append(
                RefusedUses(principal, keyring, Algorithm(algorithm), version, count, last_us)
            )
    is_whole = read < MAX_REFUSALS and len(found) <= MAX_PRINCIPALS
    return tuple(found[:MAX_PRINCIPALS]), is_whole
