"""Which root keys seal the stored keyrings, and which keyrings are not under the newest."""

from collections.abc import Mapping

import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import CommitOutcome, RootKeyAdded, RootKeysDropped
from pqkeep_keyservice.keys.keyring import SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer, sealing_root_key_id
from pqkeep_keyservice.storage.schema import KEYRINGS, KEYS, ROOT_KEYS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.settings import ConfigError


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
    row = {"id": change.root_key_id, "check_value": change.check_value}
    connection.execute(sa.insert(ROOT_KEYS), row)
    return CommitOutcome.DURABLE


def drop_root_keys(connection: sa.Connection, change: RootKeysDropped) -> CommitOutcome:
    """Delete the root keys before the newest.

    STALE if there are none, if that one is not stored, or if a seed is sealed under another.
    """
    if change.newest not in list_check_values(connection):
        return CommitOutcome.STALE
    if list_keyrings_to_reseal(connection, change.newest, None, 1):
        return CommitOutcome.STALE
    dropped = connection.execute(sa.delete(ROOT_KEYS).where(ROOT_KEYS.c.id < change.newest))
    return CommitOutcome.DURABLE if dropped.rowcount else CommitOutcome.STALE


def is_under_dropped_root_key(connection: sa.Connection, sealed: SealedSeed) -> bool:
    """Return whether the root key that sealed a seed has been dropped since."""
    oldest = connection.execute(sa.select(sa.func.min(ROOT_KEYS.c.id))).scalar() or 0
    return sealing_root_key_id(sealed) < oldest


def list_keyrings_to_reseal(
    connection: sa.Connection,
    newest: int,
    after: tuple[TenantId, Algorithm] | None,
    limit: int,
) -> list[tuple[TenantId, Algorithm]]:
    """Return keyrings with anything under another root key than the newest, after one of them."""
    name = (KEYRINGS.c.tenant_id, KEYRINGS.c.algorithm)
    query = sa.select(*name).where(_is_to_be_resealed(newest))
    if after is not None:
        tenant, algorithm = after
        query = query.where(
            sa.or_(
                KEYRINGS.c.tenant_id > tenant,
                sa.and_(KEYRINGS.c.tenant_id == tenant, KEYRINGS.c.algorithm > algorithm),
            )
        )
    found = connection.execute(query.order_by(*name).limit(limit))
    return [(TenantId(row.tenant_id), Algorithm(row.algorithm)) for row in found]


def count_keyrings_to_reseal(connection: sa.Connection, newest: int) -> int:
    """Return how many keyrings have anything under another root key than the newest."""
    query = sa.select(sa.func.count()).select_from(KEYRINGS).where(_is_to_be_resealed(newest))
    return connection.execute(query).scalar_one()


def _is_to_be_resealed(newest: int) -> sa.ColumnElement[bool]:
    seed = sa.exists().where(
        KEYS.c.tenant_id == KEYRINGS.c.tenant_id,
        KEYS.c.algorithm == KEYRINGS.c.algorithm,
        _is_under_another(KEYS.c.sealed_seed, newest),
    )
    return sa.or_(_is_under_another(KEYRINGS.c.mac, newest), seed)


def _is_under_another(column: sa.Column[bytes], root_key_id: int) -> sa.ColumnElement[bool]:
    """Return whether a sealed seed or a MAC has another root key's id; not where there is none."""
    return sa.func.substr(column, 2, 1, type_=sa.LargeBinary) != bytes((root_key_id,))
