"""All versions of one key, and every rule of their lifecycle.

Every status change is a method of KeyVersions. This file does no I/O and no cryptography.
KeyVersions is a value: a method returns the next one, and the store swaps it in if the old one is
still current.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NewType, NoReturn

from msgspec import structs

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_VERSIONS,
    KeyInfo,
    KeyringName,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import Idempotency

SealedSeed = NewType("SealedSeed", bytes)
"""A private key encrypted under a root key; see sealing.py."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

IDEMPOTENCY_KEY_LIFETIME = timedelta(days=1)

VERSIONS_PER_GENERATION = 1_000_000
"""More versions than a key can get between two restores of an installation."""


def microseconds(when: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (when - EPOCH) // MICROSECOND


def generation_of(version: KeyVersion) -> int:
    """Return the number of restores before a key version was made."""
    return (version - 1) // VERSIONS_PER_GENERATION


class KeyName(NamedTuple):
    """The name of a key. Each keyring of a tenant has one key for each algorithm."""

    tenant: TenantId
    algorithm: Algorithm
    keyring: KeyringName = DEFAULT_KEYRING


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key version."""

    info: KeyInfo
    sealed: SealedSeed | None
    """The sealed private key. None once the key is archived."""
    idempotency: Idempotency | None = None
    """The Idempotency-Key of the request that generated the key."""
    disabled_from: KeyStatus | None = None
    """The earlier status of a disabled version. Enabling restores it."""
    retired_at: datetime | None = None
    """The time when it was retired, or when its archiving was last cancelled."""
    mac_state: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """This version's part of the ``key_mac`` input; None until it is computed."""
    derivation_info: dict[bytes, bytes] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The HKDF info of data keys, by purpose, filled on first use."""

    @property
    def lasting_status(self) -> KeyStatus:
        """The status; for a disabled version, its earlier status."""
        return self.disabled_from or self.info.status

    @property
    def created_at_us(self) -> int:
        """The time of generation, in microseconds since 1970."""
        return microseconds(self.info.created_at)


class AgeLimits(NamedTuple):
    """The ages in days at which versions change automatically; 0 for never."""

    rotation_days: int = 0
    """The age from generation at which the active version is rotated."""
    archive_after_days: int = 0
    """The time from retirement after which archiving is scheduled."""

    def due_at(self, entry: KeyEntry) -> datetime | None:
        """Return when the next automatic change of a version is due, or None.

        A disabled version changes only if its archiving or its enabling is already scheduled.
        """
        scheduled = entry.info.archive_at, entry.info.disabled_until
        if scheduled != (None, None):
            return min(at for at in scheduled if at is not None)
        if entry.info.status is KeyStatus.ACTIVE and self.rotation_days:
            return entry.info.created_at + timedelta(days=self.rotation_days)
        if entry.info.status is KeyStatus.RETIRED and entry.retired_at and self.archive_after_days:
            return entry.retired_at + timedelta(days=self.archive_after_days)
        return None


NO_LIMITS = AgeLimits()


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """All versions of one key, oldest first: one algorithm in one of a tenant's keyrings."""

    tenant: TenantId
    algorithm: Algorithm
    entries: tuple[KeyEntry, ...] = ()
    revision: int = 0
    """Counts the changes. The store compares it before a swap."""
    generation: int = 0
    """The number of restores from a backup. A restore loses versions made after the backup. Each
    generation has its own range of version numbers, so that no number is used twice."""
    keyring: KeyringName = DEFAULT_KEYRING

    @property
    def name(self) -> KeyName:
        """Which key it is."""
        return KeyName(self.tenant, self.algorithm, self.keyring)

    @property
    def active(self) -> KeyEntry | None:
        """The active key, which is always the newest version, or None."""
        newest = self.entries[-1] if self.entries else None
        return newest if newest and newest.info.status is KeyStatus.ACTIVE else None

    @property
    def current(self) -> KeyEntry | None:
        """The active key, even if it is disabled. No other key can become active beside it."""
        newest = self.entries[-1] if self.entries else None
        return newest if newest and newest.lasting_status is KeyStatus.ACTIVE else None

    @property
    def is_full(self) -> bool:
        """Whether the key has the maximum number of versions."""
        return len(self.entries) >= MAX_VERSIONS

    def due_at(self, limits: AgeLimits) -> datetime | None:
        """Return when the next automatic change of this key is due, or None."""
        limits = self._possible(limits)
        due = (at for entry in self.entries if (at := limits.due_at(entry)) is not None)
        return min(due, default=None)

    def first_due(
        self, limits: AgeLimits, now: datetime, *, destroys: bool = True
    ) -> KeyEntry | None:
        """Return the oldest version with a due change; ``destroys=False`` skips destructions."""
        limits = self._possible(limits)
        for entry in self.entries:
            if not destroys and entry.info.archive_at is not None:
                at = entry.info.disabled_until
            else:
                at = limits.due_at(entry)
            if at is not None and at <= now:
                return entry
        return None

    def next_version(self, first: int = 1) -> KeyVersion:
        """Return the version number of the next new key. Raises VERSION_LIMIT_REACHED.

        ``first`` is the lowest number that the keyring allows.
        """
        if self.is_full:
            raise KeyServiceError(ErrorKind.VERSION_LIMIT_REACHED)
        newest = self.entries[-1].info.version if self.entries else 0
        earlier = max(newest, self.generation * VERSIONS_PER_GENERATION)
        return KeyVersion(max(earlier + 1, first))

    def _possible(self, limits: AgeLimits) -> AgeLimits:
        never_rotates = self.is_full or ALGORITHMS[self.algorithm].is_legacy
        return limits._replace(rotation_days=0) if never_rotates else limits

    def entry(self, version: KeyVersion) -> KeyEntry:
        """Return a key version of any status. Raises KEY_NOT_FOUND."""
        return self.entries[self._index(version)]

    def version_before(self, version: KeyVersion) -> KeyVersion:
        """Return the version before this one. Raises KEY_NOT_FOUND."""
        index = self._index(version)
        return self.entries[index - 1].info.version if index else _not_found()

    def entry_generated_with(self, idempotency: Idempotency, now: datetime) -> KeyEntry | None:
        """Return the key that the same Idempotency-Key generated within the last day."""
        oldest = now - IDEMPOTENCY_KEY_LIFETIME
        for entry in self.entries:
            is_same = entry.idempotency is not None and entry.idempotency.key == idempotency.key
            if is_same and entry.info.created_at > oldest:
                return entry
        return None

    def require_active(self) -> KeyEntry:
        """Return the active key. Raises KEY_NOT_FOUND."""
        return self.active or _not_found()

    def key_for(
        self, operation: Operation, version: KeyVersion | None, keyring: KeyringInfo
    ) -> KeyEntry:
        """Return the key for a cryptographic operation. For None, it is the active key.

        Raises KEY_NOT_FOUND if the version is missing, or its status does not allow the operation.
        Raises VERSION_BELOW_MINIMUM if a minimum version of the keyring does not allow it.
        """
        entry = self.require_active() if version is None else self.entry(version)
        if not entry.info.allows(operation):
            _not_found()
        if not keyring.allows_version(operation, entry.info.version):
            raise KeyServiceError(ErrorKind.VERSION_BELOW_MINIMUM)
        return entry

    def require_public_key(
        self, operation: Operation, version: KeyVersion, keyring: KeyringInfo
    ) -> None:
        """Raise the errors of ``key_for`` for a request that names the version's public key.

        A retired version is then allowed if the keyring allows retired public keys.
        """
        entry = self.entry(version)
        is_retired = entry.info.status is KeyStatus.RETIRED and entry.info.archive_at is None
        if not (is_retired and keyring.retired_public_keys_allowed):
            self.key_for(operation, version, keyring)
        elif not keyring.allows_version(operation, version):
            raise KeyServiceError(ErrorKind.VERSION_BELOW_MINIMUM)

    def require_current(self) -> KeyEntry:
        """Return the active key, even if it is disabled. Raises KEY_NOT_FOUND."""
        return self.current or _not_found()

    def require_no_active(self) -> None:
        """Raise KEY_EXISTS if there is an active key, even a disabled one."""
        if self.current is not None:
            raise KeyServiceError(ErrorKind.KEY_EXISTS)

    def with_first(self, new: KeyEntry) -> "KeyVersions":
        """Add a key if no key is active. Raises KEY_EXISTS."""
        self.require_no_active()
        return self._next((*self.entries, new))

    def with_rotated(self, new: KeyEntry) -> "KeyVersions":
        """Retire the active key, even if disabled, and add its successor. Raises KEY_NOT_FOUND."""
        retired = _retired(self.require_current(), new.info.created_at)
        return self._next((*self.entries[:-1], retired, new))

    def with_retired(self, version: KeyVersion, now: datetime) -> "KeyVersions":
        """Retire a key. A retired key does not change. Raises KEY_STATUS."""
        entry = self._not_archived(version)
        if entry.lasting_status is KeyStatus.RETIRED:
            return self
        return self._with(_retired(entry, now))

    def with_disabled(self, version: KeyVersion, until: datetime | None = None) -> "KeyVersions":
        """Disable a key until a time; None: until it is enabled. Raises KEY_STATUS.

        A key that is disabled for longer, or without a time, does not change: only enabling ends
        that.
        """
        entry = self._not_archived(version)
        if entry.disabled_from is not None:
            before = entry.info.disabled_until
            if before is None or (until is not None and until <= before):
                return self
            return self._with(_disabled_until(entry, until))
        disabled = _with_status(_disabled_until(entry, until), KeyStatus.DISABLED)
        return self._with(replace(disabled, disabled_from=entry.info.status))

    def with_enabled(self, version: KeyVersion, until: datetime | None = None) -> "KeyVersions":
        """Restore a disabled key's status. An enabled key does not change. Raises KEY_STATUS.

        ``until``: only if it is disabled until this time; None: in any case.
        """
        entry = self._not_archived(version)
        if entry.disabled_from is None or until not in {None, entry.info.disabled_until}:
            return self
        enabled = _with_status(_disabled_until(entry, None), entry.disabled_from)
        return self._with(replace(enabled, disabled_from=None))

    def with_archive_scheduled(self, version: KeyVersion, at: datetime) -> "KeyVersions":
        """Set a retired key's archive time, unless it has one already. Raises KEY_STATUS."""
        entry = self._retired(version)
        if entry.info.archive_at is not None:
            return self
        return self._with(_with_archive_at(entry, at))

    def with_archive_postponed(self, version: KeyVersion, until: datetime) -> "KeyVersions":
        """Postpone a scheduled archiving to at least this time. Other keys do not change."""
        entry = self.entry(version)
        if entry.info.archive_at is None or entry.info.archive_at >= until:
            return self
        return self._with(_with_archive_at(entry, until))

    def with_archive_cancelled(self, version: KeyVersion, now: datetime) -> "KeyVersions":
        """Cancel a scheduled archiving. Other keys do not change. Raises KEY_STATUS."""
        entry = self._not_archived(version)
        if entry.info.archive_at is None:
            return self
        return self._with(replace(_with_archive_at(entry, None), retired_at=now))

    def with_archived(self, version: KeyVersion) -> "KeyVersions":
        """Delete a retired key's private half, irreversibly. Raises KEY_STATUS."""
        entry = _disabled_until(_with_archive_at(self._retired(version), None), None)
        archived = _with_status(entry, KeyStatus.ARCHIVED)
        return self._with(replace(archived, sealed=None, disabled_from=None))

    def with_resealed(self, sealed: Mapping[KeyVersion, SealedSeed]) -> "KeyVersions":
        """Replace the sealed form of some seeds. The keys themselves do not change."""
        return self._next(
            tuple(
                replace(entry, sealed=sealed[entry.info.version])
                if entry.sealed and entry.info.version in sealed
                else entry
                for entry in self.entries
            )
        )

    def _not_archived(self, version: KeyVersion) -> KeyEntry:
        entry = self.entry(version)
        if entry.info.status is KeyStatus.ARCHIVED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        return entry

    def _retired(self, version: KeyVersion) -> KeyEntry:
        entry = self.entry(version)
        if entry.lasting_status is not KeyStatus.RETIRED:
            raise KeyServiceError(ErrorKind.KEY_STATUS)
        return entry

    def _with(self, entry: KeyEntry) -> "KeyVersions":
        index = self._index(entry.info.version)
        return self._next((*self.entries[:index], entry, *self.entries[index + 1 :]))

    def _index(self, version: KeyVersion) -> int:
        """Return the index of a version. Raises KEY_NOT_FOUND."""
        index = bisect_left(self.entries, version, key=_version)
        exists = index < len(self.entries) and _version(self.entries[index]) == version
        return index if exists else _not_found()

    def _next(self, entries: tuple[KeyEntry, ...]) -> "KeyVersions":
        return replace(self, entries=entries, revision=self.revision + 1)


def _version(entry: KeyEntry) -> KeyVersion:
    return entry.info.version


def _with_status(entry: KeyEntry, status: KeyStatus) -> KeyEntry:
    return replace(entry, info=structs.replace(entry.info, status=status))


def _with_archive_at(entry: KeyEntry, at: datetime | None) -> KeyEntry:
    return replace(entry, info=structs.replace(entry.info, archive_at=at))


def _disabled_until(entry: KeyEntry, until: datetime | None) -> KeyEntry:
    return replace(entry, info=structs.replace(entry.info, disabled_until=until))


def _retired(entry: KeyEntry, now: datetime) -> KeyEntry:
    """Return a key as retired. A disabled key stays disabled."""
    if entry.disabled_from is not None:
        return replace(entry, disabled_from=KeyStatus.RETIRED, retired_at=now)
    return replace(_with_status(entry, KeyStatus.RETIRED), retired_at=now)


def _not_found() -> NoReturn:
    raise KeyServiceError(ErrorKind.KEY_NOT_FOUND)
