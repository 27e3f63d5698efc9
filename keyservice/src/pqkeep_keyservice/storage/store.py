"""Keyrings and audit records in SQL. A change is a compare-and-swap on the keyring's revision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import TypeVar, TypeVarTuple, assert_never
from uuid import UUID

import sqlalchemy as sa

from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, sealing_root_key_id
from pqkeep_keyservice.ledger.checkpoints import check_log, log_id
from pqkeep_keyservice.ledger.merkle import Frontier
from pqkeep_keyservice.ledger.records import LogState, NewRecord, PendingAppend, Row, add
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS
from pqkeep_keyservice.ledger.search import size
from pqkeep_keyservice.ledger.tree import load_log_state, make_tiles
from pqkeep_keyservice.storage import idempotency
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.idempotency import IdempotencyRecord
from pqkeep_keyservice.storage.schema import KEYRINGS, KEYS, ROOT_KEYS
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency
from pqkeep_protocol.startup.settings import ConfigError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class KeyringChange:
    """A keyring to put in another's place."""

    old: Keyring
    new: Keyring
    quota: int | None = None
    """How many active keys the tenant may have afterwards; None: any number."""
    idempotency: Idempotency | None = None
    """The Idempotency-Key that it was asked for with."""

    @property
    def destroys_a_seed(self) -> bool:
        """Whether a sealed seed is deleted, of which no copy may stay."""
        before_and_after = zip(self.old.entries, self.new.entries, strict=False)
        return any(before.sealed and after.sealed is None for before, after in before_and_after)


@dataclass(frozen=True, slots=True)
class RootKeyAdded:
    """A root key that seals from now on."""

    root_key_id: int
    check_value: bytes


@dataclass(frozen=True, slots=True)
class RootKeysDropped:
    """Root keys older than one; stale for as long as a seed is sealed under them."""

    newest: int


Change = KeyringChange | RootKeyAdded | RootKeysDropped


class CommitOutcome(Enum):
    """What became of a change and its record: both are durable, or neither is there."""

    DURABLE = auto()
    STALE = auto()
    """Another change came first, or may have; or this one was made with its Idempotency-Key."""
    QUOTA_REACHED = auto()


Entry = tuple[NewRecord, Change | None]
"""One record, and the change it is of, if any."""


class KeyStore:
    """Loads keyrings, and commits changes of them with the records of what was done."""

    def __init__(self, database: Database) -> None:
        """Use an open database."""
        self._database = database
        self._insert_record = str(
            sa.insert(AUDIT_RECORDS).compile(dialect=database.dialect, column_keys=Row._fields)
        )
        self._log_state: tuple[int, LogState] | None = None
        self.size = 0
        """How many audit records are durable."""

    @property
    def epoch(self) -> int:
        """Counts how often what is in memory has become out of date all at once."""
        return self._database.epoch

    async def check(self, sealer: Sealer) -> None:
        """Compare root key and audit log with what was kept of them. Raises ConfigError."""
        self.size = await self._database.write(_check, sealer)

    async def root_keys(self) -> dict[int, bytes]:
        """Return the check values of the root keys that seeds are sealed under, by id."""
        return await self._database.read(_root_keys)

    async def load(self, tenant: TenantId, algorithm: Algorithm) -> Keyring:
        """Return the current keyring; an empty one where there are no keys."""
        return await self._database.read(_load, tenant, algorithm)

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in a transaction of its own. What it wrote is durable on return."""
        return await self._database.write(function, *arguments)

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that only reads, and may take its time, on what is durable."""
        return await self._database.query(function, *arguments)

    async def frontier(self) -> tuple[UUID, Frontier]:
        """Return which log this is, and its tree, of all that is durable."""
        return await self._database.read(self._frontier)

    async def find_idempotency_record(
        self, tenant: TenantId, key: Idempotency
    ) -> IdempotencyRecord | None:
        """Return what an Idempotency-Key was used for, if it was."""
        return await self._database.read(idempotency.find, tenant, key)

    async def commit(
        self, entries: Sequence[Entry], epoch: int | None = None
    ) -> list[CommitOutcome]:
        """Make many records, each with its change, durable in one transaction.

        What was worked out in an earlier epoch is stale. Raises DatabaseUnavailableError.
        """
        of_epoch = epoch or self.epoch
        outcomes, tail, addition = await self._database.write(self._write, entries, of_epoch)
        tail.move(addition)
        self._log_state = of_epoch, tail
        self.size = tail.frontier.size
        return outcomes

    async def scrub(self) -> bool:
        """Leave no copy of what was deleted on disk; return whether that could be done."""
        return await self._database.scrub()

    def _frontier(self, connection: sa.Connection) -> tuple[UUID, Frontier]:
        tail = self._take_log_state(connection)
        self._log_state = self._database.epoch, tail
        return log_id(connection), tail.frontier

    def _take_log_state(self, connection: sa.Connection) -> LogState:
        """Return the log's end. It is kept again once what is added to it is durable."""
        kept, self._log_state = self._log_state, None
        if kept is not None and kept[0] == self._database.epoch:
            return kept[1]
        return load_log_state(connection)

    def _write(
        self, connection: sa.Connection, entries: Sequence[Entry], epoch: int
    ) -> tuple[list[CommitOutcome], LogState, PendingAppend]:
        is_current = epoch == self._database.epoch
        tail = self._take_log_state(connection)
        outcomes = [
            (_apply(connection, change) if change else CommitOutcome.DURABLE)
            if is_current
            else CommitOutcome.STALE
            for _, change in entries
        ]
        new_records = [
            new_record
            for (new_record, _), outcome in zip(entries, outcomes, strict=True)
            if outcome is CommitOutcome.DURABLE
        ]
        return (
            outcomes,
            tail,
            add(connection, self._insert_record, tail, _new(connection, new_records)),
        )


def _check(connection: sa.Connection, sealer: Sealer) -> int:
    """Check what is kept; return how many audit records there are."""
    _check_root_keys(connection, sealer)
    make_tiles(connection)
    check_log(connection)
    return size(connection)


def _check_root_keys(connection: sa.Connection, sealer: Sealer) -> None:
    """Compare the root keys with their check values, or remember the first one's."""
    stored = _root_keys(connection)
    if not stored:
        added = RootKeyAdded(sealer.newest, sealer.check_value(sealer.newest))
        _add_root_key(connection, added)
    require_root_keys(sealer, stored)


def require_root_keys(sealer: Sealer, check_values: Mapping[int, bytes]) -> None:
    """Raise ConfigError unless everything that is sealed can be unsealed."""
    for each, check_value in check_values.items():
        if each not in sealer.root_key_ids:
            raise ConfigError(
                f"root key {each} is missing: this database's keys are sealed with it"
            )
        if not sealer.matches(each, check_value):
            raise ConfigError("the root key is not the one that sealed this database's keys")


def _root_keys(connection: sa.Connection) -> dict[int, bytes]:
    return {row.id: row.check_value for row in connection.execute(sa.select(ROOT_KEYS))}


def _new(connection: sa.Connection, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
    """Leave out the events that were brought before."""
    brought = {new_record.event_id for new_record in new_records if new_record.event_id is not None}
    if not brought:
        return new_records
    query = sa.select(AUDIT_RECORDS.c.event_id).where(AUDIT_RECORDS.c.event_id.in_(brought))
    seen = set(connection.execute(query).scalars())
    new: list[NewRecord] = []
    for new_record in new_records:
        if new_record.event_id is None or new_record.event_id not in seen:
            new.append(new_record)
            seen.add(new_record.event_id)
    return new


def _load(connection: sa.Connection, tenant: TenantId, algorithm: Algorithm) -> Keyring:
    keyring = connection.execute(
        sa.select(KEYRINGS).where(_is_keyring(KEYRINGS, tenant, algorithm))
    ).one_or_none()
    if keyring is None:
        return Keyring(tenant, algorithm)
    rows = connection.execute(
        sa.select(KEYS).where(_is_keyring(KEYS, tenant, algorithm)).order_by(KEYS.c.version)
    ).all()
    if [row.version for row in rows] != list(range(1, keyring.versions + 1)):
        raise DamagedKeyError
    return Keyring(
        tenant, algorithm, tuple(_entry(algorithm, row) for row in rows), keyring.revision
    )


def _apply(connection: sa.Connection, change: Change) -> CommitOutcome:
    match change:
        case KeyringChange():
            return _change_keyring(connection, change)
        case RootKeyAdded():
            return _add_root_key(connection, change)
        case RootKeysDropped():
            return _drop_root_keys(connection, change)
        case _:
            assert_never(change)


def _add_root_key(connection: sa.Connection, change: RootKeyAdded) -> CommitOutcome:
    if change.root_key_id in _root_keys(connection):
        return CommitOutcome.STALE
    row = {"id": change.root_key_id, "check_value": change.check_value}
    connection.execute(sa.insert(ROOT_KEYS), row)
    return CommitOutcome.DURABLE


def _drop_root_keys(connection: sa.Connection, change: RootKeysDropped) -> CommitOutcome:
    if list_keyrings_to_reseal(connection, change.newest, None, 1):
        return CommitOutcome.STALE
    dropped = connection.execute(sa.delete(ROOT_KEYS).where(ROOT_KEYS.c.id != change.newest))
    return CommitOutcome.DURABLE if dropped.rowcount else CommitOutcome.STALE


def list_keyrings_to_reseal(
    connection: sa.Connection,
    root_key_id: int,
    after: tuple[TenantId, Algorithm] | None,
    limit: int,
) -> list[tuple[TenantId, Algorithm]]:
    """Return keyrings with seeds under another root key, in their order, after one of them."""
    name = (KEYS.c.tenant_id, KEYS.c.algorithm)
    query = sa.select(*name).where(_needs_resealing(root_key_id)).distinct()
    if after is not None:
        tenant, algorithm = after
        query = query.where(
            sa.or_(
                KEYS.c.tenant_id > tenant,
                sa.and_(KEYS.c.tenant_id == tenant, KEYS.c.algorithm > algorithm),
            )
        )
    found = connection.execute(query.order_by(*name).limit(limit))
    return [(TenantId(row.tenant_id), Algorithm(row.algorithm)) for row in found]


def count_keys_to_reseal(connection: sa.Connection, root_key_id: int) -> int:
    """Return how many seeds are sealed under another root key."""
    query = sa.select(sa.func.count()).where(_needs_resealing(root_key_id))
    return connection.execute(query).scalar_one()


def _needs_resealing(root_key_id: int) -> sa.ColumnElement[bool]:
    under = sa.func.substr(KEYS.c.sealed_seed, 2, 1, type_=sa.LargeBinary)
    return sa.and_(KEYS.c.sealed_seed.is_not(None), under != bytes((root_key_id,)))


def _change_keyring(connection: sa.Connection, change: KeyringChange) -> CommitOutcome:
    old, new = change.old, change.new
    same = _is_keyring(KEYRINGS, new.tenant, new.algorithm)
    current = connection.execute(sa.select(KEYRINGS.c.revision).where(same)).scalar()
    if (current or 0) != old.revision:
        return CommitOutcome.STALE
    if change.idempotency is not None and idempotency.find(
        connection, new.tenant, change.idempotency
    ):
        return CommitOutcome.STALE
    if _is_under_dropped_root_key(connection, change):
        return CommitOutcome.STALE
    if change.quota is not None and _active_keys(connection, new.tenant) >= change.quota:
        return CommitOutcome.QUOTA_REACHED
    counts = {"revision": new.revision, "versions": len(new.entries)}
    if current is None:
        row = {"tenant_id": new.tenant, "algorithm": new.algorithm, **counts}
        connection.execute(sa.insert(KEYRINGS), row)
    else:
        swap = sa.update(KEYRINGS).where(same, KEYRINGS.c.revision == old.revision)
        if connection.execute(swap.values(counts)).rowcount == 0:
            return CommitOutcome.STALE
    _write_keys(connection, change)
    return CommitOutcome.DURABLE


def _write_keys(connection: sa.Connection, change: KeyringChange) -> None:
    old, new = change.old, change.new
    for before, after in zip(old.entries, new.entries, strict=False):
        if after is not before:
            connection.execute(
                sa.update(KEYS)
                .where(
                    _is_keyring(KEYS, new.tenant, new.algorithm),
                    KEYS.c.version == after.info.version,
                )
                .values(status=after.info.status, sealed_seed=after.sealed)
            )
    for added in new.entries[len(old.entries) :]:
        connection.execute(sa.insert(KEYS), _row(new.tenant, added))
        if change.idempotency is not None:
            idempotency.remember(connection, new.tenant, change.idempotency, added.info.version)


def _is_under_dropped_root_key(connection: sa.Connection, change: KeyringChange) -> bool:
    """Return whether a key was made while the root key that sealed it went away."""
    oldest = connection.execute(sa.select(sa.func.min(ROOT_KEYS.c.id))).scalar() or 0
    new = change.new.entries[len(change.old.entries) :]
    return any(each.sealed and sealing_root_key_id(each.sealed) < oldest for each in new)


def _active_keys(connection: sa.Connection, tenant: TenantId) -> int:
    query = sa.select(sa.func.count()).where(
        KEYS.c.tenant_id == tenant, KEYS.c.status == KeyStatus.ACTIVE
    )
    return connection.execute(query).scalar_one()


def _is_keyring(table: sa.Table, tenant: TenantId, algorithm: Algorithm) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.tenant_id == tenant, table.c.algorithm == algorithm)


def _row(tenant: TenantId, entry: KeyEntry) -> dict[str, object]:
    return {
        "tenant_id": tenant,
        "algorithm": entry.info.algorithm,
        "version": entry.info.version,
        "status": entry.info.status,
        "public_key": entry.info.public_key,
        "sealed_seed": entry.sealed,
        "created_at_us": (entry.info.created_at - _EPOCH) // _MICROSECOND,
    }


def _entry(algorithm: Algorithm, row: sa.Row[tuple[object, ...]]) -> KeyEntry:
    info = KeyInfo(
        algorithm=algorithm,
        version=KeyVersion(row.version),
        status=KeyStatus(row.status),
        public_key=row.public_key,
        created_at=_EPOCH + row.created_at_us * _MICROSECOND,
    )
    return KeyEntry(info, None if row.sealed_seed is None else SealedSeed(row.sealed_seed))
