"""A data directory: the settings and secrets of the two processes, in one folder each.

start.toml   what pqkeepd start runs, where init made the directory
keyservice/  settings.toml  root.key  transfer.key  keys.sqlite3 (empty)
gateway/     settings.toml  pepper  accounts.sqlite3 (empty)
run/         keyservice.sock, for the gateway; operator.sock, for the operator's commands
keyservice-NAME/  the same as keyservice/, of another shard; its sockets are in run/, too
valkey/      valkey.sock, where several gateways have a Valkey of their own
mailbox/     messages that would be sent, where the installation is one for development
"""

import ast
import inspect
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, NamedTuple

import msgspec
import tomlkit
from msgspec import Struct
from msgspec.inspect import StructType, Type, type_info

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import PEPPER_SIZE, Pepper
from pqkeep_gateway.access.entitlements import Plan
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_server import start_settings
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.settings_file import Settings, new_settings
from pqkeep_server.users import Users, give_to

ACCOUNTS_FILE = "accounts.sqlite3"
KEYS_FILE = "keys.sqlite3"
START_FILE = "start.toml"
KEY_SERVICE_SOCKETS: Settings = {
    "socket": "../run/keyservice.sock",
    "operator_socket": "../run/operator.sock",
}
"""Names of the shard ``default``. Those of other shards end with the shard's name."""
GATEWAY_SOCKET: Settings = {"key_service_socket": "../run/keyservice.sock"}
DEVELOPMENT: Settings = {
    "password_costs": {"memory_kib": 19 * 1024, "passes": 2, "lanes": 1},
    "cookies": "loopback",
    "self_service": True,
    "mailbox": "../mailbox",
    "transit": True,
}
"""Gateway settings for development, with the lowest allowed password costs."""
KEY_SERVICE_DEVELOPMENT: Settings = {"least_destruction_days": 0}
"""Key service settings for development: private keys are destroyed at once."""


PLAN = Plan.ENTERPRISE_PLUS
"""The plan of new tenants: a company that hosts for itself sells no plans."""
_OTHER_SHARD = "keyservice-"
_DRAFT = ".new-"
_OWN = (_DRAFT, "keyservice", "run", START_FILE, f".{START_FILE}.", "lost+found")
"""Beginnings of names from interrupted runs and of a new file system."""


class InitialiseError(Exception):
    """The data directory cannot be made. The message is for the operator."""


class NoInstallationError(Exception):
    """The directory has no installation. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The places of an installation's databases and rate limits."""

    accounts: str = ACCOUNTS_FILE
    """A file in the gateway's folder, or a postgresql:// address."""
    accounts_password_file: str | None = None
    keys: str = KEYS_FILE
    """A file in the key service's folder, or a postgresql:// address."""
    keys_password_file: str | None = None
    redis_url: str | None = None
    """A redis:// address, or None for the gateway's memory."""


IN_FILES = Stores()


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths in a data directory."""

    directory: Path
    shard: str = DEFAULT_SHARD
    """The shard of the key service."""

    @property
    def key_service(self) -> Path:
        """The key service's folder."""
        return self.directory / f"keyservice{self._suffix}"

    @property
    def gateway(self) -> Path:
        """The gateway's folder."""
        return self.directory / "gateway"

    @property
    def run(self) -> Path:
        """The folder of the key service's sockets."""
        return self.directory / "run"

    @property
    def socket(self) -> Path:
        """The key service's socket for the gateway."""
        return self.run / f"keyservice{self._suffix}.sock"

    @property
    def operator_socket(self) -> Path:
        """The key service's socket for the operator's commands."""
        return self.run / f"operator{self._suffix}.sock"

    @property
    def valkey(self) -> Path:
        """The folder of the gateways' own Valkey."""
        return self.directory / "valkey"

    @property
    def start_settings(self) -> Path:
        """The settings file of pqkeepd start. It may be missing."""
        return self.directory / START_FILE

    @property
    def key_service_settings(self) -> Path:
        """The key service's settings file."""
        return self.key_service / "settings.toml"

    @property
    def removed_settings(self) -> Path:
        """The key service's settings file after its shard was removed."""
        return self.key_service / "settings.removed.toml"

    @property
    def gateway_settings(self) -> Path:
        """The gateway's settings file. It exists once the directory is complete."""
        return self.gateway / "settings.toml"

    @property
    def root_key(self) -> Path:
        """The key that seals every private key."""
        return self.key_service / "root.key"

    @property
    def transfer_key(self) -> Path:
        """The key that seals tenants' keys while they move to another shard."""
        return self.key_service / "transfer.key"

    @property
    def key_services(self) -> tuple[Path, ...]:
        """The settings files of all key services on this host."""
        return tuple(sorted(self.directory.glob("keyservice*/settings.toml")))

    @property
    def is_present(self) -> bool:
        """True if the folder of a process exists."""
        return self.gateway.is_dir() or self.key_service.is_dir()

    @property
    def pepper(self) -> Path:
        """The key of credential digests."""
        return self.gateway / "pepper"

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards with a folder here, ``default`` first."""
        others = (
            path.parent.name.removeprefix(_OTHER_SHARD)
            for path in self.directory.glob(f"{_OTHER_SHARD}*/settings.toml")
        )
        return (DEFAULT_SHARD, *sorted(others))

    @property
    def _suffix(self) -> str:
        return "" if self.shard == DEFAULT_SHARD else f"-{self.shard}"

    @property
    def development_credentials(self) -> Path:
        """The credentials that pqkeepd dev keeps."""
        return self.directory / "dev.json"


def initialise(
    layout: Layout,
    operator: str,
    *,
    signup: Literal["operator", "open"],
    stores: Stores = IN_FILES,
    users: Users | None = None,
    default_plan: Plan = PLAN,
) -> None:
    """Make the files of a data directory, with the digest of the operator's credential.

    Open sign-up is for development. With ``users``, each process's user owns its files, and the
    settings files explain every line. Without, one user runs both processes. Files are made in a
    temporary folder and moved into place, the gateway's last. The next run completes an interrupted
    one. Nothing is overwritten or removed. Raises InitialiseError.
    """
    if layout.gateway.exists():
        raise InitialiseError(
            f"{layout.gateway} exists already: name a directory that is empty or does not exist"
        )
    if users is not None:
        _require_own(layout)
    try:
        layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=layout.directory) as temporary:
            draft = Layout(Path(temporary))
            _write_files(draft, operator, signup, stores, users, default_plan)
            for database in (
                gateway_config.read(draft.gateway_settings).database,
                key_service_config.read(draft.key_service_settings).database,
            ):
                if not database.is_on_server:  # the process does not create the file
                    Path(database.location).touch(0o600)
            layout.run.mkdir(mode=0o700, exist_ok=True)
            if users is not None:
                if not layout.start_settings.exists():
                    write_atomically(layout.start_settings, explained("start", {}).encode(), 0o600)
                give_to(users, draft.gateway, draft.key_service, layout.run)
                layout.directory.chmod(0o711)
            if not _is_begun(layout, draft):
                draft.key_service.rename(layout.key_service)
            draft.gateway.rename(layout.gateway)
    except ConfigError as error:
        raise InitialiseError(str(error)) from None
    except OSError as error:
        raise InitialiseError(
            f"cannot make a data directory in {layout.directory}: "
            f"{error.strerror}: {error.filename2 or error.filename}"
        ) from None


def require_installation(layout: Layout) -> None:
    """Raise NoInstallationError if a data directory has no folder of a process."""
    if not layout.is_present:
        raise NoInstallationError(
            f"{layout.directory} has no installation: make one with pqkeepd init"
        )


def has_stores(layout: Layout, stores: Stores) -> bool:
    """Return True if an installation uses these stores. Raises InitialiseError."""
    try:
        gateway = gateway_config.read(layout.gateway_settings)
        key_service = key_service_config.read(layout.key_service_settings)
        accounts = DatabaseAddress(stores.accounts, layout.gateway.resolve())
        keys = DatabaseAddress(stores.keys, layout.key_service.resolve())
    except (ConfigError, ValueError) as error:
        raise InitialiseError(str(error)) from None
    return (
        gateway.database == accounts
        and key_service.database == keys
        and gateway.redis_url == stores.redis_url
    )


def _write_files(
    layout: Layout,
    operator: str,
    signup: str,
    stores: Stores,
    users: Users | None,
    default_plan: Plan,
) -> None:
    pepper = secrets.token_bytes(PEPPER_SIZE)
    key_service_settings: Settings = {
        **KEY_SERVICE_SOCKETS,
        "gateway_uid": "same" if users is None else users.gateway.uid,
        "database": stores.keys,
        "database_password_file": stores.keys_password_file,
        **(KEY_SERVICE_DEVELOPMENT if signup == "open" else {}),
    }
    gateway_settings: Settings = {
        **GATEWAY_SOCKET,
        "database": stores.accounts,
        "database_password_file": stores.accounts_password_file,
        "pepper_file": layout.pepper.name,
        "operator_digest": Pepper(pepper).digest(operator).hex(),
        "signup": signup,
        "redis_url": stores.redis_url,
        "default_plan": None if users is None else default_plan.value,
        **(DEVELOPMENT if signup == "open" else {}),
    }
    is_explained = users is not None
    text = (
        explained("gateway", gateway_settings) if is_explained else new_settings(gateway_settings)
    )
    write_key_service(
        layout,
        key_service_settings,
        secrets.token_bytes(TRANSFER_KEY_SIZE),
        is_explained=is_explained,
    )
    layout.gateway.mkdir(mode=0o700)
    write_atomically(layout.pepper, pepper, 0o400)
    write_atomically(layout.gateway_settings, text.encode(), 0o600)


def write_key_service(
    layout: Layout, settings: Settings, transfer_key: bytes, *, is_explained: bool
) -> None:
    """Make a key service's folder: its settings, a new root key and the transfer key.

    Raises OSError.
    """
    files = {
        "root_key_file": layout.root_key.name,
        "transfer_key_file": layout.transfer_key.name,
    }
    whole = {**settings, **files}
    text = explained("key service", whole) if is_explained else new_settings(whole)
    layout.key_service.mkdir(mode=0o700)
    write_atomically(layout.root_key, secrets.token_bytes(ROOT_KEY_SIZE), 0o400)
    write_atomically(layout.transfer_key, transfer_key, 0o400)
    write_atomically(layout.key_service_settings, text.encode(), 0o600)


def _require_own(layout: Layout) -> None:
    """Raise InitialiseError if the directory has other files, because its mode is changed."""
    try:
        names = [path.name for path in layout.directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    others = sorted(name for name in names if not name.startswith(_OWN))
    if others:
        raise InitialiseError(
            f"{layout.directory} has other files, such as {others[0]}: name a new or an empty"
            " directory"
        )


def _is_begun(layout: Layout, draft: Layout) -> bool:
    """Return True if an interrupted run left the same folder, ignoring its keys.

    These keys are kept: private keys on a server may be sealed under the root key.
    """
    return layout.key_service.is_dir() and _files(layout) == _files(draft)


def _files(layout: Layout) -> dict[str, bytes]:
    """Return the files of the key service's folder. Files of keys have no content here."""
    secret_files = (layout.root_key, layout.transfer_key)
    return {
        path.name: b"" if path in secret_files else path.read_bytes()
        for path in layout.key_service.iterdir()
    }


WIDTH = 98
ROLES: Mapping[str, tuple[type[Struct], str]] = {
    "gateway": (gateway_config.Config, gateway_config.PREFIX),
    "key service": (key_service_config.Config, key_service_config.PREFIX),
    "start": (start_settings.StartSettings, start_settings.PREFIX),
}
OWNERS: Mapping[str, str] = {
    "gateway": "pqkeep's gateway",
    "key service": "pqkeep's key service",
    "start": "pqkeepd start",
}


class Setting(NamedTuple):
    """One setting."""

    name: str
    type: Type
    default: object
    """msgspec.NODEFAULT: it is required."""
    explanation: str


def settings_of(form: type[Struct]) -> Iterator[Setting]:
    """Yield the settings of a Struct, as they are defined."""
    explanations = _explanations(form)
    info = type_info(form)
    for field in info.fields if isinstance(info, StructType) else ():
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield Setting(field.name, field.type, default, explanations.get(field.name, ""))


def explained(role: str, settings: Settings) -> str:
    """Return a settings file with these settings. All other settings are comments."""
    form, _ = ROLES[role]
    lines = [f"# Settings of {OWNERS[role]}. docs/configuration.md has them all.", ""]
    for setting in settings_of(form):
        lines += [f"# {line}" for line in wrap(setting.explanation, WIDTH)]
        value = settings.get(setting.name)
        if value is None:
            lines.append(f"#{setting.name} = {toml(setting.default)}".rstrip())
        else:
            lines.append(new_settings({setting.name: value}).rstrip())
        lines.append("")
    return "\n".join(lines)


def toml(default: object) -> str:
    """Return a setting's default as TOML, or an empty text."""
    if default is None or default is msgspec.NODEFAULT:
        return ""
    return str(tomlkit.item(_inline(msgspec.to_builtins(default))).as_string())


def _inline(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _explanations(form: type[Struct]) -> dict[str, str]:
    """Return the text below each field in a Struct's source."""
    (definition,) = ast.parse(inspect.getsource(form)).body
    found: dict[str, str] = {}
    name = ""
    for statement in definition.body if isinstance(definition, ast.ClassDef) else ():
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Expr(value=ast.Constant(value=str() as text)) if name:
                found[name] = " ".join(text.split())
            case _:
                name = ""
    return found
