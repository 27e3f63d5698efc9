"""Root acts for a process's user with that user's rights."""

import os
from pathlib import Path

import pytest
from tests.fixtures import unprivileged

from pqkeep_server.owner import acting_as_owner_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_files_are_the_owner_s(folder: Path) -> None:
    """A file from the block belongs to the owner, and the home is the folder."""
    home = os.environ.get("HOME")
    with acting_as_owner_of(folder):
        (folder / "made").touch()
        assert os.environ["HOME"] == str(folder)
    made = (folder / "made").stat()
    assert (made.st_uid, made.st_gid) == (unprivileged.UID, unprivileged.UID)
    assert (os.geteuid(), os.getegid(), os.environ.get("HOME")) == (0, os.getgid(), home)


def test_nothing_of_others_is_reached(folder: Path) -> None:
    """A link of the owner to root's file is followed only with the owner's rights."""
    secret = folder / "root's"
    secret.write_text("secret")
    secret.chmod(0o600)
    (folder / "link").symlink_to(secret)
    with acting_as_owner_of(folder), pytest.raises(PermissionError):
        (folder / "link").read_text()
    assert (folder / "link").read_text() == "secret"


def test_rights_come_back_after_a_failure(folder: Path) -> None:
    """After any error in the block, the process is root again."""
    with pytest.raises(ZeroDivisionError), acting_as_owner_of(folder):
        raise ZeroDivisionError
    assert os.geteuid() == 0


def test_root_s_own_folder_changes_nothing(tmp_path: Path) -> None:
    """In its own folder, root keeps its rights."""
    home = os.environ.get("HOME")
    with acting_as_owner_of(tmp_path):
        assert (os.geteuid(), os.environ.get("HOME")) == (0, home)
