"""Telling a wrong algorithm from a damaged blob, once opening it has failed."""

from collections.abc import Awaitable, Callable

from msgspec import structs

from pqkeep_keyservice.keyring import Keyring
from pqkeep_keyservice.operations import encryption, wrapping
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Decrypt, Unwrap


async def kind_of_failure(
    request: Decrypt | Unwrap,
    load: Callable[[TenantId, Algorithm], Awaitable[Keyring]],
    material: KeyMaterial,
) -> ErrorKind:
    """Return ALGORITHM_MISMATCH if the tenant's key of the same version of another KEM opens it."""
    for algorithm, spec in ALGORITHMS.items():
        if algorithm is request.algorithm or request.operation not in spec.operations:
            continue
        ring = await load(request.tenant, algorithm)
        other = structs.replace(request, algorithm=algorithm)
        try:
            if isinstance(other, Decrypt):
                encryption.decrypt(other, ring, material)
            else:
                wrapping.unwrap(other, ring, material)
        except KeyServiceError:
            continue
        return ErrorKind.ALGORITHM_MISMATCH
    return ErrorKind.DECRYPTION_FAILED
