"""Import keys, and private keys that were made elsewhere."""

from pqkeep_keyservice import clock
from pqkeep_keyservice.crypto.key_wrapping import (
    PrivateKeyError,
    UnwrappingError,
    decode_pkcs8,
    import_info,
)
from pqkeep_keyservice.keys.changes import KeyChange
from pqkeep_keyservice.keys.key_versions import KeyVersions
from pqkeep_keyservice.keys.sealed_keys import InconsistentKeyPairError
from pqkeep_keyservice.live.executors import Executor
from pqkeep_keyservice.live.import_keys import LIFETIME_SECONDS, ImportKeys
from pqkeep_keyservice.operations.lifecycle import entry_of
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import ImportKey, ImportPrivateKey, Key


def issue(versions: KeyVersions, import_keys: ImportKeys, now: float) -> OperationResult:
    """Give out an import key for this key."""
    import_key_id, public_key, info = import_keys.issue(versions.name, now)
    issued = ImportKey(
        id=import_key_id, public_key=public_key, info=info, seconds=int(LIFETIME_SECONDS)
    )
    return OperationResult(issued, None)


async def import_key(
    request: ImportPrivateKey,
    versions: KeyVersions,
    import_keys: ImportKeys,
    executor: Executor,
    now: float,
    deadline: float,
) -> OperationResult:
    """Make a private key active where none is. The import key is used up, however it ends.

    Raises KEY_EXISTS and VERSION_LIMIT_REACHED, before that, IMPORT_KEY_NOT_FOUND,
    DECRYPTION_FAILED where it was not wrapped to the import key, and PRIVATE_KEY_... for what was.
    """
    versions.require_no_active()
    version = versions.next_version
    wrapping = import_keys.claim(request.import_key_id, versions.name, now)
    info = import_info(request.import_key_id, versions.algorithm, versions.keyring)
    try:
        with wrapping.unwrap(request.wrapped_private_key, info) as data:
            private_key = decode_pkcs8(versions.algorithm, data)
        made = await executor.adopt(versions.name, version, private_key.seed, deadline)
        private_key.require(made[0])
    except UnwrappingError:
        raise KeyServiceError(ErrorKind.DECRYPTION_FAILED) from None
    except PrivateKeyError as error:
        raise KeyServiceError(error.kind) from None
    except InconsistentKeyPairError:
        raise KeyServiceError(ErrorKind.PRIVATE_KEY_CONTRADICTION) from None
    entry = entry_of(versions, made, clock.now(), request.idempotency, imported=True)
    new = versions.with_first(entry)
    key = new.require_active().info
    return OperationResult(Key(key=key), key.version, KeyChange(versions, new, request.quota))
