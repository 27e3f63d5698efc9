"""Operations with a KEM key: encrypt, wrap, encapsulate and their inverses; and MACs.

    ciphertext = KEM ciphertext || nonce (12) || AES-GCM ciphertext || tag (16)

The key derivation has the purpose, tenant, keyring, algorithm and version. The cipher's associated
data is the caller's. A ciphertext decrypts only if all of them match. With a supplied public key,
the key derivation has that key instead, because the others are unknown.

In a keyring with derived keys, the key derivation and the associated data have the caller's context
too.

A key for XAES-256-GCM takes the place of the shared secret, with the same key derivation:

    ciphertext = nonce (24) || AES-GCM ciphertext || tag (16)
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import NamedTuple

from msgspec import structs

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.dem import key_info, supplied_key_info
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.operations.context import Context, OperationResult, RecordedError
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.envelopes import Header
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import PURPOSE_OF
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import (
    CiphertextFormat,
    ComputeMac,
    DataKey,
    Decapsulate,
    Decapsulated,
    Decrypt,
    Decrypted,
    Encapsulate,
    Encapsulated,
    Encrypt,
    Encrypted,
    GenerateDataKey,
    Mac,
    Unwrap,
    Unwrapped,
    Verified,
    VerifyMac,
    Wrap,
    Wrapped,
)


class Purpose(Enum):
    """The kinds of ciphertexts, for the key derivation."""

    ENCRYPT = b"encrypt"
    ENVELOPE = b"envelope"
    WRAP = b"wrap"
    MAC = b"mac"


def encrypt(request: Encrypt, context: Context) -> OperationResult:
    """Encrypt data."""
    context.keyring.require_context(request.context)
    key = context.key_for(request.operation, request.version)
    version = key.info.version
    binding = _binding(request, version)
    ciphertext = _seal(binding, request.plaintext, key, context)
    return OperationResult(Encrypted(ciphertext=ciphertext, version=version), version)


def decrypt(request: Decrypt, context: Context) -> OperationResult:
    """Decrypt a ciphertext of the same key version. Raises DECRYPTION_FAILED."""
    context.keyring.require_context(request.context)
    key = context.key_for(request.operation, request.version)
    plaintext = _open(_binding(request, request.version), request.ciphertext, key, context)
    return OperationResult(Decrypted(plaintext=plaintext), request.version)


def wrap(request: Wrap, context: Context) -> OperationResult:
    """Encrypt a symmetric key."""
    key = context.key_for(request.operation, request.version)
    binding = Binding(Purpose.WRAP, request.associated_data)
    wrapped_key = _seal(binding, request.symmetric_key, key, context)
    return OperationResult(Wrapped(wrapped_key=wrapped_key), key.info.version)


def unwrap(request: Unwrap, context: Context) -> OperationResult:
    """Decrypt a wrapped key of the same key version. Raises DECRYPTION_FAILED."""
    key = context.key_for(request.operation, request.version)
    binding = Binding(Purpose.WRAP, request.associated_data)
    symmetric_key = _open(binding, request.wrapped_key, key, context)
    return OperationResult(Unwrapped(symmetric_key=symmetric_key), request.version)


def generate_data_key(request: GenerateDataKey, context: Context) -> OperationResult:
    """Make a random data key, and wrap or encrypt it.

    Raises PURPOSE_DENIED if the keyring does not allow that, and UNSUPPORTED if the algorithm
    cannot.
    """
    operation = Operation.WRAP if request.format is None else Operation.ENCRYPT
    context.keyring.require(PURPOSE_OF[operation])
    context.keyring.require_context(request.context)
    if operation not in ALGORITHMS[request.algorithm].operations:
        raise KeyServiceError(ErrorKind.UNSUPPORTED)
    key = context.key_for(request.operation, request.version)
    version = key.info.version
    data_key = os.urandom(request.size)
    encrypted = _seal(_binding(request, version), data_key, key, context)
    plaintext = data_key if request.plaintext else b""
    result = DataKey(encrypted=encrypted, version=version, plaintext=plaintext)
    return OperationResult(result, version)


def encapsulate(request: Encapsulate, context: Context) -> OperationResult:
    """Return a fresh shared secret and its KEM ciphertext."""
    key = context.key_for(request.operation, request.version)
    public = context.material.encapsulation_key(context.versions.tenant, key)
    shared_secret, kem_ciphertext = public.encapsulate()
    result = Encapsulated(kem_ciphertext=kem_ciphertext, shared_secret=shared_secret)
    return OperationResult(result, key.info.version)


async def encapsulate_all(
    request: Encapsulate, context: Context, count: int
) -> Sequence[OperationResult]:
    """Return ``count`` encapsulations with different secrets, or none if no worker is ready."""
    key = context.key_for(request.operation, request.version)
    context.material.authenticate(context.versions.tenant, key)
    info = key.info
    encapsulations = await context.parts.encapsulation_workers.encapsulate(
        context.versions.tenant, context.deadline, info.algorithm, info.public_key, count
    )
    return [
        OperationResult(Encapsulated(kem_ciphertext=ciphertext, shared_secret=secret), info.version)
        for secret, ciphertext in encapsulations
    ]


def decapsulate(request: Decapsulate, context: Context) -> OperationResult:
    """Return the shared secret.

    ML-KEM rejects implicitly: a damaged KEM ciphertext of the right size gives another secret, not
    an error. Raises DECRYPTION_FAILED on a wrong size, and on X-Wing's points of low order.
    """
    key = context.key_for(request.operation, request.version)
    private = context.material.decapsulation_key(context.versions.tenant, key)
    try:
        shared_secret = private.decapsulate(request.kem_ciphertext)
    except ValueError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    return OperationResult(Decapsulated(shared_secret=shared_secret), key.info.version)


async def decrypt_or_unwrap(request: Decrypt | Unwrap, context: Context) -> OperationResult:
    """Decrypt or unwrap. After a failure, tell a wrong algorithm from a damaged ciphertext.

    Raises DECRYPTION_FAILED. Raises ALGORITHM_MISMATCH if the key for another permitted KEM, with
    the same version and keyring, decrypts it. The record names the tried algorithms.
    """
    try:
        return _decrypt_or_unwrap(request, context)
    except KeyServiceError as refusal:
        if refusal.kind is not ErrorKind.DECRYPTION_FAILED:
            raise
    kind, tried = ErrorKind.DECRYPTION_FAILED, list[Algorithm]()
    for algorithm in _others(request):
        other = structs.replace(request, algorithm=algorithm)
        with suppress(KeyServiceError, DamagedKeyError):
            candidate = await context.of_key(
                KeyName(request.tenant, algorithm, request.keyring), context.keyring
            )
            if candidate.versions.entries:
                tried.append(algorithm)
            _decrypt_or_unwrap(other, candidate)
            kind = ErrorKind.ALGORITHM_MISMATCH
            break
    if not tried:
        raise KeyServiceError(kind)
    target = f"{request.keyring}/{','.join(tried)}/{request.version}"
    raise RecordedError(kind, target=target)


def _others(request: Decrypt | Unwrap) -> Iterator[Algorithm]:
    """Yield the other algorithms that may be tried."""
    if isinstance(request, Decrypt) and request.format is CiphertextFormat.ENVELOPE:
        return
    for algorithm, spec in ALGORITHMS.items():
        is_other = algorithm is not request.algorithm and request.operation in spec.operations
        if is_other and (request.probe is None or algorithm in request.probe):
            yield algorithm


def _decrypt_or_unwrap(request: Decrypt | Unwrap, context: Context) -> OperationResult:
    if isinstance(request, Decrypt):
        return decrypt(request, context)
    return unwrap(request, context)


class Binding(NamedTuple):
    """What a ciphertext is bound to, besides its key."""

    purpose: Purpose
    associated_data: bytes
    """The associated data of the cipher."""
    context: bytes = b""


def _binding(request: Encrypt | Decrypt | GenerateDataKey, version: KeyVersion) -> Binding:
    """Return a ciphertext's binding. An envelope is bound to its header too."""
    purpose, associated_data = Purpose.ENCRYPT, request.associated_data
    if request.format is None:
        purpose = Purpose.WRAP
    elif request.format is CiphertextFormat.ENVELOPE:
        header = Header(request.algorithm, version, request.keyring)
        purpose, associated_data = Purpose.ENVELOPE, header.bound() + associated_data
    bound = dem.bound_context(request.context, associated_data)
    return Binding(purpose, bound, request.context)


def _seal(binding: Binding, data: bytes | bytearray, key: KeyEntry, context: Context) -> bytes:
    """Encapsulate to the key, and encrypt the data under the shared secret.

    A symmetric key encrypts the data itself.
    """
    versions, associated_data = context.versions, binding.associated_data
    info = derivation_info(binding.purpose, versions, key, binding.context)
    if versions.algorithm in SYMMETRIC:
        secret = context.material.symmetric_key(versions.tenant, key)
        return secret.encrypt(
            data, info=info, associated_data=associated_data, is_kept=not binding.context
        )
    public = context.material.encapsulation_key(versions.tenant, key)
    shared_secret, kem_ciphertext = public.encapsulate()
    return dem.encrypt(
        KEMS[versions.algorithm].hkdf_hash,
        shared_secret,
        data,
        info=info,
        associated_data=associated_data,
        prefix=kem_ciphertext,
    )


def seal_to(
    algorithm: Algorithm,
    public_key: bytes,
    shared_secret: bytes,
    data: bytes,
    associated_data: bytes,
) -> bytes:
    """Encrypt data under the shared secret of a supplied public key."""
    info = supplied_key_info(algorithm, public_key)
    hkdf_hash = KEMS[algorithm].hkdf_hash
    return dem.encrypt(hkdf_hash, shared_secret, data, info=info, associated_data=associated_data)


def _open(binding: Binding, ciphertext: bytes, key: KeyEntry, context: Context) -> bytes:
    """Return the data, even if encrypt got the key as a supplied key. Raises DECRYPTION_FAILED."""
    versions, associated_data = context.versions, binding.associated_data
    info = derivation_info(binding.purpose, versions, key, binding.context)
    if versions.algorithm in SYMMETRIC:
        secret = context.material.symmetric_key(versions.tenant, key)
        try:
            return secret.decrypt(
                ciphertext, info=info, associated_data=associated_data, is_kept=not binding.context
            )
        except dem.DecryptionError:
            raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    private = context.material.decapsulation_key(versions.tenant, key)
    size = ALGORITHMS[versions.algorithm].output_size
    hkdf_hash = KEMS[versions.algorithm].hkdf_hash
    try:
        shared_secret = private.decapsulate(ciphertext[:size])
    except ValueError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    sealed = memoryview(ciphertext)[size:]
    open_with = partial(
        dem.decrypt, hkdf_hash, shared_secret, sealed, associated_data=associated_data
    )
    try:
        return open_with(info=info)
    except dem.DecryptionError:
        if binding.purpose is not Purpose.ENCRYPT or binding.context:
            raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    try:
        return open_with(info=supplied_key_info(versions.algorithm, key.info.public_key))
    except dem.DecryptionError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None


def derivation_info(
    purpose: Purpose, versions: KeyVersions, key: KeyEntry, context: bytes = b""
) -> bytes:
    """Return the HKDF info that binds a result to its purpose, key version and context."""
    info = None if context else key.derivation_info.get(purpose.value)
    if info is None:
        info = key_info(
            purpose.value,
            versions.tenant,
            versions.algorithm,
            key.info.version,
            versions.keyring,
            context,
        )
        if not context:  # contexts are many
            key.derivation_info[purpose.value] = info
    return info


def compute_mac(request: ComputeMac, context: Context) -> OperationResult:
    """Return a message's MAC."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    secret = context.material.symmetric_key(versions.tenant, key)
    mac = secret.mac(request.message, info=derivation_info(Purpose.MAC, versions, key))
    version = key.info.version
    return OperationResult(Mac(mac=mac, version=version), version)


def verify_mac(request: VerifyMac, context: Context) -> OperationResult:
    """Verify a message's MAC, in constant time. Raises VERIFICATION_FAILED."""
    versions = context.versions
    key = context.key_for(request.operation, request.version)
    secret = context.material.symmetric_key(versions.tenant, key)
    info = derivation_info(Purpose.MAC, versions, key)
    if not secret.is_mac(request.mac, request.message, info=info):
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED)
    return OperationResult(Verified(), key.info.version)
