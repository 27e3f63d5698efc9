"""The root keys that seal stored keys, the keys still to reseal, and the database's shard."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID, uuid4

import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import CommitOutcome, RootKeyAdded, RootKeysDropped
from pqkeep_keyservice.keys.key_versions import KeyName, SealedSeed
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import Sealer, sealing_root_key_id
from pqkeep_keyservice.storage.schema import (
    KEY_REVISIONS,
    KEYRINGS,
    KEYS,
    ROOT_KEYS,
    SHARD,
    TENANT_RULES,
)
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.settings import ConfigError


def claim_shard(connection: sa.Connection, name: str) -> UUID:
    """Assign the database to a shard, unless it is assigned already. Return the database's id.

    Raises ConfigError if the database belongs to another shard.
    """
    if (database := check_shard(connection, name)) is None:
        database = uuid4()
        connection.execute(sa.insert(SHARD), {"name": name, "database_id": database})
    return database


def check_shard(connection: sa.Connection, name: str) -> UUID | None:
    """Return the database's id, or None if it has no shard. Raises ConfigError on another shard."""
    row = connection.execute(sa.select(SHARD.c.name, SHARD.c.database_id)).one_or_none()
    if row is None:
        return None
    stored_name: str = row.name
    database: UUID = row.database_id
    if stored_name != name:
        raise ConfigError(
            f'this database belongs to the shard "{stored_name}", but the settings have'
            f' shard = "{name}": correct the database address or the shard'
        )
    return database


class RootKeyState(NamedTuple):
    """The newest root key, and the progress of a rotation to it."""

    id: int
    added_at_us: int
    """The time of the addition in microseconds since 1970."""
    done: int
    """Keys and keyrings entirely under the newest root key; 0 without older root keys."""
    remaining: int
    """Keys and keyrings still to reseal."""
    is_alone: bool
    """Whether there is no older root key."""


def find_root_key_state(connection: sa.Connection, newest: int) -> RootKeyState:
    """Return the state of the newest root key, which must be stored."""
    added = dict(map(tuple, connection.execute(sa.select(ROOT_KEYS.c.id, ROOT_KEYS.c.added_at_us))))
    if len(added) == 1:
        return RootKeyState(newest, added[newest], 0, 0, is_alone=True)
    remaining = count_to_reseal(connection, newest)
    total = sum(
        connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        for table in (KEY_REVISIONS, KEYRINGS, TENANT_RULES)
    )
    return RootKeyState(newest, added[newest], total - remaining, remaining, is_alone=False)


def list_check_values(connection: sa.Connection) -> dict[int, bytes]:
    """Return the check values of the stored root keys, by id."""
    return {row.id: row.check_value for row in connection.execute(sa.select(ROOT_KEYS))}


def require_root_keys(sealer: Sealer, check_values: Mapping[int, bytes]) -> None:
    """Raise ConfigError unless the sealer can unseal every stored seed."""
    for root_key_id, check_value in check_values.items():
        if root_key_id not in sealer.root_key_ids:
            raise ConfigError(
                f"root key {root_key_id} is missing: it seals keys of this database; add it to the"
                " settings"
            )
        if not sealer.matches(root_key_id, check_value):
            raise ConfigError("the root key is not the one that sealed this database's keys")


def check_root_keys(connection: sa.Connection, sealer: Sealer) -> None:
    """Check the root keys. Add the newest to a database without keys. Raises ConfigError."""
    check_values = list_check_values(connection)
    if not check_values:
        if connection.execute(sa.select(sa.exists(KEYS.select()))).scalar():
            raise ConfigError("this database has keys, but does not name their root keys")
        newest = sealer.newest
        add_root_key(connection, RootKeyAdded(newest, sealer.check_value(newest)))
    require_root_keys(sealer, check_values)


def add_root_key(connection: sa.Connection, change: RootKeyAdded) -> CommitOutcome:
    """Store a root key's check value. STALE if its id is in use."""
    if change.root_key_id in list_check_values(connection):
        return CommitOutcome.STALE
    row = {
        "id": change.root_key_id,
        "check_value": change.check_value,
        "added_at_us": clock.now_us(),
    }
    connection.execute(sa.insert(ROOT_KEYS), row)
    return CommitOutcome.DURABLE


def drop_root_keys(connection: sa.Connection, change: RootKeysDropped) -> CommitOutcome:
    """Delete all root keys except the newest.

    Returns STALE if there is only one root key, if the newest is not stored, or if an older one
    still seals a row.
    """
    if change.newest not in list_check_values(connection):
        return CommitOutcome.STALE
    if count_to_reseal(connection, change.newest):
        return CommitOutcome.STALE
    dropped = connection.execute(sa.delete(ROOT_KEYS).where(ROOT_KEYS.c.id < change.newest))
    return CommitOutcome.DURABLE if dropped.rowcount else CommitOutcome.STALE


def is_under_dropped_root_key(connection: sa.Connection, sealed: SealedSeed) -> bool:
    """Return whether the root key of a sealed seed has been dropped."""
    oldest = connection.execute(sa.select(sa.func.min(ROOT_KEYS.c.id))).scalar() or 0
    return sealing_root_key_id(sealed) < oldest


def list_keys_to_reseal(
    connection: sa.Connection,
    newest: int,
    after: KeyName | None,
    limit: int,
) -> list[KeyName]:
    """Return keys that are not entirely under the newest root key, from after ``after`` on."""
    columns = KEY_REVISIONS.c
    name = (columns.tenant_id, columns.keyring, columns.algorithm)
    query = sa.select(*name).where(_needs_reseal(newest))
    if after is not None:
        query = query.where(
            sa.or_(
                columns.tenant_id > after.tenant,
                sa.and_(columns.tenant_id == after.tenant, columns.keyring > after.keyring),
                sa.and_(
                    columns.tenant_id == after.tenant,
                    columns.keyring == after.keyring,
                    columns.algorithm > after.algorithm,
                ),
            )
        )
    rows = connection.execute(query.order_by(*name).limit(limit))
    return [KeyName(TenantId(row.tenant_id), Algorithm(row.algorithm), row.keyring) for row in rows]


def list_keyrings_to_reseal(connection: sa.Connection, newest: int) -> list[KeyringId]:
    """Return the keyrings with a MAC under an older root key."""
    query = sa.select(KEYRINGS.c.tenant_id, KEYRINGS.c.name)
    rows = connection.execute(query.where(_is_under_another(KEYRINGS.c.mac, newest)))
    return [KeyringId(*row) for row in rows]


def list_rules_to_reseal(connection: sa.Connection, newest: int) -> list[TenantId]:
    """Return the tenants with rules that have a MAC under an older root key."""
    query = sa.select(TENANT_RULES.c.tenant_id)
    rows = connection.execute(query.where(_is_under_another(TENANT_RULES.c.mac, newest)))
    return list(map(TenantId, rows.scalars()))


def count_to_reseal(connection: sa.Connection, newest: int) -> int:
    """Return the number of keys, keyrings and sets of rules not entirely under the newest root key."""
    keys = sa.select(sa.func.count()).select_from(KEY_REVISIONS).where(_needs_reseal(newest))
    others = (
        sa.select(sa.func.count()).where(_is_under_another(table.c.mac, newest))
        for table in (KEYRINGS, TENANT_RULES)
    )
    return sum(connection.execute(query).scalar_one() for query in (keys, *others))


def _needs_reseal(newest: int) -> sa.ColumnElement[bool]:
    seed = sa.exists().where(
        KEYS.c.tenant_id == KEY_REVISIONS.c.tenant_id,
        KEYS.c.keyring == KEY_REVISIONS.c.keyring,
        KEYS.c.algorithm == KEY_REVISIONS.c.algorithm,
        _is_under_another(KEYS.c.sealed_seed, newest),
    )
    return sa.or_(_is_under_another(KEY_REVISIONS.c.mac, newest), seed)


def _is_under_another(column: sa.Column[bytes], root_key_id: int) -> sa.ColumnElement[bool]:
    """Return the condition for a sealed seed or MAC with another root key's id. NULL is false."""
    return sa.func.substr(column, 2, 1, type_=sa.LargeBinary) != bytes((root_key_id,))
