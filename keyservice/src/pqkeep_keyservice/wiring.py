"""Wires the parts of a key service, for its process and for the tests."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from pqkeep_keyservice.activation import Activation
from pqkeep_keyservice.administration import Administration
from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.audit.note_signer import NoteSigner
from pqkeep_keyservice.audit.service import AuditService
from pqkeep_keyservice.audit.witnesses import Witnesses
from pqkeep_keyservice.batch import Batches
from pqkeep_keyservice.config import RootKeySource, Witness
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.keys.tenant_bundle import TransferKey
from pqkeep_keyservice.live.encapsulation_workers import EncapsulationWorkers
from pqkeep_keyservice.live.executors import InProcess, executors
from pqkeep_keyservice.live.import_keys import ImportKeys
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial, KeyringCache
from pqkeep_keyservice.live.rules import RuleCache
from pqkeep_keyservice.live.tenant_gate import TenantGate
from pqkeep_keyservice.live.worker_processes import WorkerProcesses, WorkerSettings, schemes_of
from pqkeep_keyservice.metrics import ServiceMetrics
from pqkeep_keyservice.moves import TenantMoves
from pqkeep_keyservice.operations.context import Parts
from pqkeep_keyservice.root_keys import RootKeyRotation
from pqkeep_keyservice.schedule import Schedule
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.threads import Threads
from pqkeep_keyservice.transaction import Transactions
from pqkeep_protocol.keys import DEFAULT_SHARD, MIN_ARCHIVE_DAYS

NOT_KNOWN: Mapping[int, RootKeySource] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KeyServiceParts:
    """The parts of a key service, without its sockets."""

    store: KeyStore
    key_cache: KeyCache
    keyring_cache: KeyringCache
    rules: RuleCache
    material: KeyMaterial
    in_process: InProcess
    workers: WorkerProcesses
    encapsulation_workers: EncapsulationWorkers
    log: AuditLog
    gate: TenantGate
    transactions: Transactions
    batches: Batches
    checkpoint_signer: CheckpointSigner
    witnesses: Witnesses
    audit_service: AuditService
    root_keys: RootKeyRotation
    schedule: Schedule
    administration: Administration
    metrics: ServiceMetrics
    activation: Activation

    def close(self) -> None:
        """Wait for threads and worker processes, and end them. The database stays open."""
        self.workers.close()
        self.encapsulation_workers.close()
        self.in_process.close()


def wire(  # noqa: PLR0913 - each once, in process.py
    store: KeyStore,
    sealer: Sealer,
    settings: WorkerSettings,
    settings_file: Path,
    *,
    material: KeyMaterial | None = None,
    sources: Mapping[int, RootKeySource] = NOT_KNOWN,
    shard: str = DEFAULT_SHARD,
    transfer_key: Callable[[], TransferKey | None] = lambda: None,
    verify_signatures: bool = False,
    least_destruction_days: int = MIN_ARCHIVE_DAYS,
    origin: str | None = None,
    witnesses: Sequence[Witness] = (),
    database_folder: Path | None = None,
) -> KeyServiceParts:
    """Return the wired parts of a key service. ``sources`` are the sources of its root keys.

    ``database_folder``: None if the database is on a server.
    """
    schemes, least_delay = schemes_of(settings), timedelta(days=least_destruction_days)
    key_cache = KeyCache(store.writer, store.find_key_versions)
    keyring_cache = KeyringCache(store.writer, store.find_keyring)
    rules = RuleCache(store)
    log = AuditLog(store)
    material = material or KeyMaterial(sealer, schemes)
    workers = WorkerProcesses(settings, material)
    crypto_threads = Threads("crypto", os.cpu_count() or 1)
    in_process = InProcess(material, crypto_threads, verify_signatures=verify_signatures)
    executor_of = executors(schemes, in_process, workers)
    encapsulation_workers = EncapsulationWorkers()
    parts = Parts(
        store=store,
        writer=store.writer,
        keys=key_cache,
        keyrings=keyring_cache,
        rules=rules,
        material=material,
        executors=executor_of,
        encapsulation_workers=encapsulation_workers,
        import_keys=ImportKeys(),
        crypto_threads=crypto_threads,
        least_delay=least_delay,
    )
    gate = TenantGate(store)
    transactions = Transactions(parts, log, gate)
    signer = CheckpointSigner(transactions.execute, store, key_cache, material, executor_of)
    note_signer = NoteSigner(store, key_cache, material, origin)
    cosigning = Witnesses(witnesses, store, log, note_signer)
    audit_service = AuditService(
        store, key_cache, keyring_cache, log, signer, note_signer, cosigning, gate, rules
    )
    schedule = Schedule(store, transactions, least_delay)
    root_keys = RootKeyRotation(
        settings_file, sealer, store, log, key_cache, keyring_cache, rules, material, sources
    )
    moves = TenantMoves(
        shard, transfer_key, store, log, gate, key_cache, keyring_cache, rules, material
    )
    activation = Activation(store, material, root_keys, signer, rules)
    return KeyServiceParts(
        store=store,
        key_cache=key_cache,
        keyring_cache=keyring_cache,
        rules=rules,
        material=material,
        in_process=in_process,
        workers=workers,
        encapsulation_workers=encapsulation_workers,
        log=log,
        gate=gate,
        transactions=transactions,
        batches=Batches(parts, log, gate),
        checkpoint_signer=signer,
        witnesses=cosigning,
        audit_service=audit_service,
        root_keys=root_keys,
        schedule=schedule,
        administration=Administration(root_keys, store, moves, keyring_cache),
        metrics=ServiceMetrics(
            store,
            log,
            signer,
            audit_service,
            cosigning,
            workers,
            schedule,
            activation,
            database_folder=database_folder,
        ),
        activation=activation,
    )
