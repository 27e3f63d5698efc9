"""Which root keys seal the stored keys, which keys are not under the newest, and which shard it is."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID, uuid4

import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import CommitOutcome, RootKeyAdded, RootKeysDropped
from pqkeep_keyservice.keys.key_versions import KeyName, SealedSeed
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import Sealer, sealing_root_key_id
from pqkeep_keyservice.storage.schema import KEY_REVISIONS, KEYRINGS, KEYS, ROOT_KEYS, SHARD
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.settings import ConfigError


def claim_shard(connection: sa.Connection, name: str) -> UUID:
    """Note whose database it is, unless that is noted; return which database it is.

    Raises ConfigError if it is another shard's.
    """
    if (database := check_shard(connection, name)) is None:
        database = uuid4()
        connection.execute(sa.insert(SHARD), {"name": name, "database_id": database})
    return database


def check_shard(connection: sa.Connection, name: str) -> UUID | None:
    """Return which database it is; None if nobody's yet. Raises ConfigError if another shard's."""
    row = connection.execute(sa.select(SHARD.c.name, SHARD.c.database_id)).one_or_none()
    if row is None:
        return None
    found: str = row.name
    database: UUID = row.database_id
    if found != name:
        raise ConfigError(
            f'this database is that of the shard "{found}", and the settings say'
            f' shard = "{name}": name the shard\'s own database, or its name'
        )
    return database


class RootKeyState(NamedTuple):
    """The newest root key, and how far older ones are replaced by it."""

    id: int
    added_at_us: int
    """Microseconds since 1970."""
    done: int
    """Keys and keyrings that are wholly under it, if there are older ones."""
    remaining: int
    """Keys and keyrings that are not."""
    is_alone: bool
    """Whether there are no older ones."""


def find_root_key_state(connection: sa.Connection, newest: int) -> RootKeyState:
    """Return the state of the newest root key, which is stored."""
    added = dict(map(tuple, connection.execute(sa.select(ROOT_KEYS.c.id, ROOT_KEYS.c.added_at_us))))
    if len(added) == 1:
        return RootKeyState(newest, added[newest], 0, 0, is_alone=True)
    remaining = count_to_reseal(connection, newest)
    total = sum(
        connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        for table in (KEY_REVISIONS, KEYRINGS)
    )
    return RootKeyState(newest, added[newest], total - remaining, remaining, is_alone=False)


def list_check_values(connection: sa.Connection) -> dict[int, bytes]:
    """Return the check values of the root keys that seal stored seeds, by root key id."""
    return {row.id: row.check_value for row in connection.execute(sa.select(ROOT_KEYS))}


def require_root_keys(sealer: Sealer, check_values: Mapping[int, bytes]) -> None:
    """Raise ConfigError unless the sealer can unseal every stored seed."""
    for root_key_id, check_value in check_values.items():
        if root_key_id not in sealer.root_key_ids:
            raise ConfigError(
                f"root key {root_key_id} is missing: this database's keys are sealed with it"
            )
        if not sealer.matches(root_key_id, check_value):
            raise ConfigError("the root key is not the one that sealed this database's keys")


def check_root_keys(connection: sa.Connection, sealer: Sealer) -> None:
    """Check the root keys; in a database without keys, add the newest. Raises ConfigError."""
    check_values = list_check_values(connection)
    if not check_values:
        if connection.execute(sa.select(sa.exists(KEYS.select()))).scalar():
            raise ConfigError("this database does not say which root keys its keys are sealed with")
        newest = sealer.newest
        add_root_key(connection, RootKeyAdded(newest, sealer.check_value(newest)))
    require_root_keys(sealer, check_values)


def add_root_key(connection: sa.Connection, change: RootKeyAdded) -> CommitOutcome:
    """Save a root key's check value. STALE if its id is in use."""
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
    """Delete the root keys before the newest.

    STALE if there are none, if that one is not stored, or if anything is under another.
    """
    if change.newest not in list_check_values(connection):
        return CommitOutcome.STALE
    if count_to_reseal(connection, change.newest):
        return CommitOutcome.STALE
    dropped = connection.execute(sa.delete(ROOT_KEYS).where(ROOT_KEYS.c.id < change.newest))
    return CommitOutcome.DURABLE if dropped.rowcount else CommitOutcome.STALE


def is_under_dropped_root_key(connection: sa.Connection, sealed: SealedSeed) -> bool:
    """Return whether the root key that sealed a seed has been dropped since."""
    oldest = connection.execute(sa.select(sa.func.min(ROOT_KEYS.c.id))).scalar() or 0
    return sealing_root_key_id(sealed) < oldest


def list_keys_to_reseal(
    connection: sa.Connection,
    newest: int,
    after: KeyName | None,
    limit: int,
) -> list[KeyName]:
    """Return keys with anything under another root key than the newest, after one of them."""
    columns = KEY_REVISIONS.c
    name = (columns.tenant_id, columns.keyring, columns.algorithm)
    query = sa.select(*name).where(_is_to_be_resealed(newest))
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
    found = connection.execute(query.order_by(*name).limit(limit))
    return [
        KeyName(TenantId(row.tenant_id), Algorithm(row.algorithm), row.keyring) for row in found
    ]


def list_keyrings_to_reseal(connection: sa.Connection, newest: int) -> list[KeyringId]:
    """Return the keyrings whose MAC is under another root key than the newest."""
    query = sa.select(KEYRINGS.c.tenant_id, KEYRINGS.c.name)
    found = connection.execute(query.where(_is_under_another(KEYRINGS.c.mac, newest)))
    return [KeyringId(*row) for row in found]


def count_to_reseal(connection: sa.Connection, newest: int) -> int:
    """Return how many keys and keyrings have anything under another root key than the newest."""
    keys = sa.select(sa.func.count()).select_from(KEY_REVISIONS).where(_is_to_be_resealed(newest))
    keyrings = sa.select(sa.func.count()).where(_is_under_another(KEYRINGS.c.mac, newest))
    return sum(connection.execute(query).scalar_one() for query in (keys, keyrings))


def _is_to_be_resealed(newest: int) -> sa.ColumnElement[bool]:
    seed = sa.exists().where(
        KEYS.c.tenant_id == KEY_REVISIONS.c.tenant_id,
        KEYS.c.keyring == KEY_REVISIONS.c.keyring,
        KEYS.c.algorithm == KEY_REVISIONS.c.algorithm,
        _is_under_another(KEYS.c.sealed_seed, newest),
    )
    return sa.or_(_is_under_another(KEY_REVISIONS.c.mac, newest), seed)


def _is_under_another(column: sa.Column[bytes], root_key_id: int) -> sa.ColumnElement[bool]:
    """Return whether a sealed seed or a MAC has another root key's id; not where there is none."""
    return sa.func.substr(column, 2, 1, type_=sa.LargeBinary) != bytes((root_key_id,))
