"""Finds tenants that would be in two shards of a backup, or in none.

A tenant's moves are numbered. Each move is in the source shard's log and in the target shard's log.
Every tenant is in one shard under two conditions: each move is in both logs and finished, and the
last move leads to the shard that the accounts name. A database that was read too early lacks a
record.
"""

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_gateway.shards import SERVING, Placement
from pqkeep_keyservice.ledger.moves import list_moves
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.keys import TenantId
from pqkeep_server.backup.databases import Run

_TENANTS = sa.table(
    "tenants", sa.column("id", sa.Uuid), sa.column("shard"), sa.column("shard_state")
)


class _Move(NamedTuple):
    tenant: TenantId
    generation: int
    source: str
    target: str


async def unsettled(accounts: Run, shards: Mapping[str, Run]) -> TenantId | None:
    """Return a tenant that is not in exactly one shard or is being moved, or None.

    Shards that are not among these are ignored: a tenant may have been there before.
    """
    placements = await accounts(_placements)
    left, arrived, renounced = set[_Move](), set[_Move](), set[_Move]()
    for shard, keys in shards.items():
        begun: dict[TenantId, int] = {}
        for row in await keys(list_moves):
            move = _Move(row.tenant, row.generation, row.source, row.target)
            if row.outcome is Outcome.CANCELLED:
                renounced.add(move)
            elif not row.is_finished:
                begun[row.tenant] = row.generation
            elif (row.source if row.is_out else row.target) != shard:
                return row.tenant
            elif row.source == row.target and begun.get(row.tenant) == row.generation - 1:
                del begun[row.tenant]
                arrived.add(move)
            else:
                (left if row.is_out else arrived).add(move)
        if begun:
            return next(iter(begun))
    one_sided = [
        *(move for move in left - arrived if move.target in shards),
        *(move for move in arrived - left if move.source in shards and move.source != move.target),
        *(move for move in renounced if move.source in shards and _return(move) not in arrived),
    ]
    last = {move.tenant: move for move in sorted(left | arrived)}
    elsewhere = (
        tenant
        for tenant, placement in placements.items()
        if placement.is_moving or (tenant in last and last[tenant].target != placement.shard)
    )
    return next((move.tenant for move in one_sided), None) or next(elsewhere, None)


def _return(move: _Move) -> _Move:
    """Return the move by which a tenant came back after another was cancelled."""
    return _Move(move.tenant, move.generation + 1, move.source, move.source)


def _placements(connection: sa.Connection) -> Mapping[TenantId, Placement]:
    return {
        TenantId(id_): Placement(shard, is_moving=state != SERVING)
        for id_, shard, state in connection.execute(sa.select(_TENANTS))
    }
