"""The users of the two processes, and the group of the socket between them."""

import grp
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pqkeep_protocol

GATEWAY = "pqkeep-gateway"
KEY_SERVICE = "pqkeep-keyservice"
GROUP = "pqkeep"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_READS = "import sqlite3, sys; open(sys.argv[1])"
SECONDS = 30.0
"""Seconds. The user could stop the process, and root would wait."""


class UsersError(Exception):
    """The two users are missing or unusable. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class User:
    """A user and their primary group."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Users:
    """The two users, and the id of their common group."""

    gateway: User
    key_service: User
    group: int

    def __post_init__(self) -> None:
        """Raise UsersError unless the users differ and neither is root."""
        uids = {self.gateway.uid, self.key_service.uid}
        if len(uids) != 2 or 0 in uids:  # noqa: PLR2004 - two
            raise UsersError(
                "gateway and key service need two different users, neither of them root: "
                "otherwise an"
                " attacker in the gateway could read the root key"
            )


def find_or_create() -> Users:
    """Return pqkeep's users, and make missing ones. Raises UsersError."""
    try:
        group = grp.getgrnam(GROUP)
    except KeyError:
        _run("groupadd", "--system", GROUP)
        group = grp.getgrnam(GROUP)
    return Users(_find_or_create(GATEWAY), _find_or_create(KEY_SERVICE), group.gr_gid)


def chosen(ids: tuple[int, int, int] | None) -> Users:
    """Return the users with these ids and this group, or pqkeep's own. They can run pqkeep.

    The primary group of a user by id has the same id. Raises UsersError.
    """
    if os.geteuid() != 0:
        raise UsersError(
            "this command needs root, to give each process's files to its own user. To try pqkeep"
            " without root, run pqkeepd dev"
        )
    users = find_or_create() if ids is None else _by_ids(*ids)
    require_program(users)
    return users


def require_program(users: Users) -> None:
    """Raise UsersError if a user cannot run pqkeep with this Python.

    The user's other processes control the test process. So the test process does not get root's
    environment, or root's terminal, into which it could type.
    """
    libraries = {name: of for name, of in os.environ.items() if name == "LD_LIBRARY_PATH"}
    for user in (users.gateway, users.key_service):
        try:
            ended = subprocess.run(  # noqa: S603 - itself
                [sys.executable, "-I", "-c", _READS, pqkeep_protocol.__file__],
                user=user.uid,
                group=user.gid,
                extra_groups=[users.group],
                cwd="/",
                env=libraries,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
            can_run = ended.returncode == 0
        except (PermissionError, subprocess.TimeoutExpired):
            can_run = False
        if not can_run:
            raise UsersError(
                f"the user {_name(user.uid)} cannot run pqkeep with {_python()}: install Python and"
                " pqkeep where every user may read them, such as /opt, not in root's home directory"
            )


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def _python() -> str:
    """Return the path of the running Python, with its real path."""
    real = os.path.realpath(sys.executable)
    return sys.executable if real == sys.executable else f"{sys.executable} ({real})"


def _by_ids(gateway: int, key_service: int, group: int) -> Users:
    return Users(User(gateway, gateway), User(key_service, key_service), group)


def _find_or_create(name: str) -> User:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        home, shell = "/nonexistent", "/usr/sbin/nologin"
        options = ("--system", "--user-group", "--no-create-home", "--groups", GROUP)
        _run("useradd", *options, "--home-dir", home, "--shell", shell, name)
        found = pwd.getpwnam(name)
    return User(found.pw_uid, found.pw_gid)


def _run(program: str, *arguments: str) -> None:
    path = shutil.which(program, path=_PATH)
    if path is None:
        raise UsersError(
            f"cannot make users: {program} is missing. Install its package (passwd on Debian and"
            f" Ubuntu, shadow-utils on Fedora, shadow on Alpine and Arch), or make the users {GATEWAY}"
            f" and {KEY_SERVICE} and the group {GROUP} yourself"
        )
    ended = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 - constants
    if ended.returncode != 0:
        raise UsersError(f"cannot make users: {ended.stderr.strip()}")


def give_to(users: Users, gateway: Path, key_service: Path, run: Path) -> None:
    """Give each process's folder to its user, and the sockets' folder to the group.

    Raises OSError.
    """
    for folder, user in ((gateway, users.gateway), (key_service, users.key_service)):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)
    os.chown(run, users.key_service.uid, users.group)
    run.chmod(0o750)
