"""``pqkeepd start``: supervises the processes of a data directory, each as its own user.

On SIGHUP, key services reload their certificates. New shards' key services start, and removed
shards' key services end. The gateways are replaced one by one, with their current settings. A
single gateway with rate limits in memory only reloads its certificates: during a renewal, two
memories would count.
"""

import os
import resource
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.config import Config
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.logs import logger, write_logs
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server import start_settings
from pqkeep_server.data_lock import locked
from pqkeep_server.exit_status import message_of
from pqkeep_server.gateways import (
    ListenError,
    Listeners,
    gateway_programs,
    listening,
    require_shares,
)
from pqkeep_server.initialise import Layout
from pqkeep_server.key_services import NAME as KEY_SERVICE
from pqkeep_server.key_services import key_service_programs
from pqkeep_server.programs import Identity, Program, written
from pqkeep_server.readiness import place_of
from pqkeep_server.start_settings import StartSettings
from pqkeep_server.supervise import Plan, become_supervisor
from pqkeep_server.users import User, Users, UsersError, require_program
from pqkeep_server.valkey import (
    NoValkeyError,
    environment_of,
    find_program,
    new_socket,
    valkey,
)

_LOG = logger(__name__)

FIXED = (
    *("host", "port", "management_address", "redis_url", "redis_password_file", "database"),
    *("redis_sentinel_password_file", "database_password_file", "pepper_file"),
)
"""Gateway settings that a renewal cannot change, because old and new gateways serve side by side on
the same sockets and must see each other's changes."""

_SYSTEM = (
    *("PATH", "LANG", "LANGUAGE", "LC_*", "TZ"),
    *("LD_LIBRARY_PATH", "MALLOC_*", "GLIBC_TUNABLES"),
)
_PYTHON = (
    *("PYTHON*", "OPENSSL_CONF", "OPENSSL_MODULES", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("PG*", "KRB5*"),
)
_GATEWAY = (
    *("PQKEEP_GATEWAY_*", "OTEL_*", "REQUESTS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
_KEY_SERVICE = ("PQKEEP_KEYSERVICE_*", "CREDENTIALS_DIRECTORY", "SOFTHSM2_CONF")
_NEVER = frozenset({"PGPASSWORD"})
"""Both processes would see the variable, so each database has its own password file."""


class StartError(Exception):
    """``pqkeepd start`` cannot run. The message is for the operator."""


def start(layout: Layout) -> None:
    """Become the supervisor of the processes until SIGTERM or SIGINT. Raises StartError."""
    if os.geteuid() != 0:
        raise StartError(
            "pqkeepd start needs root, to run each process as its own user. If a service manager"
            " sets the users, let it run pqkeepd gateway and pqkeepd keyservice. To try pqkeep"
            " without root, run pqkeepd dev"
        )
    try:
        if not layout.is_present:
            raise StartError(f"{layout.directory} has no installation: make one with pqkeepd init")
        require_own(layout)
        with locked(layout.directory) as lock, ExitStack() as stack:
            users = users_of(layout)
            require_program(users)
            chosen = start_settings.read(layout.start_settings)
            settings = gateway_config.read(layout.gateway_settings)
            require_shares(settings, chosen.gateway_count)
            listeners = stack.enter_context(
                listening((settings.host, settings.port), settings.management, chosen.gateway_count)
            )
            programs = tuple(_programs(layout, users, chosen, settings, listeners))
            with suppress(OSError, ValueError):  # a container can forbid it
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
            is_tls = settings.tls_certificate is not None
            places = [place_of(gateway, is_tls=is_tls) for gateway in listeners]
            plan = Plan(
                programs,
                msgspec.json.encode(places).decode(),
                str(layout.directory),
                _fixed(settings),
            )
            sockets = (socket for program in programs for socket in program.pass_fds)
            become_supervisor(plan, (lock, *sockets))
    except BlockingIOError:
        raise StartError(f"another pqkeepd uses the data directory {layout.directory}") from None
    except (ConfigError, ListenError, NoValkeyError, UsersError) as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"cannot start: {message_of(error)}") from None


def require_own(layout: Layout) -> None:
    """Raise StartError if other users can change files that root runs or writes. Raises OSError."""
    for path in filter(Path.exists, (layout.directory, layout.start_settings)):
        status = path.stat()
        if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StartError(
                f"{path} must belong to root, and only root may write to it: chown root {path} &&"
                f" chmod go-w {path}"
            )


def users_of(layout: Layout) -> Users:
    """Return the owners of a data directory's files. Raises the errors that ``start`` catches."""
    gateway, key_service = layout.gateway.stat(), layout.key_service.stat()
    for name in layout.shards:
        shard = Layout(layout.directory, name)
        configured = key_service_config.read(shard.key_service_settings).gateway_uid
        owner = shard.key_service.stat().st_uid
        if configured == "same":
            raise UsersError(
                f"{shard.key_service_settings} is from pqkeepd dev: pqkeepd start needs an installation"
                " from pqkeepd init"
            )
        if configured != gateway.st_uid:
            raise UsersError(
                f"{layout.gateway} belongs to user {gateway.st_uid}, but gateway_uid in"
                f" {shard.key_service_settings} is {configured}"
            )
        if owner != key_service.st_uid:
            raise UsersError(
                f"{shard.key_service} belongs to user {owner}, but {layout.key_service} to"
                f" {key_service.st_uid}: give all key services of a host the same owner"
            )
    return Users(
        User(gateway.st_uid, gateway.st_gid),
        User(key_service.st_uid, key_service.st_gid),
        layout.run.stat().st_gid,
    )


def _programs(
    layout: Layout,
    users: Users,
    chosen: StartSettings,
    settings: Config,
    listeners: Sequence[Listeners],
) -> Iterator[Program]:
    gateway = _identity(users.gateway, users.group, layout.gateway, (*_SYSTEM, *_PYTHON, *_GATEWAY))
    environment: Mapping[str, str] = {}
    if len(listeners) > 1 and settings.redis_url is None:
        program = find_program(chosen.valkey_server)
        path = new_socket(layout.valkey, gateway)
        identity = _identity(users.gateway, users.group, layout.gateway, _SYSTEM)
        yield valkey(program, path, chosen.valkey_memory_mib, identity)
        environment = environment_of(path)
    yield from _key_services(layout, users, chosen)
    yield from gateway_programs(
        layout.gateway_settings,
        listeners,
        gateway,
        environment,
        are_renewed=bool(environment) or settings.redis_url is not None,
    )


def _key_services(layout: Layout, users: Users, chosen: StartSettings) -> Iterator[Program]:
    names = (*_SYSTEM, *_PYTHON, *_KEY_SERVICE, *chosen.key_service_environment)
    identity = _identity(users.key_service, users.group, layout.key_service, names)
    yield from key_service_programs(layout, identity)


def _identity(user: User, group: int, home: Path, names: Collection[str]) -> Identity:
    """Return a user with their home and root's environment variables of these names.

    A ``*`` at the end of a name stands for any characters.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _NEVER and any(fnmatchcase(name, allowed) for allowed in names)
    }
    return Identity(user.uid, user.gid, group, {**environment, "HOME": str(home)})


def main(words: Sequence[str]) -> int:
    """Check the gateways' settings on SIGHUP, and write the list of key services to run.

    Standard input has the start values of the settings that a reload cannot change.
    """
    write_logs("pqkeepd")
    layout = Layout(Path(words[0]))
    try:
        _check(layout, msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, str]))
        chosen = start_settings.read(layout.start_settings)
        require_shares(gateway_config.read(layout.gateway_settings), chosen.gateway_count)
        programs = written(_key_services(layout, users_of(layout), chosen))
    except (ConfigError, UsersError, OSError) as error:
        _LOG.error("the settings are not read again", error=str(error))
        return os.EX_CONFIG
    sys.stdout.buffer.write(msgspec.json.encode({"kind": KEY_SERVICE, "programs": programs}))
    return os.EX_OK


def _fixed(settings: Config) -> Mapping[str, str]:
    return {name: repr(getattr(settings, name)) for name in FIXED}


def _check(layout: Layout, running: Mapping[str, str]) -> None:
    """Raise ConfigError for gateway settings that a renewal cannot change."""
    settings = gateway_config.read(layout.gateway_settings)
    changed = [name for name, value in _fixed(settings).items() if value != running[name]]
    if changed:
        raise ConfigError(f"changed settings need a restart: {', '.join(changed)}")
    gateway_config.check_address(settings, settings.host)
