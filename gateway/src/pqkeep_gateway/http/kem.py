"""POST /api/v1/kem/*."""

from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.fields import MAX_CIPHERTEXT, MAX_PLAINTEXT
from pqkeep_gateway.http.key_operation import KeyCall, KeyOperation
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.messages import Decapsulate, Decrypt, Encapsulate, Encrypt, Unwrap, Wrap


async def encrypt(call: KeyCall) -> Data:
    """Encrypt data with the active key, or with the active version that is named."""
    call.fields.check_mode_and_salt()
    encrypted = await call.execute(
        Encrypt(
            tenant=call.tenant,
            algorithm=call.algorithm,
            plaintext=call.fields.binary("plaintext", at_most=MAX_PLAINTEXT),
            version=call.fields.optional_version(),
        )
    )
    return {
        "ciphertext": encrypted.ciphertext,
        "key_version": encrypted.version,
        "algorithm": call.algorithm,
    }


async def decrypt(call: KeyCall) -> Data:
    """Decrypt what encrypt returned."""
    ciphertext = call.fields.binary("ciphertext", at_most=MAX_CIPHERTEXT)
    version = call.fields.version()
    decrypted = await call.execute(
        Decrypt(
            tenant=call.tenant, algorithm=call.algorithm, version=version, ciphertext=ciphertext
        )
    )
    return {
        "plaintext": decrypted.plaintext,
        "key_version": version,
        "algorithm": call.algorithm,
    }


async def encapsulate(call: KeyCall) -> Data:
    """Make a shared secret."""
    version = call.fields.version()
    encapsulated = await call.execute(
        Encapsulate(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return {
        "kem_ciphertext": encapsulated.kem_ciphertext,
        "shared_secret": encapsulated.shared_secret,
        "key_version": version,
        "algorithm": call.algorithm,
    }


async def decapsulate(call: KeyCall) -> Data:
    """Recover a shared secret."""
    kem_ciphertext = call.fields.kem_ciphertext(call.algorithm)
    version = call.fields.version()
    decapsulated = await call.execute(
        Decapsulate(
            tenant=call.tenant,
            algorithm=call.algorithm,
            version=version,
            kem_ciphertext=kem_ciphertext,
        )
    )
    return {
        "shared_secret": decapsulated.shared_secret,
        "key_version": version,
        "algorithm": call.algorithm,
    }


async def wrap(call: KeyCall) -> Data:
    """Wrap a symmetric key, and overwrite our copy of it."""
    version = call.fields.version()
    symmetric_key = call.fields.symmetric_key()
    try:
        wrapped = await call.execute(
            Wrap(
                tenant=call.tenant,
                algorithm=call.algorithm,
                version=version,
                symmetric_key=symmetric_key,
            )
        )
    finally:
        symmetric_key[:] = bytes(len(symmetric_key))
    return {
        "wrapped_key": wrapped.wrapped_key,
        "key_version": version,
        "algorithm": call.algorithm,
        "wrapping_method": "KEM-DEM",
    }


async def unwrap(call: KeyCall) -> Data:
    """Unwrap what wrap returned."""
    wrapped_key = call.fields.wrapped_key()
    version = call.fields.version()
    unwrapped = await call.execute(
        Unwrap(
            tenant=call.tenant, algorithm=call.algorithm, version=version, wrapped_key=wrapped_key
        )
    )
    return {
        "symmetric_key": unwrapped.symmetric_key,
        "key_version": version,
        "algorithm": call.algorithm,
    }


DEFAULT = Algorithm.ML_KEM_768

OPERATIONS = (
    KeyOperation("POST", "/kem/encrypt", Operation.ENCRYPT, encrypt, DEFAULT),
    KeyOperation("POST", "/kem/decrypt", Operation.DECRYPT, decrypt, DEFAULT),
    KeyOperation("POST", "/kem/encapsulate", Operation.ENCAPSULATE, encapsulate, DEFAULT),
    KeyOperation("POST", "/kem/decapsulate", Operation.DECAPSULATE, decapsulate, DEFAULT),
    KeyOperation("POST", "/kem/key/wrap", Operation.WRAP, wrap, DEFAULT),
    KeyOperation("POST", "/kem/key/unwrap", Operation.UNWRAP, unwrap, DEFAULT),
    KeyOperation("POST", "/kem/wrap", Operation.WRAP, wrap, DEFAULT),
    KeyOperation("POST", "/kem/unwrap", Operation.UNWRAP, unwrap, DEFAULT),
)
