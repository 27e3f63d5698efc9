"""All keys of one tenant for one algorithm, and every rule of their lifecycle.

Every change of a key's status is a method of Keyring, in this file, which does no I/O and no
cryptography. A Keyring is a value: a method returns the next one, and storage swaps it in if the
old one is still the current one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NewType, NoReturn

from msgspec import structs

from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import USABLE, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency

SealedSeed = NewType("SealedSeed", bytes)
"""A private key encrypted under a root key; see sealing.py."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

IDEMPOTENCY_KEY_LIFETIME = timedelta(days=1)

VERSIONS_PER_GENERATION = 1_000_000
"""More versions than a keyring gets between two restores of an installation."""


def generation_of(version: KeyVersion) -> int:
    """Return how often the installation had been restored when a key version was made."""
    return (version - 1) // VERSIONS_PER_GENERATION


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key version."""

    info: KeyInfo
    sealed: SealedSeed | None
    """None once the key is archived."""
    idempotency: Idempotency | None = None
    """The Idempotency-Key of the request that generated the key."""

    @property
    def created_at_us(self) -> int:
        """When the key was generated, in microseconds since 1970."""
        return (self.info.created_at - EPOCH) // MICROSECOND


@dataclass(frozen=True, slots=True)
class Keyring:
    """All versions, oldest first."""

    tenant: TenantId
    algorithm: Algorithm
    entries: tuple[KeyEntry, ...] = ()
    revision: int = 0
    """Counts the changes. Storage compares it before it swaps."""
    generation: int = 0
    """How often the installation was restored from a backup. Versions that were made after the
    backup are lost then: so that none is given out twice, each generation has its own range."""
    _by_version: Mapping[int, KeyEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_version = {entry.info.version: entry for entry in self.entries}
        object.__setattr__(self, "_by_version", by_version)

    @property
    def active(self) -> KeyEntry | None:
        """The active key. It is the newest version, or there is none."""
        newest = self.entries[-1] if self.entries else None
        return newest if newest and newest.info.status is KeyStatus.ACTIVE else None

    @property
    def next_version(self) -> KeyVersion:
        """The version of the next new key."""
        newest = self.entries[-1].info.version if self.entries else 0
        return KeyVersion(max(newest, self.generation * VERSIONS_PER_GENERATION) + 1)

    def entry(self, version: KeyVersion) -> KeyEntry:
        """Return a key version, whatever its status. Raises KEY_NOT_FOUND."""
        return self._by_version.get(version) or _not_found()

    def version_before(self, version: KeyVersion) -> KeyVersion:
        """Return the version that one replaced. Raises KEY_NOT_FOUND."""
        index = self.entries.index(self.entry(version))
        return self.entries[index - 1].info.version if index else _not_found()

    def entry_generated_with(self, idempotency: Idempotency, now: datetime) -> KeyEntry | None:
        """Return the key that a request with the same Idempotency-Key generated in the last day."""
        oldest = now - IDEMPOTENCY_KEY_LIFETIME
        for entry in self.entries:
            is_same = entry.idempotency is not None and entry.idempotency.key == idempotency.key
            if is_same and entry.info.created_at > oldest:
                return entry
        return None

    def require_active(self) -> KeyEntry:
        """Return the active key. Raises KEY_NOT_FOUND."""
        return self.active or _not_found()

    def key_for(self, operation: Operation, version: KeyVersion | None) -> KeyEntry:
        """Return the key for a cryptographic operation; None means the active one.

        Raises KEY_NOT_FOUND, also for a version whose status does not allow the operation.
        """
        entry = self.require_active() if version is None else self.entry(version)
        return entry if entry.info.status in USABLE[operation] else _not_found()

    def require_no_active(self) -> None:
        """Raise KEY_EXISTS if there is an active key."""
        if self.active is not None:
            raise KeyServiceError(ErrorKind.KEY_EXISTS)

    def with_first(self, new: KeyEntry) -> "Keyring":
        """Add a key where none is active. Raises KEY_EXISTS."""
        self.require_no_active()
        return self._next((*self.entries, new))

    def with_rotated(self, new: KeyEntry) -> "Keyring":
        """Retire the active key and add its successor. Raises KEY_NOT_FOUND."""
        retired = _with_status(self.require_active(), KeyStatus.RETIRED)
        return self._next((*self.entries[:-1], retired, new))

    def with_retired(self, version: KeyVersion) -> "Keyring":
        """Retire a key; retiring a retired key changes nothing. Raises KEY_STATUS."""
        entry = self.entry(version)
        if entry.info.status is KeyStatus.ARCHIVED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        if entry.info.status is KeyStatus.RETIRED:
            return self
        return self._with(_with_status(entry, KeyStatus.RETIRED))

    def with_archived(self, version: KeyVersion) -> "Keyring":
        """Remove a retired key's private half, irreversibly. Raises KEY_STATUS."""
        entry = self.entry(version)
        if entry.info.status is not KeyStatus.RETIRED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        return self._with(replace(_with_status(entry, KeyStatus.ARCHIVED), sealed=None))

    def with_resealed(self, sealed: Mapping[KeyVersion, SealedSeed]) -> "Keyring":
        """Replace the sealed form of some seeds. The keys stay what they are."""
        return self._next(
            tuple(
                replace(entry, sealed=sealed[entry.info.version])
                if entry.sealed and entry.info.version in sealed
                else entry
                for entry in self.entries
            )
        )

    def _with(self, entry: KeyEntry) -> "Keyring":
        version = entry.info.version
        return self._next(
            tuple(entry if each.info.version == version else each for each in self.entries)
        )

    def _next(self, entries: tuple[KeyEntry, ...]) -> "Keyring":
        return replace(self, entries=entries, revision=self.revision + 1)


def _with_status(entry: KeyEntry, status: KeyStatus) -> KeyEntry:
    return replace(entry, info=structs.replace(entry.info, status=status))


def _not_found() -> NoReturn:
    raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)
