"""``pqkeepd doctor``: checks an installation and reports problems."""

import asyncio
import hmac
import http.client
import os
import pwd
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.http.tls_server import TlsServer, certificate_problem
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_protocol.audit import WitnessProblem, WitnessState
from pqkeep_protocol.commits import IN_WORDS
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.link import peer_of
from pqkeep_protocol.startup.secret_files import SecretFileAccessError, read_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.dev_directory import read_credentials
from pqkeep_server.exit_status import message_of
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import (
    KeyServiceError,
    StandbyError,
    list_witnesses,
    require_response,
)
from pqkeep_server.key_services import is_listening
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.progress import counted
from pqkeep_server.readiness import Place, ask
from pqkeep_server.settings_check import UnreachableError, check_database, check_settings
from pqkeep_server.shards import ShardError, ShardMoves
from pqkeep_server.start import users_of
from pqkeep_server.users import UsersError, require_program

SECONDS = 10.0
LEAST_FREE = 1 << 30
"""The least free space in bytes. A full disk refuses every request."""
GATEWAY, KEY_SERVICE = "gateway", "key service"
LOST = frozenset({"key_service", "keys_database", "shard_settings", "audit_log"})
"""Parts that a ready gateway can lack, so that requests get 503."""
RATE_LIMITS = "rate_limits"
"""The gateway's name for the server of the rate limits."""
CLOCK = "clock"
"""The gateway's name for a clock difference with a key service."""
CLOCK_SECONDS = 5.0
"""Seconds by which clocks may differ."""
SOON_DAYS = 14
"""Days before its expiry when a certificate is reported."""
FAILURES = (ConfigError, UsersError, OSError, http.client.HTTPException, ImportError)
"""Exceptions of checks. ImportError means that the process's user cannot read a library."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Host(NamedTuple):
    """A data directory and the processes that run on it."""

    layout: Layout
    roles: frozenset[str]


class Note(str):
    """A fact to report that is not a problem."""

    __slots__ = ()


def examine(layout: Layout) -> Iterator[tuple[str, list[str]]]:
    """Yield each subject with its problems and notes."""
    try:
        owner = _owner_of_what_is_closed(layout)
        is_present = owner is not None or layout.is_present
    except OSError as error:  # of a folder above it
        yield "data directory", [message_of(error)]
        return
    if owner is not None:
        yield "user", [f"you cannot read {layout.directory}: run doctor as {owner}"]
        return
    if not is_present:
        yield "data directory", [f"{layout.directory} has no installation; pqkeepd init makes one"]
        return
    host = Host(layout, _roles(layout))
    for subject, (roles, check) in CHECKS.items():
        if not roles <= host.roles:
            continue
        try:
            problems = list(check(host))
        except FAILURES as error:
            problems = [message_of(error)]
        yield subject, problems


def _owner_of_what_is_closed(layout: Layout) -> str | None:
    """Return the owner of a folder that the caller cannot read, or None."""
    if layout.directory.exists() and not os.access(layout.directory, os.X_OK, effective_ids=True):
        return _user_name(layout.directory.stat().st_uid)
    folders = [folder for folder in (layout.gateway, layout.key_service) if folder.exists()]
    if all(os.access(folder, os.R_OK | os.X_OK, effective_ids=True) for folder in folders):
        return None
    owners = {folder.stat().st_uid for folder in folders}
    return "root" if len(owners) > 1 else _user_name(owners.pop())


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"


def _roles(layout: Layout) -> frozenset[str]:
    """Return the processes of this host, by the settings; both if they cannot be read.

    With two hosts, the folder of the other process can be here, too: from init, or for backups.
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
    files = [host.layout.gateway_settings] if GATEWAY in host.roles else []
    if KEY_SERVICE in host.roles:
        files += [shard.key_service_settings for shard in _shards(host)]
    for file in files:
        link = check_settings(file).link
        if link is not None and link.expires_soon:
            yield f"{file}: the link's certificate expires in {link.days_left} days: renew it"
    for shard in _shards(host) if KEY_SERVICE in host.roles else ():
        settings = key_service_config.read(shard.key_service_settings)
        if settings.operator_socket is None:
            yield (
                f"{shard.key_service_settings} has no operator_socket: set one to change the root key"
                " and to move tenants"
            )
        if settings.shard != shard.shard:
            yield (
                f"{shard.key_service_settings} names the shard {settings.shard}, but its folder is"
                f" that of {shard.shard}: correct the setting"
            )
        yield from _root_keys(shard, settings)


def _databases(host: Host) -> Iterator[str]:
    """Yield the problems of databases on servers."""
    files = [host.layout.gateway_settings] if GATEWAY in host.roles else []
    if KEY_SERVICE in host.roles:
        files += [shard.key_service_settings for shard in _shards(host)]
    for file in files:
        try:
            check_database(file)
        except (ConfigError, UnreachableError) as error:
            yield str(error)


def _root_keys(shard: Layout, settings: key_service_config.Config) -> Iterator[str]:
    """Yield the problems of root keys in files. Only the key service reads other sources."""
    from pqkeep_server.epoch_holders import root_key_check_values  # noqa: PLC0415 - slow

    owner = shard.key_service.stat().st_uid
    stored: Mapping[int, bytes] = {}
    with suppress(ConfigError):  # another check reports the database
        stored = root_key_check_values(shard)
    for number, source in settings.root_key_sources.items():
        if source.file is None:
            continue
        try:
            root_key = read_root_key(source.file, also_owned_by=owner)
        except SecretFileAccessError as error:
            yield str(error)
            continue
        except ConfigError as error:
            yield f"{error}. {_rescue(shard, settings)}"
            continue
        if number in stored and not Sealer({number: root_key}).matches(number, stored[number]):
            yield (
                f"the root key {source.file} is not the one that seals the private keys."
                f" {_rescue(shard, settings)}"
            )


def _rescue(shard: Layout, settings: key_service_config.Config) -> str:
    """Return what to do about a lost or wrong root key's file."""
    path = settings.operator_socket
    if path is not None and is_listening(path):
        of_shard = "" if shard.shard == DEFAULT_SHARD else f" --shard {shard.shard}"
        return (
            "The running key service has the root key in memory: do not stop it."
            f" Run pqkeepd root-key rotate --data {shard.directory}{of_shard} to seal every private"
            " key under a new root key, then make a new backup"
        )
    return "The key service cannot start: restore the copy of the root key from its safe place"


def _shards(host: Host) -> list[Layout]:
    return [Layout(host.layout.directory, name) for name in host.layout.shards]


def _users(host: Host) -> Iterator[str]:
    users = users_of(host.layout)
    if os.geteuid() == 0:
        require_program(users)
    yield from ()


def _files(host: Host) -> Iterator[str]:
    layout = host.layout
    key_services = (shard.key_service for shard in _shards(host))
    for folder in filter(Path.exists, (layout.gateway, *key_services)):
        owner = folder.stat().st_uid
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            if status.st_uid != owner:
                yield (
                    f"{path} belongs to user {status.st_uid}, but its folder to {owner}:"
                    f" chown {owner} {path}"
                )
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                yield f"other users have access to {path}: chmod go= {path}"
    if KEY_SERVICE in host.roles and layout.run.stat().st_uid != layout.key_service.stat().st_uid:
        yield f"{layout.run} must belong to the key service's user: change its owner"
    for path in filter(Path.exists, (layout.directory, layout.run)):
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield f"other users can change {path}: chmod go-w {path}"


def _space(host: Host) -> Iterator[str]:
    directory = host.layout.directory
    free = shutil.disk_usage(directory).free
    if free < LEAST_FREE:
        yield f"{directory} has only {free >> 20} MiB left: a full disk refuses every request"


def _key_services(host: Host) -> Iterator[str]:
    for shard in _shards(host):
        yield from _key_service(shard)
        yield from _epoch(shard)


def _key_service(layout: Layout) -> Iterator[str]:
    path = key_service_config.read(layout.key_service_settings).operator_socket
    if path is None:
        return
    its = "the key service"
    if layout.shard != DEFAULT_SHARD:
        its += f" of the shard {layout.shard}"
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(SECONDS)
        try:
            peer.connect(str(path))
        except OSError as error:
            yield f"{its} does not respond at {path.resolve()}: {message_of(error)}"
            return
        pid, uid = peer_of(peer)
    try:
        require_response(path)
        with suppress(StandbyError):
            yield from map(_witness_problem, filter(_has_problem, list_witnesses(path)))
    except KeyServiceError as error:
        yield str(error).replace("the key service", its, 1)
    if uid != layout.key_service.stat().st_uid:
        yield f"{its} runs as user {uid}, who does not own {layout.key_service}"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if status.get("NoNewPrivs") != ["1"]:
        yield f"{its} can gain privileges: start it with NoNewPrivileges"
    if status.get("VmLck", ["0"])[0] == "0":
        yield (
            f"the memory of {its} is not locked, so keys may be written to swap: start it with an"
            " infinite memlock limit (LimitMEMLOCK=infinity in a unit, ulimit -l unlimited before"
            " pqkeepd start). If ulimit refuses, raise the hard limit for root in"
            " /etc/security/limits.conf, or start the container with --ulimit memlock=-1. If the"
            " limit cannot be raised, turn swap off (swapoff -a)"
        )


def _has_problem(witness: WitnessState) -> bool:
    return witness.problem is not None


def _witness_problem(witness: WitnessState) -> str:
    name, origin = witness.name, witness.origin
    match witness.problem:
        case WitnessProblem.CONFLICT:
            return (
                f"the witness {name} has cosigned another history of the audit log {origin}: records"
                " were lost or replaced, for instance by a restore. See docs/audit.md"
            )
        case WitnessProblem.UNKNOWN_LOG:
            return f"the witness {name} does not know the log {origin}: have it added there"
        case WitnessProblem.UNKNOWN_KEY:
            return (
                f"the witness {name} does not know the key of the log {origin}: have the note_key of"
                " GET /api/v1/audit/keys added there. After a restore the log has a new key"
            )
        case problem:
            return f"the witness {name} does not cosign the audit log: {problem}"


def _epoch(shard: Layout) -> Iterator[str]:
    from pqkeep_server.epoch_holders import epoch_holder  # noqa: PLC0415 - slow

    try:
        holder = epoch_holder(shard)
    except ConfigError as error:
        yield str(error)
        return
    if holder is not None:
        yield Note(holder) if holder.silent is None else str(holder)


def _clocks(host: Host) -> Iterator[str]:
    """Yield the differences between the clocks of database servers and this host."""
    from pqkeep_server.epoch_holders import seconds_ahead  # noqa: PLC0415 - slow

    layout = host.layout
    folders: list[tuple[Path, key_service_config.Config | gateway_config.Config]] = []
    if GATEWAY in host.roles:
        folders.append((layout.gateway, gateway_config.read(layout.gateway_settings)))
    if KEY_SERVICE in host.roles:
        folders += [
            (shard.key_service, key_service_config.read(shard.key_service_settings))
            for shard in _shards(host)
        ]
    for folder, settings in folders:
        if not settings.database.is_on_server:
            continue
        with acting_as_owner_of(folder):
            ahead = seconds_ahead(settings.database, settings.database_password_file)
        if abs(ahead) > CLOCK_SECONDS:
            which = "ahead of" if ahead > 0 else "behind"
            yield (
                f"the clock of the server of {settings.database.location} is {abs(ahead):.0f} s"
                f" {which} this host's: correct the wrong one (chronyd or systemd-timesyncd)"
            )


def _gateway(host: Host) -> Iterator[str]:
    address = _management(host.layout)
    if address is None:
        return
    try:
        told = ask(Place(*address), SECONDS)
    except OSError as error:
        name, port = address
        yield f"the gateway does not respond at {name} port {port}: {message_of(error)}"
        return
    yield from (f"the gateway is not ready: {reason}" for reason in told.said(told.reasons))
    yield from (told.causes.get(name, name) for name in told.degraded if name == CLOCK)
    if (cause := told.causes.get(RATE_LIMITS)) is not None and RATE_LIMITS in told.degraded:
        yield f"each gateway enforces its share of the rate limits: {cause}"
    lost = [name for name in told.degraded if name.partition(":")[0] in LOST]
    yield from (f"requests get 503: {reason}" for reason in told.said(lost))


def _refused_events(host: Host) -> Iterator[str]:
    from pqkeep_gateway.wiring import list_refused_events  # noqa: PLC0415 - slow

    with acting_as_owner_of(host.layout.gateway):
        settings = gateway_config.read(host.layout.gateway_settings)
        try:
            found = asyncio.run(list_refused_events(settings))
        except UnavailableError as error:
            yield f"the accounts database cannot be read: {IN_WORDS[error.problem]}"
            return
    if found:
        directory = host.layout.directory
        yield (
            f"the audit log refused {counted(len(found), 'event')}: list them with pqkeepd"
            f" refused-events --data {directory}, then run it with --acknowledge"
        )


def _rate_limits(host: Host) -> Iterator[str]:
    from pqkeep_gateway.wiring import list_rate_limit_problems  # noqa: PLC0415 - slow

    with acting_as_owner_of(host.layout.gateway):
        settings = gateway_config.read(host.layout.gateway_settings)
        yield from asyncio.run(list_rate_limit_problems(settings))


def _tenants(host: Host) -> Iterator[str]:
    """Yield the tenants with changed requirements of second factors or approvals."""
    from pqkeep_gateway.wiring import list_forged_tenants  # noqa: PLC0415 - slow

    with acting_as_owner_of(host.layout.gateway):
        settings = gateway_config.read(host.layout.gateway_settings)
        try:
            forged = asyncio.run(list_forged_tenants(settings))
        except UnavailableError:
            return  # another check reports the database
    yield from (
        f"the row of the tenant {tenant} was not written by a gateway: it now requires second factors"
        " and approvals. Find out who changed the accounts database"
        for tenant in forged
    )


def _certificate(host: Host) -> Iterator[str]:
    """Yield why clients refuse the gateway's certificate, or will soon."""
    settings = gateway_config.read(host.layout.gateway_settings)
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return
    urls = (settings.public_url, settings.portal_url)
    names: list[str | None] = [urlsplit(url).hostname for url in urls if url is not None]
    with acting_as_owner_of(host.layout.gateway):
        for name in names or [None]:
            if (problem := certificate_problem(certificate, key, name)) is not None:
                yield f"clients refuse the certificate {certificate}: {problem}"
                return
        tls = TlsServer(certificate, key, require_post_quantum=False)
    days = int((tls.expires - time.time()) // 86400)
    if days < SOON_DAYS:
        yield f"{certificate} expires in {counted(days, 'day')}: renew it"


def _management(layout: Layout) -> tuple[str, int] | None:
    """Return the gateway's management address. pqkeepd dev uses another port each time."""
    if not layout.development_credentials.exists():
        return gateway_config.read(layout.gateway_settings).management
    url = urlsplit(read_credentials(layout.development_credentials).management_url)
    return None if url.hostname is None or url.port is None else (url.hostname, url.port)


def _placements(host: Host) -> Iterator[str]:
    """Yield the problems of all shards together: keys, settings, tenants and moves."""
    layout, shards = host.layout, _shards(host)
    gateway = gateway_config.read(layout.gateway_settings)
    yield from _rows(gateway, shards)
    if len(gateway.key_services) > 1 or len(shards) > 1:
        yield from _transfer_keys(shards)
    try:
        found = ShardMoves(layout, lambda _: None).list()
    except ShardError as error:
        yield str(error)
        return
    for shard in found:
        name, tenants = shard.stored.name, shard.stored.tenants
        if tenants and name not in gateway.key_services:
            yield (
                f"the gateway's settings do not name the shard {name}, so requests of"
                f" {counted(tenants, 'tenant')} get 503: add the shard"
            )
        if waiting := max(shard.stored.moving, shard.unfinished or 0):
            yield (
                f"{counted(waiting, 'move')} away from the shard {name} not finished: run pqkeepd shard"
                " move again for each"
            )


def _rows(gateway: gateway_config.Config, shards: Iterable[Layout]) -> Iterator[str]:
    """Yield the differences between the gateway's settings and the key services here."""
    here = {shard.shard: shard for shard in shards}
    for name, named in gateway.key_services.items():
        if named.sockets and name not in here:
            yield f"the gateway's settings name the shard {name}, but its folder is missing here"
    for name, shard in here.items():
        served = key_service_config.read(shard.key_service_settings).socket
        row = gateway.key_services.get(name)
        if row is None:
            yield f"{shard.key_service} exists, but the gateway's settings do not name the shard"
        elif served is not None and row.sockets and served not in row.sockets:
            yield f"the gateway's settings name another socket of the shard {name} than {served}"


def _transfer_keys(shards: Iterable[Layout]) -> Iterator[str]:
    """Yield the shards with a missing or different transfer key. No key leaves this function."""
    first: bytes | None = None
    for shard in shards:
        file = key_service_config.read(shard.key_service_settings).transfer_key_file
        if file is None:
            yield (
                f"{shard.key_service_settings} has no transfer_key_file: set one to move tenants to or"
                " from the shard"
            )
            continue
        owner = shard.key_service.stat().st_uid
        key = read_secret_file(file, "transfer key", also_owned_by=owner)
        first = first or key
        if not hmac.compare_digest(first, key):
            yield (
                f"{file} differs from the transfer key of the other shards: run pqkeepd transfer-key"
                " rotate, or copy the right key"
            )


CHECKS: Mapping[str, tuple[frozenset[str], Callable[[Host], Iterator[str]]]] = {
    "settings": (frozenset(), _settings),
    "users": (frozenset({GATEWAY, KEY_SERVICE}), _users),
    "files": (frozenset(), _files),
    "space": (frozenset(), _space),
    "databases": (frozenset(), _databases),
    KEY_SERVICE: (frozenset({KEY_SERVICE}), _key_services),
    GATEWAY: (frozenset({GATEWAY}), _gateway),
    "rate limits": (frozenset({GATEWAY}), _rate_limits),
    "clocks": (frozenset(), _clocks),
    "certificate": (frozenset({GATEWAY}), _certificate),
    "audit events": (frozenset({GATEWAY}), _refused_events),
    "tenants": (frozenset({GATEWAY}), _tenants),
    "shards": (frozenset({GATEWAY, KEY_SERVICE}), _placements),
}
"""The checks, by subject, with the processes that they need on this host."""
