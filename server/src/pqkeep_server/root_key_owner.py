"""Reads root keys as the user to whom the key service belongs.

A token's library and a root key command are code that this user has chosen: root must not run it.
"""

from collections.abc import Mapping
from pathlib import Path

from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_keyservice.root_key_sources.sources import read
from pqkeep_server.owner import run_as_owner_of


def read_root_keys(sources: Mapping[int, RootKeySource], owned: Path) -> dict[int, Secret]:
    """Read root keys as the owner of a file or folder. Raises ConfigError."""
    user = owned.stat().st_uid

    def read_one(source: RootKeySource) -> Secret:
        if source.file is not None:
            return read_root_key(source.file, also_owned_by=user)
        return Secret(run_as_owner_of(owned, lambda: bytes(read(source).reveal())))

    return {each: read_one(source) for each, source in sources.items()}
