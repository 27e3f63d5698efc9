"""Random walks through the lifecycle of keys, in a real key service on either database.

A model tracks the status, schedule and age limits of each version. Between steps the key service
restarts, days pass, and due changes are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from keyservice.tests.conftest import Restart, Walk

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelArchive,
    CreateKeyring,
    Decrypt,
    DisableKey,
    EnableKey,
    Encrypt,
    GenerateKey,
    ListKeys,
    ReEncrypt,
    Request,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Target,
    UpdateKeyring,
)

if TYPE_CHECKING:
    pass

KEM = Algorithm.ML_KEM_768
ACTIVE, RETIRED, DISABLED, ARCHIVED = KeyStatus
TEXT = b"text"
VERSIONS = st.integers(1, 5)
DAYS = st.sampled_from([7, 14, 30])


@dataclass
class Version:
    """A version in the model."""

    blob: bytes
    status: KeyStatus = ACTIVE
    is_disabled: bool = False
    archive_day: int | None = None
    enable_day: int | None = None
    born: int = 0
    """The day on which it was made: 0 is today."""
    retired: int = 0

    @property
    def shown(self) -> KeyStatus:
        """The status that the key service shows."""
        return DISABLED if self.is_disabled else self.status

    @property
    def reads(self) -> bool:
        """Whether it decrypts."""
        return self.shown in (ACTIVE, RETIRED) and self.archive_day is None


class Lives(RuleBasedStateMachine):
    """One tenant's key of one algorithm."""

    def __init__(self, runner: asyncio.Runner, new: Restart) -> None:
        super().__init__()
        self.runner, self.new = runner, new
        self.service = new()
        tenant = TenantId(uuid4())
        self.keyring: dict[str, Any] = {"tenant": tenant, "keyring": "cards"}
        self.key: dict[str, Any] = {**self.keyring, "algorithm": KEM}
        self.rotation_days = self.archive_after_days = 0
        self.versions: list[Version] = []

    def ask(self, request: Request[Any]) -> Any:
        """Return a result, or the kind of a refusal."""
        try:
            return self.runner.run(self.service.execute(request, Attribution("r", "p", "", "")))
        except KeyServiceError as refusal:
            return refusal.kind

    def change(self, kind: Callable[..., Request[Any]], number: int) -> tuple[Any, Version | None]:
        """Request a change of a version. Return the result, and the version if it exists."""
        response = self.ask(kind(**self.key, version=KeyVersion(number)))
        if number > len(self.versions):
            assert response is ErrorKind.KEY_NOT_FOUND
            return response, None
        return response, self.versions[number - 1]

    def made(self, day: int = 0) -> None:
        """Add a new version to the model."""
        blob = self.ask(Encrypt(**self.key, version=None, plaintext=TEXT))
        self.versions.append(Version(blob.ciphertext, born=day))

    @property
    def current(self) -> Version | None:
        """The version that is active, or becomes active when enabled."""
        newest = self.versions[-1] if self.versions else None
        return newest if newest and newest.status is ACTIVE else None

    @initialize()
    def begin(self) -> None:
        """Make two versions to start with."""
        self.ask(CreateKeyring(**self.keyring))
        self.generate()
        self.rotate()

    @rule()
    def generate(self) -> None:
        """Generate a key. It succeeds only if no version is active or disabled as active."""
        response = self.ask(GenerateKey(**self.key, quota=None))
        assert (response is ErrorKind.KEY_EXISTS) == (self.current is not None)
        if self.current is None:
            self.made()

    @rule()
    def rotate(self) -> None:
        """Rotate a key. A disabled key stays disabled."""
        response = self.ask(RotateKey(**self.key))
        before = self.current
        assert (response is ErrorKind.KEY_NOT_FOUND) == (before is None)
        if before is not None:
            before.status, before.retired = RETIRED, 0
            self.made()

    @rule(number=VERSIONS)
    def retire(self, number: int) -> None:
        """Retire a version that is not archived."""
        response, version = self.change(RetireKey, number)
        if version is not None:
            assert (response is ErrorKind.KEY_STATUS) == (version.status is ARCHIVED)
            if version.status is ACTIVE:
                version.status, version.retired = RETIRED, 0

    @rule(number=VERSIONS, kind=st.sampled_from([DisableKey, EnableKey]))
    def disable(self, number: int, kind: type[DisableKey | EnableKey]) -> None:
        """Disable or enable a version that is not archived."""
        response, version = self.change(kind, number)
        if version is not None:
            assert (response is ErrorKind.KEY_STATUS) == (version.status is ARCHIVED)
            version.is_disabled = kind is DisableKey and version.status is not ARCHIVED
            version.enable_day = None

    @rule(number=VERSIONS, days=st.sampled_from([5, 12]))
    def disable_until(self, number: int, days: int) -> None:
        """Disable a version until a day, or a later one.

        A version that is disabled without a day stays disabled.
        """
        until = datetime.now(UTC) + timedelta(days=days)
        response, version = self.change(partial(DisableKey, until=until), number)
        if version is not None:
            assert (response is ErrorKind.KEY_STATUS) == (version.status is ARCHIVED)
            is_open = version.is_disabled and version.enable_day is None
            if version.status is not ARCHIVED and not is_open:
                version.is_disabled = True
                version.enable_day = max(days, version.enable_day or 0)

    @rule(number=VERSIONS, days=DAYS)
    def schedule(self, number: int, days: int) -> None:
        """Schedule the archiving of a retired version, unless it is scheduled."""
        response, version = self.change(lambda **key: ScheduleArchive(**key, days=days), number)
        if version is not None:
            assert (response is ErrorKind.KEY_STATUS) == (version.status is not RETIRED)
            if version.status is RETIRED and version.archive_day is None:
                version.archive_day = days  # the clock of the request is that of today

    @rule(number=VERSIONS)
    def cancel(self, number: int) -> None:
        """Cancel the archiving of a version."""
        response, version = self.change(CancelArchive, number)
        if version is not None:
            assert (response is ErrorKind.KEY_STATUS) == (version.status is ARCHIVED)
            if version.archive_day is not None:
                version.archive_day, version.retired = None, 0

    @rule(rotation=st.sampled_from([0, 7, 20]), archive=st.sampled_from([0, 5, 12]))
    def limit(self, rotation: int, archive: int) -> None:
        """Set the keyring's age limits."""
        self.ask(UpdateKeyring(**self.keyring, rotation_days=rotation, archive_after_days=archive))
        self.rotation_days, self.archive_after_days = rotation, archive

    @rule(number=VERSIONS)
    def re_encrypt(self, number: int) -> None:
        """Re-encrypt a version's ciphertext to the active one, if it can be read."""
        if number > len(self.versions):
            return
        version, current = self.versions[number - 1], self.current
        response = self.ask(
            ReEncrypt(
                **self.key,
                version=KeyVersion(number),
                ciphertext=version.blob,
                is_wrapped_key=False,
                target=Target(KEM, self.key["keyring"]),
            )
        )
        if not version.reads:
            assert response is ErrorKind.KEY_NOT_FOUND
        elif current is None or current.is_disabled:
            assert response is ErrorKind.TARGET_NOT_FOUND
        else:
            assert response.version == len(self.versions)
            current.blob = response.ciphertext

    @rule(number=VERSIONS)
    def archive(self, number: int) -> None:
        """Archive a retired version now, unless a day is set."""
        response, version = self.change(partial(ScheduleArchive, days=0), number)
        if version is not None:
            assert (response is ErrorKind.KEY_STATUS) == (version.status is not RETIRED)
            if version.status is RETIRED and version.archive_day is None:
                self._archived(version)

    @rule(days=st.sampled_from([-5, 0, 6, 8, 15, 31]))
    def look(self, days: int) -> None:
        """Make due changes by a clock that is some days ahead or behind."""
        now = datetime.now(UTC) + timedelta(days=days)
        self.runner.run(self.service.parts.schedule.carry_out(now))
        is_rotated = False
        for version in self.versions:
            if version.enable_day is not None and version.enable_day <= days:
                version.is_disabled, version.enable_day = False, None
            if version.archive_day is not None:
                if version.archive_day <= days:
                    self._archived(version)
            elif version.shown is RETIRED:
                if 0 < self.archive_after_days <= days - version.retired:
                    version.archive_day = days + 7
            elif version.shown is ACTIVE and 0 < self.rotation_days <= days - version.born:
                version.status, version.retired, is_rotated = RETIRED, days, True
        if is_rotated:
            self.made(days)

    @rule()
    def restart(self) -> None:
        """Restart with empty caches."""
        self.service = self.new()

    @invariant()
    def every_version_is_what_it_should_be(self) -> None:
        """Each version is shown as in the model, and decrypts exactly if permitted."""
        listed = self.ask(ListKeys(**self.key, status=None)).keys
        assert [
            (key.status, key.archive_at is not None, key.disabled_until is not None)
            for key in listed
        ] == [
            (version.shown, version.archive_day is not None, version.enable_day is not None)
            for version in self.versions
        ]
        for number, version in enumerate(self.versions, 1):
            blob = version.blob
            read = self.ask(Decrypt(**self.key, version=KeyVersion(number), ciphertext=blob))
            if version.reads:
                assert read.plaintext == TEXT
            else:
                assert read is ErrorKind.KEY_NOT_FOUND

    @invariant()
    def at_most_one_version_encrypts(self) -> None:
        """Without a version, the single active one encrypts."""
        active = [version for version in self.versions if version.shown is ACTIVE]
        assert len(active) <= 1
        written = self.ask(Encrypt(**self.key, version=None, plaintext=TEXT))
        assert (written is ErrorKind.KEY_NOT_FOUND) == (not active)

    @staticmethod
    def _archived(version: Version) -> None:
        version.status, version.is_disabled = ARCHIVED, False
        version.archive_day = version.enable_day = None


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
def test_every_walk_is_as_the_model_has_it(walk: Walk) -> None:
    """Status, schedule, disabling and age of versions follow the model across restarts."""
    walk(Lives, 6)
