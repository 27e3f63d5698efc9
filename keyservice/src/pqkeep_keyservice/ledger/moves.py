"""Records of a tenant's departure and arrival. They make the log the authority on tenants' shards.

The last record of a move uses the fields of every record:

    tenant_id         the moved tenant
    operation         tenant-moved-out in the source shard's log, tenant-moved-in in the target's
    outcome           begun: the tenant has left; handed-out: the bundle can have been read since;
                      completed: the tenant has arrived at the target; cancelled, with
                      tenant-moved-out: this shard renounced the tenant, and never takes the bundle
    keyring_revision  the generation: the number of the tenant's move, counted from 1
    request_id        SHA-256 of the bundle, in hexadecimal
    policy            move/SOURCE/TARGET/COUNT: both shards, and the number of key versions; source
                      and target are equal if a move was cancelled and the tenant is back

One record for each key and keyring precedes it, with the outcome success, and its name and
revision. From then on, any earlier state of that key is detectably outdated.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, IS_MOVE
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.keys import KeyringName, TenantId

Event = KeyServiceEvent
_PREFIX = "move"


class RecordedMove(NamedTuple):
    """A tenant's last move according to the log."""

    tenant: TenantId
    is_out: bool
    """Whether the tenant has left this shard. Otherwise it has arrived here."""
    outcome: Outcome
    """The progress: COMPLETED once the target shard has the keys."""
    source: str
    target: str
    generation: int
    sha256: bytes
    """The bundle's digest (32 bytes)."""
    key_versions: int

    @property
    def is_finished(self) -> bool:
        """Whether the move needs no further step."""
        return self.outcome in {Outcome.COMPLETED, Outcome.CANCELLED}


def move_record(move: RecordedMove) -> NewRecord:
    """Return the last record of a move or of its first half."""
    record = _record(move.tenant, Event.TENANT_MOVED_OUT if move.is_out else Event.TENANT_MOVED_IN)
    return record._replace(
        outcome=move.outcome,
        request_id=move.sha256.hex(),
        policy=f"{_PREFIX}/{move.source}/{move.target}/{move.key_versions}",
        keyring_revision=move.generation,
    )


def moved_key_record(
    last: NewRecord, keyring: KeyringName, algorithm: Algorithm | None, revision: int
) -> NewRecord:
    """Return the record of a moved key or keyring. ``last`` is the move's last record."""
    return last._replace(
        outcome=Outcome.SUCCESS, keyring=keyring, algorithm=algorithm, keyring_revision=revision
    )


def find_last_move(connection: sa.Connection, tenant: TenantId) -> RecordedMove | None:
    """Return a tenant's last move, or None if it never moved."""
    columns = AUDIT_RECORDS.c
    query = sa.select(AUDIT_RECORDS).where(IS_MOVE, columns.tenant_id == str(tenant))
    row = connection.execute(query.order_by(columns.id.desc()).limit(1)).one_or_none()
    return None if row is None else _move(tenant, row)


def list_tenants_away(connection: sa.Connection) -> frozenset[TenantId]:
    """Return the tenants that have left and are not back."""
    columns = AUDIT_RECORDS.c
    last = sa.select(sa.func.max(columns.id)).where(IS_MOVE).group_by(columns.tenant_id)
    query = sa.select(columns.tenant_id).where(
        columns.id.in_(last), columns.operation == Event.TENANT_MOVED_OUT
    )
    return frozenset(TenantId(UUID(tenant)) for tenant in connection.execute(query).scalars())


def list_moves(connection: sa.Connection) -> Sequence[RecordedMove]:
    """Return the latest state of every departure and arrival."""
    columns = AUDIT_RECORDS.c
    last = (
        sa.select(sa.func.max(columns.id))
        .where(IS_MOVE)
        .group_by(columns.tenant_id, columns.operation, columns.keyring_revision)
    )
    query = sa.select(AUDIT_RECORDS).where(columns.id.in_(last)).order_by(columns.id)
    return [_move(TenantId(UUID(row.tenant_id)), row) for row in connection.execute(query)]


def _record(tenant: TenantId, event: KeyServiceEvent) -> NewRecord:
    return NewRecord(
        tenant=tenant,
        principal="operator",
        operation=event,
        algorithm=None,
        key_version=None,
        outcome=Outcome.SUCCESS,
        request_id="",
        source_address="",
        policy="",
    )


def _move(tenant: TenantId, row: sa.Row[Any]) -> RecordedMove:
    _, source, target, key_versions = row.policy.split("/")
    return RecordedMove(
        tenant,
        row.operation == Event.TENANT_MOVED_OUT,
        Outcome(row.outcome),
        source,
        target,
        row.keyring_revision,
        bytes.fromhex(row.request_id),
        int(key_versions),
    )
