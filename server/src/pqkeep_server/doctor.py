"""``pqkeepd doctor``: looks at an installation, and says what is wrong with it."""

import http.client
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.peer import peer_of
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.exit_status import message_of
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_check import check_settings
from pqkeep_server.start import users_of
from pqkeep_server.users import UsersError

SECONDS = 10.0
LEAST_FREE = 1 << 30
"""Bytes. A full disk refuses every request."""
GATEWAY, KEY_SERVICE = "gateway", "key service"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Host(NamedTuple):
    """A data directory, and which of the two processes run on it."""

    layout: Layout
    roles: frozenset[str]


def examine(layout: Layout) -> Iterator[tuple[str, list[str]]]:
    """Yield what is looked at, and what is wrong with it."""
    if not any(folder.is_dir() for folder in (layout.gateway, layout.key_service)):
        yield "data directory", [f"{layout.directory} has no installation; pqkeepd init makes one"]
        return
    host = Host(layout, _roles(layout))
    for subject, (roles, check) in CHECKS.items():
        if not roles <= host.roles:
            continue
        try:
            problems = list(check(host))
        except (ConfigError, UsersError, OSError, http.client.HTTPException) as error:
            problems = [message_of(error)]
        yield subject, problems


def _roles(layout: Layout) -> frozenset[str]:
    """Return which processes run here, as the settings say; both where they cannot be read.

    Where there are two hosts, a folder of the other process can be here too: as init made it, or
    with what a backup needs.
    """
    try:
        gateway = gateway_config.read(layout.gateway_settings) if layout.gateway.exists() else None
        key_service = (
            key_service_config.read(layout.key_service_settings)
            if layout.key_service.exists()
            else None
        )
    except ConfigError:
        return frozenset({GATEWAY, KEY_SERVICE})
    has_link = key_service is not None and key_service.link is not None
    here = {
        GATEWAY: key_service is None or key_service.socket is not None,
        KEY_SERVICE: gateway is None or gateway.has_local_key_service or has_link,
    }
    return frozenset(role for role, runs in here.items() if runs)


def _settings(host: Host) -> Iterator[str]:
    files = {
        GATEWAY: host.layout.gateway_settings,
        KEY_SERVICE: host.layout.key_service_settings,
    }
    for role in sorted(host.roles):
        link = check_settings(files[role]).link
        if link is not None and link.expires_soon:
            yield (
                f"{files[role]}: the link's certificate expires soon: {link.days_left} days are left"
            )
    if KEY_SERVICE in host.roles:
        settings = key_service_config.read(files[KEY_SERVICE])
        if settings.operator_socket is None:
            yield f"{files[KEY_SERVICE]} has no operator_socket: no root key can be changed"


def _users(host: Host) -> Iterator[str]:
    users_of(host.layout)
    yield from ()


def _files(host: Host) -> Iterator[str]:
    layout = host.layout
    for folder in filter(Path.exists, (layout.gateway, layout.key_service)):
        owner = folder.stat().st_uid
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            if status.st_uid != owner:
                yield f"{path} belongs to user {status.st_uid}, and its folder to {owner}"
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                yield f"other users have access to {path}: chmod go= {path}"
    if KEY_SERVICE in host.roles and layout.run.stat().st_uid != layout.key_service.stat().st_uid:
        yield f"{layout.run} must belong to the key service's user"
    for path in filter(Path.exists, (layout.directory, layout.run)):
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield f"other users can change {path}: chmod go-w {path}"


def _space(host: Host) -> Iterator[str]:
    directory = host.layout.directory
    free = shutil.disk_usage(directory).free
    if free < LEAST_FREE:
        yield f"{directory} has {free >> 20} MiB left; when it is full, all is refused"


def _key_service(host: Host) -> Iterator[str]:
    layout = host.layout
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
        pid, uid = peer_of(peer)
    if uid != layout.key_service.stat().st_uid:
        yield f"the key service runs as user {uid}, who does not own {layout.key_service}"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if status.get("NoNewPrivs") != ["1"]:
        yield "the key service can gain privileges"
    if status.get("VmLck", ["0"])[0] == "0":
        yield "the key service's memory is not locked: raise its limit (LimitMEMLOCK=infinity)"


def _gateway(host: Host) -> Iterator[str]:
    address = gateway_config.read(host.layout.gateway_settings).management
    if address is None:
        return
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    try:
        try:
            connection.connect()
        except OSError as error:
            name, port = address
            yield f"the gateway does not answer at {name} port {port}: {message_of(error)}"
            return
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            yield f"the gateway is not ready: {answer.read(1000).decode(errors='replace').strip()}"
    finally:
        connection.close()


CHECKS: Mapping[str, tuple[frozenset[str], Callable[[Host], Iterator[str]]]] = {
    "settings": (frozenset(), _settings),
    "users": (frozenset({GATEWAY, KEY_SERVICE}), _users),
    "files": (frozenset(), _files),
    "space": (frozenset(), _space),
    KEY_SERVICE: (frozenset({KEY_SERVICE}), _key_service),
    GATEWAY: (frozenset({GATEWAY}), _gateway),
}
"""What is looked at, where which processes run."""
