"""``pqkeepd doctor``: looks at an installation, and says what is wrong with it."""

import http.client
import shutil
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.exit_status import message_of
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_check import check_settings
from pqkeep_server.start import users_of
from pqkeep_server.users import UsersError

SECONDS = 10.0
LEAST_FREE = 1 << 30
"""Bytes. A full disk refuses every request."""
_UCRED = struct.Struct("=iII")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def examine(layout: Layout) -> Iterator[tuple[str, list[str]]]:
    """Yield what is looked at, and what is wrong with it."""
    for subject, check in CHECKS.items():
        try:
            problems = list(check(layout))
        except (ConfigError, UsersError, OSError, http.client.HTTPException) as error:
            problems = [message_of(error)]
        yield subject, problems


def _settings(layout: Layout) -> Iterator[str]:
    for file in (layout.gateway_settings, layout.key_service_settings):
        link = check_settings(file).link
        if link is not None and link.expires_soon:
            yield f"{file}: the link's certificate expires soon: {link.days_left} days are left"
    settings = key_service_config.read(layout.key_service_settings)
    if settings.operator_socket is None:
        yield f"{layout.key_service_settings} has no operator_socket: no root key can be changed"


def _users(layout: Layout) -> Iterator[str]:
    users_of(layout)
    yield from ()


def _files(layout: Layout) -> Iterator[str]:
    for folder in (layout.gateway, layout.key_service):
        owner = folder.stat().st_uid
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            if status.st_uid != owner:
                yield f"{path} belongs to user {status.st_uid}, and its folder to {owner}"
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                yield f"other users have access to {path}: chmod go= {path}"
    if layout.run.stat().st_uid != layout.key_service.stat().st_uid:
        yield f"{layout.run} must belong to the key service's user"
    for path in (layout.directory, layout.run):
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield f"other users can change {path}: chmod go-w {path}"


def _space(layout: Layout) -> Iterator[str]:
    free = shutil.disk_usage(layout.directory).free
    if free < LEAST_FREE:
        yield f"{layout.directory} has {free >> 20} MiB left; when it is full, all is refused"


def _key_service(layout: Layout) -> Iterator[str]:
    path = key_service_config.read(layout.key_service_settings).operator_socket
    if path is None:
        return
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(SECONDS)
        try:
            peer.connect(str(path))
        except OSError as error:
            yield f"the key service does not answer at {path.resolve()}: {message_of(error)}"
            return
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    if uid != layout.key_service.stat().st_uid:
        yield f"the key service runs as user {uid}, who does not own {layout.key_service}"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if status.get("NoNewPrivs") != ["1"]:
        yield "the key service can gain privileges"
    if status.get("VmLck", ["0"])[0] == "0":
        yield "the key service's memory is not locked: raise its limit (LimitMEMLOCK=infinity)"


def _gateway(layout: Layout) -> Iterator[str]:
    address = gateway_config.read(layout.gateway_settings).management
    if address is None:
        return
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    try:
        try:
            connection.connect()
        except OSError as error:
            host, port = address
            yield f"the gateway does not answer at {host} port {port}: {message_of(error)}"
            return
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            yield f"the gateway is not ready: {answer.read(1000).decode(errors='replace').strip()}"
    finally:
        connection.close()


CHECKS: Mapping[str, Callable[[Layout], Iterator[str]]] = {
    "settings": _settings,
    "users": _users,
    "files": _files,
    "space": _space,
    "key service": _key_service,
    "gateway": _gateway,
}
