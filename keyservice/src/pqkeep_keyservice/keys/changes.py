"""Changes of what is stored: values that an operation returns and the store commits."""

from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256

from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.tenant_bundle import MovedCount, MovedUsage
from pqkeep_protocol.keys import TenantId


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Replaces a key by its next revision."""

    old: KeyVersions
    new: KeyVersions
    quota: int | None = None
    """How many active keys the tenant may have afterwards; None: any number."""

    @property
    def added(self) -> tuple[KeyEntry, ...]:
        """The keys that are new."""
        return self.new.entries[len(self.old.entries) :]

    @property
    def fingerprint(self) -> bytes | None:
        """SHA-256 of the new key's public half (32 bytes), if there is one."""
        return sha256(self.added[-1].info.public_key).digest() if self.added else None

    @property
    def destroys_a_seed(self) -> bool:
        """Whether a sealed seed is deleted, of which no copy may stay."""
        before_and_after = zip(self.old.entries, self.new.entries, strict=False)
        return any(
            before is not after and before.sealed and after.sealed is None
            for before, after in before_and_after
        )


@dataclass(frozen=True, slots=True)
class RootKeyAdded:
    """A root key that seals from now on."""

    root_key_id: int
    check_value: bytes


@dataclass(frozen=True, slots=True)
class RootKeysDropped:
    """The root keys before the newest are removed. Stale while a seed is sealed under another."""

    newest: int


@dataclass(frozen=True, slots=True)
class KeyringChange:
    """Replaces a keyring by its next revision, or adds one."""

    new: Keyring
    quota: int | None = None
    """How many keyrings the tenant may have afterwards; None: it had this one before."""


@dataclass(frozen=True, slots=True)
class TenantLeft:
    """Replaces all that is kept for a tenant by its bundle. Stale unless it is all of it."""

    tenant: TenantId
    keys: tuple[KeyVersions, ...]
    keyrings: tuple[Keyring, ...]
    bundle: bytes


@dataclass(frozen=True, slots=True)
class TenantArrived:
    """Adds all that is kept for a tenant. Stale if there is anything, or the log knows newer keys."""

    tenant: TenantId
    keys: tuple[KeyVersions, ...]
    keyrings: tuple[Keyring, ...]
    usage: tuple[MovedUsage, ...]
    counts: tuple[MovedCount, ...]


@dataclass(frozen=True, slots=True)
class BundleDestroyed:
    """Deletes the bundle of a tenant that has left."""

    tenant: TenantId


TenantMove = TenantLeft | TenantArrived | BundleDestroyed
Change = KeyChange | KeyringChange | RootKeyAdded | RootKeysDropped | TenantMove


class CommitOutcome(Enum):
    """Whether a change and its record are durable. Otherwise neither was written."""

    DURABLE = auto()
    STALE = auto()
    """Another change was committed first, or may have been; or the Idempotency-Key is in use."""
    QUOTA_REACHED = auto()
