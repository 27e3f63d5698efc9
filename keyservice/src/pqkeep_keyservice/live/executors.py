"""The executors of all algorithms: they generate keys, sign and verify.

ML-KEM takes tens of microseconds and runs on the event loop. ML-DSA takes up to a few milliseconds
and releases the interpreter lock, so it runs in threads. SLH-DSA holds the lock for up to half a
second, so it runs in worker processes. Their queue is fair between tenants. They also check
imported RSA keys, for up to a second. RSA decryption takes up to some milliseconds, in threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pqkeep_keyservice.crypto import legacy, mldsa
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SignatureSchemes, SigningKey, VerifyingKey
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, SealedSeed
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.threads import Threads
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm
from pqkeep_protocol.keys import KeyVersion, TenantId


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message and its signature context (at most 255 bytes)."""

    message: bytes
    context: bytes = b""


@dataclass(frozen=True, slots=True, repr=False)
class ExternalMu:
    """A message and context, hashed for ML-DSA: 64 bytes (FIPS 204, algorithm 7)."""

    mu: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Digest:
    """A message's digest, for legacy signatures."""

    hash_algorithm: HashAlgorithm
    digest: bytes


Signable = Message | ExternalMu | Digest


def sign(private: SigningKey, signable: Signable) -> bytes:
    """Return a signature. Raises TypeError on a mu if the scheme is not ML-DSA."""
    if isinstance(signable, Message):
        return private.sign(signable.message, signable.context)
    if isinstance(private, mldsa.SigningKey) and isinstance(signable, ExternalMu):
        return private.sign_mu(signable.mu)
    raise TypeError("only ML-DSA signs a mu")


def sign_and_verify(private: SigningKey, public: VerifyingKey, signable: Signable) -> bytes:
    """Return a verified signature. Raises InvalidSignature after a computation error."""
    signature = sign(private, signable)
    verify(public, signature, signable)
    return signature


def verify(public: VerifyingKey, signature: bytes, signable: Signable) -> None:
    """Raise InvalidSignature unless it is valid; TypeError if the scheme takes no such input."""
    if isinstance(signable, Message):
        public.verify(signature, signable.message, signable.context)
    elif isinstance(signable, Digest) and isinstance(public, legacy.VerifyingKey):
        public.verify_digest(signature, signable.digest, signable.hash_algorithm)
    elif isinstance(signable, ExternalMu) and isinstance(public, mldsa.VerifyingKey):
        public.verify_mu(signature, signable.mu)
    else:
        raise TypeError("only ML-DSA keys verify a mu, and only legacy keys verify a bare digest")


@dataclass(frozen=True, slots=True)
class SuppliedKey:
    """A verifying key from the caller, in its standard's encoding."""

    algorithm: Algorithm
    public_key: bytes


class Executor(Protocol):
    """Generates keys, signs and verifies. Deadlines are in the event loop's time.

    Raises DamagedKeyError. Queued work also raises OVERLOADED, DEADLINE_EXCEEDED and UNAVAILABLE.
    """

    async def generate(
        self, name: KeyName, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        """Return a new public key, and its private key sealed for this version."""
        ...

    async def adopt(
        self, name: KeyName, version: KeyVersion, seed: Secret, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        """Return an imported private key's public key, and the sealed private key. Wipes ``seed``.

        For a legacy key, ``seed`` is its document. Raises InconsistentKeyPairError and
        PrivateKeyError.
        """
        ...

    async def sign(
        self, tenant: TenantId, entry: KeyEntry, signable: Signable, deadline: float
    ) -> bytes:
        """Return a signature."""
        ...

    async def verify(
        self,
        tenant: TenantId,
        key: KeyEntry | SuppliedKey,
        signable: Signable,
        signature: bytes,
        deadline: float,
    ) -> None:
        """Raise InvalidSignature unless it is valid, and ValueError on an invalid supplied key."""
        ...


Executors = Mapping[Algorithm, Executor]


def executors(
    schemes: SignatureSchemes, in_process: Executor, worker_processes: Executor
) -> Executors:
    """Return the executor of each algorithm."""
    slow = {algorithm for algorithm, scheme in schemes.items() if scheme.holds_interpreter_lock}
    slow |= legacy.DECRYPTION.keys()  # the check of an imported RSA key takes 10 ms
    return {
        algorithm: worker_processes if algorithm in slow else in_process for algorithm in Algorithm
    }


class InProcess:
    """Signs and verifies in threads."""

    def __init__(
        self, material: KeyMaterial, threads: Threads, *, verify_signatures: bool = False
    ) -> None:
        """Take the threads. ``verify_signatures``: verify each signature before its release."""
        self._material = material
        self._threads = threads
        self._verify_signatures = verify_signatures

    async def generate(
        self, name: KeyName, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        return self._material.generate(name, version)

    async def adopt(
        self, name: KeyName, version: KeyVersion, seed: Secret, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        return self._material.adopt(name, version, seed)

    async def sign(
        self, tenant: TenantId, entry: KeyEntry, signable: Signable, deadline: float
    ) -> bytes:
        private = self._material.signing_key(tenant, entry)
        if not self._verify_signatures:
            return await self._threads.run(sign, private, signable)
        public = self._material.verifying_key(tenant, entry)
        return await self._threads.run(sign_and_verify, private, public, signable)

    async def verify(
        self,
        tenant: TenantId,
        key: KeyEntry | SuppliedKey,
        signable: Signable,
        signature: bytes,
        deadline: float,
    ) -> None:
        if isinstance(key, SuppliedKey):
            public = self._material.supplied_verifying_key(key.algorithm, key.public_key)
        else:
            public = self._material.verifying_key(tenant, key)
        await self._threads.run(verify, public, signature, signable)

    def close(self) -> None:
        """Wait for running work."""
        self._threads.close()
