"""What every operation takes and returns: ``(request, context) -> OperationResult``."""

from dataclasses import dataclass
from datetime import timedelta

from msgspec import Struct

from pqkeep_keyservice.keys.changes import KeyChange, KeyringChange
from pqkeep_keyservice.keys.key_versions import KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.live.encapsulation_workers import EncapsulationWorkers
from pqkeep_keyservice.live.executors import Executor, Executors
from pqkeep_keyservice.live.import_keys import ImportKeys
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial, KeyringCache
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.storage.writer import Writer
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, KeyVersion, TenantId
from pqkeep_protocol.messages import AnyResult


@dataclass(frozen=True, slots=True)
class Parts:
    """What all operations share."""

    store: KeyStore
    writer: Writer
    keys: KeyCache
    keyrings: KeyringCache
    material: KeyMaterial
    executors: Executors
    encapsulation_workers: EncapsulationWorkers
    import_keys: ImportKeys
    least_delay: timedelta
    """How long a private key is kept, at least, once its destruction is asked for."""

    async def require_no_destruction(self, tenant: TenantId) -> None:
        """Raise KEY_NOT_FOUND if the tenant's private keys are being destroyed, or were."""
        default = await self.keyrings.get(KeyringId(tenant, DEFAULT_KEYRING))
        default.require_no_destruction()


class Context:
    """What one call of an operation works with."""

    __slots__ = ("deadline", "keyring", "material", "parts", "versions")

    keyring: Keyring
    """Set where the operation's row says that it is loaded, as ``versions`` is."""
    versions: KeyVersions

    def __init__(self, parts: Parts, deadline: float) -> None:
        """Take the deadline in the event loop's time."""
        self.parts = parts
        self.material = parts.material
        self.deadline = deadline

    @property
    def executor(self) -> Executor:
        """Where keys of this algorithm are generated, and sign."""
        return self.parts.executors[self.versions.algorithm]

    async def of_key(self, name: KeyName) -> "Context":
        """Return the same for another key. Raises DamagedKeyError."""
        other = Context(self.parts, self.deadline)
        other.versions = await self.parts.keys.get(name)
        return other


class RecordedError(KeyServiceError):
    """A refusal of which the record says more than the request does."""

    def __init__(
        self,
        kind: ErrorKind,
        *,
        keyring: KeyringName | None = None,
        version: KeyVersion | None = None,
        target: str | None = None,
    ) -> None:
        """Take what the record has: of a supplied key, or of a decryption."""
        super().__init__(kind)
        self.keyring = keyring
        self.version = version
        self.target = target


class OperationResult(Struct, frozen=True):
    """A result that may leave the key service once its record and its change are durable."""

    result: AnyResult
    version: KeyVersion | None
    change: KeyChange | KeyringChange | None = None
    target: str | None = None
    """Of a re-encryption: the key version that it encrypted to, as keyring/algorithm/version."""
    keyring: KeyringName | None = None
    """Of a supplied key that is the tenant's: where it is."""
    operation: Operation | None = None
    """What was done, where that is not what was asked for."""
    policy: str | None = None
    """What the record says in place of the policy that allowed the request."""
