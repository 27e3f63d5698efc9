"""``pqkeepd root-key rotate``: seals every private key under a new root key in the running service.

The new root key may come from another kind of source. The steps are: make the new root key, name both
in the settings, let the key service reseal, name only the new one. After an interruption the command
continues with the next step.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

from pqkeep_keyservice import config
from pqkeep_keyservice.config import Pkcs11, RootKeySource
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.root_key_sources.token import create_token_key, destroy_token_key
from pqkeep_protocol.administration import RootKeys
from pqkeep_protocol.startup.settings import ConfigError, read_text
from pqkeep_server.atomic_files import rewrite, sync, write_atomically
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import (
    KeyServiceError,
    KeyServiceRefusalError,
    reload_root_keys,
)
from pqkeep_server.owner import acting_as_owner_of, run_as_owner_of
from pqkeep_server.settings_file import (
    Settings,
    SettingsFileError,
    edited,
    parse_table,
    root_key_settings,
    root_key_tables,
)

MAX_ROOT_KEYS = 255
POLL_SECONDS = 0.2
STUCK_SECONDS = 60.0
LAST_REQUESTS_SECONDS = 10.0
"""Seconds. Earlier requests may still use private keys under the old root key."""

Report = Callable[[str], None]
"""Shows the current step."""


class RootKeyError(Exception):
    """The root key is not changed yet. The message is for the operator."""


def rotate(
    layout: Layout,
    *,
    to: str | None = None,
    destroy_old: bool,
    report: Report,
    last_requests_seconds: float = LAST_REQUESTS_SECONDS,
) -> list[str]:
    """Change the root key, and return the places of older root keys that still exist.

    ``to`` is the new root key's source, as a line of its table in the settings. By default, a new file
    follows a file, and a new key in the same token follows a token's key. Raises RootKeyError; another
    run continues.
    """
    settings = layout.key_service_settings
    try:
        found = config.read(settings)
        if found.operator_socket is None:
            raise RootKeyError(f"{settings} has no operator_socket, which this command needs")
        tables = root_key_tables(read_text(settings))
        if tables.keys() != found.root_key_sources.keys():
            raise RootKeyError("the environment sets the root keys: change them there")
        if len(tables) == 1:
            tables = _begin(settings, found.operator_socket, tables, to)
        elif to is not None and parse_table(to) != tables[max(tables)]:
            raise RootKeyError(
                "an earlier change of the root key is unfinished: finish it without --to"
            )
        newest = max(tables)
        _wait(found.operator_socket, newest, report)
        report("waiting for requests that began earlier")
        time.sleep(last_requests_seconds)
        old = dict(config.read(settings).root_key_sources)
        del old[newest]
        _write_settings(settings, {newest: tables[newest]})
        reload_root_keys(found.operator_socket)
    except (ConfigError, KeyServiceError, SettingsFileError) as error:
        raise RootKeyError(str(error)) from None
    except OSError as error:
        raise RootKeyError(f"cannot change the root key: {error}") from None
    return [
        _described(source)
        for source in old.values()
        if not (destroy_old and _is_destroyed(source, settings))
    ]


def _begin(
    settings: Path, socket: Path, tables: Mapping[int, Settings], to: str | None
) -> dict[int, Settings]:
    """Make the key service use a new root key beside the old one, and return both by id."""
    ((newest, table),) = tables.items()
    if newest == MAX_ROOT_KEYS:
        raise RootKeyError(f"the maximum of {MAX_ROOT_KEYS} root keys is reached")
    new = _next(table, newest) if to is None else parse_table(to)
    source = config.root_key_source(new, settings.resolve().parent)
    if source.file is not None:
        # where it follows the old one, the key service's user has chosen the folder
        with acting_as_owner_of(settings.parent) if to is None else nullcontext():
            _make_file(source.file, settings.parent)
    elif source.pkcs11 is not None:
        _as_owner(settings, create_token_key, source.pkcs11)
    both = {newest: table, newest + 1: new}
    before = read_text(settings)
    _write_settings(settings, both)
    try:
        reload_root_keys(socket)
    except KeyServiceRefusalError:
        _put_back(settings, socket, before)
    return both


def _put_back(settings: Path, socket: Path, before: str) -> None:
    """Restore the old settings after a refused root key, if the key service accepts them.

    It does not accept them if the new root key is in use. Raises RootKeyError if they are restored.
    """
    both = read_text(settings)
    rewrite(settings, before)
    try:
        reload_root_keys(socket)
    except KeyServiceRefusalError:
        rewrite(settings, both)
        return
    raise RootKeyError(
        "the key service refused the new root key, and the old one stays: see its log"
    )


def _next(table: Settings, newest: int) -> Settings:
    """Return the table of the next root key, in the same kind of source."""
    match table:
        case {"file": str() as file}:
            return {"file": str(Path(file).with_name(f"root-{newest + 1}.key"))}
        case {"pkcs11": {"key": str() as key, **others}}:
            return {"pkcs11": {**others, "key": f"{key.removesuffix(f'-{newest}')}-{newest + 1}"}}
        case _:
            raise RootKeyError("the source of the new root key is missing: name it with --to")


def _make_file(file: Path, folder: Path) -> None:
    """Make a root key's file for a folder's owner, unless it exists."""
    if file.exists():
        read_root_key(file, also_owned_by=folder.stat().st_uid)
    else:
        write_atomically(file, secrets.token_bytes(ROOT_KEY_SIZE), 0o400, owner_of=folder)


def _wait(socket: Path, newest: int, report: Report) -> None:
    """Return when the newest root key is the only one in use."""
    least, since = math.inf, time.monotonic()
    while (state := reload_root_keys(socket)) != RootKeys(in_use=(newest,), remaining=0, damaged=0):
        if state.remaining and state.remaining == state.damaged:
            raise RootKeyError(
                f"{state.remaining} keys cannot be unsealed: keep the old root key, "
                "and see the key service's log"
            )
        if state.remaining < least:
            least, since = state.remaining, time.monotonic()
        if time.monotonic() - since > STUCK_SECONDS:
            raise RootKeyError("the key service makes no progress: see its log")
        report(f"{state.remaining:,} keys are still sealed under older root keys")
        time.sleep(POLL_SECONDS)


def _write_settings(path: Path, tables: Mapping[int, Settings]) -> None:
    rewrite(path, edited(read_text(path), root_key_settings(tables)))


def _described(source: RootKeySource) -> str:
    if source.file is not None:
        return str(source.file)
    if source.pkcs11 is not None:
        return f"the key {source.pkcs11.key} in the token {source.pkcs11.token}"
    if source.credential is not None:
        return f"the credential {source.credential}"
    return f"the output of {(source.command or ('',))[0]}"


def _is_destroyed(source: RootKeySource, settings: Path) -> bool:
    """Destroy a root key in a file or a token. Return False for other sources."""
    try:
        if source.file is not None:
            with acting_as_owner_of(settings.parent):  # the owner chose the file
                _destroy(source.file)
        elif source.pkcs11 is not None:
            _as_owner(settings, destroy_token_key, source.pkcs11)
        else:
            return False
    except (ConfigError, OSError):
        return False
    return True


def _as_owner(settings: Path, work: Callable[[Pkcs11], None], token: Pkcs11) -> None:
    def run() -> bytes:
        work(token)
        return b""

    run_as_owner_of(settings.parent, run)


def _destroy(path: Path) -> None:
    """Overwrite and delete a file. The disk or file system may still have copies of its blocks."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(secrets.token_bytes(ROOT_KEY_SIZE))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    sync(path.parent)
