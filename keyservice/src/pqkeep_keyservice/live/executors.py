"""Where each algorithm's keys are generated and its signatures made: one table for all of them.

ML-KEM takes tens of microseconds and runs on the event loop. ML-DSA takes up to a few milliseconds
and releases the interpreter lock: it runs in threads. SLH-DSA holds the lock, for up to half a
second: it runs in worker processes, behind a queue in which no tenant can keep others waiting.
"""

from collections.abc import Mapping
from typing import Protocol

from pqkeep_keyservice.crypto.signature import SignatureSchemes
from pqkeep_keyservice.keys.keyring import KeyEntry, SealedSeed
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId


class Executor(Protocol):
    """Generates keys, signs and verifies. Deadlines are in the event loop's time.

    Raises DamagedKeyError; and, if work has to wait, OVERLOADED, DEADLINE_EXCEEDED and UNAVAILABLE.
    """

    async def generate(
        self, tenant: TenantId, algorithm: Algorithm, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        """Return a new public key and its private key, sealed for this version."""
        ...

    async def sign(
        self, tenant: TenantId, entry: KeyEntry, message: bytes, context: bytes, deadline: float
    ) -> bytes:
        """Return a signature."""
        ...

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
        ...


Executors = Mapping[Algorithm, Executor]


def executors(
    schemes: SignatureSchemes, in_process: Executor, worker_processes: Executor
) -> Executors:
    """Return the executor of each algorithm."""
    slow = {algorithm for algorithm, each in schemes.items() if each.holds_interpreter_lock}
    return {each: worker_processes if each in slow else in_process for each in Algorithm}
