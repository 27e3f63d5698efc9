"""Reads a root key from a secret file, which can be a credential of the service manager.

For credentials in $CREDENTIALS_DIRECTORY see systemd.exec(5), LoadCredential and
LoadCredentialEncrypted.
"""

import os
from pathlib import Path

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError

DIRECTORY = "CREDENTIALS_DIRECTORY"


def credential_file(name: str) -> Path:
    """Return a credential's file. Raises ConfigError if the process has no credentials."""
    folder = os.environ.get(DIRECTORY)
    if not folder:
        raise ConfigError(
            f"cannot use the credential {name}: ${DIRECTORY} is not set; let the service manager "
            "start the process with this credential"
        )
    return Path(folder) / name


class RootKeyUnavailableError(ConfigError):
    """A root key is unavailable for now: its token or command does not respond."""


def read_root_key(path: Path, *, also_owned_by: int | None = None) -> Secret:
    """Read a root key, 32 bytes; see ``read_secret_file``. Raises ConfigError."""
    data = read_secret_file(path, "root key", also_owned_by=also_owned_by)
    if len(data) != ROOT_KEY_SIZE:
        raise ConfigError(f"the root key {path} is not {ROOT_KEY_SIZE} bytes long")
    return Secret(data)
