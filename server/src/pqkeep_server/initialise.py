"""A data directory: the two processes' settings and secrets, each in a folder of its own.

keyservice/  settings.toml  root.key  keys.sqlite3  keyservice.sock
gateway/     settings.toml  pepper  accounts.sqlite3
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pqkeep_gateway.access.credentials import (
    PEPPER_SIZE,
    CredentialKind,
    Pepper,
    new_credential,
)
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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a data directory."""

    directory: Path

    @property
    def key_service_settings(self) -> Path:
        """The key service's settings file."""
        return self.directory / "keyservice" / "settings.toml"

    @property
    def gateway_settings(self) -> Path:
        """The gateway's settings file."""
        return self.directory / "gateway" / "settings.toml"

    @property
    def root_key(self) -> Path:
        """The key that every private key is sealed under."""
        return self.directory / "keyservice" / "root.key"

    @property
    def pepper(self) -> Path:
        """The secret that credentials' digests depend on."""
        return self.directory / "gateway" / "pepper"


def initialise(layout: Layout, *, signup: Literal["operator", "open"]) -> str:
    """Make a data directory's files; return the operator's credential, which is kept nowhere."""
    operator = new_credential(CredentialKind.OPERATOR)
    pepper = secrets.token_bytes(PEPPER_SIZE)
    for folder in (layout.root_key.parent, layout.pepper.parent):
        folder.mkdir(mode=0o700, parents=True)
    _write(layout.root_key, secrets.token_bytes(ROOT_KEY_SIZE), 0o400)
    _write(layout.key_service_settings, _KEY_SERVICE_SETTINGS.encode(), 0o600)
    _write(layout.pepper, pepper, 0o400)
    settings = _GATEWAY_SETTINGS.format(
        operator_digest=Pepper(pepper).digest(operator).hex(), signup=signup
    )
    _write(layout.gateway_settings, settings.encode(), 0o600)
    return operator


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
