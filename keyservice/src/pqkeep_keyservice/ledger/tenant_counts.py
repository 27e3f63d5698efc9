"""What is counted from a tenant's records, taken from one shard and added in another.

The records stay where they are: each shard counts its own, and what was counted before a tenant
came is added to it.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from pqkeep_keyservice.ledger.dialects import insert_or_update
from pqkeep_keyservice.ledger.key_usage import adding_uses, count_key_usage
from pqkeep_keyservice.ledger.operation_counts import adding_counts, count_operations
from pqkeep_keyservice.ledger.schema import AUDIT_LOG, KEY_USAGE, OPERATION_COUNTS
from pqkeep_keyservice.ledger.tree import log_size
from pqkeep_protocol.keys import TenantId

UsageRow = tuple[str, str, int, int, int]
"""Keyring, algorithm, version, uses, time of the last (microseconds since 1970)."""
CountRow = tuple[int, str, int]
"""Hour since 1970, operation, count."""


def count_all(connection: sa.Connection) -> None:
    """Count every record that is not counted yet."""
    size = log_size(connection)
    count_key_usage(connection, size)
    count_operations(connection, size)
    connection.execute(sa.update(AUDIT_LOG).values(counted_until=size))


def tenant_counts(
    connection: sa.Connection, tenant: TenantId
) -> tuple[list[UsageRow], list[CountRow]]:
    """Return a tenant's uses of keys and counts of operations, as far as they are counted."""
    usage, counts = (
        sa.select(*list(table.c)[1:]).where(table.c.tenant_id == str(tenant))
        for table in (KEY_USAGE, OPERATION_COUNTS)
    )
    return (
        [(row[0], row[1], row[2], row[3], row[4]) for row in connection.execute(usage)],
        [(row[0], row[1], row[2]) for row in connection.execute(counts)],
    )


def remove_tenant_counts(connection: sa.Connection, tenant: TenantId) -> None:
    """Remove a tenant's counts. What is recorded later is counted from nothing."""
    for table in (KEY_USAGE, OPERATION_COUNTS):
        connection.execute(sa.delete(table).where(table.c.tenant_id == str(tenant)))


def add_tenant_counts(
    connection: sa.Connection,
    tenant: TenantId,
    usage: Sequence[UsageRow],
    counts: Sequence[CountRow],
) -> None:
    """Add counts to a tenant's, and to nobody else's: those of the whole log are of its records."""
    insert = insert_or_update(connection.dialect, KEY_USAGE)
    for row in usage:
        connection.execute(adding_uses(insert.values((str(tenant), *row))))
    insert = insert_or_update(connection.dialect, OPERATION_COUNTS)
    for count in counts:
        connection.execute(adding_counts(insert.values((str(tenant), *count))))
