"""The key services of one host: one for each shard with a folder in the data directory."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pqkeep_keyservice import config
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.initialise import Layout
from pqkeep_server.programs import Identity, Program

NAME = "key service"


def key_service_programs(layout: Layout, identity: Identity | None) -> Iterator[Program]:
    """Yield the programs of the key services, that of ``default`` first.

    The others run even if one cannot. Raises ConfigError.
    """
    for name in layout.shards:
        settings = Layout(layout.directory, name).key_service_settings
        found = config.read(settings).shard
        if found != name:
            raise ConfigError(
                f"{settings} names the shard {found}, but its folder is that of {name}"
            )
        yield Program(
            NAME if name == DEFAULT_SHARD else f"{NAME} {name}",
            "pqkeep_keyservice",
            (str(settings),),
            identity=identity,
            is_one_of=NAME,
        )


def is_listening(path: Path) -> bool:
    """Return True if a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as peer, suppress(OSError):
        peer.connect(str(path))
        return True
    return False
