"""The executor with worker processes, and the functions that run in them.

A worker never has a root key. It receives a private key with each message to sign. It returns the
private key of a new key pair, and this process seals it. Both cross by the anonymous pipes of
``multiprocessing``: no secret is in a file, an argument or the environment.
"""

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, TypeVar, TypeVarTuple

from pqkeep_keyservice import hardening
from pqkeep_keyservice.config import Config
from pqkeep_keyservice.crypto import legacy, selftest
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.selftest import is_signature_pair
from pqkeep_keyservice.crypto.signature import SignatureSchemes, signature_schemes
from pqkeep_keyservice.crypto.slhdsa_openssl import OpenSsl, is_installed
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, SealedSeed
from pqkeep_keyservice.keys.sealed_keys import generate_key, load_key, require_pair
from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_keyservice.live.executors import Signable, SuppliedKey, sign, verify
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.fair_queue import FairQueue, QueueFullError, QueueTimeoutError
from pqkeep_protocol.keys import KeyInfo, KeyVersion, TenantId

SEMAPHORES = "/dev/shm"  # noqa: S108 - where the C library keeps them
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class WorkerProcess:
    """A process that runs one function at a time, and is replaced when it dies.

    It is spawned and never forked, so it inherits no memory of this process.
    """

    def __init__(self, initialise: Callable[..., None], *arguments: object) -> None:
        """Start nothing yet. The process starts at the first work, and first runs ``initialise``.

        A pool needs semaphores (files) and a process that removes them. So a pool is created at its
        first use. Raises OSError now if the files could not be created later.
        """
        self._initialise = initialise
        self._arguments = arguments
        self._pool: ProcessPoolExecutor | None = None
        with tempfile.TemporaryFile(dir=SEMAPHORES):
            pass

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function in the process, again if it dies. Raises UNAVAILABLE if it dies twice."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            if self._pool is None:
                self._pool = self._new_pool()
            try:
                return await loop.run_in_executor(self._pool, function, *arguments)
            except BrokenProcessPool:
                self._pool.shutdown(wait=False)
                self._pool = None
        raise KeyServiceError(ErrorKind.UNAVAILABLE)

    def close(self) -> None:
        """Wait for running work, and end the process."""
        if self._pool is not None:
            self._pool.shutdown()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=self._initialise,
            initargs=self._arguments,
        )


LOW_PRIORITY = 4
"""The niceness of signers. Signing yields to other work on a core, and still gets a third of it
(nice(2)).

With 10 it got a tenth, and signatures on a busy machine came too late.
"""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings that a worker process gets at its start and with each function."""

    slh_dsa: Literal["pqcrypto", "openssl"]
    openssl_library: str | None


def worker_settings(settings: Config) -> WorkerSettings:
    """Return the settings for worker processes.

    A configured library is used or refused. With "auto" and no library, pqcrypto is used only if
    the system has no OpenSSL. An OpenSSL that fails its self-test is refused at the start.
    """
    library = settings.openssl_library
    if settings.slh_dsa != "auto":
        return WorkerSettings(settings.slh_dsa, library)
    has_openssl = library is not None or is_installed()
    return WorkerSettings("openssl" if has_openssl else "pqcrypto", library)


@cache
def schemes_of(settings: WorkerSettings) -> SignatureSchemes:
    """Return the signature schemes with the configured SLH-DSA. Raises ConfigError."""
    if settings.slh_dsa == "openssl":
        return signature_schemes(OpenSsl(settings.openssl_library))
    return signature_schemes(Pqcrypto())


class WorkerPool:
    """Runs functions in worker processes. A tenant has at most ``per_tenant`` running at once."""

    def __init__(self, workers: Sequence[WorkerProcess], *, per_tenant: int) -> None:
        self._workers = workers
        self._queue = FairQueue[TenantId, WorkerProcess](
            workers, per_subject=per_tenant, max_waiting=MAX_WAITING
        )

    @property
    def waiting(self) -> int:
        """The number of functions that wait for a worker."""
        return self._queue.waiting

    async def run(
        self,
        tenant: TenantId,
        deadline: float,
        function: Callable[[*Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        """Run a function as soon as the tenant may have a worker.

        Raises OVERLOADED if the tenant has too many waiting calls, and UNAVAILABLE if the worker
        dies. Raises DEADLINE_EXCEEDED if no worker is free before the deadline (in the event loop's
        time).
        """
        try:
            worker = await self._queue.acquire(tenant, deadline)
        except QueueFullError:
            raise KeyServiceError(ErrorKind.OVERLOADED) from None
        except QueueTimeoutError:
            raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED) from None
        try:
            return await worker.run(function, *arguments)
        finally:
            self._queue.release(tenant, worker)

    def close(self) -> None:
        """Wait for running work, and end the processes."""
        for worker in self._workers:
            worker.close()


class WorkerProcesses:
    """Signs with one worker for each core. A tenant has at most all but one of them.

    Verifying takes under a millisecond. It has its own worker, so that it never waits for a
    signature.
    """

    def __init__(self, settings: WorkerSettings, material: KeyMaterial) -> None:
        """Start nothing yet. The processes start at the first work."""
        self._settings = settings
        self._material = material
        count = max(2, os.cpu_count() or 1)
        signers = [WorkerProcess(_initialise_signer, settings) for _ in range(count)]
        self._signing = WorkerPool(signers, per_tenant=count - 1)
        self._verifying = WorkerPool([WorkerProcess(_initialise_verifier, settings)], per_tenant=1)

    @property
    def waiting_to_sign(self) -> int:
        """The number of signatures and new keys that wait for a worker."""
        return self._signing.waiting

    @property
    def waiting_to_verify(self) -> int:
        """The number of verifications that wait for a worker."""
        return self._verifying.waiting

    async def generate(
        self, name: KeyName, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        public_key, seed = await self._signing.run(
            name.tenant, deadline, _generate, self._settings, name.algorithm
        )
        secret = Secret(seed)
        return public_key, self._material.seal(secret, name, version, public_key)

    async def adopt(
        self, name: KeyName, version: KeyVersion, seed: Secret, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        with seed:
            sent = bytearray(seed.reveal())
            if name.algorithm in legacy.DECRYPTION:
                with Secret(sent):
                    public_key, stored = await self._signing.run(
                        name.tenant, deadline, _adopt_legacy, name.algorithm, sent
                    )
                return public_key, self._material.seal(Secret(stored), name, version, public_key)
            with Secret(sent):
                public_key = await self._signing.run(
                    name.tenant, deadline, _require_pair, self._settings, name.algorithm, sent
                )
            return public_key, self._material.seal(seed, name, version, public_key)

    async def sign(
        self, tenant: TenantId, entry: KeyEntry, signable: Signable, deadline: float
    ) -> bytes:
        with self._material.unseal(tenant, entry) as secret:
            seed = bytearray(secret.reveal())
        info = entry.info
        place = (self._settings, info.algorithm, info.public_key)
        with Secret(seed):
            return await self._signing.run(tenant, deadline, _sign, *place, seed, signable)

    async def verify(
        self,
        tenant: TenantId,
        key: KeyEntry | SuppliedKey,
        signable: Signable,
        signature: bytes,
        deadline: float,
    ) -> None:
        if isinstance(key, SuppliedKey):
            info: KeyInfo | SuppliedKey = key
            self._material.supplied_verifying_key(key.algorithm, key.public_key)
        else:
            info = key.info
            self._material.authenticate(tenant, key)
        await self._verifying.run(
            tenant,
            deadline,
            _verify,
            self._settings,
            info.algorithm,
            info.public_key,
            signable,
            signature,
        )

    def close(self) -> None:
        """Wait for running work, and end the processes."""
        self._signing.close()
        self._verifying.close()


def _initialise_signer(settings: WorkerSettings) -> None:
    os.nice(LOW_PRIORITY)
    _initialise(settings, signs=True)


def _initialise_verifier(settings: WorkerSettings) -> None:
    _initialise(settings, signs=False)


def _initialise(settings: WorkerSettings, *, signs: bool) -> None:
    hardening.harden_worker()
    selftest.require_worker(schemes_of(settings), signs=signs)


def _generate(settings: WorkerSettings, algorithm: Algorithm) -> tuple[bytes, bytearray]:
    scheme = schemes_of(settings)[algorithm]
    public_key, seed = generate_key(scheme, partial(is_signature_pair, scheme))
    with seed:
        return public_key, bytearray(seed.reveal())


def _require_pair(settings: WorkerSettings, algorithm: Algorithm, seed: bytearray) -> bytes:
    scheme = schemes_of(settings)[algorithm]
    with Secret(seed) as secret:
        return require_pair(scheme, partial(is_signature_pair, scheme), secret)


def _adopt_legacy(algorithm: Algorithm, document: bytearray) -> tuple[bytes, bytearray]:
    with Secret(document) as secret:
        public_key, stored = legacy.DECRYPTION[algorithm].adopt(secret)
    with stored:
        return public_key, bytearray(stored.reveal())


def _sign(
    settings: WorkerSettings,
    algorithm: Algorithm,
    public_key: bytes,
    seed: bytearray,
    signable: Signable,
) -> bytes:
    scheme = schemes_of(settings)[algorithm]
    return sign(load_key(scheme, Secret(seed), public_key), signable)


def _verify(
    settings: WorkerSettings,
    algorithm: Algorithm,
    public_key: bytes,
    signable: Signable,
    signature: bytes,
) -> None:
    public = schemes_of(settings)[algorithm].load_public(public_key)
    verify(public, signature, signable)
