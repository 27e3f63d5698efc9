"""Reads root keys from the sources in the settings."""

from collections.abc import Mapping
from pathlib import Path

from pqkeep_keyservice.config import Pkcs11, RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.root_key_sources.command import run_command
from pqkeep_keyservice.root_key_sources.file import credential_file, read_root_key
from pqkeep_keyservice.root_key_sources.token import derive_root_key


def read_root_keys(sources: Mapping[int, RootKeySource]) -> dict[int, Secret]:
    """Return root keys (32 bytes each) by id. Raises ConfigError or RootKeyUnavailableError."""
    return {root_key_id: read(source) for root_key_id, source in sources.items()}


def read(source: RootKeySource) -> Secret:
    """Return one root key. Raises ConfigError or RootKeyUnavailableError."""
    match source:
        case RootKeySource(file=Path() as path):
            return read_root_key(path)
        case RootKeySource(credential=str() as name):
            return read_root_key(credential_file(name))
        case RootKeySource(pkcs11=Pkcs11() as token):
            return derive_root_key(token)
        case _:
            return run_command(source.command or ())
