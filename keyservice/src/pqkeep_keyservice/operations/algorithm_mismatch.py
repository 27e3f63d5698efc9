"""decrypt and unwrap. If either fails, tells a wrong algorithm from a damaged ciphertext."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from msgspec import structs

from pqkeep_keyservice.keys.key_versions import KeyName, KeyVersions
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import encryption, wrapping
from pqkeep_keyservice.operations.result import OperationResult, RecordedError
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import CiphertextFormat, Decrypt, Unwrap

FindKeyVersions = Callable[[KeyName], Awaitable[KeyVersions]]


async def decrypt_or_unwrap(
    request: Decrypt | Unwrap,
    versions: KeyVersions,
    find_key_versions: FindKeyVersions,
    material: KeyMaterial,
) -> OperationResult:
    """Decrypt a ciphertext or unwrap a key.

    Raises DECRYPTION_FAILED; or ALGORITHM_MISMATCH, if the keyring's key of the same version of
    another KEM decrypts it, of those that may be tried. The record names those that were.
    """
    try:
        return _decrypt_or_unwrap(request, versions, material)
    except KeyServiceError as refusal:
        if refusal.kind is not ErrorKind.DECRYPTION_FAILED:
            raise
    kind, tried = ErrorKind.DECRYPTION_FAILED, list[Algorithm]()
    for algorithm in _others(request):
        other = structs.replace(request, algorithm=algorithm)
        with suppress(KeyServiceError, DamagedKeyError):
            found = await find_key_versions(KeyName(request.tenant, algorithm, request.keyring))
            if found.entries:
                tried.append(algorithm)
            _decrypt_or_unwrap(other, found, material)
            kind = ErrorKind.ALGORITHM_MISMATCH
            break
    if not tried:
        raise KeyServiceError(kind)
    target = f"{request.keyring}/{','.join(tried)}/{request.version}"
    raise RecordedError(kind, target=target)


def _others(request: Decrypt | Unwrap) -> Iterator[Algorithm]:
    """Yield the algorithms whose keys may be tried, too."""
    if isinstance(request, Decrypt) and request.format is CiphertextFormat.ENVELOPE:
        return
    for algorithm, spec in ALGORITHMS.items():
        is_other = algorithm is not request.algorithm and request.operation in spec.operations
        if is_other and (request.probe is None or algorithm in request.probe):
            yield algorithm


def _decrypt_or_unwrap(
    request: Decrypt | Unwrap, versions: KeyVersions, material: KeyMaterial
) -> OperationResult:
    if isinstance(request, Decrypt):
        return encryption.decrypt(request, versions, material)
    return wrapping.unwrap(request, versions, material)
