"""Gives the key services of this host a new transfer key, while no tenant is between two shards.

Nothing is sealed under the old one then, so that nothing has to be kept of it.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.exit_status import message_of
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.shards import ShardError, ShardMoves


def rotate_transfer_key(layout: Layout) -> Sequence[Path]:
    """Write a new key into the file of each key service here; return the files.

    Interrupted, it leaves different keys, with which no tenant can move: asked for again, it
    writes another one into all of them. Raises ShardError.
    """
    try:
        files = {shard: _file(Layout(layout.directory, shard)) for shard in layout.shards}
        with ShardMoves(layout, lambda _: None).while_nobody_moves():
            key = secrets.token_bytes(TRANSFER_KEY_SIZE)
            for shard, file in files.items():
                with acting_as_owner_of(Layout(layout.directory, shard).key_service):
                    write_atomically(file, key, 0o400, replace=True)
    except (ConfigError, OSError) as error:
        raise ShardError(message_of(error)) from None
    return tuple(files.values())


def _file(shard: Layout) -> Path:
    with acting_as_owner_of(shard.key_service):
        file = key_service_config.read(shard.key_service_settings).transfer_key_file
    if file is None:
        raise ShardError(f"{shard.key_service_settings} has no transfer_key_file")
    return file
