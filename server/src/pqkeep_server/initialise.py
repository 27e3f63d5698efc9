"""A data directory: the two processes' settings and secrets, each in a folder of its own.

keyservice/  settings.toml  root.key  keys.sqlite3  keyservice.sock
gateway/     settings.toml  pepper  accounts.sqlite3
"""

import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pqkeep_gateway.access.credentials import PEPPER_SIZE, Pepper
from pqkeep_keyservice.storage.sealing import ROOT_KEY_SIZE

_KEY_SERVICE_SETTINGS = """\
socket = "keyservice.sock"
database = "keys.sqlite3"
root_key_file = "root.key"
"""

_GATEWAY_SETTINGS = """\
key_service_socket = "../keyservice/keyservice.sock"
database = "accounts.sqlite3"
pepper_file = "pepper"
operator_digest = "{operator_digest}"
signup = "{signup}"
"""


class InitialiseError(Exception):
    """The data directory cannot be made. The message is for the person who wants it."""


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


def initialise(layout: Layout, operator: str, *, signup: Literal["operator", "open"]) -> None:
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
            _fill(draft, operator, signup)
            _discard_half_made(
                layout.key_service, {path.name for path in draft.key_service.iterdir()}
            )
            draft.key_service.rename(layout.key_service)
            draft.gateway.rename(layout.gateway)
    except OSError as error:
        raise InitialiseError(
            f"cannot make a data directory in {layout.directory}: "
            f"{error.strerror}: {error.filename2 or error.filename}"
        ) from None


def _fill(layout: Layout, operator: str, signup: str) -> None:
    pepper = secrets.token_bytes(PEPPER_SIZE)
    digest = Pepper(pepper).digest(operator).hex()
    gateway_settings = _GATEWAY_SETTINGS.format(operator_digest=digest, signup=signup)
    for folder in (layout.key_service, layout.gateway):
        folder.mkdir(mode=0o700)
    _write(layout.root_key, secrets.token_bytes(ROOT_KEY_SIZE), 0o400)
    _write(layout.key_service_settings, _KEY_SERVICE_SETTINGS.encode(), 0o600)
    _write(layout.pepper, pepper, 0o400)
    _write(layout.gateway_settings, gateway_settings.encode(), 0o600)


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
