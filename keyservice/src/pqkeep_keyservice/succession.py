"""Begins a new audit log in a restored database: it continues the records, and names the log before.

The installation that the backup is of may have recorded more since, and may still run. If both had
one log id and one key, they would sign two histories of one log: a fork.
"""

from uuid import UUID, uuid4

import sqlalchemy as sa

from pqkeep_keyservice import clock
from pqkeep_keyservice.audit.checkpoint_signer import ALGORITHMS, CONTEXT, signed_text
from pqkeep_keyservice.keys.changes import CommitOutcome, KeyChange
from pqkeep_keyservice.keys.key_versions import VERSIONS_PER_GENERATION, KeyEntry, KeyName
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger import checkpoints
from pqkeep_keyservice.ledger.append import insert_statement, load_log_state
from pqkeep_keyservice.ledger.merkle import Frontier
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.succession import succession_record
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.worker_processes import WorkerSettings, schemes_of
from pqkeep_keyservice.storage.key_versions import find_generation, find_key_versions
from pqkeep_keyservice.storage.store import RecordedChange, apply_changes
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.keys import DEFAULT_KEYRING, INSTALLATION, KeyInfo, KeyStatus, KeyVersion
from pqkeep_protocol.startup.settings import ConfigError


def continue_log(connection: sa.Connection, sealer: Sealer) -> UUID:
    """Begin a new log with a new checkpoint key, in a transaction; return its id.

    Its first record names the log that it continues. Raises ConfigError and DamagedKeyError.
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
    outcomes, appended = apply_changes(connection, sealer, insert, log_state, entries)
    if set(outcomes) != {CommitOutcome.DURABLE}:
        raise ConfigError("the keys that sign checkpoints could not be replaced")
    log = uuid4()
    checkpoints.rename_log(connection, log)
    checkpoints.add_checkpoint(connection, _sign(material, signer, log, appended.frontier))
    return log


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
