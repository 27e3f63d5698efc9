"""What root does for a process's user is done with that user's rights."""

import os
from pathlib import Path

import pytest
from tests.fixtures import unprivileged

from pqkeep_server.owner import acting_as_owner_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_files_are_the_owner_s(folder: Path) -> None:
    """A file that is made in the block belongs to the owner; the folder is the home."""
    home = os.environ.get("HOME")
    with acting_as_owner_of(folder):
        (folder / "made").touch()
        assert os.environ["HOME"] == str(folder)
    made = (folder / "made").stat()
    assert (made.st_uid, made.st_gid) == (unprivileged.UID, unprivileged.UID)
    assert (os.geteuid(), os.getegid(), os.environ.get("HOME")) == (0, os.getgid(), home)


def test_nothing_of_others_is_reached(folder: Path) -> None:
    """A link that the owner has made to root's file leads root no further than the owner."""
    secret = folder / "root's"
    secret.write_text("secret")
    secret.chmod(0o600)
    (folder / "link").symlink_to(secret)
    with acting_as_owner_of(folder), pytest.raises(PermissionError):
        (folder / "link").read_text()
    assert (folder / "link").read_text() == "secret"


def test_rights_come_back_after_a_failure(folder: Path) -> None:
    """Whatever the block raises, root is root again."""
    with pytest.raises(ZeroDivisionError), acting_as_owner_of(folder):
        raise ZeroDivisionError
    assert os.geteuid() == 0


def test_root_s_own_folder_changes_nothing(tmp_path: Path) -> None:
    """Where the folder is root's, root acts as before."""
    home = os.environ.get("HOME")
    with acting_as_owner_of(tmp_path):
        assert (os.geteuid(), os.environ.get("HOME")) == (0, home)
