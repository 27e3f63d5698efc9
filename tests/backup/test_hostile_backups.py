"""Backups by an attacker with the public half of the recovery key, but without the root key."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from tests.backup.conftest import UNKNOWN, Backup, Command, RecoveryKey

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_server.backup.authentication import AuthenticBackup, authenticate
from pqkeep_server.backup.contents import End, Manifest, Rows, Tag, finish, write
from pqkeep_server.backup.encrypted_file import Origin, Writer
from pqkeep_server.backup.recovery_key import read_public
from pqkeep_server.settings_file import edited

PEPPER = "gateway/pepper"
OWN = {DEFAULT_SHARD: Sealer({1: Secret(bytes(32))})}
"""The attacker's root key."""


@pytest.fixture(scope="module")
def genuine(backup: Backup, recovery_key: RecoveryKey) -> AuthenticBackup:
    """A genuine backup of the installation, decrypted."""
    return authenticate(backup.file, recovery_key.private, [RootKeySource(file=backup.root_key)])


Forge = Callable[[AuthenticBackup, Callable[[Origin], Writer]], None]


def own_pepper(genuine: AuthenticBackup, new: Callable[[Origin], Writer]) -> None:
    """A complete backup, with a pepper that the attacker has chosen."""
    writer = new(genuine.origin)
    files = {**genuine.manifest.files, PEPPER: bytes(32)}
    _rest(genuine, writer, structs.replace(genuine.manifest, files=files))


def newer_number(genuine: AuthenticBackup, new: Callable[[Origin], Writer]) -> None:
    """An old backup with a new backup's number."""
    writer = new(structs.replace(genuine.origin, records=genuine.origin.records + 1))
    _rest(genuine, writer, genuine.manifest)


def nothing_changed(genuine: AuthenticBackup, new: Callable[[Origin], Writer]) -> None:
    """The same content, encrypted again."""
    _rest(genuine, new(genuine.origin), genuine.manifest)


def _rest(genuine: AuthenticBackup, writer: Writer, manifest: Manifest) -> None:
    write(writer, manifest)
    for message in genuine.messages():
        if isinstance(message, End):
            finish(writer, message.counts, OWN)
        else:
            write(writer, message)


def empty_tag(genuine: AuthenticBackup, new: Callable[[Origin], Writer]) -> None:
    """A tag without bytes."""
    writer = new(genuine.origin)
    write(writer, genuine.manifest)
    write(writer, End(counts={}))
    write(writer, Tag(b""))
    writer.finish()


def nested_rows(genuine: AuthenticBackup, new: Callable[[Origin], Writer]) -> None:
    """Malformed rows, to be refused before they are decoded."""
    writer = new(genuine.origin)
    write(writer, genuine.manifest)
    lists: Any = msgspec.Raw(b"\x91" * 100_000 + b"\x90")
    write(writer, Rows("keys", "keys", (), lists))
    finish(writer, {}, OWN)


FORGERIES = (own_pepper, newer_number, nothing_changed, empty_tag, nested_rows)


@pytest.mark.threat("forged-backup")
@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forged_backup_is_refused(
    forge: Forge,
    genuine: AuthenticBackup,
    backup: Backup,
    recovery_key: RecoveryKey,
    command: Command,
    tmp_path: Path,
) -> None:
    """A backup that was written without the root key is refused, and nothing is restored."""
    file, data = tmp_path / "backup", tmp_path / "new"
    with file.open("xb") as opened:
        file.chmod(0o600)
        forge(genuine, lambda origin: Writer(opened, read_public(recovery_key.public), origin))
    status, said = command(*restore_of(file, data, backup, recovery_key), *UNKNOWN)
    assert (status, "it is forged" in said) == (1, True), said
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_backup_without_a_tag_is_damaged(
    genuine: AuthenticBackup,
    backup: Backup,
    recovery_key: RecoveryKey,
    command: Command,
    tmp_path: Path,
) -> None:
    """A backup without its final tag is refused as truncated."""
    file = tmp_path / "backup"
    with file.open("xb") as opened:
        file.chmod(0o600)
        writer = Writer(opened, read_public(recovery_key.public), genuine.origin)
        write(writer, genuine.manifest)
        write(writer, End(counts={}))
        writer.finish()
    status, said = command(*restore_of(file, tmp_path / "new", backup, recovery_key), *UNKNOWN)
    assert (status, "is damaged" in said) == (1, True), said


@pytest.mark.threat("forged-backup")
def test_an_old_backup_is_announced(
    genuine: AuthenticBackup,
    backup: Backup,
    recovery_key: RecoveryKey,
    command: Command,
    tmp_path: Path,
) -> None:
    """A restore prints number and time; a newer known backup prevents it without --older."""
    number, data = genuine.origin.number.shards[DEFAULT_SHARD], tmp_path / "new"
    asked = restore_of(backup.file, data, backup, recovery_key)
    newer = f"{number.generation}.{number.records + 1}"
    for options, why in (
        ((), "name the newest backup by the number"),
        (("--newest", newer), f"is older than backup {newer}"),
        (("--newest", "1.0"), "is older than backup 1.0"),
    ):
        status, said = command(*asked, *options)
        assert (status, why in said) == (1, True), said
        assert f"backup {number}, made at 20" in said
        assert not data.exists()
    status, said = command(*asked, "--newest", newer, "--older")
    assert status == 0, said
    assert (data / "gateway" / "settings.toml").exists()


def test_the_number_that_a_backup_prints(genuine: AuthenticBackup, backup: Backup) -> None:
    """The backup command prints the number that a restore asks for."""
    assert str(genuine.origin.number) in backup.said
    assert genuine.origin.log_id in backup.said


def test_a_backup_that_others_may_read(
    backup: Backup, recovery_key: RecoveryKey, command: Command, tmp_path: Path
) -> None:
    """A backup that others may read is refused until it has a secret file's mode."""
    file = tmp_path / "backup"
    file.write_bytes(backup.file.read_bytes())
    file.chmod(0o640)
    status, said = command(*restore_of(file, tmp_path / "new", backup, recovery_key), *UNKNOWN)
    assert (status, "other users have access to it" in said) == (1, True), said


def test_a_drill(
    genuine: AuthenticBackup,
    backup: Backup,
    recovery_key: RecoveryKey,
    command: Command,
    tmp_path: Path,
) -> None:
    """A drill examines everything that a restore would write, and leaves nothing."""
    asked = ("restore", backup.file, "--recovery-key", recovery_key.private, "--drill")
    before = set(Path(tempfile.gettempdir()).glob("pqkeep-drill-*"))
    status, said = command(*asked, "--root-key", backup.root_key)
    assert (status, "everything can be restored: 3 keys, " in said) == (0, True), said
    assert set(Path(tempfile.gettempdir()).glob("pqkeep-drill-*")) <= before
    status, said = command(*asked, "--root-key", backup.root_key, "--data", tmp_path / "new")
    assert (status, "exactly one of --data and --drill" in said) == (2, True), said


DAMAGES = {
    "a key of tenant": "UPDATE keys SET sealed_seed = zeroblob(92) WHERE algorithm = 'X-Wing'",
    "the audit log is damaged": "UPDATE audit_records SET principal = 'x' WHERE id = 2",
}


@pytest.mark.parametrize("finding", DAMAGES)
def test_a_drill_finds_what_is_damaged(
    finding: str, backup: Backup, recovery_key: RecoveryKey, command: Command, tmp_path: Path
) -> None:
    """A drill finds a key that cannot be unsealed, and an unsigned record."""
    old, file = tmp_path / "old", tmp_path / "backup"
    shutil.copytree(backup.data, old, ignore=shutil.ignore_patterns("*.sock"))
    with closing(sqlite3.connect(old / "keyservice" / "keys.sqlite3")) as keys, keys:
        assert keys.execute(DAMAGES[finding]).rowcount == 1
    status, said = command(
        *("backup", "--data", old, "--recovery-key", recovery_key.public, "--to", file)
    )
    assert status == 0, said
    status, said = command(
        *("restore", file, "--recovery-key", recovery_key.private),
        *("--root-key", backup.root_key, "--drill"),
    )
    assert (status, finding in said) == (1, True), said


ADDRESS = "https://keep.example.org"
SETTINGS = f"""
port = 9099
redis_url = "redis://127.0.0.1:9/0"
public_url = "{ADDRESS}"
[smtp]
host = "smtp.example.org"
sender = "keep@example.org"
"""


@pytest.mark.threat("forged-backup")
def test_settings_are_not_restored_silently(
    backup: Backup, recovery_key: RecoveryKey, command: Command, tmp_path: Path
) -> None:
    """Settings for ports, mail and rate limits are named and left out, unless the user keeps them.

    A setting that loads code cannot be kept.
    """
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    shutil.copytree(backup.data, old, ignore=shutil.ignore_patterns("*.sock"))
    gateway, key_service = (old / name / "settings.toml" for name in ("gateway", "keyservice"))
    gateway.write_text(edited(gateway.read_text(), {"mailbox": None}) + SETTINGS)
    library = tmp_path / "library.so"
    key_service.write_text(edited(key_service.read_text(), {"openssl_library": str(library)}))
    status, said = command(
        *("backup", "--data", old, "--recovery-key", recovery_key.public, "--to", file)
    )
    assert status == 0, said
    asked = (*restore_of(file, new, backup, recovery_key), *UNKNOWN)
    status, said = command(*asked, "--keep", "openssl_library")
    assert (status, "--keep: the backup has no setting openssl_library" in said) == (1, True), said
    status, said = command(*asked, "--keep", "public_url", "--keep", "port")
    assert status == 0, said
    for left_out in ("redis_url", "smtp"):
        assert f"  {left_out} = " in said
    settings = gateway_config.read(new / "gateway" / "settings.toml")
    assert (settings.port, settings.public_url) == (9099, ADDRESS)
    assert (settings.redis_url, settings.smtp, settings.cookies) == (None, None, "loopback")
    assert key_service_config.read(new / "keyservice" / "settings.toml").openssl_library is None


def restore_of(
    file: Path, data: Path, backup: Backup, recovery_key: RecoveryKey
) -> tuple[Any, ...]:
    """Return the command that restores a file to a data directory."""
    return (
        *("restore", file, "--recovery-key", recovery_key.private),
        *("--root-key", backup.root_key, "--data", data),
    )
