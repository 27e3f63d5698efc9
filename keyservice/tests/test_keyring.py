"""The lifecycle of keys, by the tables of the interface specification and by random walks."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring, SealedSeed, generation_of
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import MAX_KEY_VERSION, USABLE, KeyInfo, KeyStatus, KeyVersion, TenantId

T = TypeVar("T")
EMPTY = Keyring(TenantId(UUID(int=1)), Algorithm.ML_KEM_768)
FIRST = KeyVersion(1)
ORDER = [KeyStatus.ACTIVE, KeyStatus.RETIRED, KeyStatus.ARCHIVED]


def new_entry(keyring: Keyring) -> KeyEntry:
    """Return an entry with which a ring can go on."""
    version = keyring.next_version
    info = KeyInfo(
        keyring.algorithm, version, KeyStatus.ACTIVE, b"public", datetime(2026, 1, 1, tzinfo=UTC)
    )
    return KeyEntry(info, SealedSeed(b"sealed %d" % version))


def generate(keyring: Keyring) -> Keyring:
    """Add a key where none is active."""
    return keyring.with_first(new_entry(keyring))


def rotate(keyring: Keyring) -> Keyring:
    """Put a new key in the active one's place."""
    return keyring.with_rotated(new_entry(keyring))


def retire(keyring: Keyring) -> Keyring:
    """Retire version 1."""
    return keyring.with_retired(FIRST)


def archive(keyring: Keyring) -> Keyring:
    """Archive version 1."""
    return keyring.with_archived(FIRST)


NONE, ACTIVE = EMPTY, generate(EMPTY)
RETIRED = retire(ACTIVE)
ARCHIVED = archive(RETIRED)
ROTATED = rotate(ACTIVE)
A, R, X = KeyStatus.ACTIVE, KeyStatus.RETIRED, KeyStatus.ARCHIVED

STEPS = {
    # specification, "PQC key status": every allowed step, and the statuses after it
    "generate the first": (NONE, generate, [A]),
    "generate after retire": (RETIRED, generate, [R, A]),
    "generate after archive": (ARCHIVED, generate, [X, A]),
    "rotate": (ACTIVE, rotate, [R, A]),
    "retire": (ACTIVE, retire, [R]),
    "archive": (RETIRED, archive, [X]),
    "archive an old version": (ROTATED, archive, [X, A]),
}
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
}


def statuses(keyring: Keyring) -> list[KeyStatus]:
    """Return the status of each version, oldest first."""
    return [entry.info.status for entry in keyring.entries]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_lifecycle(name: str) -> None:
    """Each step leads to the statuses of the specification, and is the ring's next revision."""
    before, step, expected = STEPS[name]
    after = step(before)
    assert statuses(after) == expected
    assert after.revision == before.revision + 1


@pytest.mark.parametrize("name", REFUSALS)
def test_a_step_that_does_not_exist(name: str) -> None:
    """Each other step is refused with its kind, and the ring is what it was."""
    before, step, kind = REFUSALS[name]
    copy = statuses(before), before.revision
    with pytest.raises(KeyServiceError) as refusal:
        step(before)
    assert refusal.value.kind is kind
    assert (statuses(before), before.revision) == copy


def test_retiring_a_retired_key_changes_nothing() -> None:
    """It is allowed, and it is the same ring: no new revision, nothing to write."""
    assert retire(RETIRED) is RETIRED


def test_archiving_destroys_the_private_half_only() -> None:
    """The seed is gone; version, public key and time of creation are still known."""
    before, after = RETIRED.entry(FIRST), ARCHIVED.entry(FIRST)
    assert before.sealed is not None
    assert after.sealed is None
    assert (after.info.public_key, after.info.created_at) == (b"public", before.info.created_at)


def may(operation: Operation, keyring: Keyring, version: KeyVersion | None) -> bool:
    """Return whether an operation finds its key: the active one, or the one that was named."""
    try:
        entry = keyring.key_for(operation, version)
    except KeyServiceError as refusal:
        assert refusal.kind is ErrorKind.KEY_NOT_FOUND  # noqa: PT017 - or it is found, see below
        return False
    assert entry is (keyring.active if version is None else keyring.entry(version))
    return True


WRITING = {Operation.ENCRYPT, Operation.ENCAPSULATE, Operation.SIGN}
READING = {Operation.DECRYPT, Operation.DECAPSULATE, Operation.VERIFY}


@pytest.mark.parametrize("operation", sorted(WRITING | READING))
@pytest.mark.parametrize(
    ("keyring", "allowed"),
    [(ACTIVE, WRITING | READING), (RETIRED, READING), (ARCHIVED, set())],
    ids=ORDER,
)
def test_operations_permitted_per_status(
    operation: Operation, keyring: Keyring, allowed: set[Operation]
) -> None:
    """The specification's table of statuses and operations holds, for a named version."""
    assert may(operation, keyring, FIRST) == (operation in allowed)


@pytest.mark.parametrize("operation", sorted(USABLE))
@pytest.mark.parametrize(
    ("keyring", "expected"), [(NONE, False), (ACTIVE, True), (RETIRED, False), (ARCHIVED, False)]
)
def test_no_version_means_the_active_one(
    operation: Operation, keyring: Keyring, *, expected: bool
) -> None:
    """Without a version an operation works with the active key, or not at all."""
    assert may(operation, keyring, None) == expected


@pytest.mark.parametrize("version", [0, -1, 2, 3, MAX_KEY_VERSION, 2**64 - 1, -(2**63)])
def test_versions_that_do_not_exist_are_not_found(version: int) -> None:
    """A version outside the ring, however strange, is KEY_NOT_FOUND and never another key."""
    with pytest.raises(KeyServiceError) as refusal:
        ACTIVE.entry(KeyVersion(version))
    assert refusal.value.kind is ErrorKind.KEY_NOT_FOUND


def test_versions_after_a_restore() -> None:
    """New versions begin in the next range, also of a keyring that the backup did not have."""
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
    """Walk at random through the steps, and hold every promise a keyring makes after each."""

    def __init__(self) -> None:
        super().__init__()
        self.keyring = self.before = EMPTY

    def step(self, take: Callable[[T], Keyring], argument: T) -> None:
        """Take a step, if there is one."""
        self.before = self.keyring
        with suppress(KeyServiceError):
            self.keyring = take(argument)

    @rule()
    def generate(self) -> None:
        """Generate."""
        self.step(self.keyring.with_first, new_entry(self.keyring))

    @rule()
    def rotate(self) -> None:
        """Rotate."""
        self.step(self.keyring.with_rotated, new_entry(self.keyring))

    @rule(version=st.integers(0, 9))
    def retire(self, version: int) -> None:
        """Retire any version."""
        self.step(self.keyring.with_retired, KeyVersion(version))

    @rule(version=st.integers(0, 9))
    def archive(self, version: int) -> None:
        """Archive any version."""
        self.step(self.keyring.with_archived, KeyVersion(version))

    @invariant()
    def the_active_key_is_the_newest(self) -> None:
        """At most one key is active, and it is the newest."""
        assert A not in statuses(self.keyring)[:-1]
        assert (self.keyring.active is not None) == (A in statuses(self.keyring))

    @invariant()
    def versions_are_consecutive(self) -> None:
        """Versions count from 1, without gaps, where nothing was restored."""
        versions = [entry.info.version for entry in self.keyring.entries]
        assert versions == list(range(1, len(versions) + 1))

    @invariant()
    def only_archived_keys_have_no_seed(self) -> None:
        """Keep each key's own seed until it is archived, and not afterwards."""
        for entry in self.keyring.entries:
            expected = None if entry.info.status is X else b"sealed %d" % entry.info.version
            assert entry.sealed == expected

    @invariant()
    def a_change_is_one_revision(self) -> None:
        """Count one revision with each change, and only then."""
        changed = self.keyring.entries != self.before.entries
        assert self.keyring.revision == self.before.revision + changed

    @invariant()
    def there_is_no_way_back(self) -> None:
        """No version is lost, and no status goes back."""
        assert len(self.keyring.entries) >= len(self.before.entries)
        for old, new in zip(statuses(self.before), statuses(self.keyring), strict=False):
            assert ORDER.index(new) >= ORDER.index(old)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
