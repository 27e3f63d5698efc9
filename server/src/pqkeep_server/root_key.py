"""``pqkeepd root-key rotate``: every private key under a new root key, while the service runs.

After each step the command can be run again and continues: the new file, the settings that name
both, the key service's work, the settings that name the new one.
"""

import math
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pqkeep_keyservice import config
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE, read_root_key
from pqkeep_protocol.administration import RootKeys
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.atomic_files import sync, write_atomically
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError, reload_root_keys
from pqkeep_server.settings_file import SettingsFileError, edited, root_key_settings

MAX_ROOT_KEYS = 255
POLL_SECONDS = 0.2
STUCK_SECONDS = 60.0
LAST_REQUESTS_SECONDS = 10.0
"""Requests that began before the end can still hold what the old root key sealed."""

Report = Callable[[str], None]
"""Shows what is being done now."""


class RootKeyError(Exception):
    """The root key is not changed yet. The message is for the person who wants it changed."""


def rotate(
    layout: Layout,
    *,
    destroy_old: bool,
    report: Report,
    last_requests_seconds: float = LAST_REQUESTS_SECONDS,
) -> list[Path]:
    """Change the root key; return the files of older root keys, unless they are destroyed.

    Raises RootKeyError; run again, it continues.
    """
    settings = layout.key_service_settings
    try:
        found = config.read(settings)
        if found.operator_socket is None:
            raise RootKeyError(f"{settings} has no operator_socket, which this command needs")
        root_keys = dict(found.root_key_files)
        if len(root_keys) == 1:
            root_keys = _with_new(root_keys)
            _write_settings(settings, root_keys)
        newest = max(root_keys)
        _wait(found.operator_socket, newest, report)
        report("waiting for the last requests that began before")
        time.sleep(last_requests_seconds)
        _write_settings(settings, {newest: root_keys.pop(newest)})
        reload_root_keys(found.operator_socket)
        old = list(root_keys.values())
        if destroy_old:
            for path in old:
                _destroy(path)
    except (ConfigError, KeyServiceError, SettingsFileError) as error:
        raise RootKeyError(str(error)) from None
    except OSError as error:
        raise RootKeyError(f"cannot change the root key: {error}") from None
    return [] if destroy_old else old


def _with_new(root_keys: Mapping[int, Path]) -> dict[int, Path]:
    """Add a new root key beside the only one, or the one that an interrupted run left."""
    ((newest, file),) = root_keys.items()
    if newest == MAX_ROOT_KEYS:
        raise RootKeyError(f"there have been {MAX_ROOT_KEYS} root keys, which is the maximum")
    new = file.with_name(f"root-{newest + 1}.key")
    if new.exists():
        read_root_key(new, also_owned_by=file.stat().st_uid)
    else:
        write_atomically(new, secrets.token_bytes(ROOT_KEY_SIZE), 0o400, owner_of=file)
    return {newest: file, newest + 1: new}


def _wait(socket: Path, newest: int, report: Report) -> None:
    """Return when the newest root key is the only one in use."""
    least, since = math.inf, time.monotonic()
    while (state := reload_root_keys(socket)) != RootKeys(in_use=(newest,), remaining=0, damaged=0):
        if state.remaining and state.remaining == state.damaged:
            raise RootKeyError(
                f"{state.remaining} keyrings cannot be unsealed: keep the old root key, "
                "and see the key service's log"
            )
        if state.remaining < least:
            least, since = state.remaining, time.monotonic()
        if time.monotonic() - since > STUCK_SECONDS:
            raise RootKeyError("the key service makes no progress; its log says why")
        report(f"{state.remaining:,} keyrings are left under older root keys")
        time.sleep(POLL_SECONDS)


def _write_settings(path: Path, root_keys: Mapping[int, Path]) -> None:
    here = path.resolve().parent
    files = {
        each: str(file.relative_to(here) if file.is_relative_to(here) else file)
        for each, file in root_keys.items()
    }
    text = edited(path.read_text(), root_key_settings(files))
    mode = stat.S_IMODE(path.stat().st_mode)
    write_atomically(path.resolve(), text.encode(), mode, replace=True, owner_of=path)


def _destroy(path: Path) -> None:
    """Overwrite a file and delete it. A disk or file system may still keep copies of its blocks."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(secrets.token_bytes(ROOT_KEY_SIZE))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    sync(path.parent)
