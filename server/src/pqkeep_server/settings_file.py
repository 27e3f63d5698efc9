"""Writes and edits settings files; comments and everything else in them stay as they are."""

from collections.abc import Mapping

import tomlkit
from tomlkit.exceptions import TOMLKitError

Settings = Mapping[str, object]
"""Texts, numbers, flags and mappings of these by name; None stands for no setting."""


class SettingsFileError(Exception):
    """A settings file cannot be edited."""


def new_settings(settings: Settings) -> str:
    """Return the text of a settings file; None leaves a setting to its default."""
    return edited("", settings)


def edited(text: str, settings: Settings) -> str:
    """Return a settings file's text with some settings changed; None removes one.

    Raises SettingsFileError where the text is not TOML.
    """
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise SettingsFileError(f"cannot edit the settings: {error}") from None
    for name, value in settings.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, Mapping):
            table = tomlkit.inline_table()
            table.update(value)
            document[name] = table
        else:
            document[name] = value
    return tomlkit.dumps(document)


def root_key_settings(files: Mapping[int, str]) -> Settings:
    """Return the key service's settings for root keys by id."""
    if tuple(files) == (1,):
        return {"root_key_file": files[1], "root_keys": None}
    return {"root_key_file": None, "root_keys": {str(each): file for each, file in files.items()}}
