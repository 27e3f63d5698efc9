"""re-encrypt: from one key to another. The plaintext stays in this process.

The source may be a legacy key. A ciphertext of RSA-OAEP is bound to no context, and to associated
data only as its label.
"""

from msgspec import structs

from pqkeep_keyservice.crypto.dem import DecryptionError
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.ledger.records import target_text
from pqkeep_keyservice.operations import kem_dem
from pqkeep_keyservice.operations.context import Context, OperationResult, RecordedError
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    SYMMETRIC_KEY_SIZES,
    Algorithm,
    Operation,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import PURPOSE_OF
from pqkeep_protocol.messages import (
    CiphertextFormat,
    Decrypt,
    Decrypted,
    Encrypt,
    Encrypted,
    ReEncrypt,
    ReEncrypted,
    Target,
    Unwrap,
    Unwrapped,
    Wrap,
    Wrapped,
)
from pqkeep_protocol.rules import RuleUse


async def re_encrypt(request: ReEncrypt, context: Context) -> OperationResult:
    """Decrypt with the source, and encrypt with the active key of the target.

    A source that already has the target's key version, form and binding is returned unchanged. Its
    record names no target.

    Raises PURPOSE_DENIED and TARGET_PURPOSE_DENIED unless the source keyring allows decrypting and
    the target encrypting; the errors of decrypt and unwrap; TARGET_NOT_FOUND;
    TARGET_VERSION_BELOW_MINIMUM; RULE_DENIED for the target; and UNSUPPORTED.
    """
    try:
        return await _moved(request, context)
    except RecordedError as error:
        error.campaign = request.campaign
        raise
    except KeyServiceError as error:
        raise RecordedError(error.kind, campaign=request.campaign) from None


async def _moved(request: ReEncrypt, context: Context) -> OperationResult:
    wraps = request.is_wrapped_key
    writing = Operation.WRAP if wraps else Operation.ENCRYPT
    context.keyring.require(PURPOSE_OF[Operation.UNWRAP if wraps else Operation.DECRYPT])
    _require_operation(writing, request.target.algorithm)
    target_id = KeyringId(request.tenant, request.target.keyring)
    try:
        target = await context.parts.keyrings.get(target_id)
        target.require_exists()
    except KeyServiceError:
        raise KeyServiceError(ErrorKind.TARGET_NOT_FOUND) from None
    if PURPOSE_OF[writing] not in target.info.purposes:
        raise KeyServiceError(ErrorKind.TARGET_PURPOSE_DENIED)
    plaintext = await _opened(request, context)
    sealed, record = await _sealed(request, plaintext, context, target)
    target_version = record if sealed.moved else None
    return OperationResult(
        sealed, request.version, target=target_version, campaign=request.campaign
    )


async def _opened(request: ReEncrypt, context: Context) -> bytes:
    if ALGORITHMS[request.algorithm].is_legacy:
        return await _opened_by_legacy_key(request, context)
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
            context=request.context,
        )
    _require_operation(source.operation, source.algorithm)
    source_context = await context.of_key(
        KeyName(source.tenant, source.algorithm, source.keyring), context.keyring
    )
    opened = await kem_dem.decrypt_or_unwrap(source, source_context)
    match opened.result:
        case Decrypted(plaintext=plaintext) | Unwrapped(symmetric_key=plaintext):
            return plaintext
        case _:
            raise KeyServiceError(ErrorKind.INTERNAL)


async def _opened_by_legacy_key(request: ReEncrypt, context: Context) -> bytes:
    """Return the plaintext of RSA-OAEP. Every failure is the same DECRYPTION_FAILED.

    Raises CONTEXT_REFUSED, and UNSUPPORTED for an envelope.
    """
    if request.context:
        raise KeyServiceError(ErrorKind.CONTEXT_REFUSED)
    if not request.is_wrapped_key and request.format is not CiphertextFormat.CIPHERTEXT:
        raise KeyServiceError(ErrorKind.UNSUPPORTED)
    name = KeyName(request.tenant, request.algorithm, request.keyring)
    source = await context.of_key(name, context.keyring)
    key = source.key_for(request.operation, request.version)
    private = source.material.decryption_key(request.tenant, key)
    try:
        plaintext = await context.parts.crypto_threads.run(
            private.decrypt, request.ciphertext, request.associated_data
        )
    except DecryptionError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    if request.is_wrapped_key and len(plaintext) not in SYMMETRIC_KEY_SIZES:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED)
    return plaintext


async def _sealed(
    request: ReEncrypt, plaintext: bytes, context: Context, keyring: Keyring
) -> tuple[ReEncrypted, str]:
    """Return the result, and the target's key version in the form of records.

    ``keyring`` is that of the target.
    """
    target = request.target
    target_key = KeyName(request.tenant, target.algorithm, target.keyring)
    target_context = await context.of_key(target_key, keyring)
    try:
        version = target_context.versions.require_active().info.version
    except KeyServiceError:
        raise KeyServiceError(ErrorKind.TARGET_NOT_FOUND) from None
    if not keyring.info.allows_version(Operation.ENCRYPT, version):
        raise KeyServiceError(ErrorKind.TARGET_VERSION_BELOW_MINIMUM)
    record = target_text(target.keyring, target.algorithm, version)
    if version == request.version and _leaves_unchanged(request):
        unchanged = ReEncrypted(ciphertext=request.ciphertext, version=version, moved=False)
        return unchanged, record
    use = RuleUse.WRAP if request.is_wrapped_key else RuleUse.ENCRYPT
    await context.assess_stored(request.tenant, use, target.algorithm, target.keyring)
    if request.is_wrapped_key:
        wrap = Wrap(
            tenant=request.tenant,
            keyring=target.keyring,
            algorithm=target.algorithm,
            version=version,
            symmetric_key=bytearray(plaintext),
            associated_data=target.associated_data,
        )
        done = kem_dem.wrap(wrap, target_context)
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
            context=target.context,
        )
        done = kem_dem.encrypt(encrypt, target_context)
    match done.result:
        case Encrypted(ciphertext=ciphertext) | Wrapped(wrapped_key=ciphertext):
            return ReEncrypted(ciphertext=ciphertext, version=version), record
        case _:
            raise KeyServiceError(ErrorKind.INTERNAL)


def _leaves_unchanged(request: ReEncrypt) -> bool:
    """Return True if source and target differ in nothing but the key version."""
    source = Target(
        request.algorithm,
        request.keyring,
        request.associated_data,
        request.format,
        request.context,
    )
    if request.is_wrapped_key:
        source = structs.replace(source, format=request.target.format)
    return request.target == source


def _require_operation(operation: Operation, algorithm: Algorithm) -> None:
    """Raise UNSUPPORTED unless the algorithm has the operation."""
    if operation not in ALGORITHMS[algorithm].operations:
        raise KeyServiceError(ErrorKind.UNSUPPORTED)
