"""A root key in a secret file."""

from pathlib import Path

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError


def read_root_key(path: Path, *, also_owned_by: int | None = None) -> Secret:
    """Read a root key, 32 bytes; see ``read_secret_file``. Raises ConfigError."""
    data = read_secret_file(path, "root key", also_owned_by=also_owned_by)
    if len(data) != ROOT_KEY_SIZE:
        raise ConfigError(f"the root key {path} is not {ROOT_KEY_SIZE} bytes long")
    return Secret(data)
