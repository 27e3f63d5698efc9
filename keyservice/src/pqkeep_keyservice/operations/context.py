"""The parameters and results of every operation: ``(request, context) -> OperationResult``."""

from dataclasses import dataclass
from datetime import timedelta

from msgspec import Struct, structs

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import KeyChange, KeyringChange, RulesChange
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.keys.rules import RuleSet, Unusable
from pqkeep_keyservice.live.encapsulation_workers import EncapsulationWorkers
from pqkeep_keyservice.live.executors import Executor, Executors
from pqkeep_keyservice.live.import_keys import ImportKeys
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial, KeyringCache
from pqkeep_keyservice.live.rules import RuleCache
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.storage.writer import Writer
from pqkeep_keyservice.threads import Threads
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    KeyringName,
    KeyVersion,
    RecordedName,
    TenantId,
)
from pqkeep_protocol.messages import AnyResult
from pqkeep_protocol.rules import RuleNotice, RuleUse


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that all operations share."""

    store: KeyStore
    writer: Writer
    keys: KeyCache
    keyrings: KeyringCache
    rules: RuleCache
    material: KeyMaterial
    executors: Executors
    encapsulation_workers: EncapsulationWorkers
    import_keys: ImportKeys
    crypto_threads: Threads
    least_delay: timedelta
    """The minimum time between a request to destroy a private key and its destruction."""

    async def require_no_destruction(self, tenant: TenantId) -> None:
        """Raise KEY_NOT_FOUND if the destruction of the tenant's private keys has begun."""
        default = await self.keyrings.get(KeyringId(tenant, DEFAULT_KEYRING))
        default.require_no_destruction()


class Context:
    """The state of one call of an operation."""

    __slots__ = ("deadline", "keyring", "material", "notice", "parts", "principal", "versions")

    keyring: Keyring
    """Loaded, like ``versions``, if the operation's row in the table says so."""
    versions: KeyVersions

    notice: RuleNotice | None
    """The rule that warns of the operation."""

    def __init__(self, parts: Parts, deadline: float, principal: str) -> None:
        """Take the parts, the deadline in the event loop's time, and the caller."""
        self.parts = parts
        self.material = parts.material
        self.deadline = deadline
        self.principal = principal
        self.notice = None

    @property
    def executor(self) -> Executor:
        """The executor for this key's algorithm."""
        return self.parts.executors[self.versions.algorithm]

    def assess(
        self,
        rules: RuleSet | Unusable,
        use: RuleUse,
        algorithm: Algorithm,
        keyring: KeyringName | None,
    ) -> None:
        """Ask a tenant's rules about a use, and note the rule that warns of it.

        Raises RULE_DENIED, and UNAVAILABLE if the rules are damaged.
        """
        if isinstance(rules, Unusable):
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        found = rules.assess(keyring, algorithm, use, self.principal, clock.now())
        if found is None:
            return
        if found.is_denied:
            raise RecordedError(ErrorKind.RULE_DENIED, notice=found.notice)
        self.notice = found.notice

    async def assess_stored(
        self, tenant: TenantId, use: RuleUse, algorithm: Algorithm, keyring: KeyringName | None
    ) -> None:
        """Like ``assess``, with the tenant's current rules. Raises DamagedKeyError too."""
        if self.parts.rules.known(tenant.int) is not None:
            self.assess(await self.parts.rules.get(tenant), use, algorithm, keyring)

    def noted(self, done: "OperationResult") -> "OperationResult":
        """Return a result with the rule that warns of the operation."""
        if self.notice is None:
            return done
        result = structs.replace(done.result, notice=self.notice)
        return structs.replace(done, result=result, rule=self.notice.rule)

    def key_for(self, operation: Operation, version: KeyVersion | None) -> KeyEntry:
        """Return the key for a cryptographic operation. For None, it is the active key.

        Raises KEY_NOT_FOUND and VERSION_BELOW_MINIMUM.
        """
        return self.versions.key_for(operation, version, self.keyring.info)

    async def of_key(self, name: KeyName, keyring: Keyring) -> "Context":
        """Return a context for another key. ``keyring`` is its keyring. Raises DamagedKeyError."""
        other = Context(self.parts, self.deadline, self.principal)
        other.keyring = keyring
        other.versions = await self.parts.keys.get(name)
        return other


class RecordedError(KeyServiceError):
    """A refusal with details for its record that are not in the request."""

    def __init__(
        self,
        kind: ErrorKind,
        *,
        keyring: KeyringName | None = None,
        version: KeyVersion | None = None,
        target: str | None = None,
        rule: RecordedName | None = None,
        campaign: RecordedName | None = None,
        notice: RuleNotice | None = None,
    ) -> None:
        """Take the details for the record, and for RULE_DENIED the rule."""
        super().__init__(kind, notice)
        self.keyring = keyring
        self.version = version
        self.target = target
        self.rule = rule if notice is None else notice.rule
        self.campaign = campaign


class OperationResult(Struct, frozen=True):
    """A result. It may leave the key service once its record and its change are durable."""

    result: AnyResult
    version: KeyVersion | None
    change: KeyChange | KeyringChange | RulesChange | None = None
    target: str | None = None
    """The target key version of a re-encryption, as keyring/algorithm/version."""
    keyring: KeyringName | None = None
    """The keyring of a supplied key that is the tenant's."""
    operation: Operation | None = None
    """The operation for the record, if it differs from the request's."""
    policy: str | None = None
    """The policy for the record, if it is not the policy that allowed the request."""
    rule: RecordedName | None = None
    """The rule that warns of the operation."""
    campaign: RecordedName | None = None
    """The campaign that a re-encryption belongs to."""
