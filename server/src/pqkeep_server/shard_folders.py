"""Adds and removes shards: a key service's folder and a row in the gateway's settings.

A new folder appears complete, and the gateway's settings are changed last. The folder of a removed
shard stays. Its settings file is renamed last. A repeated run continues an interrupted one.
"""

import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.config import Config
from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE
from pqkeep_protocol.keys import DEFAULT_SHARD, SHARD_NAME
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress, read_text
from pqkeep_server.atomic_files import rewrite, write_atomically
from pqkeep_server.initialise import KEYS_FILE, InitialiseError, Layout, write_key_service
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.settings_file import Settings, SettingsFileError, edited, parse_table

LONGEST_SOCKET_PATH = 107
"""Bytes. The kernel's limit for the path of a socket."""
INHERITED = (
    *("gateway_uid", "least_destruction_days"),
    *("slh_dsa", "openssl_library", "verify_signatures", "log_format"),
)
"""Settings that a new key service copies from the first one."""


class Added(NamedTuple):
    """A new shard's files."""

    layout: Layout
    had_no_transfer_key: bool
    """True if the first key service got a new transfer key and must be restarted."""


def add_shard(
    layout: Layout, name: str, *, database: str | None = None, password_file: Path | None = None
) -> Added:
    """Make a shard's key service, and name it in the gateway's settings.

    Its database is a new file or an empty PostgreSQL database. If the first shard's database is on a
    server, a database must be named. The default password file is that of the first shard. Raises
    InitialiseError.
    """
    with _changing(layout.directory, f"add the shard {name}"):
        return _add(layout, name, database, password_file)


class Removed(NamedTuple):
    """The remains of a removed shard."""

    layout: Layout
    database: str
    """The location of the database with its audit log."""


def remove_shard(layout: Layout, name: str, note: Callable[[], None]) -> Removed:
    """Remove a shard from the gateway's settings, and rename its key service's settings.

    ``note`` checks that the shard may be removed, and records it. Raises its errors and
    InitialiseError.
    """
    shard = Layout(layout.directory, name)
    if name == DEFAULT_SHARD:
        raise InitialiseError(
            "the shard default has the records of the installation and cannot be removed"
        )
    with _changing(layout.directory, f"remove the shard {name}"):
        if name not in layout.shards:
            raise InitialiseError(f"the shard {name} does not exist in {layout.directory}")
        with acting_as_owner_of(layout.gateway):
            unnamed = _without_shard(read_text(layout.gateway_settings), name)
        with acting_as_owner_of(shard.key_service):
            database = key_service_config.read(shard.key_service_settings).database
        note()
        _rewrite(layout, unnamed)
        with acting_as_owner_of(shard.key_service):
            shard.key_service_settings.rename(shard.removed_settings)
    return Removed(shard, database.location)


def add_missing(layout: Layout, count: int, databases: Sequence[str] = ()) -> list[Added]:
    """Add shards (shard-2 and so on) up to ``count``, with these databases in order.

    Raises InitialiseError.
    """
    named = dict(zip(range(2, count + 1), databases, strict=False))
    return [
        add_shard(layout, f"shard-{number}", database=named.get(number))
        for number in range(2, count + 1)
        if f"shard-{number}" not in _known(layout)
    ]


def _known(layout: Layout) -> Collection[str]:
    """Return the shards that the gateway's settings name. Raises InitialiseError."""
    try:
        with acting_as_owner_of(layout.gateway):
            return gateway_config.read(layout.gateway_settings).key_services.keys()
    except ConfigError as error:
        raise InitialiseError(str(error)) from None


def _add(layout: Layout, name: str, database: str | None, password_file: Path | None) -> Added:
    shard = Layout(layout.directory, name)
    _require_name(shard)
    if shard.removed_settings.exists():
        raise InitialiseError(
            f"{shard.key_service} has the log of the removed shard {name}: choose another name"
        )
    with acting_as_owner_of(layout.gateway):
        gateway = gateway_config.read(layout.gateway_settings)
        text = read_text(layout.gateway_settings)
    if name in gateway.key_services:
        raise InitialiseError(f"a shard {name} already exists in the gateway's settings")
    named = _with_shard(text, gateway, shard)
    with acting_as_owner_of(layout.key_service):
        first = key_service_config.read(layout.key_service_settings)
    settings = _settings(shard, layout, first, database, password_file)
    transfer_key, is_new = _transfer_key(layout, first)
    if shard.key_service.exists():
        _require_same(shard, settings)
    else:
        _make(shard, settings, transfer_key, is_explained=first.gateway_uid != "same")
    _rewrite(layout, named)
    return Added(shard, is_new)


@contextmanager
def _changing(directory: Path, what: str) -> Iterator[None]:
    """Hold a lock that pqkeepd start does not need. Failures in the block become InitialiseError."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except (ConfigError, SettingsFileError) as error:
        raise InitialiseError(str(error)) from None
    except OSError as error:
        where = error.filename2 or error.filename
        raise InitialiseError(f"cannot {what}: {error.strerror}: {where}") from None


def _rewrite(layout: Layout, text: str) -> None:
    """Replace the gateway's settings, and check them. Raises ConfigError."""
    with acting_as_owner_of(layout.gateway):
        rewrite(layout.gateway_settings, text)
        gateway_config.read(layout.gateway_settings)


def _require_name(shard: Layout) -> None:
    if not re.match(SHARD_NAME, shard.shard):
        raise InitialiseError(
            "a shard's name must be 1 to 32 of a-z, 0-9 and -, with a letter or digit at both ends"
        )
    for path in (shard.socket, shard.operator_socket):
        if len(os.fsencode(path.absolute())) > LONGEST_SOCKET_PATH:
            raise InitialiseError(f"{path} is too long for a socket: choose a shorter name")


def _with_shard(text: str, gateway: gateway_config.Config, shard: Layout) -> str:
    """Return the gateway's settings with another shard. Raises InitialiseError, SettingsFileError."""
    found = parse_table(text)
    shards = found.get("shards")
    if not isinstance(shards, Mapping):
        if gateway.shards or "key_service_socket" not in found:
            raise InitialiseError(
                "the gateway's settings file does not name its key service, which is on another host or"
                " in the environment: add the shard by hand (docs/scaling.md)"
            )
        shards = {"default": {"sockets": [found["key_service_socket"]]}}
    added = {"sockets": [f"../run/{shard.socket.name}"]}
    return edited(text, {"key_service_socket": None, "shards": {**shards, shard.shard: added}})


def _without_shard(text: str, name: str) -> str:
    """Return the gateway's settings without a shard. Raises InitialiseError, SettingsFileError."""
    shards = parse_table(text).get("shards")
    if not isinstance(shards, Mapping):
        raise InitialiseError(
            "the environment names the gateway's shards, not the settings file: remove the shard by"
            " hand (docs/scaling.md)"
        )
    return edited(text, {"shards": {other: of for other, of in shards.items() if other != name}})


def _settings(
    shard: Layout, layout: Layout, first: Config, database: str | None, password_file: Path | None
) -> Settings:
    """Return the settings of a shard's key service without its keys. Raises InitialiseError."""
    if database is None and first.database.is_on_server:
        raise InitialiseError(
            "the first shard's database is on a server: make an empty database for this shard with"
            " the same role, and name it with --keys-database"
        )
    chosen = database or KEYS_FILE
    try:
        address = DatabaseAddress(chosen, shard.key_service.absolute())
    except ValueError as error:
        raise InitialiseError(f"database: {error}") from None
    for path in layout.key_services:
        if path.parent != shard.key_service and key_service_config.read(path).database == address:
            raise InitialiseError(
                f"the key service of {path} already uses this database: name another one"
            )
    if password_file is None and address.is_on_server:
        password_file = first.database_password_file
    inherited = {name: getattr(first, name) for name in INHERITED}
    defaults = {"slh_dsa": "auto", "verify_signatures": False, "log_format": "auto"}
    return {
        "shard": shard.shard,
        "socket": f"../run/{shard.socket.name}",
        "operator_socket": f"../run/{shard.operator_socket.name}",
        "database": chosen,
        "database_password_file": None if password_file is None else str(password_file.absolute()),
        **{name: value for name, value in inherited.items() if value != defaults.get(name)},
    }


def _transfer_key(layout: Layout, first: Config) -> tuple[bytes, bool]:
    """Return the transfer key of the first key service, and True if it is new."""
    with acting_as_owner_of(layout.key_service):  # the owner chose the file and gets a copy of it
        if first.transfer_key_file is not None:
            return read_secret_file(first.transfer_key_file, "transfer key"), False
        if not layout.transfer_key.exists():
            write_atomically(layout.transfer_key, secrets.token_bytes(TRANSFER_KEY_SIZE), 0o400)
        key = read_secret_file(layout.transfer_key, "transfer key")
        text = read_text(layout.key_service_settings)
        changed = edited(text, {"transfer_key_file": layout.transfer_key.name})
        rewrite(layout.key_service_settings, changed)
    return key, True


def _require_same(shard: Layout, settings: Settings) -> None:
    """Raise InitialiseError unless an interrupted run has made the existing folder."""
    with acting_as_owner_of(shard.key_service):
        found = parse_table(read_text(shard.key_service_settings))
    if any(found.get(name) != value for name, value in settings.items()):
        raise InitialiseError(
            f"{shard.key_service} already exists with other settings: choose another name, or move it"
            " away"
        )


def _make(shard: Layout, settings: Settings, transfer_key: bytes, *, is_explained: bool) -> None:
    """Make the folder for the first key service's owner, with an empty database file if needed."""
    owner = Layout(shard.directory).key_service.stat()
    with tempfile.TemporaryDirectory(prefix=".new-", dir=shard.directory) as temporary:
        draft = Layout(Path(temporary), shard.shard)
        write_key_service(draft, settings, transfer_key, is_explained=is_explained)
        made = key_service_config.read(draft.key_service_settings)
        if not made.database.is_on_server:  # a process makes no new file itself
            Path(made.database.location).touch(0o600)
        if os.geteuid() == 0:
            for path in (*draft.key_service.rglob("*"), draft.key_service):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        draft.key_service.rename(shard.key_service)
