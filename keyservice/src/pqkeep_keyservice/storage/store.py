"""The key service's single store: it finds keys, and commits changes with their audit records."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar, TypeVarTuple, assert_never, cast
from uuid import UUID

import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import (
    BundleDestroyed,
    Change,
    CommitOutcome,
    KeyChange,
    KeyringChange,
    RootKeyAdded,
    RootKeysDropped,
    RulesChange,
    TenantArrived,
    TenantLeft,
)
from pqkeep_keyservice.keys.key_versions import KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.keys.rules import RuleSet, Unusable
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.append import (
    LogState,
    PendingAppend,
    append_records,
    insert_statement,
    load_log_state,
)
from pqkeep_keyservice.ledger.checkpoints import add_checkpoint, check_log, log_id
from pqkeep_keyservice.ledger.key_usage import count_all
from pqkeep_keyservice.ledger.merkle import Frontier, log_size, newest_record
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.schema import (
    AUDIT_CHECKPOINTS,
    AUDIT_COSIGNATURES,
    AUDIT_RECORDS,
    AUDIT_TILES,
)
from pqkeep_keyservice.ledger.schema import METADATA as AUDIT_METADATA
from pqkeep_keyservice.ledger.uses import Counting
from pqkeep_keyservice.storage.database import (
    Database,
    DatabaseUnavailableError,
    Inserts,
    NotOnlyInsertsError,
    Rows,
)
from pqkeep_keyservice.storage.key_versions import (
    find_generation,
    find_key_versions,
    is_idempotency_key_used,
    replace_key_versions,
)
from pqkeep_keyservice.storage.keyrings import (
    KeyringPage,
    find_keyring,
    find_keyring_page,
    list_keyrings,
    replace_keyring,
)
from pqkeep_keyservice.storage.root_keys import (
    RootKeyState,
    add_root_key,
    check_root_keys,
    check_shard,
    claim_shard,
    drop_root_keys,
    find_root_key_state,
    list_check_values,
    require_root_keys,
)
from pqkeep_keyservice.storage.rules import find_all_rules, find_rules, replace_rules
from pqkeep_keyservice.storage.schema import METADATA, NEWEST_BACKUP
from pqkeep_keyservice.storage.tenants import (
    move,
    moved_key_records,
)
from pqkeep_protocol.administration import AnnounceBackup, NewestBackup
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.commits import Commits, WriteProblem, probe_statements, problem_of
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Idempotency, ListKeyrings
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

RecordedChange = tuple[NewRecord, Change | None]
"""An audit record and its change, if any."""

_APPENDED = (AUDIT_RECORDS, AUDIT_TILES, AUDIT_CHECKPOINTS, AUDIT_COSIGNATURES)
"""Tables with rows that are never changed."""
_INSERTED = tuple(
    table.name for metadata in (METADATA, AUDIT_METADATA) for table in metadata.sorted_tables
)
_UPDATED = {
    table.name: table.columns[0].name
    for metadata in (METADATA, AUDIT_METADATA)
    for table in metadata.sorted_tables
    if table not in _APPENDED
}
"""A probe tests the rights and locks of these tables."""

_Written = tuple[list[CommitOutcome], LogState, PendingAppend]


class _NotWritableError(Exception):
    """The database refuses a probe, but its connection is still usable."""

    def __init__(self, problem: WriteProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class KeyStore:
    """Finds keys and commits records with their changes. Raises DatabaseUnavailableError."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        """Take a sealer. Its root keys authenticate stored keys."""
        self.database = database
        self.writer = database.writer
        self._sealer = sealer
        self._insert_record = insert_statement(database.dialect)
        self._log_state: tuple[int, LogState] | None = None
        """The state with its epoch. None during a commit, because the durable state is unknown
        then."""
        self.size = 0
        """The number of durable audit records."""
        self.recorded_at_us = 0
        """The time of the newest durable record, in microseconds since 1970."""
        self.checked_at_us = 0
        """The time of the newest record at the last ``check``, before this epoch's first record."""
        self.generation = 0
        """The number of restores from a backup."""
        self.newest_backup: NewestBackup | None = None
        """The newest announced backup."""
        self._growth = asyncio.Event()
        self._awaited_size = 0
        self._commits = Commits()
        self._counting = Counting()

    def change_sealer(self, sealer: Sealer) -> None:
        """Use other root keys from now on."""
        self._sealer = sealer

    async def check(self) -> None:
        """Check root keys and the audit log against the stored data. Raises ConfigError."""
        newest, self.generation = await self.database.write(_check, self._sealer)
        self._grow(*newest)
        self.checked_at_us = self.recorded_at_us
        self.newest_backup = await self.database.read(find_newest_backup)

    async def claim_shard(self, name: str) -> UUID:
        """Assign the database to a shard. Return the database's id. Raises ConfigError."""
        return await self.database.write(claim_shard, name)

    async def check_standing_by(self, shard: str) -> UUID | None:
        """Check shard and root keys while another key service is the writer. Raises ConfigError.

        Returns the database's id, or None if it is unknown.
        """
        with suppress(DatabaseUnavailableError):  # the checks are repeated before it serves
            database = await self.database.peek(check_shard, shard)
            require_root_keys(self._sealer, await self.database.peek(list_check_values))
            return database
        return None

    async def list_root_key_check_values(self) -> dict[int, bytes]:
        """Return the check values of the stored root keys, by id."""
        return await self.database.read(list_check_values)

    async def find_root_key_state(self) -> RootKeyState:
        """Return the state of the newest root key."""
        return await self.database.query(find_root_key_state, self._sealer.newest)

    async def find_key_versions(self, name: KeyName) -> KeyVersions:
        """Return a key's current versions, empty if there is no key. Raises DamagedKeyError."""
        return await self.database.read(find_key_versions, self._sealer, name, self.generation)

    async def find_keyring(self, name: KeyringId) -> Keyring:
        """Return a keyring. Raises KEYRING_NOT_FOUND and DamagedKeyError."""
        keyring = await self.database.read(find_keyring, self._sealer, name)
        if keyring is None:
            raise KeyServiceError(ErrorKind.KEYRING_NOT_FOUND)
        return keyring

    async def list_keyrings(self, tenant: TenantId) -> list[Keyring]:
        """Return a tenant's keyrings, by name. Raises DamagedKeyError."""
        return await self.database.query(list_keyrings, self._sealer, tenant)

    async def find_rules(self, tenant: TenantId) -> RuleSet:
        """Return a tenant's rules, empty if there are none. Raises DamagedKeyError."""
        return await self.database.read(find_rules, self._sealer, tenant)

    async def find_all_rules(self) -> dict[TenantId, RuleSet | Unusable]:
        """Return the rules of all tenants that have any."""
        return await self.database.read(find_all_rules, self._sealer)

    async def find_keyring_page(self, request: ListKeyrings) -> KeyringPage:
        """Return one page of a tenant's keyrings. Raises DamagedKeyError."""
        return await self.database.query(find_keyring_page, self._sealer, request)

    async def is_idempotency_key_used(self, tenant: TenantId, idempotency: Idempotency) -> bool:
        """Return whether this Idempotency-Key generated a key within the last day."""
        return await self.database.read(is_idempotency_key_used, tenant, idempotency)

    async def announce_backup(self, backup: AnnounceBackup) -> NewestBackup | None:
        """Store a backup's announcement.

        Return the newest backup, or None for another database's backup.
        """
        newest = await self.database.write(announce_backup, backup)
        if newest is not None:
            self.newest_backup = newest
        return newest

    async def frontier(self) -> tuple[UUID, Frontier]:
        """Return the log's id, and the tree over all durable records."""
        return await self.database.read(self._frontier)

    async def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint, and count the records up to it."""
        await self._count(self._add_checkpoint, checkpoint)
        if self._log_state is not None:
            self._log_state[1].appended.forget(checkpoint.size)

    async def count_all(self) -> None:
        """Count all records that are not counted yet, without a checkpoint."""
        await self._count(lambda connection: count_all(connection, self._counting))

    async def _count(
        self, function: Callable[[sa.Connection, *Arguments], None], *arguments: *Arguments
    ) -> None:
        """Write counts. After a failure, start from the tables again."""
        if self._counting.epoch != self.writer.epoch:
            self._counting = Counting(self.writer.epoch)
        try:
            await self.database.write(function, *arguments)
        except BaseException:
            self._counting = Counting()
            raise

    async def commit(
        self, entries: Sequence[RecordedChange], epoch: int | None = None
    ) -> list[CommitOutcome]:
        """Make records durable in one transaction, each together with its change.

        Changes computed in an earlier epoch are STALE.
        """
        epoch = epoch or self.writer.epoch
        with self._failures_noted():
            done = await self.database.insert(self._plan, entries, epoch)
            if done is None:
                done = await self.database.write(self._write, entries, epoch)
        outcomes, log_state, pending = done
        if CommitOutcome.DURABLE in outcomes:  # otherwise nothing was written
            self._commits.succeeded()
        log_state.advance(pending)
        self._log_state = epoch, log_state
        if any(isinstance(change, TenantLeft | TenantArrived) for _, change in entries):
            self._counting = Counting()  # the tenant's counts have changed
        self._grow(log_state.frontier.size, log_state.recorded_at_us)
        return outcomes

    async def wait_for_size(self, size: int) -> None:
        """Wait until ``size`` records are durable. Only one task can wait at a time."""
        self._awaited_size = size
        self._growth.clear()
        if self.size < size:
            await self._growth.wait()

    def _grow(self, size: int, recorded_at_us: int) -> None:
        self.size, self.recorded_at_us = size, recorded_at_us
        if size >= self._awaited_size:
            self._growth.set()

    async def find_write_problem(self) -> WriteProblem | None:
        """Return why the database cannot be written, or None if it can.

        The last commit or a probe commit tells. A probe leaves nothing.
        """
        if self._commits.require_probe():
            with suppress(DatabaseUnavailableError, _NotWritableError), self._failures_noted():
                await self.database.write(_probe)
                self._commits.succeeded()
        return self._commits.problem

    @contextmanager
    def _failures_noted(self) -> Iterator[None]:
        """Note why a block could not commit."""
        try:
            yield
        except (DatabaseUnavailableError, _NotWritableError) as error:
            self._commits.failed(error.problem)
            raise
        except Exception:
            self._commits.failed(WriteProblem.FAILED)
            raise

    def _frontier(self, connection: sa.Connection) -> tuple[UUID, Frontier]:
        log_state = self._take_log_state(connection)
        self._log_state = self.writer.epoch, log_state
        return log_id(connection), log_state.frontier

    def _add_checkpoint(self, connection: sa.Connection, checkpoint: Checkpoint) -> None:
        state = self._log_state
        is_current = state is not None and state[0] == self.writer.epoch
        appended = state[1].appended if state and is_current else None
        add_checkpoint(connection, checkpoint, appended, self._counting)

    def _take_log_state(self, connection: sa.Connection) -> LogState:
        taken, self._log_state = self._log_state, None
        if taken is not None and taken[0] == self.writer.epoch:
            return taken[1]
        return load_log_state(connection)

    def _plan(self, entries: Sequence[RecordedChange], epoch: int) -> tuple[Rows, _Written] | None:
        """Return a commit's rows if it only inserts. Return None for any other commit."""
        state = self._log_state
        if state is None or not state[0] == epoch == self.writer.epoch:
            return None
        if any(change for _, change in entries):
            return None
        inserts = Inserts({self._insert_record: AUDIT_RECORDS})
        connection = cast("sa.Connection", inserts)
        try:
            outcomes, pending = apply_changes(
                connection, self._sealer, self._insert_record, state[1], entries
            )
        except NotOnlyInsertsError:
            return None
        if not inserts.rows:
            return None
        self._log_state = None
        return inserts.rows, (outcomes, state[1], pending)

    def _write(
        self, connection: sa.Connection, entries: Sequence[RecordedChange], epoch: int
    ) -> _Written:
        log_state = self._take_log_state(connection)
        current = entries if epoch == self.writer.epoch else ()
        outcomes, pending = apply_changes(
            connection, self._sealer, self._insert_record, log_state, current
        )
        return outcomes or [CommitOutcome.STALE] * len(entries), log_state, pending


def _probe(connection: sa.Connection) -> None:
    try:
        for statement in probe_statements(connection.dialect.name, _INSERTED, _UPDATED):
            connection.exec_driver_sql(statement)
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        _LOG.error("the database takes no writes", error=str(error.orig))
        raise _NotWritableError(problem_of(error)) from None


def apply_changes(
    connection: sa.Connection,
    sealer: Sealer,
    insert_record: str,
    log_state: LogState,
    entries: Sequence[RecordedChange],
) -> tuple[list[CommitOutcome], PendingAppend]:
    """Apply changes in a transaction, and append the records of those that are not stale."""
    outcomes = [
        _apply(connection, sealer, change) if change else CommitOutcome.DURABLE
        for _, change in entries
    ]
    records = [
        new_record
        for (record, change), outcome in zip(entries, outcomes, strict=True)
        if outcome is CommitOutcome.DURABLE
        for new_record in _records(record, change)
    ]
    return outcomes, append_records(connection, insert_record, log_state, records)


def _check(connection: sa.Connection, sealer: Sealer) -> tuple[tuple[int, int], int]:
    check_root_keys(connection, sealer)
    check_log(connection)
    return newest_record(connection), find_generation(connection)


def _records(record: NewRecord, change: Change | None) -> Sequence[NewRecord]:
    if change is None:
        return (record,)
    if isinstance(change, TenantLeft | TenantArrived):
        return (*moved_key_records(record, change), record)
    return (_with_state(record, change),)


def _with_state(record: NewRecord, change: Change) -> NewRecord:
    """Return the record with the new state of its tenant's changed key or keyring."""
    if not isinstance(change, KeyChange | KeyringChange | RulesChange):
        return record
    if change.new.tenant != record.tenant:
        return record
    if isinstance(change, RulesChange):
        revision, digest = change.new.revision, change.new.sha256
        return record._replace(keyring_revision=revision, public_key_sha256=digest)
    if isinstance(change, KeyringChange):
        return record._replace(keyring_revision=change.new.revision)
    return record._replace(
        public_key_sha256=change.fingerprint,
        keyring_revision=change.new.revision,
        keyring=change.new.keyring,
    )


def _apply(connection: sa.Connection, sealer: Sealer, change: Change) -> CommitOutcome:
    match change:
        case KeyringChange():
            return replace_keyring(connection, sealer, change)
        case KeyChange():
            return replace_key_versions(connection, sealer, change)
        case RulesChange():
            return replace_rules(connection, sealer, change)
        case RootKeyAdded():
            return add_root_key(connection, change)
        case RootKeysDropped():
            return drop_root_keys(connection, change)
        case TenantLeft() | TenantArrived() | BundleDestroyed():
            return move(connection, sealer, change)
        case _:
            assert_never(change)


def find_newest_backup(connection: sa.Connection) -> NewestBackup | None:
    """Return the newest announced backup, or None."""
    row = connection.execute(sa.select(NEWEST_BACKUP)).one()
    generation, records, created_at_us = row
    if not created_at_us:
        return None
    return NewestBackup(generation=generation, records=records, created_at_us=created_at_us)


def announce_backup(connection: sa.Connection, backup: AnnounceBackup) -> NewestBackup | None:
    """Note a backup unless a newer one is noted. Return the newest.

    Return None if it cannot be a backup of this database.
    """
    is_of_this_log = backup.log_id == log_id(connection)
    is_of_this_generation = backup.generation == find_generation(connection)
    if not (is_of_this_log and is_of_this_generation and backup.records <= log_size(connection)):
        return None
    new = backup.generation, backup.records, backup.created_at_us
    is_newer = sa.tuple_(*NEWEST_BACKUP.c) < sa.tuple_(*map(sa.literal, new))
    noted = dict(zip(NEWEST_BACKUP.c, new, strict=True))
    connection.execute(sa.update(NEWEST_BACKUP).where(is_newer).values(noted))
    return find_newest_backup(connection)
