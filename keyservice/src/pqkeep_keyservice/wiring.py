"""Wires the parts of a key service: the same in its process and in the tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.audit.service import AuditService
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.dispatch import Dispatcher
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.executors import executors
from pqkeep_keyservice.live.in_process import InProcess
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.keyring_cache import KeyringCache
from pqkeep_keyservice.live.worker_processes import WorkerProcesses, WorkerSettings, schemes_of
from pqkeep_keyservice.metrics import ServiceMetrics
from pqkeep_keyservice.root_keys import RootKeyRotation
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.transaction import Transactions

NOT_KNOWN: Mapping[int, RootKeySource] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KeyServiceParts:
    """What a key service consists of, but for its socket."""

    store: KeyStore
    keyrings: KeyringCache
    material: KeyMaterial
    in_process: InProcess
    workers: WorkerProcesses
    log: AuditLog
    transactions: Transactions
    checkpoint_signer: CheckpointSigner
    audit_service: AuditService
    root_keys: RootKeyRotation
    metrics: ServiceMetrics

    def close(self) -> None:
        """Wait for threads and worker processes and end them. The database stays open."""
        self.workers.close()
        self.in_process.close()


def wire(
    store: KeyStore,
    sealer: Sealer,
    settings: WorkerSettings,
    settings_file: Path,
    *,
    material: KeyMaterial | None = None,
    sources: Mapping[int, RootKeySource] = NOT_KNOWN,
) -> KeyServiceParts:
    """Put a key service together that has nothing in memory but root keys, from these sources."""
    schemes = schemes_of(settings)
    keyrings, log = KeyringCache(store), AuditLog(store)
    material = material or KeyMaterial(sealer, schemes)
    in_process, workers = InProcess(material), WorkerProcesses(settings, material)
    executor_of = executors(schemes, in_process, workers)
    dispatcher = Dispatcher(store, keyrings, material, executor_of)
    transactions = Transactions(dispatcher, store, log, keyrings, material)
    signer = CheckpointSigner(transactions.execute, store, keyrings, material, executor_of)
    audit_service = AuditService(store, keyrings, log, signer)
    return KeyServiceParts(
        store=store,
        keyrings=keyrings,
        material=material,
        in_process=in_process,
        workers=workers,
        log=log,
        transactions=transactions,
        checkpoint_signer=signer,
        audit_service=audit_service,
        root_keys=RootKeyRotation(settings_file, sealer, store, log, keyrings, material, sources),
        metrics=ServiceMetrics(store, log, signer, audit_service, workers),
    )
