"""A secret file is read only if no other user can read or replace it."""

import os
import pwd
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

from pqkeep_protocol.startup.secret_files import (
    MAX_SIZE,
    ReplacedFiles,
    check_secret_file,
    password_file_of,
    read_secret_file,
    read_secret_text,
)
from pqkeep_protocol.startup.settings import ConfigError

SECRET = b"the horse prefers oats"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A secret file with correct permissions."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o400)
    return path


def refusal(path: Path, read: Callable[..., object] = read_secret_file, **options: int) -> str:
    """Return the message of a refused file. It names the file and repeats none of it."""
    with pytest.raises(ConfigError) as refused:
        read(path, "pepper", **options)
    message = str(refused.value)
    assert message.startswith(f"cannot use the pepper in {path}: ")
    assert "horse" not in message
    return message


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_what_only_its_owner_can_read(secret: Path, mode: int) -> None:
    """A file without permissions for group and others is read."""
    secret.chmod(mode)
    assert read_secret_file(secret, "pepper") == SECRET
    check_secret_file(secret, "pepper")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_what_others_have_access_to(secret: Path, mode: int) -> None:
    """Any permission of group or others is refused, and the message names the valid modes."""
    secret.chmod(mode)
    for read in (read_secret_file, check_secret_file):
        assert f"(mode {mode:04o}); its mode must be 0400 or 0600" in refusal(secret, read)


def give_access(path: Path, tag: int, owner: int) -> None:
    """Add an access control list entry that lets a user (0x02) or group (0x08) read a file."""
    user, group, mask, other = (0x01, 4, 0), (0x04, 0, 0), (0x10, 4, 0), (0x20, 0, 0)
    entries = (
        (user, (tag, 4, owner), group, mask, other)
        if tag == 0x02
        else (user, group, (tag, 4, owner), mask, other)
    )
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)


def test_a_service_s_credential(secret: Path) -> None:
    """A file is read if its access control list admits only this process's user (systemd)."""
    give_access(secret, 0x02, os.geteuid())
    assert secret.stat().st_mode & 0o777 == 0o440
    assert read_secret_file(secret, "pepper") == SECRET


@pytest.mark.parametrize("tag", [0x02, 0x08], ids=["a user", "a group"])
def test_a_list_that_opens_a_file_for_others(tag: int, secret: Path) -> None:
    """A file is refused if its access control list admits another user or a group."""
    give_access(secret, tag, os.geteuid() + 1)
    assert "(mode 0440); its mode must be 0400 or 0600" in refusal(secret)


GROUP = 54_321
"""A group without an entry in the system's user database, such as the group of ``fsGroup``."""


def read_as(path: Path, user: int, groups: list[int], also_owned_by: int | None = None) -> str:
    """Return a file's content or its refusal, read as another user in a separate process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(12_345)
            os.setuid(user)
            try:
                said = read_secret_file(path, "pepper", also_owned_by=also_owned_by)
            except ConfigError as error:
                said = str(error).encode()
            os.write(writing, said)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said_there = file.read()
    os.waitpid(child, 0)
    return said_there


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A secret as Kubernetes mounts it: links to a root-owned file in an accessible folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        volume = folder / "..2026_01_01_00_00_00.1"
        volume.mkdir(mode=0o755)
        (folder / "..data").symlink_to(volume.name)
        (volume / "pepper").write_bytes(SECRET)
        (folder / "pepper").symlink_to("..data/pepper")
        os.chown(folder / "pepper", 0, GROUP)
        yield folder / "pepper"


@AS_ROOT
@pytest.mark.parametrize("mode", [0o440, 0o640])
def test_a_file_of_root_s_for_the_process_s_group(mounted: Path, mode: int) -> None:
    """Root and a process in the file's group can read it."""
    mounted.chmod(mode)
    assert read_as(mounted, 12_345, [GROUP]) == SECRET.decode()
    assert read_secret_file(mounted, "pepper") == SECRET
    os.chown(mounted, 0, 12_345)
    assert read_as(mounted, 12_345, []) == SECRET.decode()


@AS_ROOT
@pytest.mark.parametrize("mode", [0o444, 0o460, 0o660, 0o650, 0o644, 0o642, 0o641])
def test_a_file_that_a_group_may_do_more_with(mounted: Path, mode: int) -> None:
    """A file with more permissions for group or others is refused, with the command to run."""
    mounted.chmod(mode)
    said = read_as(mounted, 12_345, [GROUP])
    assert f"other users have access to it (mode {mode:04o})" in said
    assert said.endswith(f"run chmod 0400 {mounted}")


@AS_ROOT
def test_a_group_of_others(mounted: Path) -> None:
    """A file is refused if its group has another user, or is root's own group."""
    mounted.chmod(0o440)
    other = next(user for user in pwd.getpwall() if user.pw_gid not in {0, 12_345})
    os.chown(mounted, 0, other.pw_gid)
    assert "other users have access to it" in read_as(mounted, 12_345, [other.pw_gid])
    os.chown(mounted, 0, 0)
    assert "other users have access to it" in refusal(mounted)


@AS_ROOT
def test_a_file_that_is_not_root_s_is_for_no_group(mounted: Path) -> None:
    """A file of the process's user must not be readable by a group."""
    mounted.chmod(0o440)
    os.chown(mounted, 12_345, GROUP)
    assert "other users have access to it" in read_as(mounted, 12_345, [GROUP])


@AS_ROOT
def test_a_password_file_for_a_group_reaches_the_driver(mounted: Path) -> None:
    """The driver gets the file itself, or a private copy of a group-readable file."""
    mounted.chmod(0o400)
    assert password_file_of(mounted, "password") == mounted
    mounted.chmod(0o440)
    copy = password_file_of(mounted, "password")
    assert copy.read_bytes() == SECRET
    assert copy.stat().st_mode & 0o777 == 0o400
    mounted.chmod(0o444)
    with pytest.raises(ConfigError, match="other users"):
        password_file_of(mounted, "password")


@AS_ROOT
def test_a_file_of_somebody_elses(secret: Path) -> None:
    """Another user's file is refused, even for root, unless that user is expected."""
    os.chown(secret, 12_345, -1)
    assert "it belongs to user 12345, but this process runs as user 0" in refusal(secret)
    assert "it belongs to user 12345, " in refusal(secret, also_owned_by=54_321)
    assert read_secret_file(secret, "pepper", also_owned_by=12_345) == SECRET


def test_a_folder(tmp_path: Path) -> None:
    """A folder is refused."""
    assert "Is a directory" in refusal(tmp_path)


def test_a_fifo_without_a_writer(tmp_path: Path) -> None:
    """A named pipe is refused at once, without waiting."""
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    assert "it is not a regular file" in refusal(path)


def test_a_device() -> None:
    """A device is refused before anything is read."""
    assert "it is not a regular file" in refusal(Path("/dev/zero"))


def test_a_missing_file(tmp_path: Path) -> None:
    """The refusal of a missing file has its name."""
    assert "No such file or directory" in refusal(tmp_path / "missing")


def test_the_size_is_bounded(secret: Path) -> None:
    """A file of 64 KiB is read. One byte more is refused."""
    secret.chmod(0o600)
    secret.write_bytes(bytes(MAX_SIZE))
    assert read_secret_file(secret, "pepper") == bytes(MAX_SIZE)
    secret.write_bytes(bytes(MAX_SIZE + 1))
    assert "it is longer than 65536 bytes" in refusal(secret)


def test_a_link_is_followed_to_what_passes_the_checks(secret: Path, tmp_path: Path) -> None:
    """A link's target is read, and refused under the same rules as the file itself."""
    link = tmp_path / "link"
    link.symlink_to(secret)
    assert read_secret_file(link, "pepper") == SECRET
    secret.chmod(0o444)
    assert "mode 0444" in refusal(link)


@pytest.mark.parametrize("modes", [(0o400, 0o666), (0o666, 0o400)])
def test_a_file_that_is_replaced_meanwhile(tmp_path: Path, modes: tuple[int, int]) -> None:
    """A file that others can access is never read, at any time of the replacement.

    The first turn replaces the file before the first C call of the reader, the second turn before
    the second one, and so on: between any two system calls.
    """
    path, other = tmp_path / "secret", tmp_path / "other"
    outcomes = []
    for turn in count():
        for file, mode in zip((path, other), modes, strict=True):
            file.unlink(missing_ok=True)
            file.write_bytes(f"{mode:o}".encode())
            file.chmod(mode)
        calls = count()

        def replace(frame: FrameType, event: str, function: object) -> None:
            if event == "c_call" and next(calls) == turn:  # noqa: B023 - it ends with the turn
                other.rename(path)

        sys.setprofile(replace)
        try:
            outcomes.append(read_secret_file(path, "pepper"))
        except ConfigError:
            outcomes.append(b"")
        finally:
            sys.setprofile(None)
        if other.exists():
            break
    assert set(outcomes) == {b"400", b""}


@pytest.mark.parametrize("text", ["horse", "horse\n", "horse\r\n"])
def test_one_line_of_text(secret: Path, text: str) -> None:
    """A password is one line, without its line ending."""
    secret.chmod(0o600)
    secret.write_bytes(text.encode())
    assert read_secret_text(secret, "pepper") == "horse"


@pytest.mark.parametrize("data", [b"", b"\n", b"horse\nhorse\n", b"horse\xff"])
def test_what_is_no_line_of_text(secret: Path, data: bytes) -> None:
    """An empty file, several lines and other encodings than UTF-8 are refused."""
    secret.chmod(0o600)
    secret.write_bytes(data)
    refusal(secret, read_secret_text)


def test_replaced_files_are_noticed_when_they_are_complete(tmp_path: Path) -> None:
    """A replaced file counts once, after the second look at the same files.

    A missing file counts too.
    """
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    certificate.write_text("1")
    key.write_text("1")
    files = ReplacedFiles(certificate, key)
    assert [files.settled() for _ in range(2)] == [False, False]
    certificate.unlink()
    certificate.write_text("22")
    assert not files.settled()
    key.write_text("22")
    assert [files.settled() for _ in range(3)] == [False, True, False]
    key.unlink()
    assert [files.settled() for _ in range(3)] == [False, True, False]
    key.write_text("22")
    files.note()
    assert [files.settled() for _ in range(2)] == [False, False]


def test_a_secret_volume_s_link_is_noticed(tmp_path: Path) -> None:
    """Kubernetes replaces the folder behind a symbolic link, and the path stays the same."""
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "tls.crt").write_text("same length")
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "tls.crt").symlink_to("..data/tls.crt")
    files = ReplacedFiles(tmp_path / "tls.crt")
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "..data")
    assert [files.settled() for _ in range(3)] == [False, True, False]
