"""decrypt and unwrap. If either fails, tells a wrong algorithm from a damaged ciphertext."""

from collections.abc import Awaitable, Callable

from msgspec import structs

from pqkeep_keyservice.keys.key_versions import KeyName, KeyVersions
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import encryption, wrapping
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Decrypt, Unwrap

FindKeyVersions = Callable[[KeyName], Awaitable[KeyVersions]]


async def decrypt_or_unwrap(
    request: Decrypt | Unwrap,
    versions: KeyVersions,
    find_key_versions: FindKeyVersions,
    material: KeyMaterial,
) -> OperationResult:
    """Decrypt a ciphertext or unwrap a key.

    Raises DECRYPTION_FAILED; or ALGORITHM_MISMATCH, if the keyring's key of the same version of
    another KEM decrypts it.
    """
    try:
        return _decrypt_or_unwrap(request, versions, material)
    except KeyServiceError as refusal:
        if refusal.kind is not ErrorKind.DECRYPTION_FAILED:
            raise
    for algorithm, spec in ALGORITHMS.items():
        if algorithm is not request.algorithm and request.operation in spec.operations:
            other = structs.replace(request, algorithm=algorithm)
            name = KeyName(request.tenant, algorithm, request.keyring)
            try:
                _decrypt_or_unwrap(other, await find_key_versions(name), material)
            except (KeyServiceError, DamagedKeyError):
                continue
            raise KeyServiceError(ErrorKind.ALGORITHM_MISMATCH)
    raise KeyServiceError(ErrorKind.DECRYPTION_FAILED)


def _decrypt_or_unwrap(
    request: Decrypt | Unwrap, versions: KeyVersions, material: KeyMaterial
) -> OperationResult:
    if isinstance(request, Decrypt):
        return encryption.decrypt(request, versions, material)
    return wrapping.unwrap(request, versions, material)
