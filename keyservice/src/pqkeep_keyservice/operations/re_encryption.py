"""re-encrypt: what is encrypted under one key, under another. The plaintext stays in this process."""

from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.ledger.records import target_text
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.operations import encryption, wrapping
from pqkeep_keyservice.operations.algorithm_mismatch import FindKeyVersions, decrypt_or_unwrap
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import (
    Decrypt,
    Decrypted,
    Encrypt,
    Encrypted,
    ReEncrypt,
    ReEncrypted,
    Unwrap,
    Unwrapped,
    Wrap,
    Wrapped,
)


async def re_encrypt(
    request: ReEncrypt, find_key_versions: FindKeyVersions, material: KeyMaterial
) -> OperationResult:
    """Decrypt with the source, and encrypt with the active key of the target.

    Raises what decrypt and unwrap raise, TARGET_NOT_FOUND, and UNSUPPORTED.
    """
    plaintext = await _opened(request, find_key_versions, material)
    sealed, record = await _sealed(request, plaintext, find_key_versions, material)
    return OperationResult(sealed, request.version, target=record)


async def _opened(
    request: ReEncrypt, find_key_versions: FindKeyVersions, material: KeyMaterial
) -> bytes:
    source: Decrypt | Unwrap
    if request.is_wrapped_key:
        source = Unwrap(
            tenant=request.tenant,
            keyring=request.keyring,
            algorithm=request.algorithm,
            version=request.version,
            wrapped_key=request.ciphertext,
            associated_data=request.associated_data,
            probe=request.probe,
        )
    else:
        source = Decrypt(
            tenant=request.tenant,
            keyring=request.keyring,
            algorithm=request.algorithm,
            version=request.version,
            ciphertext=request.ciphertext,
            associated_data=request.associated_data,
            probe=request.probe,
            format=request.format,
        )
    _require_operation(source)
    versions = await find_key_versions(KeyName(source.tenant, source.algorithm, source.keyring))
    opened = await decrypt_or_unwrap(source, versions, find_key_versions, material)
    match opened.result:
        case Decrypted(plaintext=plaintext) | Unwrapped(symmetric_key=plaintext):
            return plaintext
        case _:
            raise KeyServiceError(ErrorKind.INTERNAL)


async def _sealed(
    request: ReEncrypt, plaintext: bytes, find_key_versions: FindKeyVersions, material: KeyMaterial
) -> tuple[ReEncrypted, str]:
    """Return the result, and the target's key version as records have it."""
    target = request.target
    versions = await find_key_versions(KeyName(request.tenant, target.algorithm, target.keyring))
    try:
        version = versions.require_active().info.version
    except KeyServiceError:
        raise KeyServiceError(ErrorKind.TARGET_NOT_FOUND) from None
    if request.is_wrapped_key:
        wrap = Wrap(
            tenant=request.tenant,
            keyring=target.keyring,
            algorithm=target.algorithm,
            version=version,
            symmetric_key=bytearray(plaintext),
            associated_data=target.associated_data,
        )
        _require_operation(wrap)
        made = wrapping.wrap(wrap, versions, material)
        wrap.symmetric_key[:] = bytes(len(plaintext))
    else:
        encrypt = Encrypt(
            tenant=request.tenant,
            keyring=target.keyring,
            algorithm=target.algorithm,
            version=version,
            plaintext=plaintext,
            associated_data=target.associated_data,
            format=target.format,
        )
        _require_operation(encrypt)
        made = encryption.encrypt(encrypt, versions, material)
    match made.result:
        case Encrypted(ciphertext=ciphertext) | Wrapped(wrapped_key=ciphertext):
            record = target_text(target.keyring, target.algorithm, version)
            return ReEncrypted(ciphertext=ciphertext, version=version), record
        case _:
            raise KeyServiceError(ErrorKind.INTERNAL)


def _require_operation(request: Decrypt | Unwrap | Encrypt | Wrap) -> None:
    """Raise UNSUPPORTED unless the algorithm has the operation."""
    if request.operation not in ALGORITHMS[request.algorithm].operations:
        raise KeyServiceError(ErrorKind.UNSUPPORTED)
