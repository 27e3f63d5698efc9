"""The automatic changes of keys when they are due."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pqkeep_keyservice.keys.changes import KeyChange, KeyringChange
from pqkeep_keyservice.keys.key_versions import NO_LIMITS, AgeLimits, KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.operations.context import Parts
from pqkeep_keyservice.operations.lifecycle import new_entry
from pqkeep_keyservice.storage.key_versions import list_keys
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MIN_ARCHIVE_DAYS,
    DestructionState,
    KeyringName,
    KeyStatus,
    KeyVersion,
)

SCHEDULE = "schedule"
"""The principal in records of automatic changes."""
DESTRUCTION = "tenant-destruction"
"""The reason for destroying a key together with all others of its tenant."""
DELETION = "keyring-deletion"
"""The reason for destroying a key together with its deleted keyring."""


@dataclass(frozen=True, slots=True)
class DueChange:
    """A change of a key that is due."""

    operation: Operation
    version: KeyVersion
    reason: str
    """The setting that asks for the change."""
    change: KeyChange

    @property
    def record(self) -> NewRecord:
        """The audit record of the change."""
        key = self.change.new
        return NewRecord(
            tenant=key.tenant,
            principal=SCHEDULE,
            operation=self.operation,
            algorithm=key.algorithm,
            key_version=self.version,
            outcome=Outcome.SUCCESS,
            request_id=f"{SCHEDULE}-{self.reason}",
            source_address="",
            policy=self.reason,
            keyring=key.keyring,
        )


@dataclass(frozen=True, slots=True)
class DestructionStep:
    """The beginning or the completion of a destruction: of a tenant's keys, or of a keyring's."""

    change: KeyringChange
    outcome: Outcome

    @property
    def operation(self) -> KeyServiceEvent:
        """The event in the audit log."""
        if self.change.new.info.name == DEFAULT_KEYRING:
            return KeyServiceEvent.DESTROY_TENANT
        return KeyServiceEvent.DESTROY_KEYRING

    @property
    def record(self) -> NewRecord:
        """The audit record of the step."""
        return NewRecord(
            tenant=self.change.new.tenant,
            principal=SCHEDULE,
            operation=self.operation,
            algorithm=None,
            key_version=None,
            outcome=self.outcome,
            request_id=f"{SCHEDULE}-{_reason(self.change.new.info.name)}",
            source_address="",
            policy=_reason(self.change.new.info.name),
            keyring=self.change.new.info.name,
        )


def _reason(keyring: KeyringName) -> str:
    """Return the reason for the destruction that a keyring stores."""
    return DESTRUCTION if keyring == DEFAULT_KEYRING else DELETION


def _next_destruction(versions: KeyVersions, now: datetime, reason: str) -> DueChange | None:
    """Return the next change towards destroying all versions of a key, or None.

    An active version is retired first, as it is when a person archives it.
    """
    for entry in versions.entries:
        if entry.info.status is KeyStatus.ARCHIVED:
            continue
        version = entry.info.version
        if entry.lasting_status is KeyStatus.ACTIVE:
            change = KeyChange(versions, versions.with_retired(version, now))
            return DueChange(Operation.RETIRE_KEY, version, reason, change)
        change = KeyChange(versions, versions.with_archived(version))
        return DueChange(Operation.ARCHIVE_KEY, version, reason, change)
    return None


async def due_change(
    name: KeyName, now: datetime, parts: Parts, deadline: float, *, destroys: bool
) -> DueChange | None:
    """Return the first due change of a key, or None.

    Without ``destroys``, changes that destroy a key are ignored.
    """
    await parts.require_no_destruction(name.tenant)
    versions = await parts.keys.get(name)
    keyring = await parts.keyrings.get(KeyringId(name.tenant, name.keyring))
    limits = AgeLimits(keyring.info.rotation_days, keyring.info.archive_after_days)
    if keyring.is_deleted:
        limits = NO_LIMITS
    entry = versions.first_due(limits, now, destroys=destroys)
    if entry is None:
        return None
    version = entry.info.version
    if entry.info.archive_at is not None:
        change = KeyChange(versions, versions.with_archived(version))
        return DueChange(Operation.ARCHIVE_KEY, version, "archive-at", change)
    if entry.info.status is KeyStatus.RETIRED:
        at = now + max(timedelta(days=MIN_ARCHIVE_DAYS), parts.least_delay)
        change = KeyChange(versions, versions.with_archive_scheduled(version, at))
        return DueChange(Operation.SCHEDULE_ARCHIVE, version, "archive-after-days", change)
    executor = parts.executors[name.algorithm]
    rotated = versions.with_rotated(await new_entry(versions, executor, deadline, now))
    version = rotated.require_active().info.version
    return DueChange(Operation.ROTATE_KEY, version, "rotation-days", KeyChange(versions, rotated))


async def destruction_step(
    destroyed: KeyringId, now: datetime, parts: Parts
) -> DueChange | DestructionStep | None:
    """Return the next due change towards destroying a keyring's private keys, or None.

    The default keyring stands for all the tenant's private keys.

    Raises DamagedKeyError if only damaged keys are left.
    """
    keyring = await parts.keyrings.get(destroyed)
    planned = keyring.destruction
    if planned is None or not planned.is_open or planned.at > now:
        return None
    if planned.state is DestructionState.SCHEDULED:
        begun = keyring.with_destruction_begun(planned)
        return DestructionStep(KeyringChange(begun), Outcome.BEGUN)
    damage: DamagedKeyError | None = None
    of_keyring = None if destroyed.keyring == DEFAULT_KEYRING else destroyed.keyring
    for name in await parts.store.database.query(list_keys, destroyed.tenant, of_keyring):
        try:
            versions = await parts.keys.get(name)
        except DamagedKeyError as error:
            damage = error
            continue
        if (change := _next_destruction(versions, now, _reason(destroyed.keyring))) is not None:
            return change
    if damage is not None:
        raise damage
    completed = keyring.with_destruction_completed(planned)
    return DestructionStep(KeyringChange(completed), Outcome.COMPLETED)
