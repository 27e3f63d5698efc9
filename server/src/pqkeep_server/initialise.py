"""A data directory: the two processes' settings and secrets, each in a folder of its own.

keyservice/  settings.toml  root.key  keys.sqlite3  keyservice.sock
gateway/     settings.toml  pepper  accounts.sqlite3
mailbox/     where anybody may sign up: the messages that others would send
"""

import os
import secrets
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import PEPPER_SIZE, Pepper
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.settings_file import toml

ACCOUNTS_FILE = "accounts.sqlite3"
KEYS_FILE = "keys.sqlite3"


LEAST_PASSWORD_COSTS = {"memory_kib": 19 * 1024, "passes": 2, "lanes": 1}
"""The least that the gateway takes, for development: people sign in a hundred times there."""


class InitialiseError(Exception):
    """The data directory cannot be made. The message is for the person who wants it."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Where an installation keeps what it must remember."""

    accounts: str = ACCOUNTS_FILE
    """A file in the gateway's folder, or a postgresql:// address."""
    accounts_password_file: str | None = None
    keys: str = KEYS_FILE
    """A file in the key service's folder, or a postgresql:// address."""
    keys_password_file: str | None = None
    redis_url: str | None = None
    """A redis:// address; None: the gateway's memory."""


IN_FILES = Stores()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a data directory."""

    directory: Path

    @property
    def key_service(self) -> Path:
        """What is the key service's alone."""
        return self.directory / "keyservice"

    @property
    def gateway(self) -> Path:
        """What is the gateway's alone."""
        return self.directory / "gateway"

    @property
    def key_service_settings(self) -> Path:
        """The key service's settings file."""
        return self.key_service / "settings.toml"

    @property
    def gateway_settings(self) -> Path:
        """The gateway's settings file. It is there once the directory is whole."""
        return self.gateway / "settings.toml"

    @property
    def root_key(self) -> Path:
        """The key that every private key is sealed under."""
        return self.key_service / "root.key"

    @property
    def pepper(self) -> Path:
        """The secret that credentials' digests depend on."""
        return self.gateway / "pepper"

    @property
    def development_credentials(self) -> Path:
        """What pqkeepd dev keeps."""
        return self.directory / "dev.json"


def initialise(
    layout: Layout,
    operator: str,
    *,
    signup: Literal["operator", "open"],
    stores: Stores = IN_FILES,
) -> None:
    """Make a data directory's files. Of the operator's credential a digest is kept.

    They are made aside and moved into place, the gateway's last: a directory is whole or it can
    be made again. Raises InitialiseError, and overwrites nothing.
    """
    if layout.gateway.exists():
        raise InitialiseError(f"{layout.gateway} is there already")
    try:
        layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=layout.directory) as aside:
            draft = Layout(Path(aside))
            _fill(draft, operator, signup, stores)
            gateway_config.read(draft.gateway_settings)
            key_service_config.read(draft.key_service_settings)
            _discard_half_made(
                layout.key_service, {path.name for path in draft.key_service.iterdir()}
            )
            draft.key_service.rename(layout.key_service)
            draft.gateway.rename(layout.gateway)
    except ConfigError as error:
        raise InitialiseError(str(error)) from None
    except OSError as error:
        raise InitialiseError(
            f"cannot make a data directory in {layout.directory}: "
            f"{error.strerror}: {error.filename2 or error.filename}"
        ) from None


def stores_of(layout: Layout) -> Stores:
    """Return where an installation keeps what it must remember. Raises InitialiseError."""
    try:
        gateway = tomllib.loads(layout.gateway_settings.read_text())
        key_service = tomllib.loads(layout.key_service_settings.read_text())
        accounts, keys = gateway["database"], key_service["database"]
    except (OSError, KeyError, ValueError):
        raise InitialiseError(f"cannot read the settings in {layout.directory}") from None
    passwords = "database_password_file"
    return Stores(
        accounts,
        gateway.get(passwords),
        keys,
        key_service.get(passwords),
        gateway.get("redis_url"),
    )


def _fill(layout: Layout, operator: str, signup: str, stores: Stores) -> None:
    pepper = secrets.token_bytes(PEPPER_SIZE)
    key_service_settings = {
        "socket": "keyservice.sock",
        "database": stores.keys,
        "database_password_file": stores.keys_password_file,
        "root_key_file": layout.root_key.name,
    }
    gateway_settings = {
        "key_service_socket": "../keyservice/keyservice.sock",
        "database": stores.accounts,
        "database_password_file": stores.accounts_password_file,
        "pepper_file": layout.pepper.name,
        "operator_digest": Pepper(pepper).digest(operator).hex(),
        "signup": signup,
        "password_costs": LEAST_PASSWORD_COSTS if signup == "open" else None,
        "cookies": "loopback" if signup == "open" else None,
        "mailbox": "../mailbox" if signup == "open" else None,
        "redis_url": stores.redis_url,
    }
    for folder in (layout.key_service, layout.gateway):
        folder.mkdir(mode=0o700)
    _write(layout.root_key, secrets.token_bytes(ROOT_KEY_SIZE), 0o400)
    _write(layout.key_service_settings, _lines(key_service_settings), 0o600)
    _write(layout.pepper, pepper, 0o400)
    _write(layout.gateway_settings, _lines(gateway_settings), 0o600)


def _lines(settings: Mapping[str, object]) -> bytes:
    """Return a settings file; what is None has its default."""
    lines = (f"{name} = {toml(each)}\n" for name, each in settings.items() if each is not None)
    return "".join(lines).encode()


def _discard_half_made(key_service: Path, made: set[str]) -> None:
    """Remove a key service's folder that was moved into place alone, and never held a key."""
    if key_service.is_dir() and {path.name for path in key_service.iterdir()} == made:
        for name in made:
            (key_service / name).unlink()


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
