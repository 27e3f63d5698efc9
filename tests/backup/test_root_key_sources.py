"""Root keys outside files: rotation to them and back under load, backup, restore, restart."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.backup.conftest import TEXT, UNKNOWN, Command, Outputs, RecoveryKey
from tests.e2e.secret_encodings import encodings
from tests.fixtures.caller import Caller
from tests.fixtures.installation import running
from tests.fixtures.processes import ENVIRONMENT
from tests.fixtures.softhsm import SoftHsm
from tests.patience import PATIENCE

from pqkeep_keyservice import config
from pqkeep_keyservice.root_key_sources.token import derive_root_key
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_server.initialise import Layout
from pqkeep_server.root_key import rotate

ALGORITHMS = (Algorithm.ML_KEM_768, Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128F)
LAST_REQUESTS_SECONDS = 1.0
"""Commands wait longer; the requests of tests are shorter."""
PAUSE_SECONDS = 0.02
"""Pause between requests: a hundred of them run during each move of the root key."""


@pytest.fixture
def environment(softhsm: SoftHsm, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Use the token in this process; return the environment of processes that use it."""
    for name, value in softhsm.environment.items():
        monkeypatch.setenv(name, value)
    return {**ENVIRONMENT, **softhsm.environment}


@contextmanager
def encrypting(caller: Caller, made: list[dict[str, Any]]) -> Iterator[None]:
    """Encrypt until the block ends."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(PAUSE_SECONDS):
            made.append(caller.post("/kem/encrypt", {"plaintext": TEXT}))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
        assert thread.is_alive(), "an encryption failed"
    finally:
        stop.set()
        thread.join()


def files_with(secret: bytes, folder: Path) -> list[Path]:
    """Return the files that contain a secret in any encoding."""
    forms = [*encodings(secret)]
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(form in path.read_bytes() for form in forms)
    ]


def start_key_service(data: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Start a key service that must fail; return its exit status and output."""
    ended = subprocess.run(
        [sys.executable, "-m", "pqkeep_keyservice", Layout(data).key_service_settings],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.threat("stolen-disk")
def test_from_a_file_to_a_token_to_a_command_and_back(
    command: Command,
    recovery_key: RecoveryKey,
    softhsm: SoftHsm,
    environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    """The root key moves while data is encrypted, without loss; a token's key is in no file."""
    data, made = tmp_path / "data", list[dict[str, Any]]()
    layout = Layout(data)
    program = tmp_path / "fetch-root-key"
    program.write_text(f"#!/bin/sh\necho {base64.b64encode(os.urandom(32)).decode()}\n")
    program.chmod(0o700)

    def move(to: str) -> list[str]:
        return rotate(
            layout,
            to=to,
            destroy_old=True,
            report=lambda _: None,
            last_requests_seconds=LAST_REQUESTS_SECONDS,
        )

    with running(tmp_path, data=data, environment=environment) as installation:
        tenant = installation.new_tenant()
        outputs = Outputs.of(tenant, ALGORITHMS)
        first = layout.root_key.read_bytes()
        with encrypting(tenant, made):
            status, said = command(
                *("root-key", "rotate", "--data", data, "--to", softhsm.setting("root-2")),
                "--destroy-old",
                environment=environment,
            )
            assert status == 0, said
            second = bytes(derive_root_key(softhsm.source("root-2")).reveal())
            for secret in (first, second):
                assert files_with(secret, tmp_path) == []
            assert move(f'command = ["{program}"]') == []
            old = move('file = "root-4.key"')
        assert old == [f"the output of {program}"]
        settings = layout.key_service_settings.read_text()
        assert settings.endswith('[root_keys.4]\nfile = "root-4.key"\n')
        outputs.check(tenant)
        for each in made[:1] + made[len(made) // 2 :: 50] + made[-1:]:
            body = {name: each[name] for name in ("ciphertext", "key_version")}
            assert tenant.post("/kem/decrypt", body)["plaintext"] == TEXT


def test_a_token_is_needed_to_start_to_back_up_and_to_restore(
    command: Command,
    recovery_key: RecoveryKey,
    softhsm: SoftHsm,
    environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    """Without its token, an installation does not start and makes no keys.

    With the token, all works.
    """
    data, file, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    token = softhsm.setting("root-2")
    with running(tmp_path, data=data, environment=environment) as installation:
        installation.demo().post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
        rotate(Layout(data), to=token, destroy_old=True, report=print, last_requests_seconds=0)
    backup = ("backup", "--data", data, "--recovery-key", recovery_key.public, "--to", file)
    restore = ("restore", file, "--recovery-key", recovery_key.private)

    away = softhsm.tokens.rename(softhsm.folder / "away")
    softhsm.tokens.mkdir()
    status, said = start_key_service(data, environment)
    assert (status, "is not present" in said) == (os.EX_TEMPFAIL, True), said
    status, said = command(*backup, environment=environment)
    assert (status, "is not present" in said, file.exists()) == (1, True, False), said
    assert list(softhsm.tokens.iterdir()) == []
    softhsm.tokens.rmdir()
    away.rename(softhsm.tokens)

    pin = softhsm.pin_file.read_text()
    softhsm.pin_file.write_text("0000-0000")
    status, said = start_key_service(data, environment)
    assert (status, "rejects the PIN: PinIncorrect" in said) == (os.EX_CONFIG, True), said
    softhsm.pin_file.write_text(pin)

    status, said = command(*backup, environment=environment)
    assert status == 0, said
    source = ("--root-key-source", token)
    status, said = command(*restore, *source, "--drill", environment=environment)
    assert (status, "everything can be restored" in said) == (0, True), said
    status, said = command(*restore, *source, "--data", new, *UNKNOWN, environment=environment)
    assert status == 0, said
    secret = bytes(derive_root_key(softhsm.source("root-2")).reveal())
    assert files_with(secret, tmp_path) == []
    assert [each.name for each in (new / "keyservice").glob("*.key")] == ["transfer.key"]
    before, after = (config.read(Layout(each).key_service_settings) for each in (data, new))
    assert after.root_key_sources == before.root_key_sources


def test_a_root_key_that_cannot_be_used_changes_nothing(command: Command, tmp_path: Path) -> None:
    """If the key service refuses the new root key, the settings are restored."""
    with running(tmp_path) as installation:
        settings = Layout(installation.data).key_service_settings
        before = settings.read_text()
        same = Layout(installation.data).root_key.name
        for source in ('command = ["/bin/false"]', 'credential = "root-key"', f'file = "{same}"'):
            arguments = ("root-key", "rotate", "--data", installation.data, "--to", source)
            status, said = command(*arguments)
            assert (status, "refused the new root key" in said) == (1, True), said
            assert settings.read_text() == before
        for problem in (
            "/bin/false ended with status 1",
            "CREDENTIALS_DIRECTORY is not set",
            "root keys 1 and 2 are equal",
        ):
            assert problem in installation.output
        status, said = command("root-key", "rotate", "--data", installation.data, "--to", "file")
        assert (status, "the settings are not TOML" in said) == (1, True), said
