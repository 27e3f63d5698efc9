"""Traps for root in a data directory: each is refused or harmless."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.data_lock import LOCK_FILE, locked
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_check import check_settings
from pqkeep_server.start import StartError, require_own
from pqkeep_server.valkey import NoValkeyError, new_socket


@pytest.mark.threat("gateway-user")
def test_what_is_left_in_the_valkey_folder_stops_no_start(tmp_path: Path) -> None:
    """The gateway's user cannot stop a start by a folder or a link in the Valkey folder."""
    folder, kept = tmp_path / "valkey", tmp_path / "kept"
    (folder / "folder.sock" / "within").mkdir(parents=True)
    kept.write_text("kept")
    (folder / "link.sock").symlink_to(kept)
    (folder / "old.sock").touch()
    folder.chmod(0o777)
    path = new_socket(folder, None)
    assert path.parent == folder
    assert [each.name for each in folder.iterdir()] == ["folder.sock"]
    assert kept.read_text() == "kept"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.threat("gateway-user")
def test_a_link_in_place_of_the_valkey_folder_is_refused(tmp_path: Path) -> None:
    """A link instead of the Valkey folder is refused: root would remove another program's sockets."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.sock").touch()
    (tmp_path / "valkey").symlink_to(elsewhere)
    with pytest.raises(NoValkeyError, match="symbolic link"):
        new_socket(tmp_path / "valkey", None)
    assert [each.name for each in elsewhere.iterdir()] == ["other.sock"]


@pytest.mark.threat("gateway-user")
def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """A link instead of the lock is refused: root would create a file at its target."""
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path):
        pass
    assert not (tmp_path / "made").exists()


@pytest.mark.threat("gateway-user")
@pytest.mark.parametrize("what", ["a FIFO", "without end"])
def test_settings_that_root_would_wait_for_are_refused(tmp_path: Path, what: str) -> None:
    """A check of settings does not wait for the writer of a FIFO, and does not read without end."""
    file = tmp_path / "settings.toml"
    if what == "a FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="is not a regular file"):
        check_settings(file)


@pytest.mark.threat("gateway-user")
@pytest.mark.parametrize("command", [("add", "c"), ("remove", "b")], ids=lambda pair: pair[0])
def test_a_command_that_changes_settings_waits_for_nobody(
    tmp_path: Path, command: tuple[str, str]
) -> None:
    """A FIFO instead of the gateway's settings is refused, and nothing is changed."""
    layout = Layout(tmp_path)
    for folder in (layout.gateway, layout.key_service, Layout(tmp_path, "b").key_service):
        folder.mkdir()
        os.mkfifo(folder / "settings.toml")
    program = "from pqkeep_server.cli import app; app()"
    words = [sys.executable, "-c", program, "shard", *command, "--data", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    assert f"{layout.gateway_settings} is not a regular file" in ended.stderr


LOOKS = """#!/bin/sh
test -t 0 && echo "a terminal"
(: <>/dev/tty) 2>/dev/null && echo "the controlling terminal"
test -n "$OF_ROOT" && echo "the environment"
id -u
"""
CHECKS = """
import fcntl, sys, termios
from pqkeep_server.users import User, Users, require_program
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.executable = sys.argv[1]
users = Users(User(64101, 64101), User(64102, 64102), 64103)
require_program(users)
"""


@pytest.mark.threat("gateway-user")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_check_as_the_user_has_nothing_of_roots() -> None:
    """A check as the gateway's user does not have root's terminal, which that user could control."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "found").touch()
        (folder / "found").chmod(0o666)
        program = folder / "looks"
        program.write_text(LOOKS.replace("#!/bin/sh", f"#!/bin/sh\nexec >>{folder}/found"))
        program.chmod(0o755)
        controlling, terminal = os.openpty()
        try:
            subprocess.run(
                [sys.executable, "-c", CHECKS, str(program)],
                env={**os.environ, "OF_ROOT": "secret"},
                stdin=terminal,
                start_new_session=True,
                timeout=PATIENCE,
                check=True,
            )
        finally:
            os.close(controlling)
            os.close(terminal)
        assert (folder / "found").read_text().splitlines() == ["64101", "64102"]


@pytest.mark.threat("gateway-user")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("name", [".", "start.toml"])
@pytest.mark.parametrize(
    ("mode", "owner"), [(0o711, 64101), (0o771, 0), (0o713, 0)], ids=["owner", "group", "others"]
)
def test_start_needs_a_directory_of_roots_own(
    tmp_path: Path, name: str, mode: int, owner: int
) -> None:
    """Start needs a directory of root: another owner could choose programs, users and paths."""
    layout = Layout(tmp_path / "data")
    layout.directory.mkdir(mode=0o711)
    layout.start_settings.touch(0o600)
    require_own(layout)
    path = layout.directory / name
    os.chown(path, owner, -1)
    path.chmod(mode)
    with pytest.raises(StartError, match="must belong to root"):
        require_own(layout)
