"""Which operation answers which request."""

from datetime import UTC, datetime
from typing import assert_never

from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring
from pqkeep_keyservice.live.executors import Executors
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.keyring_cache import KeyringCache
from pqkeep_keyservice.operations import (
    algorithm_mismatch,
    encapsulation,
    encryption,
    lifecycle,
    signing,
    wrapping,
)
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import (
    AnyRequest,
    ArchiveKey,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetKey,
    ListKeys,
    RetireKey,
    RotateKey,
    Sign,
    SignHash,
    Unwrap,
    Verify,
    VerifyHash,
    Wrap,
)


class Dispatcher:
    """Runs the operation of a request on the current keyring."""

    def __init__(
        self, store: KeyStore, keyrings: KeyringCache, material: KeyMaterial, executors: Executors
    ) -> None:
        self._store = store
        self._keyrings = keyrings
        self._material = material
        self._executors = executors

    async def answer(  # noqa: C901, PLR0911, PLR0912 - one flat table, checked by assert_never
        self, request: AnyRequest, deadline: float
    ) -> OperationResult:
        """Return what the operation returns. Raises what it raises, and UNSUPPORTED."""
        material = self._material
        if isinstance(request, ListKeys):
            algorithms = Algorithm if request.algorithm is None else (request.algorithm,)
            keyrings = [await self._keyrings.get(request.tenant, each) for each in algorithms]
            return lifecycle.list_(request, keyrings, material)

        if request.operation not in ALGORITHMS[request.algorithm].operations:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        keyring = await self._keyrings.get(request.tenant, request.algorithm)
        executor = self._executors[request.algorithm]
        match request:
            case Encrypt():
                return encryption.encrypt(request, keyring, material)
            case Decrypt() | Unwrap():
                find_keyring = self._keyrings.get
                return await algorithm_mismatch.decrypt_or_unwrap(
                    request, keyring, find_keyring, material
                )
            case Encapsulate():
                return encapsulation.encapsulate(request, keyring, material)
            case Decapsulate():
                return encapsulation.decapsulate(request, keyring, material)
            case Wrap():
                return wrapping.wrap(request, keyring, material)
            case Sign() | SignHash():
                return await signing.sign(request, keyring, executor, deadline)
            case Verify() | VerifyHash():
                return await signing.verify(request, keyring, executor, deadline)
            case GenerateKey() | RotateKey() if previous := await self._previous(request, keyring):
                return lifecycle.repeat(request, keyring, previous, material)
            case GenerateKey():
                return await lifecycle.generate(request, keyring, executor, deadline)
            case RotateKey():
                return await lifecycle.rotate(request, keyring, executor, deadline)
            case RetireKey():
                return lifecycle.retire(request, keyring, material)
            case ArchiveKey():
                return lifecycle.archive(request, keyring, material)
            case GetKey() | GetActiveKey():
                return lifecycle.get(request, keyring, material)
            case _:
                assert_never(request)

    async def _previous(
        self, request: GenerateKey | RotateKey, keyring: Keyring
    ) -> KeyEntry | None:
        idempotency = request.idempotency
        if idempotency is None:
            return None
        entry = keyring.entry_generated_with(idempotency, datetime.now(UTC))
        if entry is None and await self._store.is_idempotency_key_used(request.tenant, idempotency):
            raise KeyServiceError(ErrorKind.IDEMPOTENCY_KEY_REUSED)  # for another algorithm
        return entry
