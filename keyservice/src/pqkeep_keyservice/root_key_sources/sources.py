"""Reads root keys from wherever the settings say they are."""

from collections.abc import Mapping
from pathlib import Path

from pqkeep_keyservice.config import Pkcs11, RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.root_key_sources.command import run_command
from pqkeep_keyservice.root_key_sources.file import credential_file, read_root_key
from pqkeep_keyservice.root_key_sources.token import derive_root_key


def read_root_keys(sources: Mapping[int, RootKeySource]) -> dict[int, Secret]:
    """Read root keys (32 bytes each) by their ids. Raises ConfigError, RootKeyUnavailableError too."""
    return {each: read(source) for each, source in sources.items()}


def read(source: RootKeySource) -> Secret:
    """Read one root key. Raises ConfigError, RootKeyUnavailableError too."""
    match source:
        case RootKeySource(file=Path() as path):
            return read_root_key(path)
        case RootKeySource(credential=str() as name):
            return read_root_key(credential_file(name))
        case RootKeySource(pkcs11=Pkcs11() as token):
            return derive_root_key(token)
        case _:
            return run_command(source.command or ())
