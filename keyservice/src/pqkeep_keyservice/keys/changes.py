"""Changes of stored data: an operation returns them, and the store commits them."""

from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256

from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_keyservice.keys.tenant_bundle import MovedCount, MovedMoves, MovedUse
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.keys import TenantId


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Replaces a key with its next revision."""

    old: KeyVersions
    new: KeyVersions
    quota: int | None = None
    """The most active keys that the tenant may have afterwards; None for no limit."""

    @property
    def added(self) -> tuple[KeyEntry, ...]:
        """The new key versions."""
        return self.new.entries[len(self.old.entries) :]

    @property
    def fingerprint(self) -> bytes | None:
        """SHA-256 of the new version's public key (32 bytes), or None without a new version.

        Of a symmetric key: its check value.
        """
        if not self.added:
            return None
        public_key = self.added[-1].info.public_key
        is_symmetric = ALGORITHMS[self.new.algorithm].is_symmetric
        return public_key if is_symmetric else sha256(public_key).digest()

    @property
    def destroys_a_seed(self) -> bool:
        """Whether a sealed seed is deleted, so that no copy of it may remain."""
        before_and_after = zip(self.old.entries, self.new.entries, strict=False)
        return any(
            before is not after and before.sealed and after.sealed is None
            for before, after in before_and_after
        )


@dataclass(frozen=True, slots=True)
class RootKeyAdded:
    """A new root key, which seals from now on."""

    root_key_id: int
    check_value: bytes


@dataclass(frozen=True, slots=True)
class RootKeysDropped:
    """Removes all root keys but the newest. It is stale if one of them still seals a seed."""

    newest: int


@dataclass(frozen=True, slots=True)
class KeyringChange:
    """Adds a keyring, or replaces it with its next revision."""

    new: Keyring
    quota: int | None = None
    """The most keyrings that the tenant may have afterwards; None for an existing keyring."""


@dataclass(frozen=True, slots=True)
class RulesChange:
    """Adds a tenant's rules, or replaces them with their next revision."""

    new: RuleSet
    replaces_damaged: bool = False
    """Whether it replaces any stored revision."""


@dataclass(frozen=True, slots=True)
class TenantLeft:
    """Replaces all data of a tenant with its bundle.

    The change is stale if the tenant has other data by then.
    """

    tenant: TenantId
    keys: tuple[KeyVersions, ...]
    keyrings: tuple[Keyring, ...]
    rules: RuleSet | None
    bundle: bytes


@dataclass(frozen=True, slots=True)
class TenantArrived:
    """Adds a tenant's data. Stale if the tenant has data here, or the log names newer keys."""

    tenant: TenantId
    keys: tuple[KeyVersions, ...]
    keyrings: tuple[Keyring, ...]
    rules: RuleSet | None
    uses: tuple[MovedUse, ...]
    counts: tuple[MovedCount, ...]
    moves: tuple[MovedMoves, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleDestroyed:
    """Deletes the bundle of a departed tenant."""

    tenant: TenantId


TenantMove = TenantLeft | TenantArrived | BundleDestroyed
Change = KeyChange | KeyringChange | RulesChange | RootKeyAdded | RootKeysDropped | TenantMove


class CommitOutcome(Enum):
    """Whether a change and its record are durable. Otherwise neither is stored."""

    DURABLE = auto()
    STALE = auto()
    """Another change was committed first, or may have been; or the Idempotency-Key was used."""
    QUOTA_REACHED = auto()
