"""Tables from other code: modules, settings, metrics, commands."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer
from msgspec import NODEFAULT, Struct
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
)
from tests import threats as marked
from tests.docs.markdown import cell, code, codes, table

from pqkeep.cli import app as client_command
from pqkeep_gateway.management.collection import METRICS
from pqkeep_gateway.tenancy import plans
from pqkeep_keyservice.crypto.key_wrapping import SEED_SIZE
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    ALIASES,
    KEY_PAIRS,
    LEGACY,
    USES,
    Algorithm,
)
from pqkeep_protocol.metrics import BOUNDS
from pqkeep_protocol.public_keys import JWK_ALGORITHM, OBJECT_IDENTIFIER
from pqkeep_server.cli import app as server_command
from pqkeep_server.initialise import ROLES, Setting, settings_of, toml

VARIABLE = frozenset({Algorithm.COMPOSITE_ML_DSA})
"""Algorithms with signatures of varying length."""
ROOT = Path(__file__).parents[2]
DISTRIBUTIONS: Mapping[str, str] = {
    "protocol": "pqkeep_protocol",
    "keyservice": "pqkeep_keyservice",
    "gateway": "pqkeep_gateway",
    "server": "pqkeep_server",
    "sdk": "pqkeep",
}
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
NOT_LISTED = frozenset({"__init__.py", "__main__.py"})
Row = tuple[str, ...]


class _Command(NamedTuple):
    """A command of a program, as typed."""

    usage: str
    summary: str
    options: tuple[str, ...]


def modules() -> str:
    """Return the page of all modules, with layer and first docstring line."""
    sections = [
        "# Modules",
        (
            "Each module with the first line of its docstring. In a package with layers, a module may"
            " import modules of the same package with a higher number only. `make lint` checks that by"
            " the contracts in `pyproject.toml`. A path starts in the `src/` package of a distribution:"
            " `gateway/http/errors.py` is `gateway/src/pqkeep_gateway/http/errors.py`."
        ),
    ]
    layers = _layers()
    for distribution, package in DISTRIBUTIONS.items():
        source = ROOT / distribution / "src" / package
        folders = [source, *sorted(path for path in source.rglob("*") if path.is_dir())]
        for folder in folders:
            found = sorted(set(folder.glob("*.py")) - {folder / name for name in NOT_LISTED})
            if not found or "migrations" in folder.parts:
                continue
            dotted = ".".join((package, *folder.relative_to(source).parts))
            name = "/".join((distribution, *folder.relative_to(source).parts))
            about = _first_line(folder / "__init__.py")
            rows = [
                (_layer(layers, dotted, path.stem), path.name, _first_line(path)) for path in found
            ]
            rows += [
                (
                    _layer(layers, dotted, path.name),
                    f"{path.name}/",
                    _first_line(path / "__init__.py"),
                )
                for path in sorted(folder.iterdir())
                if (path / "__init__.py").exists()
            ]
            listed = (
                (layer, code(module), text) for layer, module, text in sorted(rows, key=_order)
            )
            sections.append(f"## {name}\n\n{about}\n\n{table(('layer', 'module', 'does'), listed)}")
    return "\n\n".join(sections)


def _order(row: Row) -> tuple[int, str]:
    return int(row[0] or 0), row[1]


def _layers() -> Mapping[str, Mapping[str, int]]:
    """Return the layer numbers of each package's modules, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {
        package: {
            module.strip(" ()"): number
            for number, layer in enumerate(contract["layers"], 1)
            for module in layer.replace(":", "|").split("|")
        }
        for contract in contracts["contracts"]
        for package in contract.get("containers", ())
    }


def _layer(layers: Mapping[str, Mapping[str, int]], package: str, module: str) -> str:
    return str(layers.get(package, {}).get(module, ""))


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None
    return cell((text or "").partition("\n\n")[0])


def threats() -> str:
    """Return the page of threats, with the tests that show each."""
    tests = list(marked.marked_tests())
    sections = [
        "# Threats and their tests",
        (
            "Each heading is the name of a threat of [SECURITY.md](../../SECURITY.md). The tests below"
            ' it have this name in their marker `@pytest.mark.threat("…")`.'
        ),
    ]
    for name, attacker in marked.threats().items():
        shown = table(
            ("test", "proves"),
            (
                (code(f"{test.file}::{test.name}"), cell(test.proves))
                for test in tests
                if name in test.threats
            ),
        )
        sections.append(f"## {name}\n\n{attacker}.\n\n{shown}")
    return "\n\n".join(sections)


def log_events() -> str:
    """Return the page of log lines: each event with its level and its fields."""
    sections = [
        "# Log events",
        (
            "A log line has a constant sentence as its `event`, and fields for everything that varies."
            " The level `exception` is `error` with a traceback."
            " [observability.md](../observability.md) says how logs are written."
        ),
    ]
    for distribution in DISTRIBUTIONS:
        source = ROOT / distribution / "src"
        found = {row for path in sorted(source.rglob("*.py")) for row in _events(path)}
        if found:
            rows = (row for row in sorted(found))
            sections.append(
                f"## {distribution}\n\n{table(('event', 'level', 'fields', 'module'), rows)}"
            )
    return "\n\n".join(sections)


def _events(path: Path) -> Iterator[Row]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=level, value=writer), args=[ast.Constant(value=str(event))]
            ) if level in LEVELS and _is_logger(writer):
                names = codes(keyword.arg for keyword in node.keywords if keyword.arg)
                yield (
                    cell(event),
                    level,
                    names,
                    code("/".join(path.parts[path.parts.index("src") + 2 :])),
                )


def _is_logger(writer: ast.expr) -> bool:
    return ast.unparse(writer).lower().rpartition(".")[2].strip("_") in {"log", "entry"}


def commands() -> str:
    """Return the page of both programs' commands and options."""
    sections = [
        "# Commands",
        "Each command with the first paragraph of its `--help`, which also explains the options.",
    ]
    for program, app, about in (
        ("pqkeep", client_command, "The client: see [cli.md](../cli.md)."),
        ("pqkeepd", server_command, "The server: see [operations.md](../operations.md)."),
    ):
        found = list(_commands(typer.main.get_command(app), program))
        online = [set(command.options) for command in found if len(command.options) > 2]
        common = set.intersection(*online) if program == "pqkeep" else set()
        rows = (
            (code(usage), summary, codes(name for name in options if name not in common))
            for usage, summary, options in found
        )
        every = f" Most commands also have {codes(sorted(common), ', ')}." if common else ""
        sections.append(
            f"## {program}\n\n{about}{every}\n\n{table(('command', 'what it does', 'options'), rows)}"
        )
    return "\n\n".join(sections)


def _commands(command: Any, words: str) -> Iterator[_Command]:
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, f"{words} {name}")
        elif not inner.hidden:
            arguments = [
                f" {parameter.metavar or parameter.name.upper()}"
                if parameter.required
                else f" [{parameter.metavar or parameter.name.upper()}]"
                for parameter in inner.params
                if parameter.param_type_name == "argument"
            ]
            options = tuple(
                parameter.opts[0]
                for parameter in inner.params
                if parameter.param_type_name == "option"
            )
            summary = cell((inner.help or "").partition("\n\n")[0])
            yield _Command(f"{words} {name}{''.join(arguments)}", summary, options)


def metrics() -> str:
    """Return every metric."""
    return table(
        ("metric", "kind", "labels", "meaning"),
        (
            (code(metric.name), metric.kind, codes(metric.labels, ", "), cell(metric.text))
            for metric in METRICS
        ),
    )


def histogram_buckets() -> str:
    """Return the upper bounds of the buckets of all histograms."""
    return f"Buckets of all histograms, in seconds: {', '.join(f'{bound:g}' for bound in BOUNDS)}."


def algorithms() -> str:
    """Return every algorithm with its sizes in bytes, and the first tier that includes it."""
    standard = {algorithm: name for name, algorithm in ALIASES.items()}
    terms = plans.read(None)
    return table(
        (
            *("Wire value", "Standard name", "Defined in", "Public key"),
            *("Ciphertext or signature", "Stored private key", "From tier"),
        ),
        (
            (
                code(algorithm),
                standard.get(algorithm, algorithm),
                spec.standard,
                str(spec.public_key_size),
                f"{'at most ' * (algorithm in VARIABLE)}{spec.output_size}",
                str(SEED_SIZE[algorithm]),
                next(tier for tier in terms if algorithm in terms[tier].algorithms),
            )
            for algorithm, spec in ALGORITHMS.items()
            if algorithm in KEY_PAIRS
        ),
    )


def legacy_algorithms() -> str:
    """Return the legacy algorithms with their standards and operations."""
    return table(
        ("Wire value", "Defined in", "Operations with the key"),
        (
            (
                code(algorithm),
                ALGORITHMS[algorithm].standard,
                ", ".join(code(name) for name in sorted(ALGORITHMS[algorithm].operations & USES)),
            )
            for algorithm in LEGACY
        ),
    )


def plan_limits() -> str:
    """Return the limits of each tier."""
    terms = plans.read(None)
    limits = ("pqc_keys", "keyrings", "api_keys", "requests_per_minute", "operations_per_month")
    return table(
        ("limit", *terms),
        ((code(name), *(_number(getattr(terms[tier], name)) for tier in terms)) for name in limits),
    )


def _number(limit: object) -> str:
    return f"{limit:,}" if isinstance(limit, int) else str(limit)


def object_identifiers() -> str:
    """Return the object identifier of each algorithm, and its name in a JWK."""
    return table(
        ("algorithm", "object identifier", "`alg` of the JWK"),
        (
            (
                code(algorithm),
                _dotted(OBJECT_IDENTIFIER[algorithm]),
                code(JWK_ALGORITHM[algorithm]) if algorithm in JWK_ALGORITHM else "",
            )
            for algorithm in KEY_PAIRS
        ),
    )


def _dotted(encoded: bytes) -> str:
    """Return an object identifier as numbers with dots, from DER with tag and length."""
    numbers, value = [], 0
    for octet in encoded[2:]:
        value = value << 7 | octet & 0x7F
        if not octet & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def settings(role: str) -> str:
    """Return a process's settings, with the settings of each table."""
    form, prefix = ROLES[role]
    parts = [f"{_paragraph(form)} Variables: `{prefix}…`.", _settings_table(form)]
    return "\n\n".join([*parts, *_settings_tables(form)])


def _settings_tables(form: type[Struct], within: str = "") -> Iterator[str]:
    for setting in settings_of(form):
        if inner := _table_of(setting.type):
            name = f"{within}{setting.name}{_key(setting.type)}"
            is_list = isinstance(setting.type, VarTupleType)
            heading = f"[[{name}]]" if is_list else f"[{name}]"
            yield f"### {heading}\n\n{_paragraph(inner)}"
            yield _settings_table(inner)
            yield from _settings_tables(inner, f"{name}.")


def _key(kind: Type) -> str:
    """Return the placeholder for table names in a table."""
    if not isinstance(kind, DictType):
        return ""
    return ".N" if isinstance(kind.key_type, IntType) else ".NAME"


def _settings_table(form: type[Struct]) -> str:
    return table(("setting", "type", "default", "meaning"), map(_setting, settings_of(form)))


def _setting(setting: Setting) -> Row:
    shown = "required" if setting.default is NODEFAULT else toml(setting.default)
    default = code(shown) if shown not in {"", "required"} else shown
    return code(setting.name), _words(setting.type), default, cell(setting.explanation)


def _words(kind: Type) -> str:  # noqa: PLR0911 - one flat table
    match kind:
        case UnionType(types=types):
            return " or ".join(_words(one) for one in types if not isinstance(one, NoneType))
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


def _table_of(kind: Type) -> type[Struct] | None:
    """Return the Struct of a setting that is a table, a table of tables, or a list of tables."""
    for one in kind.types if isinstance(kind, UnionType) else (kind,):
        if isinstance(one, DictType):
            return _table_of(one.value_type)
        if isinstance(one, VarTupleType):
            return _table_of(one.item_type)
        if isinstance(one, StructType):
            return one.cls
    return None


def _paragraph(form: type[Struct]) -> str:
    return cell(inspect.getdoc(form) or "")
