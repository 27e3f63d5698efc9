"""Writes and edits settings files. Comments and unchanged settings stay."""

from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Table

from pqkeep_protocol.documents import MalformedDocumentError, decode_toml

Settings = Mapping[str, object]
"""Texts, numbers, flags and mappings of these by name. None means no setting."""


class SettingsFileError(Exception):
    """A settings file cannot be edited."""


def new_settings(settings: Settings) -> str:
    """Return the text of a new settings file. None leaves a setting out."""
    return edited("", settings)


def edited(text: str, settings: Settings) -> str:
    """Return a settings file's text with changed settings. None removes a setting.

    Raises SettingsFileError if the text is not TOML.
    """
    try:
        decode_toml(text, dict[str, Any])
        document = tomlkit.parse(text)
    except (MalformedDocumentError, TOMLKitError) as error:
        raise SettingsFileError(f"cannot edit the settings: {error}") from None
    for name, value in settings.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, Mapping):
            found = document.get(name)
            if isinstance(found, Table | InlineTable):
                _change(found, value)
            else:
                document[name] = _table(value)
        else:
            document[name] = value
    return tomlkit.dumps(document)


def parse_table(text: str) -> Settings:
    """Return the settings in a text. Raises SettingsFileError."""
    try:
        return decode_toml(text, dict[str, Any])
    except MalformedDocumentError as error:
        raise SettingsFileError(f"the settings are not TOML: {error}") from None


def root_key_tables(text: str) -> dict[int, Settings]:
    """Return the tables of a key service's root keys by id, unchanged.

    Raises SettingsFileError.
    """
    settings: dict[str, Any] = dict(parse_table(text))
    if "root_key_file" in settings:
        return {1: {"file": settings["root_key_file"]}}
    return {int(key_id): table for key_id, table in settings.get("root_keys", {}).items()}


def root_key_settings(tables: Mapping[int, Settings]) -> Settings:
    """Return the key service's settings for root keys by id."""
    if tuple(tables) == (1,) and tuple(tables[1]) == ("file",):
        return {"root_key_file": tables[1]["file"], "root_keys": None}
    return {"root_key_file": None, "root_keys": {str(key_id): tables[key_id] for key_id in tables}}


def _change(table: Table | InlineTable, settings: Settings) -> None:
    """Change the settings of a table, without touching equal ones."""
    for name in [name for name in table if name not in settings]:
        del table[name]
    for name, value in settings.items():
        if name not in table or table[name] != value:
            table[name] = value


def _table(settings: Settings) -> Table | InlineTable:
    """Return an inline table, or a table with headings if it contains tables."""
    are_tables = all(isinstance(setting, Mapping) for setting in settings.values())
    table = tomlkit.table(is_super_table=True) if are_tables else tomlkit.inline_table()
    table.update(settings)
    return table
