"""Random walks over keyrings, versions and purposes in a real key service.

A model tracks the keyrings, their purposes and their readable versions: those not disabled,
scheduled or archived. After each step every earlier ciphertext is tried under every keyring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)
from keyservice.tests.conftest import Restart, Walk

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import ALL_PURPOSES, KeyPurpose
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelArchive,
    CreateKeyring,
    Decrypt,
    DisableKey,
    EnableKey,
    Encrypt,
    GenerateKey,
    ListKeyrings,
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
NAMES = (DEFAULT_KEYRING, "cards", "logs")
PURPOSES = [ALL_PURPOSES, (KeyPurpose.ENCRYPT,), (KeyPurpose.DECRYPT,), (KeyPurpose.SIGN,)]
ACTIVE, RETIRED, ARCHIVED = "active", "retired", "archived"
TEXT = b"text"
ANY = st.sampled_from(NAMES)


def schedule(**key: Any) -> ScheduleArchive:
    """Return the request to archive a version in a week."""
    return ScheduleArchive(**key, days=7)


def archive(**key: Any) -> ScheduleArchive:
    """Return the request to archive a version now, unless a time is set."""
    return ScheduleArchive(**key, days=0)


CHANGES: Mapping[Callable[..., Request[Any]], tuple[set[str], dict[str, Any]]] = {
    RetireKey: ({ACTIVE, RETIRED}, {"status": RETIRED}),
    DisableKey: ({ACTIVE, RETIRED}, {"is_disabled": True}),
    EnableKey: ({ACTIVE, RETIRED}, {"is_disabled": False}),
    schedule: ({RETIRED}, {"is_scheduled": True}),
    CancelArchive: ({ACTIVE, RETIRED}, {"is_scheduled": False}),
    archive: ({RETIRED}, {"status": ARCHIVED, "is_disabled": False}),
}
"""The statuses of a version that allow a change, and its effect."""


@dataclass
class Version:
    """A version in the model."""

    status: str = ACTIVE
    is_disabled: bool = False
    is_scheduled: bool = False
    """Whether it is to be archived."""

    @property
    def reads(self) -> bool:
        """Whether it decrypts."""
        return self.status != ARCHIVED and not self.is_disabled and not self.is_scheduled


@dataclass
class Model:
    """A keyring in the model."""

    purposes: tuple[KeyPurpose, ...] = ALL_PURPOSES
    versions: list[Version] = field(default_factory=list[Version])
    least_decryption: int = 0
    least_encryption: int = 0

    @property
    def current(self) -> Version | None:
        """The version that is active, or becomes active when enabled."""
        newest = self.versions[-1] if self.versions else None
        return newest if newest and newest.status == ACTIVE else None

    @property
    def encrypts(self) -> bool:
        """Whether a version can encrypt."""
        return self.current is not None and not self.current.is_disabled

    @property
    def is_active_below(self) -> bool:
        """Whether the active version is below a minimum for encryption."""
        return len(self.versions) < max(self.least_decryption, self.least_encryption)

    def reads(self, number: int) -> bool:
        """Return whether a version exists and decrypts."""
        return number <= len(self.versions) and self.versions[number - 1].reads


class Keyrings(RuleBasedStateMachine):
    """One tenant's keyrings, with keys of one algorithm."""

    def __init__(self, runner: asyncio.Runner, new: Restart) -> None:
        super().__init__()
        self.runner, self.new, self.service = runner, new, new()
        self.tenant = TenantId(uuid4())
        self.keyrings = {DEFAULT_KEYRING: Model()}
        self.blobs: list[tuple[str, int, bytes]] = []

    def ask(self, kind: Callable[..., Request[Any]], name: str, **more: Any) -> Any:
        """Return a result, or the kind of a refusal."""
        request = kind(tenant=self.tenant, keyring=name, **more)
        try:
            return self.runner.run(self.service.execute(request, Attribution("r", "p", "", "")))
        except KeyServiceError as refusal:
            return refusal.kind

    def expect(self, response: Any, name: str, refusal: ErrorKind | None) -> bool:
        """Check a result. Return whether the request had an effect."""
        expected = refusal if name in self.keyrings else ErrorKind.KEYRING_NOT_FOUND
        if expected is None:
            assert not isinstance(response, ErrorKind), response
            return True
        assert response is expected
        return False

    @rule(name=ANY, purposes=st.sampled_from(PURPOSES))
    def create(self, name: str, purposes: tuple[KeyPurpose, ...]) -> None:
        """Create a missing keyring."""
        response = self.ask(CreateKeyring, name, purposes=purposes)
        assert (response is ErrorKind.KEYRING_EXISTS) == (name in self.keyrings)
        self.keyrings.setdefault(name, Model(purposes))

    @rule(name=ANY, purposes=st.sampled_from(PURPOSES))
    def update(self, name: str, purposes: tuple[KeyPurpose, ...]) -> None:
        """Change the purposes."""
        if self.expect(self.ask(UpdateKeyring, name, purposes=purposes), name, None):
            self.keyrings[name].purposes = purposes

    @rule(name=ANY, decryption=st.integers(0, 3), encryption=st.integers(0, 3))
    def set_minimum_versions(self, name: str, decryption: int, encryption: int) -> None:
        """Set the lowest versions that decrypt and encrypt, higher or lower than before."""
        response = self.ask(
            UpdateKeyring,
            name,
            minimum_decryption_version=decryption,
            minimum_encryption_version=encryption,
        )
        if self.expect(response, name, None):
            found = self.keyrings[name]
            found.least_decryption, found.least_encryption = decryption, encryption

    @rule(name=ANY)
    def generate(self, name: str) -> None:
        """Generate a key if no key is active, and encrypt with the active key if permitted."""
        found = self.keyrings.get(name, Model())
        response = self.ask(GenerateKey, name, algorithm=KEM, quota=None)
        refusal = None if set(found.purposes) - {KeyPurpose.SIGN} else ErrorKind.NO_PURPOSE
        if self.expect(response, name, ErrorKind.KEY_EXISTS if found.current else refusal):
            found.versions.append(Version())
            self.encrypt(name)

    @rule(name=ANY)
    def rotate(self, name: str) -> None:
        """Rotate the active key, even if disabled."""
        found = self.keyrings.get(name, Model())
        before = found.current
        response = self.ask(RotateKey, name, algorithm=KEM)
        if self.expect(response, name, None if before else ErrorKind.KEY_NOT_FOUND) and before:
            before.status = RETIRED
            found.versions.append(Version())
            self.encrypt(name)

    @rule(name=ANY, number=st.integers(1, 3), kind=st.sampled_from(list(CHANGES)))
    def change(self, name: str, number: int, kind: Callable[..., Request[Any]]) -> None:
        """Retire, archive, disable, enable, schedule or keep a version."""
        found = self.keyrings.get(name, Model())
        response = self.ask(kind, name, algorithm=KEM, version=KeyVersion(number))
        if number > len(found.versions):
            self.expect(response, name, ErrorKind.KEY_NOT_FOUND)
            return
        allowed, changed = CHANGES[kind]
        before = found.versions[number - 1]
        refusal = None if before.status in allowed else ErrorKind.KEY_STATUS
        if self.expect(response, name, refusal):
            found.versions[number - 1] = replace(before, **changed)

    @rule(name=ANY)
    def encrypt(self, name: str) -> None:
        """Encrypt with the active key if permitted."""
        found = self.keyrings.get(name, Model())
        response = self.ask(Encrypt, name, algorithm=KEM, version=None, plaintext=TEXT)
        refusal = ErrorKind.VERSION_BELOW_MINIMUM if found.is_active_below else None
        if not found.encrypts:
            refusal = ErrorKind.KEY_NOT_FOUND
        if KeyPurpose.ENCRYPT not in found.purposes:
            refusal = ErrorKind.PURPOSE_DENIED
        if self.expect(response, name, refusal):
            self.blobs = [*self.blobs[-3:], (name, response.version, response.ciphertext)]

    @rule(place=st.integers(0, 3), to=ANY)
    def re_encrypt(self, place: int, to: str) -> None:
        """Re-encrypt a ciphertext to the active key of a keyring if both permit it."""
        if place >= len(self.blobs):
            return
        name, version, blob = self.blobs[place]
        source, target = self.keyrings[name], self.keyrings.get(to)
        response = self.ask(
            ReEncrypt,
            name,
            algorithm=KEM,
            version=KeyVersion(version),
            ciphertext=blob,
            is_wrapped_key=False,
            target=Target(KEM, to),
        )
        refusals = (
            (KeyPurpose.DECRYPT not in source.purposes, ErrorKind.PURPOSE_DENIED),
            (target is None, ErrorKind.TARGET_NOT_FOUND),
            (
                target is not None and KeyPurpose.ENCRYPT not in target.purposes,
                ErrorKind.TARGET_PURPOSE_DENIED,
            ),
            (not source.reads(version), ErrorKind.KEY_NOT_FOUND),
            (version < source.least_decryption, ErrorKind.VERSION_BELOW_MINIMUM),
            (target is not None and not target.encrypts, ErrorKind.TARGET_NOT_FOUND),
            (
                target is not None and target.is_active_below,
                ErrorKind.TARGET_VERSION_BELOW_MINIMUM,
            ),
        )
        refusal = next((kind for is_so, kind in refusals if is_so), None)
        if self.expect(response, name, refusal):
            self.blobs = [*self.blobs[-3:], (to, response.version, response.ciphertext)]

    @rule()
    def restart(self) -> None:
        """Restart with empty caches."""
        self.service = self.new()

    @invariant()
    def every_ciphertext_opens_where_it_was_made_and_nowhere_else(self) -> None:
        """Under another keyring's key of the same version, decryption fails."""
        for origin, version, blob in self.blobs:
            for name in NAMES:
                found = self.keyrings.get(name, Model())
                refusal = None if name == origin else ErrorKind.DECRYPTION_FAILED
                if version < found.least_decryption:
                    refusal = ErrorKind.VERSION_BELOW_MINIMUM
                if not found.reads(version):
                    refusal = ErrorKind.KEY_NOT_FOUND
                if KeyPurpose.DECRYPT not in found.purposes:
                    refusal = ErrorKind.PURPOSE_DENIED
                response = self.ask(
                    Decrypt, name, algorithm=KEM, version=KeyVersion(version), ciphertext=blob
                )
                self.expect(response, name, refusal)

    @invariant()
    def the_list_is_the_model(self) -> None:
        """The list has every keyring with its purposes."""
        listed = self.ask(ListKeyrings, DEFAULT_KEYRING).keyrings
        assert {keyring.name: keyring.purposes for keyring in listed} == {
            name: found.purposes for name, found in self.keyrings.items()
        }


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
def test_every_walk_is_as_the_model_has_it(walk: Walk) -> None:
    """Keyrings, versions, statuses, schedules, purposes and minimum versions follow the model across restarts."""
    walk(Keyrings, 5)
