"""The lifecycle of keys, by the specification's tables and by random walks."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from pqkeep_keyservice.keys.key_versions import (
    IDEMPOTENCY_KEY_LIFETIME,
    NO_LIMITS,
    AgeLimits,
    KeyEntry,
    KeyVersions,
    SealedSeed,
    generation_of,
)
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import MAX_FIRST_VERSION, KeyringInfo
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_KEY_VERSION,
    MAX_VERSIONS,
    USABLE,
    KeyInfo,
    KeyStatus,
    KeyVersion,
    TenantId,
)
from pqkeep_protocol.messages import Idempotency

T = TypeVar("T")
EMPTY = KeyVersions(TenantId(UUID(int=1)), Algorithm.ML_KEM_768)
FIRST = KeyVersion(1)
ORDER = [KeyStatus.ACTIVE, KeyStatus.RETIRED, KeyStatus.ARCHIVED]
NOW = datetime(2026, 2, 1, tzinfo=UTC)
LATER = datetime(2026, 3, 1, tzinfo=UTC)


def new_entry(versions: KeyVersions) -> KeyEntry:
    """Return the next entry for a key."""
    version = versions.next_version()
    info = KeyInfo(
        versions.algorithm, version, KeyStatus.ACTIVE, b"public", datetime(2026, 1, 1, tzinfo=UTC)
    )
    return KeyEntry(info, SealedSeed(b"sealed %d" % version))


def generate(versions: KeyVersions) -> KeyVersions:
    """Add a key if no version is active."""
    return versions.with_first(new_entry(versions))


def rotate(versions: KeyVersions) -> KeyVersions:
    """Replace the active key by a new one."""
    return versions.with_rotated(new_entry(versions))


def retire(versions: KeyVersions) -> KeyVersions:
    """Retire version 1."""
    return versions.with_retired(FIRST, NOW)


def disable(versions: KeyVersions) -> KeyVersions:
    """Disable version 1."""
    return versions.with_disabled(FIRST)


def enable(versions: KeyVersions) -> KeyVersions:
    """Enable version 1."""
    return versions.with_enabled(FIRST)


def schedule(versions: KeyVersions) -> KeyVersions:
    """Schedule the archiving of version 1."""
    return versions.with_archive_scheduled(FIRST, LATER)


def cancel(versions: KeyVersions) -> KeyVersions:
    """Keep version 1."""
    return versions.with_archive_cancelled(FIRST, LATER)


def archive(versions: KeyVersions) -> KeyVersions:
    """Archive version 1."""
    return versions.with_archived(FIRST)


NONE, ACTIVE = EMPTY, generate(EMPTY)
RETIRED = retire(ACTIVE)
ARCHIVED = archive(RETIRED)
ROTATED = rotate(ACTIVE)
DISABLED, DISABLED_RETIRED = disable(ACTIVE), disable(RETIRED)
SCHEDULED = schedule(RETIRED)
A, R, X, D = KeyStatus.ACTIVE, KeyStatus.RETIRED, KeyStatus.ARCHIVED, KeyStatus.DISABLED

STEPS = {
    # specification, "PQC key status": every allowed step, and the statuses after it
    "generate the first": (NONE, generate, [A]),
    "generate after retire": (RETIRED, generate, [R, A]),
    "generate after archive": (ARCHIVED, generate, [X, A]),
    "rotate": (ACTIVE, rotate, [R, A]),
    "retire": (ACTIVE, retire, [R]),
    "archive": (RETIRED, archive, [X]),
    "archive an old version": (ROTATED, archive, [X, A]),
    # and what is added to it
    "disable an active key": (ACTIVE, disable, [D]),
    "disable a retired key": (RETIRED, disable, [D]),
    "enable a key that was active": (DISABLED, enable, [A]),
    "enable a key that was retired": (DISABLED_RETIRED, enable, [R]),
    "rotate a disabled key": (DISABLED, rotate, [D, A]),
    "retire a disabled key": (DISABLED, retire, [D]),
    "enable a key that was rotated": (rotate(DISABLED), enable, [R, A]),
    "enable a key that was retired since": (retire(DISABLED), enable, [R]),
    "generate after a disabled key was retired": (retire(DISABLED), generate, [D, A]),
    "archive a disabled key": (DISABLED_RETIRED, archive, [X]),
    "schedule": (RETIRED, schedule, [R]),
    "schedule a disabled key": (DISABLED_RETIRED, schedule, [D]),
    "cancel": (SCHEDULED, cancel, [R]),
    "disable a scheduled key": (SCHEDULED, disable, [D]),
    "enable a scheduled key": (disable(SCHEDULED), enable, [R]),
    "archive a scheduled key": (SCHEDULED, archive, [X]),
}
NOTHING = {
    "retire a retired key": (RETIRED, retire),
    "disable a disabled key": (DISABLED, disable),
    "enable an active key": (ACTIVE, enable),
    "enable a retired key": (RETIRED, enable),
    "schedule a scheduled key": (SCHEDULED, schedule),
    "cancel nothing": (RETIRED, cancel),
    "cancel what is active": (ACTIVE, cancel),
}
"""Changes without effect: the same value, no new revision, nothing to write."""
REFUSALS = {
    # and every step there is not, with the kind of its refusal
    "generate beside an active key": (ACTIVE, generate, ErrorKind.KEY_EXISTS),
    "generate after rotate": (ROTATED, generate, ErrorKind.KEY_EXISTS),
    "rotate nothing": (NONE, rotate, ErrorKind.KEY_NOT_FOUND),
    "rotate a retired key": (RETIRED, rotate, ErrorKind.KEY_NOT_FOUND),
    "rotate an archived key": (ARCHIVED, rotate, ErrorKind.KEY_NOT_FOUND),
    "retire nothing": (NONE, retire, ErrorKind.KEY_NOT_FOUND),
    "retire an archived key": (ARCHIVED, retire, ErrorKind.KEY_STATUS),
    "archive nothing": (NONE, archive, ErrorKind.KEY_NOT_FOUND),
    "archive an active key": (ACTIVE, archive, ErrorKind.KEY_STATUS),
    "archive an archived key": (ARCHIVED, archive, ErrorKind.KEY_STATUS),
    "generate beside a disabled key": (DISABLED, generate, ErrorKind.KEY_EXISTS),
    "archive a disabled active key": (DISABLED, archive, ErrorKind.KEY_STATUS),
    "schedule an active key": (ACTIVE, schedule, ErrorKind.KEY_STATUS),
    "schedule a disabled active key": (DISABLED, schedule, ErrorKind.KEY_STATUS),
    "schedule an archived key": (ARCHIVED, schedule, ErrorKind.KEY_STATUS),
    "cancel what is archived": (ARCHIVED, cancel, ErrorKind.KEY_STATUS),
    "disable an archived key": (ARCHIVED, disable, ErrorKind.KEY_STATUS),
    "enable an archived key": (ARCHIVED, enable, ErrorKind.KEY_STATUS),
    **{
        f"{step.__name__} nothing": (NONE, step, ErrorKind.KEY_NOT_FOUND)
        for step in (disable, enable, schedule, cancel)
    },
}


def statuses(versions: KeyVersions) -> list[KeyStatus]:
    """Return the status of each version, oldest first."""
    return [entry.info.status for entry in versions.entries]


def lasting(versions: KeyVersions) -> list[KeyStatus]:
    """Return the status of each version; for a disabled one, the status before."""
    return [entry.lasting_status for entry in versions.entries]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_lifecycle(name: str) -> None:
    """Each allowed step leads to the specified statuses, and adds one revision."""
    before, step, expected = STEPS[name]
    after = step(before)
    assert statuses(after) == expected
    assert after.revision == before.revision + 1


@pytest.mark.parametrize("name", REFUSALS)
def test_a_step_that_does_not_exist(name: str) -> None:
    """Every other step is refused with its kind, and changes nothing."""
    before, step, kind = REFUSALS[name]
    copy = statuses(before), before.revision
    with pytest.raises(KeyServiceError) as refusal:
        step(before)
    assert refusal.value.kind is kind
    assert (statuses(before), before.revision) == copy


@pytest.mark.parametrize("name", NOTHING)
def test_a_step_that_changes_nothing(name: str) -> None:
    """A step without effect is allowed, and returns the same value."""
    before, step = NOTHING[name]
    assert step(before) is before


def test_a_key_is_due_when_it_was_scheduled() -> None:
    """A key is due from its scheduled time on, unless cancelled or archived."""
    moment = timedelta(microseconds=1)
    assert SCHEDULED.due_at(NO_LIMITS) == LATER
    assert SCHEDULED.first_due(NO_LIMITS, LATER - moment) is None
    for at in (LATER, LATER + moment):
        assert SCHEDULED.first_due(NO_LIMITS, at) is SCHEDULED.entry(FIRST)
    assert SCHEDULED.first_due(NO_LIMITS, LATER, destroys=False) is None
    for other in (NONE, ACTIVE, RETIRED, ARCHIVED, cancel(SCHEDULED), archive(SCHEDULED)):
        assert other.due_at(NO_LIMITS) is None
        assert other.first_due(NO_LIMITS, datetime.max.replace(tzinfo=UTC)) is None
    assert RETIRED.entry(FIRST).retired_at == NOW
    assert cancel(SCHEDULED).entry(FIRST).retired_at == LATER
    assert ROTATED.entry(FIRST).retired_at == ROTATED.require_active().info.created_at
    both = rotate(generate(SCHEDULED)).with_archive_scheduled(KeyVersion(2), NOW)
    assert both.due_at(NO_LIMITS) == NOW


DAY = timedelta(days=1)
MADE = datetime(2026, 1, 1, tzinfo=UTC)
"""When new_entry makes keys."""


@pytest.mark.parametrize(
    ("versions", "due_at"),
    [
        (NONE, None),
        (ACTIVE, MADE + 90 * DAY),
        (RETIRED, NOW + 30 * DAY),
        (ARCHIVED, None),
        (DISABLED, None),
        (DISABLED_RETIRED, None),
        (SCHEDULED, LATER),
        (cancel(SCHEDULED), LATER + 30 * DAY),
        (ROTATED, MADE + 30 * DAY),
    ],
)
def test_a_key_is_due_at_its_age(versions: KeyVersions, due_at: datetime | None) -> None:
    """An active version is due for rotation, a retired one for scheduling, a disabled one never."""
    limits = AgeLimits(rotation_days=90, archive_after_days=30)
    assert versions.due_at(limits) == due_at
    if due_at is not None:
        assert versions.first_due(limits, due_at - timedelta(microseconds=1)) is None
        assert versions.first_due(limits, due_at) is versions.entry(FIRST)


def test_archiving_destroys_the_private_half_only() -> None:
    """The seed is gone. Version, public key and creation time remain."""
    before, after = RETIRED.entry(FIRST), ARCHIVED.entry(FIRST)
    assert before.sealed is not None
    assert after.sealed is None
    assert (after.info.public_key, after.info.created_at) == (b"public", before.info.created_at)


def test_resealing_replaces_what_is_sealed() -> None:
    """A reseal changes the named seed only, and gives an archived key none."""
    versions = archive(rotate(rotate(ACTIVE)))
    resealed = versions.with_resealed(
        {KeyVersion(number): SealedSeed(b"resealed %d" % number) for number in (1, 2)}
    )
    assert [entry.sealed for entry in resealed.entries] == [None, b"resealed 2", b"sealed 3"]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_change_is_one_versions(number: int) -> None:
    """Disabling one of four versions does not change the others or their order."""
    versions = rotate(rotate(rotate(ACTIVE)))
    before, after = versions.entries, versions.with_disabled(KeyVersion(number)).entries
    assert [old == new for old, new in zip(before, after, strict=True)] == [
        other != number for other in (1, 2, 3, 4)
    ]


def test_each_version_replaced_the_one_before_it() -> None:
    """Each version except the first names the version that it replaced."""
    versions = rotate(rotate(rotate(ACTIVE)))
    assert [versions.version_before(KeyVersion(number)) for number in (2, 3, 4)] == [1, 2, 3]
    with pytest.raises(KeyServiceError) as refusal:
        versions.version_before(FIRST)
    assert refusal.value.kind is ErrorKind.KEY_NOT_FOUND


NO_OPERATION: set[Operation] = set()


def may(operation: Operation, versions: KeyVersions, version: KeyVersion | None) -> bool:
    """Return True if an operation finds its key: the named version, or else the active version."""
    try:
        entry = versions.key_for(operation, version, KeyringInfo(DEFAULT_KEYRING))
    except KeyServiceError as refusal:
        assert refusal.kind is ErrorKind.KEY_NOT_FOUND  # noqa: PT017 - or it is found, see below
        return False
    assert entry is (versions.active if version is None else versions.entry(version))
    return True


WRITING = {Operation.ENCRYPT, Operation.ENCAPSULATE, Operation.SIGN}
READING = {Operation.DECRYPT, Operation.DECAPSULATE, Operation.VERIFY}


@pytest.mark.parametrize("operation", sorted(WRITING | READING))
@pytest.mark.parametrize(
    ("versions", "allowed"),
    [
        (ACTIVE, WRITING | READING),
        (RETIRED, READING),
        (ARCHIVED, NO_OPERATION),
        (DISABLED, NO_OPERATION),
        (DISABLED_RETIRED, NO_OPERATION),
        (SCHEDULED, NO_OPERATION),
    ],
    ids=[*ORDER, "disabled", "disabled-retired", "scheduled"],
)
def test_operations_permitted_per_status(
    operation: Operation, versions: KeyVersions, allowed: set[Operation]
) -> None:
    """The specification's table of statuses and operations holds, for a named version."""
    assert may(operation, versions, FIRST) == (operation in allowed)


@pytest.mark.parametrize("operation", sorted(USABLE))
@pytest.mark.parametrize(
    ("versions", "expected"),
    [(NONE, False), (ACTIVE, True), (RETIRED, False), (ARCHIVED, False), (DISABLED, False)],
)
def test_no_version_means_the_active_one(
    operation: Operation, versions: KeyVersions, *, expected: bool
) -> None:
    """Without a version, an operation uses the active key or is refused."""
    assert may(operation, versions, None) == expected


@pytest.mark.parametrize("version", [0, -1, 2, 3, MAX_KEY_VERSION, 2**64 - 1, -(2**63)])
def test_versions_that_do_not_exist_are_not_found(version: int) -> None:
    """A version that does not exist is KEY_NOT_FOUND."""
    with pytest.raises(KeyServiceError) as refusal:
        ACTIVE.entry(KeyVersion(version))
    assert refusal.value.kind is ErrorKind.KEY_NOT_FOUND


@pytest.mark.threat("other-tenant")
def test_a_key_has_so_many_versions_at_the_most() -> None:
    """A key can have at most 10,000 versions, whatever their statuses."""
    info = new_entry(EMPTY).info

    def key_with(count: int, status: KeyStatus) -> KeyVersions:
        archived = structs.replace(info, status=KeyStatus.ARCHIVED)
        last = structs.replace(info, version=KeyVersion(count), status=status)
        entries = (*[KeyEntry(archived, None)] * (count - 1), KeyEntry(last, SealedSeed(b"s")))
        return replace(EMPTY, entries=entries)

    full = rotate(key_with(MAX_VERSIONS - 1, KeyStatus.ACTIVE))
    assert len(full.entries) == MAX_VERSIONS == 10_000
    older = key_with(MAX_VERSIONS + 1, KeyStatus.RETIRED)  # from before there was a limit
    retired = key_with(MAX_VERSIONS, KeyStatus.RETIRED)
    rotating, archiving = AgeLimits(rotation_days=1), AgeLimits(1, 1)
    assert key_with(MAX_VERSIONS - 1, KeyStatus.ACTIVE).first_due(rotating, LATER)
    for versions in (full, key_with(MAX_VERSIONS + 1, KeyStatus.ACTIVE)):
        assert versions.due_at(rotating) is None
        assert versions.first_due(rotating, LATER) is None
    assert full.first_due(archiving, LATER) is full.entries[-2]  # what it replaced is archived
    for make, versions in ((rotate, full), (generate, retired), (generate, older)):
        with pytest.raises(KeyServiceError) as refused:
            make(versions)
        assert refused.value.kind is ErrorKind.VERSION_LIMIT_REACHED


@pytest.mark.parametrize(
    ("versions", "first", "number"),
    [
        (EMPTY, 1, 1),
        (EMPTY, 9, 9),
        (ROTATED, 2, 3),
        (ROTATED, 9, 9),
        (replace(EMPTY, generation=1), MAX_FIRST_VERSION, 1_000_001),
    ],
)
def test_a_number_is_never_below_the_first_one(
    versions: KeyVersions, first: int, number: int
) -> None:
    """The first number of a keyring raises the next one, and never lowers it."""
    assert versions.next_version(first) == number


def test_no_first_number_reaches_those_after_a_restore() -> None:
    """Even a key with all its versions stays below the numbers of the next generation."""
    assert generation_of(KeyVersion(MAX_FIRST_VERSION + MAX_VERSIONS)) == 0


def test_versions_after_a_restore() -> None:
    """After a restore, new versions use the next range, even for keys missing in the backup."""
    restored = replace(ROTATED, generation=1)
    after = rotate(rotate(restored))
    assert [entry.info.version for entry in after.entries] == [1, 2, 1_000_001, 1_000_002]
    assert after.entry(KeyVersion(1_000_002)) is after.active
    assert after.version_before(KeyVersion(1_000_001)) == 2
    assert statuses(archive(retire(after))) == [X, R, R, A]
    assert generate(replace(EMPTY, generation=2)).require_active().info.version == 2_000_001
    assert [generation_of(entry.info.version) for entry in after.entries] == [0, 0, 1, 1]
    for lost in (3, 1_000_000, 1_000_003):
        with pytest.raises(KeyServiceError) as refusal:
            after.entry(KeyVersion(lost))
        assert refusal.value.kind is ErrorKind.KEY_NOT_FOUND


class Lifecycle(RuleBasedStateMachine):
    """Take random steps, and check every invariant after each."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = self.before = EMPTY

    def step(self, take: Callable[[T], KeyVersions], argument: T) -> None:
        """Take a step, unless it is refused."""
        self.before = self.versions
        with suppress(KeyServiceError):
            self.versions = take(argument)

    @rule()
    def generate(self) -> None:
        """Generate."""
        self.step(self.versions.with_first, new_entry(self.versions))

    @rule()
    def rotate(self) -> None:
        """Rotate."""
        self.step(self.versions.with_rotated, new_entry(self.versions))

    @rule(version=st.integers(0, 9))
    def retire(self, version: int) -> None:
        """Retire any version."""
        self.step(partial(self.versions.with_retired, now=NOW), KeyVersion(version))

    @rule(version=st.integers(0, 9))
    def disable(self, version: int) -> None:
        """Disable any version."""
        self.step(self.versions.with_disabled, KeyVersion(version))

    @rule(version=st.integers(0, 9))
    def enable(self, version: int) -> None:
        """Enable any version."""
        self.step(self.versions.with_enabled, KeyVersion(version))

    @rule(version=st.integers(0, 9))
    def schedule(self, version: int) -> None:
        """Schedule the archiving of any version."""
        self.step(partial(self.versions.with_archive_scheduled, at=LATER), KeyVersion(version))

    @rule(version=st.integers(0, 9))
    def cancel(self, version: int) -> None:
        """Cancel the archiving of any version."""
        self.step(partial(self.versions.with_archive_cancelled, now=NOW), KeyVersion(version))

    @rule(version=st.integers(0, 9))
    def archive(self, version: int) -> None:
        """Archive any version."""
        self.step(self.versions.with_archived, KeyVersion(version))

    @invariant()
    def the_active_key_is_the_newest(self) -> None:
        """At most one key is active or becomes so when enabled, and it is the newest."""
        assert A not in lasting(self.versions)[:-1]
        assert (self.versions.current is not None) == (A in lasting(self.versions))
        assert (self.versions.active is not None) == (A in statuses(self.versions))

    @invariant()
    def disabled_keys_know_what_they_were(self) -> None:
        """Only disabled keys store an earlier status, and only retired keys can be scheduled."""
        for entry in self.versions.entries:
            assert (entry.disabled_from is not None) == (entry.info.status is D)
            assert entry.lasting_status in ORDER
            assert entry.info.archive_at is None or entry.lasting_status is R
            assert (entry.retired_at is None) == (entry.lasting_status is A)

    @invariant()
    def only_usable_keys_are_used(self) -> None:
        """No operation uses a disabled, scheduled or archived key."""
        for entry in self.versions.entries:
            is_usable = entry.info.status in (A, R) and entry.info.archive_at is None
            assert any(entry.info.allows(operation) for operation in USABLE) == is_usable

    @invariant()
    def versions_are_consecutive(self) -> None:
        """Without a restore, versions count from 1 without gaps."""
        versions = [entry.info.version for entry in self.versions.entries]
        assert versions == list(range(1, len(versions) + 1))

    @invariant()
    def only_archived_keys_have_no_seed(self) -> None:
        """Each key keeps its own seed until it is archived."""
        for entry in self.versions.entries:
            expected = None if entry.info.status is X else b"sealed %d" % entry.info.version
            assert entry.sealed == expected

    @invariant()
    def a_change_is_one_revision(self) -> None:
        """Each change adds one revision, and nothing else does."""
        changed = self.versions.entries != self.before.entries
        assert self.versions.revision == self.before.revision + changed

    @invariant()
    def there_is_no_way_back(self) -> None:
        """No version is lost, and only enabling reverses a status."""
        assert len(self.versions.entries) >= len(self.before.entries)
        for old, new in zip(lasting(self.before), lasting(self.versions), strict=False):
            assert ORDER.index(new) >= ORDER.index(old)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("version", "generation"), [(1, 0), (1_000_000, 0), (1_000_001, 1), (2_000_000, 1)]
)
def test_a_generation_has_a_million_versions(version: int, generation: int) -> None:
    """The first restore starts at version 1,000,001, the second at 2,000,001."""
    assert generation_of(KeyVersion(version)) == generation


def test_a_new_key_has_had_no_change() -> None:
    """A new key has revision 0, and each change adds one."""
    assert (EMPTY.revision, ACTIVE.revision, ROTATED.revision) == (0, 1, 2)


def test_an_idempotency_key_is_remembered_for_a_day() -> None:
    """An Idempotency-Key finds its own key for less than a day, and no other key."""
    used = Idempotency(b"k" * 32, b"r" * 32)
    versions = EMPTY.with_first(replace(new_entry(EMPTY), idempotency=used))
    (entry,) = versions.entries
    made, day = entry.info.created_at, IDEMPOTENCY_KEY_LIFETIME
    moment = timedelta(microseconds=1)
    assert day == timedelta(days=1)
    assert versions.entry_generated_with(used, made) is entry
    assert versions.entry_generated_with(used, made + day - moment) is entry
    assert versions.entry_generated_with(used, made + day) is None
    assert versions.entry_generated_with(used, made + day + moment) is None
    for other in (b"a" * 32, b"z" * 32):
        assert versions.entry_generated_with(Idempotency(other, b"r" * 32), made) is None
    assert ACTIVE.entry_generated_with(used, made) is None
