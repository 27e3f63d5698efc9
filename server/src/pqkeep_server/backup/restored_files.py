"""The files of a restored data directory: settings, root keys, the pepper, a new transfer key.

A restore sets the places of databases and secrets itself, and never keeps settings that load code.
It keeps settings of the service's behaviour. All others name places or peers: ports, mail, payment,
rate limits, files. The operator names the ones to keep, because a copy must not send mail or take
payments by accident.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_protocol.documents import MalformedDocumentError, decode_toml
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.backup.contents import Manifest
from pqkeep_server.backup.databases import ACCOUNTS, Database, keys_of
from pqkeep_server.backup.encrypted_file import BackupFileError
from pqkeep_server.initialise import GATEWAY_SOCKET, Layout
from pqkeep_server.settings_file import Settings, SettingsFileError, edited, root_key_settings

TRANSFER_KEY = "transfer.key"


def settings_to_choose(manifest: Manifest, shards: Iterable[str]) -> Mapping[str, str]:
    """Return the backup's settings of places and peers as text, such as ports and mail servers.

    Raises BackupFileError and SettingsFileError.
    """
    layout = Layout(Path())
    found: dict[str, str] = {}
    for path in (
        layout.gateway_settings,
        *(Layout(Path(), shard).key_service_settings for shard in shards),
        *_optional(layout, manifest, layout.start_settings),
    ):
        found |= choices(_file(layout, manifest, path).decode())
    return found


def is_for_two_users(manifest: Manifest) -> bool:
    """Return True if the backed-up processes ran as two users.

    Raises BackupFileError and SettingsFileError.
    """
    layout = Layout(Path())
    settings = read(_file(layout, manifest, layout.key_service_settings).decode())
    return settings.get("gateway_uid") != "same"


def write_files(
    layout: Layout,
    manifest: Manifest,
    root_keys: Mapping[str, Mapping[int, RootKeySource]],
    databases: Mapping[str, Database],
    keep: Collection[str],
    *,
    gateway_uid: int | str,
) -> None:
    """Write all files. The settings name these databases and have the settings of ``keep``.

    Root keys are by shard and id, databases by the name of their kind. Raises BackupFileError,
    SettingsFileError and OSError.
    """
    for folder in (layout.gateway, layout.run):
        folder.mkdir(mode=0o700)
    transfer_key = secrets.token_bytes(TRANSFER_KEY_SIZE)
    gateway = _gateway_settings(layout, tuple(root_keys), databases[ACCOUNTS.name])
    settings = {layout.gateway_settings: gateway}
    for shard, sources in root_keys.items():
        own = Layout(layout.directory, shard)
        own.key_service.mkdir(mode=0o700)
        settings[own.key_service_settings] = {
            **_database_settings(databases[keys_of(shard).name]),
            **root_key_settings(
                {key_id: _root_key(own, key_id, sources[key_id]) for key_id in sources}
            ),
            "socket": f"../run/{own.socket.name}",
            "operator_socket": f"../run/{own.operator_socket.name}",
            "shard": None if shard == DEFAULT_SHARD else shard,
            "transfer_key_file": TRANSFER_KEY,
            "gateway_uid": gateway_uid,
            "link": None,
        }
        write_atomically(own.key_service / TRANSFER_KEY, transfer_key, 0o400)
    settings |= {path: {} for path in _optional(layout, manifest, layout.start_settings)}
    for path, table in settings.items():
        text = _file(layout, manifest, path).decode()
        write_atomically(path, restored(text, keep, table).encode(), 0o600)
    write_atomically(layout.pepper, _file(layout, manifest, layout.pepper), 0o400)
    for path in _optional(layout, manifest, layout.development_credentials):
        write_atomically(path, _file(layout, manifest, path), 0o600)


def _root_key(layout: Layout, key_id: int, source: RootKeySource) -> Settings:
    """Return a root key's table. A key in a file is copied, others stay where they are."""
    if source.file is None:
        table: Settings = msgspec.to_builtins(source, enc_hook=str)
        return table
    name = f"root-{key_id}.key" if key_id > 1 else "root.key"
    root_key = bytes(read_root_key(source.file).reveal())
    write_atomically(layout.key_service / name, root_key, 0o400)
    return {"file": name}


def _gateway_settings(
    layout: Layout, shards: Sequence[str], database: Database
) -> dict[str, object]:
    of_shards: Settings = {
        shard: {"sockets": [f"../run/{Layout(layout.directory, shard).socket.name}"]}
        for shard in shards
    }
    is_one = len(shards) == 1
    return {
        **_database_settings(database),
        "pepper_file": layout.pepper.name,
        **(GATEWAY_SOCKET if is_one else {"key_service_socket": None}),
        "shards": None if is_one else of_shards,
        "link": None,
    }


def _database_settings(database: Database) -> Settings:
    if database.address.is_on_server:
        file = database.password_file
        return {
            "database": database.address.location,
            "database_password_file": None if file is None else str(file),
        }
    return {"database": database.kind.file, "database_password_file": None}


def _optional(layout: Layout, manifest: Manifest, path: Path) -> tuple[Path, ...]:
    """Return a tuple with the path of a file if it is in the backup, else an empty one."""
    return (path,) if str(path.relative_to(layout.directory)) in manifest.files else ()


def _file(layout: Layout, manifest: Manifest, path: Path) -> bytes:
    name = str(path.relative_to(layout.directory))
    try:
        return manifest.files[name]
    except KeyError:
        raise BackupFileError(f"{name} is missing in the backup") from None


SET = frozenset(
    {
        *("socket", "operator_socket", "gateway_uid", "key_service_socket", "link"),
        *("shard", "shards", "transfer_key_file"),
        *("database", "database_password_file"),
        *("pepper_file", "root_key_file", "root_keys"),
    }
)
"""Settings that the restore writes."""
KEPT = frozenset(
    {
        *("operator_digest", "signup", "password_costs", "api_key_overlap_seconds", "cookies"),
        *(
            "approval_days",
            "session_lifetime_days",
            "default_plan",
            "self_service",
            "slh_dsa",
            "verify_signatures",
            "log_format",
        ),
        *("require_post_quantum", "access_log", "gateways", "valkey_memory_mib"),
        "least_destruction_days",
        *("origin", "witnesses"),  # witnesses must see the restored log under its name
    }
)
"""Settings that are always kept."""
NEVER = frozenset({"openssl_library", "valkey_server", "key_service_environment"})
"""Settings that load code or can name a variable that does."""


def choices(text: str) -> Mapping[str, str]:
    """Return the settings that can be kept or left out, each as text.

    Raises SettingsFileError.
    """
    return {
        name: json.dumps(value, default=str)
        for name, value in read(text).items()
        if name not in SET | KEPT | NEVER
    }


def restored(text: str, keep: Collection[str], settings: Settings) -> str:
    """Return the text of a settings file with the kept settings and those of the restore.

    Raises SettingsFileError.
    """
    left_out = dict.fromkeys(_left_out(text, keep))
    return edited(text, {**left_out, **settings})


def _left_out(text: str, keep: Collection[str]) -> Iterator[str]:
    for name in read(text):
        if name in NEVER or name not in SET | KEPT | set(keep):
            yield name


def read(text: str) -> dict[str, object]:
    """Return the settings in a file. Raises SettingsFileError."""
    try:
        return decode_toml(text, dict[str, object])
    except MalformedDocumentError as error:
        raise SettingsFileError(f"cannot read the settings: {error}") from None
