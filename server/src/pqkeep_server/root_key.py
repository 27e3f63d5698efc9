"""``pqkeepd root-key rotate``: every private key under a new root key, while the service runs.

Each step leaves a state from which the command, given again, goes on: the new file, then the
settings that name both, then the key service's work, then the settings that name the new one.
"""

import math
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path

from pqkeep_keyservice import config
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE, read_root_key
from pqkeep_protocol.administration import RootKeys
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service import KeyServiceError, take_up_root_keys
from pqkeep_server.private_files import sync, write_whole
from pqkeep_server.settings_file import SettingsFileError, changed, root_key_settings

MAX_ROOT_KEYS = 255
POLL_SECONDS = 0.2
STUCK_SECONDS = 60.0
LAST_REQUESTS_SECONDS = 10.0
"""Requests that began before the end can still hold what the old root key sealed."""

Report = Callable[[str], None]
"""Hears what is being done now."""


class RootKeyError(Exception):
    """The root key is not changed yet. The message is for the person who wants it."""


def rotate(
    layout: Layout,
    *,
    destroy_old: bool,
    report: Report,
    last_requests_seconds: float = LAST_REQUESTS_SECONDS,
) -> list[Path]:
    """Change the root key; return the files of those that are of no use any more.

    Raises RootKeyError. Given again, it goes on.
    """
    settings = layout.key_service_settings
    try:
        said = config.read(settings)
        root_keys = dict(said.root_key_files)
        if len(root_keys) == 1:
            root_keys = _with_new(root_keys)
            _write_settings(settings, root_keys)
        socket = said.socket
        _wait(socket, max(root_keys), report)
        report("waiting for the last requests that began before")
        time.sleep(last_requests_seconds)
        newest = {max(root_keys): root_keys.pop(max(root_keys))}
        _write_settings(settings, newest)
        take_up_root_keys(socket)
        old = list(root_keys.values())
        if destroy_old:
            for path in old:
                _destroy(path)
    except (ConfigError, KeyServiceError, SettingsFileError) as error:
        raise RootKeyError(str(error)) from None
    except OSError as error:
        raise RootKeyError(f"cannot change the root key: {error}") from None
    return [] if destroy_old else old


def _with_new(root_keys: dict[int, Path]) -> dict[int, Path]:
    """Make a root key beside the one there is, or take the one of a command that was killed."""
    ((newest, file),) = root_keys.items()
    if newest == MAX_ROOT_KEYS:
        raise RootKeyError(f"there have been {MAX_ROOT_KEYS} root keys, which is all there can be")
    new = file.with_name(f"root-{newest + 1}.key")
    if new.exists():
        read_root_key(new)
    else:
        write_whole(new, secrets.token_bytes(ROOT_KEY_SIZE), 0o400)
        _give_to_owner_of(file, new)
    return {**root_keys, newest + 1: new}


def _wait(socket: Path, newest: int, report: Report) -> None:
    """Return when the newest root key is the only one in use."""
    least, since = math.inf, time.monotonic()
    while (state := take_up_root_keys(socket)) != RootKeys(
        in_use=(newest,), remaining=0, damaged=0
    ):
        if state.remaining and state.remaining == state.damaged:
            raise RootKeyError(
                f"{state.remaining} private keys cannot be unsealed: keep the old root key, "
                "and see the key service's log"
            )
        if state.remaining < least:
            least, since = state.remaining, time.monotonic()
        if time.monotonic() - since > STUCK_SECONDS:
            raise RootKeyError("the key service gets no further; its log says why")
        report(f"{state.remaining:,} private keys are left under older root keys")
        time.sleep(POLL_SECONDS)


def _write_settings(path: Path, root_keys: dict[int, Path]) -> None:
    here = path.resolve().parent
    named = {
        each: str(file.relative_to(here) if file.is_relative_to(here) else file)
        for each, file in root_keys.items()
    }
    text = changed(path.read_text(), root_key_settings(named))
    write_whole(path.resolve(), text.encode(), stat.S_IMODE(path.stat().st_mode), replace=True)


def _give_to_owner_of(like: Path, path: Path) -> None:
    owner = like.stat()
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(path, owner.st_uid, owner.st_gid)


def _destroy(path: Path) -> None:
    """Overwrite a file and remove it. What copies a disk or a file system keeps is its own."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(secrets.token_bytes(ROOT_KEY_SIZE))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    sync(path.parent)
