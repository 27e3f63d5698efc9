"""encapsulate and decapsulate: the raw KEM, for callers that encrypt on their side."""

from collections.abc import Sequence

from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.live.encapsulation_workers import EncapsulationWorkers
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Decapsulate, Decapsulated, Encapsulate, Encapsulated


def encapsulate(
    request: Encapsulate, versions: KeyVersions, material: KeyMaterial
) -> OperationResult:
    """Return a fresh shared secret and its KEM ciphertext."""
    key = versions.key_for(request.operation, request.version)
    shared_secret, kem_ciphertext = material.encapsulation_key(versions.tenant, key).encapsulate()
    result = Encapsulated(kem_ciphertext=kem_ciphertext, shared_secret=shared_secret)
    return OperationResult(result, key.info.version)


async def encapsulate_all(
    request: Encapsulate,
    count: int,
    versions: KeyVersions,
    material: KeyMaterial,
    workers: EncapsulationWorkers,
    deadline: float,
) -> Sequence[OperationResult]:
    """Return so many results, each with a secret of its own; none where no worker is ready."""
    key = versions.key_for(request.operation, request.version)
    material.authenticate(versions.tenant, key)
    info = key.info
    made = await workers.encapsulate(
        versions.tenant, deadline, info.algorithm, info.public_key, count
    )
    return [
        OperationResult(Encapsulated(kem_ciphertext=ciphertext, shared_secret=secret), info.version)
        for secret, ciphertext in made
    ]


def decapsulate(
    request: Decapsulate, versions: KeyVersions, material: KeyMaterial
) -> OperationResult:
    """Return the shared secret.

    A damaged KEM ciphertext of the right size gives another secret, not an error: ML-KEM rejects
    implicitly. Raises DECRYPTION_FAILED on a wrong size, and on X-Wing's points of low order.
    """
    key = versions.key_for(request.operation, request.version)
    private = material.decapsulation_key(versions.tenant, key)
    try:
        shared_secret = private.decapsulate(request.kem_ciphertext)
    except ValueError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    return OperationResult(Decapsulated(shared_secret=shared_secret), key.info.version)
