"""Checks a settings file without starting its process."""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import read_pepper
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.link import Identity, LinkTls
from pqkeep_protocol.link import Role as LinkRole
from pqkeep_protocol.startup.postgresql import (
    OWN_CODE,
    is_permanent,
    problem_with,
    require_no_code,
    require_version,
)
from pqkeep_protocol.startup.secret_files import (
    password_file_of,
    read_secret_file,
    read_secret_text,
)
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress, read_toml
from pqkeep_server import start_settings
from pqkeep_server.initialise import START_FILE, Layout
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.valkey import NoValkeyError, find_program

DATABASE_SECONDS = 10.0


class Role(NamedTuple):
    """One kind of settings."""

    name: str
    form: type[Struct]
    read: Callable[[Path], Any]
    end: LinkRole | None
    """The end of the link between hosts, or None."""


ROLES = (
    Role("gateway", gateway_config.Config, gateway_config.read, LinkRole.GATEWAY),
    Role("key service", key_service_config.Config, key_service_config.read, LinkRole.KEY_SERVICE),
    Role("supervisor", start_settings.StartSettings, start_settings.read, None),
)


class UnreachableError(Exception):
    """A database does not respond or is read-only now. A later try may succeed."""


class Checked(NamedTuple):
    """Valid settings of a process."""

    role: str
    link: LinkTls | None
    """The end of the link between hosts, or None."""


def settings_files(path: Path) -> Sequence[Path]:
    """Return the settings files of a data directory, or the file itself. Raises ConfigError."""
    if not path.is_dir():
        return (path,)
    layout = Layout(path)
    files = (layout.start_settings, layout.gateway_settings, *layout.key_services)
    found = tuple(filter(Path.exists, files))
    if not found:
        raise ConfigError(f"{path} has no settings: name a settings file or a data directory")
    return found


def check_settings(file: Path) -> Checked:
    """Check a settings file and return its role. Raises ConfigError as the process would.

    Certificates and their keys are read with the rights of the settings' owner. Raises OSError, too.
    """
    role = _role_of(file)
    settings = role.read(file)
    link = None if role.end is None else settings.link
    if isinstance(settings, gateway_config.Config):
        gateway_config.check_address(settings, settings.host)
    try:
        with acting_as_owner_of(file.resolve().parent):
            if isinstance(settings, gateway_config.Config):
                _check_certificate(settings)
            if link is None or role.end is None:
                return Checked(role.name, None)
            identity = Identity(
                role.end, link.certificate, link.key, link.ca, link.require_post_quantum
            )
            return Checked(role.name, LinkTls(identity))
    except ImportError as error:  # Python loads some of its library when it is first used
        raise ConfigError(
            f"the owner of {file} cannot read {error.name} of Python's library: install Python where"
            " every user may read it, not in root's home directory"
        ) from None


def check_files(file: Path) -> None:
    """Read the files that settings name, with the rights of the settings' owner.

    Raises ConfigError, which names each setting with an unusable file and the reason.
    """
    from pqkeep_gateway.tenancy import cedar, plans  # noqa: PLC0415 - slow
    from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE  # noqa: PLC0415 - slow
    from pqkeep_keyservice.root_key_sources.file import read_root_key  # noqa: PLC0415 - slow

    readers: Mapping[str, Callable[[Path], object]] = {
        "audit_sink_ca_file": _read_authorities,
        "ca_file": _read_authorities,
        "database_password_file": _read_password_file,
        "file": read_root_key,
        "library": _require_regular,
        "pepper_file": read_pepper,
        "plans_file": plans.read,
        "root_key_file": read_root_key,
        "transfer_key_file": partial(_read_transfer_key, size=TRANSFER_KEY_SIZE),
        "valkey_server": find_program,
    }
    settings = _role_of(file).read(file)
    problems: list[str] = []
    with acting_as_owner_of(file.resolve().parent):
        for name, path in _named_files(settings):
            field = name.rpartition(".")[-1]
            read = readers.get(field, partial(read_secret_text, what="secret"))
            if field in readers or field.endswith(_SECRET):
                try:
                    read(path)
                except (ConfigError, NoValkeyError, OSError) as error:
                    problems.append(f"{name}: {error}")
        if isinstance(settings, gateway_config.Config) and not problems:
            cedar.build(plans.read(settings.plans_file), settings.policy_directory)
    if problems:
        raise ConfigError(f"{file}: {'; '.join(problems)}")


_SECRET = "_file"  # noqa: S105 - the end of a setting's name


def _named_files(settings: object, table: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the settings with a path, also those of tables."""
    if isinstance(settings, Struct):
        for name in settings.__struct_fields__:
            yield from _named_files(getattr(settings, name), f"{table}.{name}" if table else name)
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _named_files(value, f"{table}.{name}")
    elif isinstance(settings, tuple):
        for value in settings:
            yield from _named_files(value, table)
    elif isinstance(settings, Path):
        yield table, settings


def _read_authorities(path: Path) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ConfigError(f"cannot use {path}: {error.reason or 'it has no certificate'}") from None
    except OSError as error:
        raise ConfigError(f"cannot use {path}: {error.strerror}") from None


def _read_password_file(path: Path) -> None:
    if not read_secret_file(path, "PostgreSQL password").strip():
        raise ConfigError(f"the PostgreSQL password {path} is empty")


def _read_transfer_key(path: Path, size: int) -> None:
    if len(read_secret_file(path, "transfer key")) != size:
        raise ConfigError(f"the transfer key {path} is not {size} bytes long")


def _require_regular(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")


def check_database(file: Path) -> None:
    """Connect to the settings' database on a server as the process would, without a change.

    Raises ConfigError if it cannot be used, and UnreachableError if a later try may succeed.
    """
    settings = _role_of(file).read(file)
    if isinstance(settings, start_settings.StartSettings) or not settings.database.is_on_server:
        return
    with acting_as_owner_of(file.resolve().parent):
        asyncio.run(_require_usable(settings.database, settings.database_password_file))


async def _require_usable(database: DatabaseAddress, password_file: Path | None) -> None:
    import asyncpg  # noqa: PLC0415 - slow

    location = database.location
    if password_file is not None:
        password_file = password_file_of(password_file, "PostgreSQL password")
    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            connection = await asyncpg.connect(
                location, passfile=password_file, target_session_attrs="read-write"
            )
            try:
                version = connection.get_server_version()
                own_code = await connection.fetchval(OWN_CODE)
                without_right = await connection.fetchval(_WITHOUT_RIGHT)
            finally:
                connection.terminate()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        problem = problem_with(error, location)
        raise (ConfigError if is_permanent(error) else UnreachableError)(problem) from None
    require_version((version.major, version.minor), location)
    require_no_code(own_code, location)
    if without_right is not None:
        raise ConfigError(
            f"the database {location}: the role may not write {without_right}: make the role the owner"
            " of the database and its tables (ALTER DATABASE and ALTER TABLE … OWNER TO)"
        )


_WITHOUT_RIGHT = """
    SELECT coalesce(
        (SELECT 'the table ' || relname FROM pg_class
         WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND NOT (
            has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
            AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
         ORDER BY relname LIMIT 1),
        CASE WHEN coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) THEN NULL
         ELSE 'the schema ' || coalesce(current_schema(), 'public') END)
"""
"""The first table or schema that the role cannot write, or NULL."""


def _check_certificate(settings: gateway_config.Config) -> None:
    if settings.tls_certificate is not None and settings.tls_key is not None:
        TlsServer(
            settings.tls_certificate,
            settings.tls_key,
            require_post_quantum=settings.require_post_quantum,
        )


def _role_of(file: Path) -> Role:
    """Return the role with the most settings of a file."""
    names = read_toml(file).keys()
    if file.name == START_FILE:
        return ROLES[-1]
    known = [len(names & set(role.form.__struct_fields__)) for role in ROLES]
    if known.count(max(known)) > 1:
        raise ConfigError(
            f"{file} has no settings of the gateway, the key service or pqkeepd start: name another"
            " file"
        )
    return ROLES[known.index(max(known))]
