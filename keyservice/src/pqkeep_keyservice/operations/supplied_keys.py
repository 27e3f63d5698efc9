"""Operations with a public key that the caller brought. No key of the tenant's is looked up.

Whatever is wrong with such a key is INVALID_PUBLIC_KEY. It has a size, so that looking costs little,
and nothing of it is kept.
"""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.live.executors import Executor, SuppliedKey
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_keyservice.operations.signing import VerifyRequest, signable_of
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Encapsulate, Encapsulated, Encrypt, Encrypted, Verified


def encrypt(request: Encrypt, public_key: bytes) -> OperationResult:
    """Encrypt data for whoever has the private key."""
    shared_secret, kem_ciphertext = _encapsulated(request.algorithm, public_key)
    sealed = kem_dem.seal_to(
        request.algorithm, public_key, shared_secret, request.plaintext, request.associated_data
    )
    return OperationResult(Encrypted(ciphertext=kem_ciphertext + sealed, version=None), None)


def encapsulate(request: Encapsulate, public_key: bytes) -> OperationResult:
    """Return a fresh shared secret and its KEM ciphertext."""
    shared_secret, kem_ciphertext = _encapsulated(request.algorithm, public_key)
    result = Encapsulated(kem_ciphertext=kem_ciphertext, shared_secret=shared_secret)
    return OperationResult(result, None)


async def verify(
    request: VerifyRequest, public_key: bytes, executor: Executor, deadline: float
) -> OperationResult:
    """Verify a signature. Raises VERIFICATION_FAILED."""
    key = SuppliedKey(request.algorithm, public_key)
    signable = signable_of(request)
    try:
        await executor.verify(request.tenant, key, signable, request.signature, deadline)
    except InvalidSignature:
        raise KeyServiceError(ErrorKind.VERIFICATION_FAILED) from None
    except ValueError:
        raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY) from None
    return OperationResult(Verified(), None)


def _encapsulated(algorithm: Algorithm, public_key: bytes) -> tuple[bytes, bytes]:
    try:
        return KEMS[algorithm].load_public(public_key).encapsulate()
    except ValueError:  # also of an X25519 half of low order
        raise KeyServiceError(ErrorKind.INVALID_PUBLIC_KEY) from None
