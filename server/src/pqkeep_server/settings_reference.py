"""What each setting is: docs/configuration.md, and settings files with every line explained.

Both come from the definitions that the processes read their settings by: names, types and defaults
from the Structs, explanations from the docstrings in their source.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, NamedTuple

import msgspec
import tomlkit
from msgspec import Struct
from msgspec.inspect import (
    BoolType,
    CustomType,
    DictType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    UUIDType,
    VarTupleType,
    type_info,
)

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
TITLES: Mapping[str, str] = {
    "gateway": "the gateway",
    "key service": "the key service",
    "start": "`pqkeepd start`",
}
OWNERS: Mapping[str, str] = {
    "gateway": "pqkeep's gateway",
    "key service": "pqkeep's key service",
    "start": "pqkeepd start",
}
INTRODUCTION = """\
# Configuration

<!-- Written by python -m pqkeep_server.settings_reference; a test compares. -->

Each process reads one TOML file, once, when it starts, and so does `pqkeepd start`; `pqkeepd init` writes all three with every setting explained. What is not a setting is refused, with the one that was meant; `pqkeepd config check FILE` says what the process would, and `pqkeepd config check DIR` says it of every file of a data directory, with those of all shards. Databases on PostgreSQL servers are connected to and not changed: what is wrong with one is named with what to do, with status 78, or 75 where a later try may succeed. Settings hold no secret: each secret has a file of its own.

A variable of the environment replaces a setting of the file: `PQKEEP_GATEWAY_PORT=8443`, `PQKEEP_KEYSERVICE_GATEWAY_UID=64001`. Its value is a text or a path as it is, and otherwise TOML: `PQKEEP_GATEWAY_TRUSTED_PROXIES='["10.0.0.0/8"]'`, `PQKEEP_GATEWAY_PASSWORD_COSTS='{passes = 4}'`. With `_FILE` after the name, the variable is the path of a file that holds the value. Variables with these beginnings that are no settings are refused too, so Kubernetes needs `enableServiceLinks: false`. Commands that work on a data directory need the same variables.
"""


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
    """Return a settings file with these settings, and every other one as a comment."""
    form, _ = ROLES[role]
    lines = [f"# Settings of {OWNERS[role]}. docs/configuration.md has them all.", ""]
    for setting in settings_of(form):
        lines += [f"# {line}" for line in wrap(setting.explanation, WIDTH)]
        value = settings.get(setting.name)
        if value is None:
            lines.append(f"#{setting.name} = {_toml(setting.default)}".rstrip())
        else:
            lines.append(new_settings({setting.name: value}).rstrip())
        lines.append("")
    return "\n".join(lines)


def reference() -> str:
    """Return docs/configuration.md."""
    parts = [INTRODUCTION]
    for role, (form, prefix) in ROLES.items():
        parts.append(
            f"## Settings of {TITLES[role]}\n\n{_paragraph(form)} Variables: `{prefix}…`.\n"
        )
        parts.append(_table(form))
        parts.extend(_tables(form))
    return "\n".join(parts)


def _tables(form: type[Struct], within: str = "") -> Iterator[str]:
    """Yield a section for each table in a table, and for those in it."""
    for setting in settings_of(form):
        if table := _struct(setting.type):
            name = f"{within}{setting.name}{_key(setting.type)}"
            heading = f"[[{name}]]" if isinstance(setting.type, VarTupleType) else f"[{name}]"
            yield f"### {heading}\n\n{_paragraph(table)}\n"
            yield _table(table)
            yield from _tables(table, f"{name}.")


def _key(kind: Type) -> str:
    """Return what stands for the names of tables in a table."""
    if not isinstance(kind, DictType):
        return ""
    return ".N" if isinstance(kind.key_type, IntType) else ".NAME"


def _table(form: type[Struct]) -> str:
    lines = ["| setting | type | default | |", "|---|---|---|---|"]
    for name, kind, default, explanation in settings_of(form):
        shown = "required" if default is msgspec.NODEFAULT else _toml(default)
        code = f"`{shown}`" if shown and shown != "required" else shown
        lines.append(f"| `{name}` | {_words(kind)} | {code} | {_cell(explanation)} |")
    return "\n".join(lines) + "\n"


def _paragraph(form: type[Struct]) -> str:
    return _cell(" ".join((inspect.getdoc(form) or "").split()))


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _words(kind: Type) -> str:  # noqa: PLR0911 - one flat table
    match kind:
        case UnionType(types=types):
            return " or ".join(_words(each) for each in types if not isinstance(each, NoneType))
        case LiteralType(values=values):
            return " or ".join(f'`"{value}"`' for value in values)
        case IntType(ge=least, le=most):
            return "integer" if least is None else f"integer, {least} to {most}"
        case BoolType():
            return "`true` or `false`"
        case StrType() | UUIDType():
            return "text"
        case CustomType(cls=cls):
            return {"Path": "path", "DatabaseAddress": "path or address"}.get(cls.__name__, "text")
        case DictType() | StructType():
            return "table"
        case VarTupleType(item_type=StructType()):
            return "list of tables"
        case _:
            return "list"


def _toml(default: object) -> str:
    if default is None or default is msgspec.NODEFAULT:
        return ""
    return str(tomlkit.item(_inline(msgspec.to_builtins(default))).as_string())


def _inline(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _struct(kind: Type) -> type[Struct] | None:
    for each in kind.types if isinstance(kind, UnionType) else (kind,):
        if isinstance(each, DictType):
            return _struct(each.value_type)
        if isinstance(each, VarTupleType):
            return _struct(each.item_type)
        if isinstance(each, StructType):
            return each.cls
    return None


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


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - its result
