"""The files of a restored data directory: settings, root keys and the pepper."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.backup.contents import Manifest
from pqkeep_server.backup.databases import ACCOUNTS, KEYS, Database
from pqkeep_server.backup.encrypted_file import BackupFileError
from pqkeep_server.backup.restored_settings import choices, read, restored
from pqkeep_server.initialise import GATEWAY_SOCKET, KEY_SERVICE_SOCKETS, Layout
from pqkeep_server.settings_file import Settings, root_key_settings


def settings_to_choose(manifest: Manifest) -> Mapping[str, str]:
    """Return the settings of a backup that say where it is and whom it talks to, as shown.

    Raises BackupFileError and SettingsFileError.
    """
    layout = Layout(Path())
    found: dict[str, str] = {}
    for path in (layout.gateway_settings, layout.key_service_settings):
        found |= choices(_file(layout, manifest, path).decode())
    return found


def is_for_two_users(manifest: Manifest) -> bool:
    """Return whether a backup is of an installation whose processes have a user each.

    Raises BackupFileError and SettingsFileError.
    """
    layout = Layout(Path())
    settings = read(_file(layout, manifest, layout.key_service_settings).decode())
    return settings.get("gateway_uid") != "same"


def write_files(
    layout: Layout,
    manifest: Manifest,
    root_keys: Mapping[int, RootKeySource],
    databases: Sequence[Database],
    keep: Collection[str],
    *,
    gateway_uid: int | str,
) -> None:
    """Write all files. The settings name these databases, and have what is to be kept.

    Raises BackupFileError, SettingsFileError and OSError.
    """
    for folder in (layout.key_service, layout.gateway, layout.run):
        folder.mkdir(mode=0o700)
    tables = {each: _root_key(layout, each, source) for each, source in root_keys.items()}
    for path, settings in _settings(layout, tables, databases, gateway_uid).items():
        text = _file(layout, manifest, path).decode()
        write_atomically(path, restored(text, keep, settings).encode(), 0o600)
    write_atomically(layout.pepper, _file(layout, manifest, layout.pepper), 0o400)
    credentials = layout.development_credentials
    if str(credentials.relative_to(layout.directory)) in manifest.files:
        write_atomically(credentials, _file(layout, manifest, credentials), 0o600)


def _root_key(layout: Layout, each: int, source: RootKeySource) -> Settings:
    """Return a root key's table. Of one in a file there is a copy; any other stays where it is."""
    if source.file is None:
        table: Settings = msgspec.to_builtins(source, enc_hook=str)
        return table
    name = f"root-{each}.key" if each > 1 else "root.key"
    root_key = bytes(read_root_key(source.file).reveal())
    write_atomically(layout.key_service / name, root_key, 0o400)
    return {"file": name}


def _settings(
    layout: Layout,
    root_keys: Mapping[int, Settings],
    databases: Sequence[Database],
    gateway_uid: int | str,
) -> dict[Path, Settings]:
    of_database = {each.kind: _database_settings(each) for each in databases}
    return {
        layout.gateway_settings: {
            **of_database[ACCOUNTS],
            "pepper_file": layout.pepper.name,
            **GATEWAY_SOCKET,
            "link": None,
        },
        layout.key_service_settings: {
            **of_database[KEYS],
            **root_key_settings(root_keys),
            **KEY_SERVICE_SOCKETS,
            "gateway_uid": gateway_uid,
            "link": None,
        },
    }


def _database_settings(database: Database) -> Settings:
    if database.address.is_on_server:
        file = database.password_file
        return {
            "database": database.address.location,
            "database_password_file": None if file is None else str(file),
        }
    return {"database": database.kind.file, "database_password_file": None}


def _file(layout: Layout, manifest: Manifest, path: Path) -> bytes:
    name = str(path.relative_to(layout.directory))
    try:
        return manifest.files[name]
    except KeyError:
        raise BackupFileError(f"{name} is missing in it") from None
