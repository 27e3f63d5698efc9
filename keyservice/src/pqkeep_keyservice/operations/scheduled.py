"""The automatic changes of keys when they are due."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from pqkeep_keyservice.keys.changes import KeyChange, KeyringChange, RulesChange
from pqkeep_keyservice.keys.key_versions import NO_LIMITS, AgeLimits, KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.keys.rules import Assessment, RuleSet
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.operations.context import Parts
from pqkeep_keyservice.operations.lifecycle import new_entry
from pqkeep_keyservice.storage.key_versions import list_keys
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MIN_ARCHIVE_DAYS,
    DestructionState,
    KeyringName,
    KeyStatus,
    KeyVersion,
    RecordedName,
)
from pqkeep_protocol.rules import USE_OF, RuleNotice, RuleUse

SCHEDULE = "schedule"
"""The principal in records of automatic changes."""
ROTATION = "rotation-days"
"""The reason for a rotation."""
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
    rule: RecordedName | None = None
    """The rule that warns of the change, or sends a rotation to another algorithm."""

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
            rule=self.rule,
        )


@dataclass(frozen=True, slots=True)
class DeniedRotation:
    """A due rotation that a rule denies, without a successor that is possible in the keyring."""

    name: KeyName
    version: KeyVersion
    notice: RuleNotice

    @property
    def record(self) -> NewRecord:
        """The audit record of the refusal."""
        return NewRecord(
            tenant=self.name.tenant,
            principal=SCHEDULE,
            operation=Operation.ROTATE_KEY,
            algorithm=self.name.algorithm,
            key_version=self.version,
            outcome=ErrorKind.RULE_DENIED,
            request_id=f"{SCHEDULE}-{ROTATION}",
            source_address="",
            policy=ROTATION,
            keyring=self.name.keyring,
            rule=self.notice.rule,
        )


@dataclass(frozen=True, slots=True)
class RulesDeleted:
    """Deletes a tenant's rules when its private keys are destroyed."""

    change: RulesChange
    operation: ClassVar = Operation.DELETE_RULE

    @property
    def record(self) -> NewRecord:
        """The audit record of the change."""
        return NewRecord(
            tenant=self.change.new.tenant,
            principal=SCHEDULE,
            operation=self.operation,
            algorithm=None,
            key_version=None,
            outcome=Outcome.SUCCESS,
            request_id=f"{SCHEDULE}-{DESTRUCTION}",
            source_address="",
            policy=DESTRUCTION,
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

    An active version is retired first, as before any archiving.
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
) -> DueChange | DeniedRotation | None:
    """Return the first due change of a key, or None.

    Without ``destroys``, changes that destroy a key are ignored, as they are for a protected keyring.
    """
    await parts.require_no_destruction(name.tenant)
    versions = await parts.keys.get(name)
    keyring = await parts.keyrings.get(KeyringId(name.tenant, name.keyring))
    is_protected = keyring.is_protected
    archive_after_days = 0 if is_protected else keyring.info.archive_after_days
    limits = AgeLimits(keyring.info.rotation_days, archive_after_days)
    if keyring.is_deleted:
        limits = NO_LIMITS
    entry = versions.first_due(limits, now, destroys=destroys and not is_protected)
    if entry is None:
        return None
    version = entry.info.version
    archive_at, disabled_until = entry.info.archive_at, entry.info.disabled_until
    if disabled_until is not None and disabled_until <= now:
        change = KeyChange(versions, versions.with_enabled(version))
        return DueChange(Operation.ENABLE_KEY, version, "disabled-until", change)
    if archive_at is not None:
        change = KeyChange(versions, versions.with_archived(version))
        return DueChange(Operation.ARCHIVE_KEY, version, "archive-at", change)
    if entry.info.status is KeyStatus.RETIRED:
        at = now + max(timedelta(days=MIN_ARCHIVE_DAYS), parts.least_delay)
        change = KeyChange(versions, versions.with_archive_scheduled(version, at))
        return DueChange(Operation.SCHEDULE_ARCHIVE, version, "archive-after-days", change)
    found = None
    if parts.rules.known(name.tenant.int) is not None:
        rules = await parts.rules.get(name.tenant)
        found = rules.assess(name.keyring, name.algorithm, RuleUse.GENERATE_KEY, SCHEDULE, now)
        if found is not None and found.is_denied:
            return await _succession(rules, found.notice, versions, keyring, now, parts, deadline)
    executor = parts.executors[name.algorithm]
    rotated = versions.with_rotated(await new_entry(versions, executor, deadline, now))
    version = rotated.require_active().info.version
    rule = None if found is None else found.notice.rule
    return DueChange(Operation.ROTATE_KEY, version, ROTATION, KeyChange(versions, rotated), rule)


async def _succession(
    rules: RuleSet,
    notice: RuleNotice,
    versions: KeyVersions,
    keyring: Keyring,
    now: datetime,
    parts: Parts,
    deadline: float,
) -> DueChange | DeniedRotation | None:
    """Return the next step from a key that may not rotate to the key of a rule's successor.

    The successor gets a key first. Then the old version is retired, if no caller may use it.
    """
    version = versions.require_active().info.version
    successor = _successor(rules, notice, keyring.info, now)
    if successor is None:
        return DeniedRotation(versions.name, version, notice)
    name = versions.name._replace(algorithm=successor)
    others = await parts.keys.get(name)
    if others.current is None:
        entry = await new_entry(
            others,
            parts.executors[successor],
            deadline,
            now,
            first_version=keyring.info.first_version,
        )
        change = KeyChange(others, others.with_first(entry))
        return DueChange(Operation.GENERATE_KEY, entry.info.version, ROTATION, change, notice.rule)
    operations = ALGORITHMS[versions.algorithm].operations
    uses = {USE_OF[operation] for operation in operations if operation in USE_OF}
    if not rules.is_ended(versions.keyring, versions.algorithm, uses, now):
        return None
    change = KeyChange(versions, versions.with_retired(version, now))
    return DueChange(Operation.RETIRE_KEY, version, ROTATION, change, notice.rule)


def _successor(
    rules: RuleSet, notice: RuleNotice, keyring: KeyringInfo, now: datetime
) -> Algorithm | None:
    """Return the successor that the keyring allows and no rule denies, or None.

    A denied successor is followed to its own successor.
    """
    seen = set[Algorithm]()
    found: Assessment | None = Assessment(notice, is_denied=True)
    successor: Algorithm | None = None
    while found is not None and found.is_denied:
        successor = found.notice.successor
        if successor is None or successor in seen:
            return None
        seen.add(successor)
        found = rules.assess(keyring.name, successor, RuleUse.GENERATE_KEY, SCHEDULE, now)
    if successor is None or not keyring.has_use_for(ALGORITHMS[successor].operations):
        return None
    return successor


async def destruction_step(
    destroyed: KeyringId, now: datetime, parts: Parts
) -> DueChange | DestructionStep | RulesDeleted | None:
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
    if of_keyring is None and parts.rules.known(destroyed.tenant.int) is not None:
        rules, is_damaged = await parts.rules.get_or_discard(destroyed.tenant)
        if is_damaged or rules.rules:
            empty = RuleSet(destroyed.tenant, (), rules.revision + 1)
            return RulesDeleted(RulesChange(empty, replaces_damaged=is_damaged))
    completed = keyring.with_destruction_completed(planned)
    return DestructionStep(KeyringChange(completed), Outcome.COMPLETED)
