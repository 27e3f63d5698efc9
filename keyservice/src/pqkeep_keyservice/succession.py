"""Begins a new audit log in a restored database. It continues the records of the earlier log.

The backed-up installation may have recorded more since, and may still run. With the same log id and
key, both would sign two histories of one log: a fork.

The first record after a restore uses the fields of every record:

    operation    continue-log
    request_id   the id of the earlier log
    policy       checkpoint-SIZE-ROOT: the earlier log's last checkpoint in the backup; SIZE in
                 decimal, ROOT in hexadecimal
    key_version  the first version of the new checkpoint keys, which sign the new log

All records before it belong to the earlier log.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.audit.checkpoint_signer import ALGORITHMS, CONTEXT, signed_text
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange, KeyringChange
from pqkeep_keyservice.keys.key_versions import VERSIONS_PER_GENERATION, KeyEntry, KeyName
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger import checkpoints
from pqkeep_keyservice.ledger.append import insert_statement, load_log_state
from pqkeep_keyservice.ledger.merkle import EMPTY_ROOT, Frontier
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.worker_processes import WorkerSettings, schemes_of
from pqkeep_keyservice.storage.key_versions import every_due_key, find_generation, find_key_versions
from pqkeep_keyservice.storage.keyrings import every_destruction, find_keyring
from pqkeep_keyservice.storage.store import RecordedChange, apply_changes
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    INSTALLATION,
    MIN_ARCHIVE_DAYS,
    KeyInfo,
    KeyringName,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.startup.settings import ConfigError

HOLD = timedelta(days=MIN_ARCHIVE_DAYS)
"""The pause in destructions after a restore. They may have been cancelled after the backup."""


class DueDestruction(NamedTuple):
    """A scheduled destruction: of a private key, of a keyring's keys, or of a tenant's keys."""

    at: datetime
    tenant: TenantId
    key: KeyInfo | None = None
    keyring: KeyringName | None = None
    """The deleted keyring."""


def continue_log(connection: sa.Connection, sealer: Sealer) -> UUID:
    """Begin a new log with a new checkpoint key, in a transaction. Return the log's id.

    Its first record names the earlier log. Nothing is destroyed in the next seven days. Raises
    ConfigError and DamagedKeyError.
    """
    material = KeyMaterial(sealer, schemes_of(WorkerSettings("pqcrypto", None)))
    generation = find_generation(connection) + 1
    first_version = KeyVersion(generation * VERSIONS_PER_GENERATION + 1)
    last = checkpoints.find_largest_checkpoint(connection)
    log_state, insert = load_log_state(connection), insert_statement(connection.dialect)
    signer = _new_key(material, first_version)
    entries: list[RecordedChange] = [
        (succession_record(checkpoints.log_id(connection), last, first_version), None)
    ]
    for algorithm in ALGORITHMS:
        versions = find_key_versions(
            connection, sealer, KeyName(INSTALLATION, algorithm), generation
        )
        if versions.active is not None:
            retired = versions.with_retired(versions.active.info.version, signer.info.created_at)
            change = KeyChange(versions, retired)
            entries.append((_record(Operation.RETIRE_KEY, versions.active), change))
            versions = retired
        if algorithm is signer.info.algorithm:
            change = KeyChange(versions, versions.with_first(signer))
            entries.append((_record(Operation.GENERATE_KEY, signer), change))
    entries += _postponements(connection, sealer, generation, signer.info.created_at + HOLD)
    outcomes, appended = apply_changes(connection, sealer, insert, log_state, entries)
    if set(outcomes) != {CommitOutcome.DURABLE}:
        raise ConfigError("the checkpoint keys could not be replaced: restore the backup again")
    log = uuid4()
    checkpoints.rename_log(connection, log)
    checkpoints.add_checkpoint(connection, _sign(material, signer, log, appended.frontier))
    return log


def list_due(connection: sa.Connection, sealer: Sealer) -> Sequence[DueDestruction]:
    """Return the scheduled destructions, the earliest first.

    Damaged keys are left out: they are never destroyed.
    """
    scheduled: list[DueDestruction] = []
    for destroyed in every_destruction(connection):
        with suppress(DamagedKeyError):
            keyring = find_keyring(connection, sealer, destroyed)
            if keyring is not None and keyring.destruction is not None:
                deleted = keyring.info.name if keyring.is_deleted else None
                at = keyring.destruction.at
                scheduled.append(DueDestruction(at, destroyed.tenant, keyring=deleted))
    generation = find_generation(connection)
    for name in every_due_key(connection):
        with suppress(DamagedKeyError):
            versions = find_key_versions(connection, sealer, name, generation)
            scheduled += (
                DueDestruction(entry.info.archive_at, name.tenant, entry.info)
                for entry in versions.entries
                if entry.info.archive_at is not None
            )
    return sorted(scheduled, key=lambda due: due.at)


def _postponements(
    connection: sa.Connection, sealer: Sealer, generation: int, until: datetime
) -> Iterator[RecordedChange]:
    """Yield changes that postpone all destructions to at least a time, with their records.

    Damaged keys are not changed: they are never destroyed.
    """
    for destroyed in every_destruction(connection):
        with suppress(DamagedKeyError):
            keyring = find_keyring(connection, sealer, destroyed)
            if keyring is not None and (
                (kept := keyring.with_destruction_postponed(until)) is not keyring
            ):
                operation = (
                    Operation.DELETE_KEYRING
                    if keyring.is_deleted
                    else Operation.SCHEDULE_DESTRUCTION
                )
                record = _postponed(operation, destroyed.tenant, until)
                yield record._replace(keyring=destroyed.keyring), KeyringChange(kept)
    for name in every_due_key(connection):
        with suppress(DamagedKeyError):
            versions = find_key_versions(connection, sealer, name, generation)
            for entry in versions.entries:
                postponed = versions.with_archive_postponed(entry.info.version, until)
                if postponed is versions:
                    continue
                record = _postponed(Operation.SCHEDULE_ARCHIVE, name.tenant, until)
                record = record._replace(
                    algorithm=name.algorithm, key_version=entry.info.version, keyring=name.keyring
                )
                yield record, KeyChange(versions, postponed)
                versions = postponed


def _postponed(operation: Operation, tenant: TenantId, until: datetime) -> NewRecord:
    return NewRecord(
        tenant=tenant,
        principal="key-service",
        operation=operation,
        algorithm=None,
        key_version=None,
        outcome=Outcome.SUCCESS,
        request_id="restore",
        source_address="",
        policy=f"at-{until:%Y-%m-%dT%H:%M:%SZ}",
        keyring=DEFAULT_KEYRING,
    )


def _new_key(material: KeyMaterial, version: KeyVersion) -> KeyEntry:
    algorithm = Algorithm.ML_DSA_65
    public_key, sealed = material.generate(KeyName(INSTALLATION, algorithm), version)
    now = clock.now()
    return KeyEntry(KeyInfo(algorithm, version, KeyStatus.ACTIVE, public_key, now), sealed)


def _sign(material: KeyMaterial, signer: KeyEntry, log: UUID, frontier: Frontier) -> Checkpoint:
    at_us = clock.now_us()
    text = signed_text(log, frontier.size, frontier.root(), at_us)
    return Checkpoint(
        log_id=log,
        size=frontier.size,
        root=frontier.root(),
        at_us=at_us,
        algorithm=signer.info.algorithm,
        key_version=signer.info.version,
        signature=material.signing_key(INSTALLATION, signer).sign(text, CONTEXT),
    )


def _record(operation: Operation, key: KeyEntry) -> NewRecord:
    return NewRecord(
        tenant=INSTALLATION,
        principal="key-service",
        operation=operation,
        algorithm=key.info.algorithm,
        key_version=key.info.version,
        outcome=Outcome.SUCCESS,
        request_id=str(uuid4()),
        source_address="",
        policy="",
        keyring=DEFAULT_KEYRING,
    )


def succession_record(log: UUID, last: Checkpoint | None, first_version: KeyVersion) -> NewRecord:
    """Return the record that continues a log. ``last`` is its last checkpoint, if any."""
    size, root = (0, EMPTY_ROOT) if last is None else (last.size, last.root)
    return NewRecord(
        tenant=INSTALLATION,
        principal="operator",
        operation=KeyServiceEvent.CONTINUE_LOG,
        algorithm=None,
        key_version=first_version,
        outcome=Outcome.SUCCESS,
        request_id=str(log),
        source_address="",
        policy=f"checkpoint-{size}-{root.hex()}",
    )
