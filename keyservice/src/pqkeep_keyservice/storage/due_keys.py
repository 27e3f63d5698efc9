"""The keys with which the schedule has something to do, found by an index."""

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from pqkeep_keyservice.keys.key_versions import KeyName, microseconds
from pqkeep_keyservice.storage.schema import KEY_REVISIONS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyringName, TenantId

_ORDER = (
    KEY_REVISIONS.c.due_at_us,
    KEY_REVISIONS.c.tenant_id,
    KEY_REVISIONS.c.keyring,
    KEY_REVISIONS.c.algorithm,
)


class DueKey(NamedTuple):
    """A key of which something is due, in the order in which it is."""

    due_at_us: int
    tenant: TenantId
    keyring: KeyringName
    algorithm: Algorithm

    @property
    def name(self) -> KeyName:
        """Which key it is."""
        return KeyName(self.tenant, self.algorithm, self.keyring)


def list_due_keys(
    connection: sa.Connection, now: datetime, after: DueKey | None, limit: int
) -> list[DueKey]:
    """Return keys of which something is due, those longest due first, behind one that was listed."""
    query = sa.select(*_ORDER).where(KEY_REVISIONS.c.due_at_us <= microseconds(now))
    if after is not None:
        query = query.where(sa.tuple_(*_ORDER) > sa.tuple_(*_values(after)))
    found = connection.execute(query.order_by(*_ORDER).limit(limit))
    return [
        DueKey(row.due_at_us, TenantId(row.tenant_id), row.keyring, Algorithm(row.algorithm))
        for row in found
    ]


def every_due_key(connection: sa.Connection) -> list[KeyName]:
    """Return all keys of which something will be due."""
    is_due = KEY_REVISIONS.c.due_at_us.is_not(None)
    return [
        KeyName(TenantId(row.tenant_id), Algorithm(row.algorithm), row.keyring)
        for row in connection.execute(sa.select(*_ORDER).where(is_due).order_by(*_ORDER)).all()
    ]


def count_due_keys(connection: sa.Connection, now: datetime) -> int:
    """Return of how many keys something is due."""
    is_due = KEY_REVISIONS.c.due_at_us <= microseconds(now)
    return connection.execute(sa.select(sa.func.count()).where(is_due)).scalar_one()


def _values(key: DueKey) -> tuple[sa.ColumnElement[object], ...]:
    return tuple(sa.literal(value, column.type) for value, column in zip(key, _ORDER, strict=True))
