"""SLH-DSA in worker processes: what they do, and what the service asks of them.

A worker gets the sealed private key and the message. It reads the root keys itself, once, so no
private key crosses from one process to another.
"""

import multiprocessing
import os
import signal
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from pqkeep_keyservice import hardening
from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.slhdsa import SETS, Implementation, sign_checked
from pqkeep_keyservice.crypto.slhdsa_openssl import OpenSsl
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.keys.keyring import KeyEntry, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, place, read_sealer
from pqkeep_keyservice.live.workers import CORES, FairQueue, WorkerProcess
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId

LOW_PRIORITY = 10
"""Signing yields the cores to everything else: see nice(2)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to know before its first work."""

    root_keys: tuple[tuple[int, Path], ...]
    """Ids and files."""
    implementation: Literal["pqcrypto", "openssl"]
    openssl_library: str | None


@cache
def implementation(setup: Setup) -> Implementation:
    """Return the chosen implementation. Raises ConfigError."""
    return OpenSsl(setup.openssl_library) if setup.implementation == "openssl" else Pqcrypto()


@lru_cache(maxsize=1)
def _sealer(setup: Setup) -> Sealer:
    return read_sealer(dict(setup.root_keys))


def _initialise_signer(setup: Setup) -> None:
    os.nice(LOW_PRIORITY)
    _initialise(setup, signs=True)
    _sealer(setup)


def _initialise_verifier(setup: Setup) -> None:
    _initialise(setup, signs=False)


def _initialise(setup: Setup, *, signs: bool) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        hardening.die_with_parent(parent.pid)
    hardening.harden()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selftest.require_slhdsa(implementation(setup), signs=signs)


def _generate(
    setup: Setup, tenant: TenantId, algorithm: Algorithm, version: KeyVersion
) -> tuple[bytes, SealedSeed]:
    private_key = implementation(setup).generate(algorithm)
    public_key = private_key[SETS[algorithm].public_key :]
    where = place(tenant, algorithm, version, public_key)
    return public_key, _sealer(setup).seal(Secret(private_key), where)


def _sign(
    setup: Setup,
    tenant: TenantId,
    entry: KeyEntry,
    message: bytes,
    context: bytes,
) -> bytes:
    info = entry.info
    if entry.sealed is None:
        raise DamagedKeyError
    where = place(tenant, info.algorithm, info.version, info.public_key)
    with _sealer(setup).unseal(entry.sealed, where) as private_key:
        return sign_checked(
            implementation(setup), info.algorithm, bytes(private_key.reveal()), message, context
        )


def _verify(
    setup: Setup,
    algorithm: Algorithm,
    public_key: bytes,
    message: bytes,
    context: bytes,
    signature: bytes,
) -> None:
    implementation(setup).verify(algorithm, public_key, message, context, signature)


class SlhDsaProcesses:
    """SLH-DSA for the operations.

    Signing has a worker a core, of which no tenant has more than all but one. Verifying takes
    under a millisecond and has a worker of its own: it never waits for a signature.
    """

    def __init__(self, setup: Setup) -> None:
        """Start nothing yet."""
        self._setup = setup
        signers = [WorkerProcess(_initialise_signer, setup) for _ in range(max(2, CORES))]
        self._signing = FairQueue(signers, per_tenant=len(signers) - 1)
        self._verifying = FairQueue([WorkerProcess(_initialise_verifier, setup)], per_tenant=1)

    def use(self, setup: Setup) -> None:
        """Have the workers read other root keys before their next work."""
        self._setup = setup

    async def generate(
        self, tenant: TenantId, algorithm: Algorithm, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        """Return a new public key and its private key, sealed for this version."""
        return await self._signing.run(
            tenant, deadline, _generate, self._setup, tenant, algorithm, version
        )

    async def sign(
        self,
        tenant: TenantId,
        entry: KeyEntry,
        message: bytes,
        context: bytes,
        deadline: float,
    ) -> bytes:
        """Return a signature that has been verified."""
        return await self._signing.run(
            tenant, deadline, _sign, self._setup, tenant, entry, message, context
        )

    async def verify(
        self,
        tenant: TenantId,
        entry: KeyEntry,
        message: bytes,
        context: bytes,
        signature: bytes,
        deadline: float,
    ) -> None:
        """Raise InvalidSignature unless it holds."""
        await self._verifying.run(
            tenant,
            deadline,
            _verify,
            self._setup,
            entry.info.algorithm,
            entry.info.public_key,
            message,
            context,
            signature,
        )

    def close(self) -> None:
        """Wait for what runs and end the processes."""
        self._signing.close()
        self._verifying.close()
