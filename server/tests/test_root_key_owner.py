"""Root runs commands of the key service's settings as the key service's user."""

import os
import tempfile
from pathlib import Path

import pytest
from tests.fixtures import unprivileged

from pqkeep_keyservice.config import RootKeySource
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.create import read_root_keys
from pqkeep_server.owner import acting_as_owner_of, run_as_owner_of
from pqkeep_server.root_key import _begin, _is_destroyed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def test_a_command_is_run_as_the_owner(folder: Path) -> None:
    """A root key command runs without root's users and groups, and its key is returned."""
    script = f"grep -E '^(Uid|Gid|Groups):' /proc/self/status > {folder}/who; head -c 32 /dev/zero"
    source = RootKeySource(command=("/bin/sh", "-c", script))
    assert bytes(read_root_keys({1: source}, folder)[1].reveal()) == bytes(32)
    numbers = {part for part in (folder / "who").read_text().split() if part.isdigit()}
    assert "0" not in numbers
    assert str(unprivileged.UID) in numbers


def test_what_the_owner_cannot_do_is_said(folder: Path) -> None:
    """The message of the owner's process is the command's message."""
    source = RootKeySource(command=("/bin/sh", "-c", "exit 7"))
    with pytest.raises(ConfigError, match="command /bin/sh ended with status 7"):
        read_root_keys({1: source}, folder)


def test_a_fault_has_no_result(folder: Path) -> None:
    """If the owner's process crashes, the command has no result."""

    def fault() -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ConfigError, match=f"cannot act as the user {unprivileged.UID}"):
        run_as_owner_of(folder, fault)


def test_no_root_key_is_made_or_destroyed_where_the_owner_may_not(folder: Path) -> None:
    """The owner's settings name the files: none is created or deleted elsewhere with root's rights."""
    settings = folder / "settings.toml"
    settings.write_text("")
    with tempfile.TemporaryDirectory(prefix="pqkeep-") as elsewhere:
        of_root = Path(elsewhere) / "root.key"
        of_root.write_bytes(bytes(32))
        of_root.chmod(0o400)
        assert not _is_destroyed(RootKeySource(file=of_root), settings)
        with pytest.raises(PermissionError):
            _begin(settings, folder / "socket", {1: {"file": str(of_root)}}, None)
        assert list(Path(elsewhere).iterdir()) == [of_root]
        assert of_root.read_bytes() == bytes(32)
    own = folder / "root.key"
    with acting_as_owner_of(folder):
        own.write_bytes(bytes(32))
    assert _is_destroyed(RootKeySource(file=own), settings)
    assert not own.exists()
