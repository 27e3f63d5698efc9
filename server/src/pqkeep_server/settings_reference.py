"""Settings files with every line explained, and what ``make docs`` writes into configuration.md.

Names, types and defaults come from the Structs by which the processes read their settings, and
explanations from the docstrings in their source.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, NamedTuple

import msgspec
import tomlkit
from msgspec import Struct
from msgspec.inspect import StructType, Type, type_info

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config
from pqkeep_server import start_settings
from pqkeep_server.settings_file import Settings, new_settings

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
